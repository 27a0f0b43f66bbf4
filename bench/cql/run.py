"""CQL on Spark: whether answers are right, and what many queries cost."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from penstock.bench import BenchRun, bench
from penstock.spark.session import session
from penstock.vocabulary.errors import InvalidInputError

from .conformance import Verdict, cases_in, run_case
from .further import completed
from .many import many

PARTITIONS = (1, 4)
BATCHES = 10
QUERIES = Path(__file__).parent / "queries"
FOLDER = "stream-cql"


@bench("conformance", title="the cases of STREAM, tuple by tuple, in ten micro-batches or more")
def conformance(run: BenchRun) -> None:
    folder = Path(tempfile.mkdtemp(prefix="penstock-cases-"))
    cases = [completed(case, folder) for case in cases_in(_data(), QUERIES)]
    run.progress("starting Spark", total=len(cases) * len(PARTITIONS))
    spark = session(app="bench", log_level="FATAL")
    verdicts: list[Verdict] = []
    try:
        for case in cases:
            for partitions in PARTITIONS:
                run.progress(f"{case.name}, {partitions} partitions", advance=1)
                verdicts.append(run_case(spark, case, partitions, BATCHES))
                run.note(_noted(verdicts[-1]))
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)
    failed = {verdict.case for verdict in verdicts if not verdict.passed}
    run.row("cases_passed", len(cases) - len(failed))
    run.row("wrong_tuples", sum(verdict.wrong for verdict in verdicts))
    run.row("refused", sum(bool(verdict.refused) for verdict in verdicts))
    run.row("beyond_the_end", sum(verdict.at_end.total() for verdict in verdicts))
    run.row("fewest_batches", min(verdict.batches for verdict in verdicts))


def _noted(verdict: Verdict) -> str:
    which = f"{verdict.case}, {verdict.partitions} partitions"
    if verdict.refused:
        return f"{which}: refused: {verdict.refused}"
    told = f"{which}: {verdict.tuples:,} tuples in {verdict.batches} micro-batches, {verdict.wrong:,} wrong"
    return told + (
        f", {verdict.at_end.total():,} at the end that STREAM does not give" if verdict.at_end else ""
    )


@bench("many", title="10, 100 and 1,000 queries of one shape, as a family and each by itself")
def many_queries(run: BenchRun) -> None:
    many(run)


def _data() -> Path:
    """The folder with the cases' data: in that of PENSTOCK_DATA, or in a data folder beside the checkout."""
    beside = Path(__file__).resolve().parents[3] / "shared" / "data"
    folder = Path(os.environ.get("PENSTOCK_DATA") or beside) / FOLDER
    if not folder.is_dir():
        raise InvalidInputError(
            f"the cases of STREAM lie in {FOLDER} of a data folder", f"none at {folder}", "set PENSTOCK_DATA"
        )
    return folder
