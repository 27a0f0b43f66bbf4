"""A query's counts, sums and averages by window as estimates with intervals, from the rows that were kept."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as every Spark program has it

from penstock.cql.estimating import Estimated, estimated
from penstock.cql.plan import Query
from penstock.cql.spark.feeds import Feeds, leaf_rows
from penstock.cql.spark.members import Members
from penstock.cql.spark.text import TIME
from penstock.cql.spark.windows import micros, window_columns
from penstock.log.protocol import ESTIMATE
from penstock.spark.estimate import estimate

WINDOW = "_window"


def estimates_of(query: Query, feeds: Feeds) -> DataFrame:
    """A query's results by window: each aggregate with `_low` and `_high`, `sic` and `interval`.

    Args:
        query: What to compute.
        feeds: Gives the stream, whose rows keep `penstock.ESTIMATE`.

    Raises:
        CqlError: It is not of a form that can be estimated; see `penstock.cql.estimating`.
    """
    wanted = estimated(query)
    window = wanted.window.window
    rows = leaf_rows(wanted.window.input, feeds, Members())
    sliding = F.window(TIME, micros(window.size), micros(window.slide or window.size)).alias(WINDOW)
    rows = rows.select(sliding, *(column.name for column in wanted.window.columns), *ESTIMATE)
    functions = sorted(set(wanted.aggregates.values()))
    made = estimate(rows, wanted.value, [WINDOW, *wanted.keys.values()], functions)  # type: ignore[arg-type]
    return made.select(*window_columns(WINDOW), *_named(wanted), "sic", "interval")


def _named(wanted: Estimated) -> list[Column]:
    columns = []
    for name in wanted.names:
        if name in wanted.keys:
            columns.append(F.col(wanted.keys[name]).alias(name))
            continue
        function = wanted.aggregates[name]
        columns.append(F.col(function).alias(name))
        columns += [F.col(f"{function}_{side}").alias(f"{name}_{side}") for side in ("low", "high")]
    return columns
