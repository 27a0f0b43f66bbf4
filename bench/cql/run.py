"""CQL on Spark: whether answers are right, and what many queries cost."""

from __future__ import annotations

import os
from pathlib import Path

from penstock.bench import BenchRun, bench
from penstock.cql.spark.conformance import cases_in, run_case
from penstock.errors import InvalidInputError
from penstock.spark.session import session

from .many import many

PARTITIONS = (1, 4)
BATCHES = 10
QUERIES = Path(__file__).parent / "queries"
FOLDER = "stream-cql"


@bench("conformance", title="the cases of STREAM, tuple by tuple, in ten micro-batches or more")
def conformance(run: BenchRun) -> None:
    cases = cases_in(_data(), QUERIES)
    run.progress("starting Spark", total=len(cases) * len(PARTITIONS))
    spark = session(app="bench", log_level="FATAL")
    wrong = passed = 0
    fewest = None
    try:
        for case in cases:
            of_case = 0
            for partitions in PARTITIONS:
                run.progress(f"{case.name}, {partitions} partitions", advance=1)
                verdict = run_case(spark, case, partitions, BATCHES)
                of_case += verdict.wrong
                fewest = min(verdict.batches, fewest or verdict.batches)
                run.note(
                    f"{case.name}, {partitions} partitions: {verdict.tuples:,} tuples in {verdict.batches} "
                    f"micro-batches, {verdict.wrong:,} wrong"
                )
            wrong, passed = wrong + of_case, passed + (of_case == 0)
    finally:
        spark.stop()
    run.row("cases_passed", passed)
    run.row("wrong_tuples", wrong)
    run.row("fewest_batches", fewest or 0)


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
