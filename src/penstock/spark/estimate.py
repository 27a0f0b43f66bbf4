"""`penstock.estimate`: count, sum and avg over all offered rows, with intervals, from the kept rows.

This is `penstock.policies.quality.estimates` in plain Spark SQL: the sums in one or two levels of
aggregation, the arithmetic as expressions. docs/estimates.md says what is computed and why.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as every Spark program has it

from penstock.grants.sampling_units import DRAWN_TYPE
from penstock.policies.quality.estimates import AGGREGATES, LEAST_FREEDOM, LEAST_UNITS, Aggregate
from penstock.streams.protocol import DRAWN, KEPT
from penstock.vocabulary.errors import InvalidInputError, UnknownNameError

NEEDED = ("_weight", DRAWN)
"""Columns that an estimate needs; with `_kept` besides, the result has `sic`."""

_ROUNDING = 1e-13  # as in penstock.policies.quality.estimates


def sic(windows: float = 1.0) -> Column:
    """The SIC of a result, as an aggregate: the sum of its rows' SIC; rows need `_sic`.

    The results of a query over a source time window add up to the query's SIC: 1 without loss, if rates are
    steady and each row is in one result. With sliding windows, a row is in range / slide windows, among which
    its SIC is divided (kalyvianaki2016 section 6):

        rows.groupBy(F.window("at", "10 seconds", "1 second")).agg(F.avg("v"), penstock.sic(windows=10))

    A row's SIC comes from the source time window that ends with its grant. If the rate rises inside that
    window, the sum is above 1 until the window is past the rise; if the rate falls, it is below 1. The `sic`
    of `estimate` is never above 1.

    Args:
        windows: Number of windows that a row is in.
    """
    if not 1.0 <= windows < float("inf"):
        raise InvalidInputError("a row is in one window or more", windows, "give range / slide")
    return (F.sum("_sic") / F.lit(float(windows))).alias("sic")


def estimate(
    rows: DataFrame,
    value: Column | str | None = None,
    by: Sequence[Column | str] = (),
    aggregates: Sequence[Aggregate] = AGGREGATES,
    confidence: float = 0.95,
) -> DataFrame:
    """Estimates over all offered rows, from the rows that were kept.

        rows = flow.read_stream("readings", "gold", metadata=penstock.ESTIMATE).withWatermark("at", "10 s")
        penstock.estimate(rows, "celsius", [F.window("at", "1 minute"), "device"], ["count", "avg"])

    Args:
        rows: Rows of a governed stream, with `_weight`, `_drawn` and, for `sic`, `_kept`.
        value: The value to sum and average; rows without a value do not count. `None` counts rows.
        by: Keys of the groups; on a stream a window is among them.
        aggregates: Which of count, sum and avg.
        confidence: Confidence of the intervals.

    Returns:
        The keys, each aggregate with `_error`, `_low` and `_high`, `sic`, and `interval`, which says what the
        intervals rest on, or why there are none. If a row of the group has no known weight, the aggregates
        are null as well. `sic` is the fraction of the group's rows that was admitted, rows without a value
        included; it is 1 if nothing was shed, and left out if rows have no `_kept`.
    """
    _check(rows, value, aggregates, confidence)
    keys = [F.col(key) if isinstance(key, str) else key for key in by]
    names = rows.select(*keys).columns if keys else []
    added = ["sic"] if KEPT in rows.columns else []
    _check_names([*names, *_shown(aggregates), *added, "interval"])
    v = F.lit(1.0) if value is None else (F.col(value) if isinstance(value, str) else value).cast("double")
    inner = {
        "_v": v,
        "_w": F.col("_weight"),
        "_stands": F.expr(f"1 / {KEPT}") if added else F.lit(None).cast("double"),
        **{f"_{name}": F.col(f"{DRAWN}.{name}") for name in (field.name for field in DRAWN_TYPE)},
    }
    # keys are renamed: a user's names may have dots in them, or be names of the sums
    groups = [f"_key{i}" for i in range(len(names))]
    given = rows.select(*keys, *(column.alias(name) for name, column in inner.items())).toDF(*groups, *inner)
    unit = given.groupBy(*groups, "_unit").agg(*_by_unit())
    sums = unit.groupBy(*groups).agg(*_by_group()).where("_rows > 0")
    shown = [F.col(group).alias(name) for group, name in zip(groups, names, strict=True)]
    return _estimated(sums, shown, aggregates, confidence, added)


def _shown(aggregates: Sequence[str]) -> list[str]:
    return [f"{name}{part}" for name in aggregates for part in ("", "_error", "_low", "_high")]


def _check(rows: DataFrame, value: Column | str | None, aggregates: Sequence[str], confidence: float) -> None:
    missing = [name for name in NEEDED if name not in rows.columns]
    if missing:
        raise InvalidInputError(
            f"an estimate needs rows with {', '.join(NEEDED)}",
            f"rows without {', '.join(missing)}",
            "read the stream with metadata=penstock.ESTIMATE",
        )
    for name in aggregates:
        if name not in AGGREGATES:
            raise UnknownNameError("an estimate", name, AGGREGATES)
    if not aggregates:
        raise InvalidInputError("an estimate has a count, a sum or an avg", "none", "choose at least one")
    if value is None and set(aggregates) != {"count"}:
        raise InvalidInputError("a sum or an avg needs a value", "none", "name a column")
    if not 0.0 < confidence < 1.0:
        raise InvalidInputError("a confidence lies between 0 and 1", confidence, "0.95 is usual")


def _check_names(names: Sequence[str]) -> None:
    """Refuses equal names. Spark would make the result and then find its columns ambiguous.

    To Spark, `Sic` and `sic` are equal.
    """
    seen: set[str] = set()
    for name in names:
        if name.lower() in seen:
            raise InvalidInputError(
                "columns of an estimate differ in name: its keys, aggregates, sic and interval",
                f"two columns named {name}",
                f'give the key another name: F.col(...).alias("{name}_key")',
            )
        seen.add(name.lower())


def _by_unit() -> list[Column]:
    """Aggregates by group and unit: values that were drawn together are summed before they are squared."""
    weight = "IF(_v IS NULL, NULL, _w)"
    side = "IF(_v IS NULL, NULL, _contrast)"
    apart = f"coalesce({side}, 0) <> 0"
    inner = f"{weight} * _within"
    signed = f"_contrast * {weight}"
    terms = {
        "_n": "count(_v)",
        "_own": f"count_if(_unit IS NULL AND {weight} > 1)",
        "_sides": f"CAST(max({side}) > 0 AS INT) + CAST(min({side}) < 0 AS INT)",
        "_expects": f"max(IF({apart}, _expected, 0))",
        "_doubts": f"max(IF({apart}, _doubt, 0))",
        "_w0": f"sum({weight})",
        "_w1": "sum(_w * _v)",
        **{f"_i{k}": f"sum({inner}{' * _v' * k})" for k in range(3)},
        **{f"_d{k}": f"sum({signed}{' * _v' * k})" for k in range(2)},
        # rows without a value were admitted, too
        "_there": "count(_stands)",
        "_stood_for": "sum(_stands)",
        "_weighs": "bool_and(_v IS NULL OR _w IS NOT NULL)",
        # `_known` is null if nothing says how a row was drawn
        "_knows": "bool_and(_v IS NULL OR (coalesce(_known, false) AND _w IS NOT NULL))",
    }
    return [F.expr(text).alias(name) for name, text in terms.items()]


def _by_group() -> list[Column]:
    terms = {
        "_rows": "sum(_n)",
        "_units": "sum(_own) + sum(IF(_unit IS NULL, 0, _sides))",
        "_expects": "sum(IF(_unit IS NULL, 0, _expects))",
        "_doubts": "sum(IF(_unit IS NULL, 0, _doubts))",
        # a sum leaves out NULL, and would be too low if some rows have no weight
        **{name: f"IF(bool_and(_weighs), sum({name}), NULL)" for name in ("_w0", "_w1")},
        **{name: f"sum({name})" for name in ("_i0", "_i1", "_i2")},
        "_b0": "sum(_d0 * _d0)",
        "_b1": "sum(_d0 * _d1)",
        "_b2": "sum(_d1 * _d1)",
        "sic": "sum(_there) / sum(_stood_for)",
        "_knows": "bool_and(_knows)",
    }
    return [F.expr(text).alias(name) for name, text in terms.items()]


def _about(kind: str) -> str:
    """The sum of squares of value - avg; see `Products.about`."""
    terms = (f"_{kind}2", f"(-2 * _m * _{kind}1)", f"(_m * _m * _{kind}0)")
    sizes = " + ".join(f"abs({term})" for term in terms)
    return f"greatest({' + '.join(terms)}, {_ROUNDING} * ({sizes}))"


def _estimated(
    sums: DataFrame,
    keys: Sequence[Column],
    aggregates: Sequence[Aggregate],
    confidence: float,
    added: Sequence[str],
) -> DataFrame:
    parts = {
        "count": ("_w0", "_i0", "_b0"),
        "sum": ("_w1", "_i2", "_b2"),
        "avg": ("_m", f"{_about('i')} / (_w0 * _w0)", f"{_about('b')} / (_w0 * _w0)"),
    }
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    found = sums.withColumn("_m", F.expr("try_divide(_w1, _w0)"))
    found = found.withColumn("_all", F.expr(f"abs(_w0 - _rows) <= {_ROUNDING} * _rows"))
    columns: list[Column] = []
    short: list[str] = []
    for name in aggregates:
        value, within, between = parts[name]
        found = found.withColumn(f"_{name}_in", F.expr(within)).withColumn(f"_{name}_out", F.expr(between))
        variance = f"(_{name}_in + _{name}_out)"
        differences = "IF(_doubts > 0, pow(_expects, 2) / _doubts, 1D)"
        loss = f"(pow(_{name}_in, 2) / greatest(1, _rows - 1) + pow(_{name}_out, 2) / ({differences}))"
        # if units do not differ there is no variance, and the freedom is infinite, as in `estimates.estimate`
        freedom = f"coalesce(try_divide(pow({variance}, 2), {loss}), CAST('Infinity' AS DOUBLE))"
        found = found.withColumn(f"_{name}_nu", F.expr(freedom))
        short.append(f"IF(_{name}_nu < {LEAST_FREEDOM}D, '{name}', NULL)")
        error = f"sqrt({variance})"
        reach = f"({_quantile(z, f'_{name}_nu')}) * {error}"
        given = f"_knows AND _units >= {LEAST_UNITS} AND _{name}_nu >= {LEAST_FREEDOM}D"
        columns.append(F.expr(value).alias(name))
        low, high = f"{value} - {reach}", f"{value} + {reach}"
        for part, exact, sampled in (("error", "0D", error), ("low", value, low), ("high", value, high)):
            text = f"CASE WHEN _all AND _knows THEN {exact} WHEN {given} THEN {sampled} END"
            columns.append(F.expr(text).alias(f"{name}_{part}"))
    found = found.withColumn("_short", F.expr(f"concat_ws(', ', {', '.join(short)})"))
    why = (
        "CASE WHEN NOT _knows THEN 'none: rows were dropped that had no known chance' "
        "WHEN _all THEN 'nothing was shed' "
        f"WHEN _units < {LEAST_UNITS} THEN concat('none: ', _units, ' units, fewer than {LEAST_UNITS}') "
        "WHEN _short <> '' THEN concat('none of ', _short, ': the error rests on fewer than "
        f"{LEAST_FREEDOM:.0f} differences between units') "
        "ELSE concat(_units, ' units') END"
    )
    return found.select(*keys, *columns, *added, F.expr(why).alias("interval"))


def _quantile(z: float, freedom: str) -> str:
    """`student_quantile` in SQL."""
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return f"{z}D + {first}D / {freedom} + {second}D / pow({freedom}, 2) + {third}D / pow({freedom}, 3)"
