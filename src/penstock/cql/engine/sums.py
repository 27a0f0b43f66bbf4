"""COUNT, SUM, AVG, STDDEV and COV from running sums, which also work when tuples leave."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.cql.engine.bag import Ints
from penstock.cql.meaning.plan import Aggregation

Numbers = NDArray[np.int64] | NDArray[np.float64]

LINEAR = ("COUNT", "SUM", "AVG", "STDDEV", "COV")


def sum_names(each: Aggregation) -> list[str]:
    """Names of the running sums that an aggregate needs, besides the number of tuples."""
    if not each.arguments:
        return []
    joined = ":".join(each.arguments)
    kinds = {"COUNT": ["n"], "SUM": ["n", "s"], "AVG": ["n", "s"], "STDDEV": ["n", "x", "xx"]}
    kinds["COV"] = ["n", "x", "y", "xy"]
    return [f"{kind}|{joined}" for kind in kinds[each.function]]


def shifted(each: Aggregation) -> tuple[str, ...]:
    """Columns from which a value of their group is subtracted, as squares of large numbers lose digits."""
    return each.arguments if each.function in ("STDDEV", "COV") else ()


def contributions(
    name: str, rows: pa.Table, sign: Ints, shifts: Mapping[str, NDArray[np.float64]]
) -> Numbers:
    """The amount that each change adds to a running sum."""
    kind, arguments = name.split("|", maxsplit=1)[0], name.split("|")[1].split(":")
    columns = [rows.column(argument) for argument in arguments]
    there = np.all([np.asarray(column.is_valid()) for column in columns], axis=0)
    if kind == "n":
        return np.where(there, sign, 0)
    if kind == "s":
        values = filled(columns[0])
        return np.where(there, values * sign, values.dtype.type(0))
    x, y = (
        filled(c).astype(np.float64) - shifts[a]
        for c, a in zip((columns * 2)[:2], (arguments * 2)[:2], strict=True)
    )
    made = {"x": x, "y": y, "xx": x * x, "xy": x * y}[kind]
    return np.where(there, made * sign, 0.0)


def filled(column: pa.ChunkedArray) -> Numbers:
    """A column as numbers: whole numbers stay whole, others become floats; NULL becomes zero."""
    wanted = pa.int64() if pa.types.is_integer(column.type) else pa.float64()
    return np.asarray(pc.fill_null(column.cast(wanted), 0).to_numpy())


def result(each: Aggregation, tuples: Ints, sums: Mapping[str, Numbers], kind: pa.DataType) -> pa.Array:
    """An aggregate by its running sums."""
    if not each.arguments:
        return pa.array(tuples)
    values = [sums[name] for name in sum_names(each)]
    count = values[0].astype(np.float64)
    if each.function == "COUNT":
        return pa.array(values[0].astype(np.int64))
    with np.errstate(divide="ignore", invalid="ignore"):
        if each.function == "SUM":
            return pa.array(values[1], mask=count == 0).cast(kind)
        if each.function == "AVG":
            return pa.array(values[1] / count, mask=count == 0)
        if each.function == "STDDEV":
            made = np.sqrt(np.maximum(values[2] - values[1] ** 2 / count, 0.0) / (count - 1))
        else:
            made = (values[3] - values[1] * values[2] / count) / (count - 1)
    return pa.array(made, mask=count < 2)
