"""The bed of `micro/grant`: it knows every lease, and its bench measures every row that has a bound."""

from __future__ import annotations

import pytest
from tests.benches import bench_module

from penstock.bench import BenchRun, load_benches


def test_a_quick_run_of_the_grant_bench_has_all_rows_and_each_grant_plans_turns_once() -> None:
    run = BenchRun(quick=True)
    found = load_benches()["micro/grant"]
    found.function(run)
    assert set(run.rows) == {row.name for row in found.expected}
    assert run.rows["schedules_per_grant"] == 1
    assert run.rows["header_reads_per_grant"] <= 2


@pytest.mark.parametrize(("partitions", "backlog"), [(1, None), (3, None), (1, 2_000)])
def test_the_bed_and_the_engine_agree_on_who_holds_a_grant_and_where_readers_stand(
    partitions: int, backlog: int | None
) -> None:
    bed = bench_module("micro.grant").Bed(9, partitions, backlog)
    had = set()
    for _ in range(30):
        bed.granted()
        key, _ends_s = bed.running
        had.add(key)
        assert list(bed.engine.leases.held) == [key]
        for reader in bed.engine.members.readers.values():
            assert reader.counted == bed.offsets[reader.id]
    assert had == set(bed.offsets)


def test_a_question_in_vain_changes_nobody_s_grant() -> None:
    bed = bench_module("micro.grant").Bed(9)
    running = bed.running
    for key in bed.offsets.keys() - {running[0]}:
        bed.asked_in_vain(key)
    assert bed.running == running
    assert bed.engine.questions.open.keys() == bed.offsets.keys() - {running[0]}
