"""`spark/drop-cost`: what a dropped row costs beside one that is processed."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from penstock.bench import BenchRun, bench
from penstock.calibration.capacity import Start
from penstock.grants.offset import Books, Offset
from penstock.grants.plans import SCALE, KeyPlan, SamplePlan, ShedPlan
from penstock.grants.selection import select, split_among_tasks
from penstock.spark.source.tasks import ReadTask, read_task
from penstock.streams.opening import open_stream
from penstock.streams.paced.stream import create_paced
from penstock.streams.producing.schedule import schedule_constant

from .rig import SEGMENT_ROWS, Rig, median, pool_rows, start_light, start_noop


@bench("drop-cost", title="a dropped row's cost / a processed row's, by whole segments and inside one")
def drop_cost(run: BenchRun) -> None:
    repeats = max(3, run.times(5))
    processed: dict[Start, list[float]] = {}
    with Rig() as rig:
        run.progress("warming up", total=3)
        for start, name in ((start_noop, "a processed row"), (start_light, "one of a light query")):
            rig.start = start
            rig.warm_up(15.0)
            rig.measure_target()
            run.progress(name, advance=1)
            processed[start] = [1.0 / rig.capacity().rows_per_s for _ in range(repeats)]
        run.progress("dropped rows", advance=1)
        by_segment = [
            _drop_s(rig.filled, SamplePlan("segment", segment_keep=0, seed=i)) for i in range(repeats)
        ]
        inside = [
            _drop_s(rig.filled, SamplePlan("row", row_keep=SCALE // 1000, seed=i)) for i in range(repeats)
        ]
        keyed = _keyed(rig.new("keyed"))
        by_key = [_drop_s(keyed, KeyPlan(key_keep=1, seed=i)) for i in range(repeats)]
    heavy_s, light_s = (median(processed[start]) for start in (start_noop, start_light))
    run.row("segment_drop_cost", median(by_segment) / heavy_s)
    run.row("inside_drop_cost", median(inside) / heavy_s)
    run.row("inside_drop_cost_light", median(inside) / light_s)
    run.row("key_drop_cost", median(by_key) / heavy_s)
    run.note(
        f"processed {heavy_s * 1e6:.2f} us a row, {light_s * 1e6:.2f} by a light query, both on all cores; "
        f"dropped {median(by_segment) * 1e9:.2f} ns by segment, {median(inside) * 1e9:.1f} inside, "
        f"{median(by_key) * 1e9:.1f} by key (nearly all different, one bucket of 64 kept), on one core: "
        "planning and reading of four million rows, as the source does it"
    )


def _keyed(directory: Path, rows: int = 4_000_000) -> Path:
    """A filled stream whose keys are nearly all different."""
    keys = np.random.default_rng(1).integers(0, 10**9, 65_536)
    pool = [batch.set_column(1, "k", pa.array(keys)) for batch in pool_rows()]
    log = create_paced(
        directory, pool, schedule_constant(1e6, rows / 1e6, SEGMENT_ROWS), key="k", event_time="ts"
    )
    log.begin(time.time() - log.seconds - 1)
    return directory


def _drop_s(stream: Path, plan: ShedPlan, rows: int = 4_000_000) -> float:
    """Seconds a row that a source spends on rows it drops: choosing, counting, opening, masking."""
    log = open_stream(stream)
    began = time.perf_counter()
    offset = Offset("bench", {0: 0}, {0: rows}, 1, {}, plan, Books())
    shares = split_among_tasks(select(log, offset), 0, 2, 20_000)
    for share in shares:
        for _ in read_task(ReadTask(str(stream), plan, share, (), 1.0, 1.0)):
            pass
    return (time.perf_counter() - began) / rows
