"""A query's counts, sums and averages by window as estimates with intervals, from the rows that were kept."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as every Spark program has it

from penstock.cql.analysis.estimating import INTERVAL, PARTS, Estimated, estimated
from penstock.cql.analysis.windowing import SIC
from penstock.cql.meaning.plan import Query
from penstock.spark.cql.feeds import Feeds, leaf_rows
from penstock.spark.cql.members import Members
from penstock.spark.cql.text import TIME
from penstock.spark.cql.windows import kept_column, micros, window_columns
from penstock.spark.estimate import NEEDED, estimate

WINDOW = "_window"


def estimates_of(query: Query, feeds: Feeds) -> DataFrame:
    """A query's results by window: each aggregate with its error, low and high, `sic` and `interval`.

    If the feed has `_kept`, there is a column `sic`, the same as for windows without estimates.

    Args:
        query: The query to compute.
        feeds: Gives the stream, which must keep `penstock.ESTIMATE`.

    Raises:
        CqlError: The query has no form that can be estimated; see `penstock.cql.analysis.estimating`.
    """
    wanted = estimated(query)
    window = wanted.window.window
    rows = leaf_rows(wanted.window.input, feeds, Members())
    sliding = F.window(TIME, micros(window.size), micros(window.slide or window.size)).alias(WINDOW)
    columns = [column.name for column in wanted.window.columns]
    rows = rows.select(sliding, *columns, *NEEDED, *(sic := kept_column(rows)))
    functions = sorted(set(wanted.aggregates.values()))
    keys = [WINDOW, *dict.fromkeys(wanted.keys.values())]  # an answer may show a key twice
    made = estimate(rows, wanted.value, keys, functions)  # type: ignore[arg-type]
    return made.select(*window_columns(WINDOW), *_named(wanted), *(SIC for _ in sic), INTERVAL)


def _named(wanted: Estimated) -> list[Column]:
    columns = []
    for name in wanted.names:
        if name in wanted.keys:
            columns.append(F.col(wanted.keys[name]).alias(name))
            continue
        function = wanted.aggregates[name]
        columns.append(F.col(function).alias(name))
        columns += [F.col(f"{function}_{part}").alias(f"{name}_{part}") for part in PARTS]
    return columns
