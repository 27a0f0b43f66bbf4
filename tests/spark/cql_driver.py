"""A driver that is killed: runs a query of CQL over streams in a folder, and goes on where another ended."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.cql.brute import US
from tests.cql.cases import QN_LONG, meant
from tests.spark.cql_streams import BASE, UNTIL, random_streams, tables

from penstock.cql.spark.bounded import bounded
from penstock.spark.session import session

SEED, MOST, BATCHES = 7, 60, 20


def main(folder: Path) -> None:
    spark = session(app="cql-driver", master="local[2]", memory="1g", log_level="FATAL")
    query = meant(QN_LONG)
    with bounded(
        spark, tables(random_streams(SEED, MOST), query.plan), 2, BATCHES, (UNTIL + BASE) * US, folder
    ) as run:
        run.answer(query, "relation")
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
