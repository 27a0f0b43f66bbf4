"""Files with the tuples of streams, and with answers. CSV and Parquet, and the files of STREAM:

i,i,f,c4                 types, the instant's first: i whole, f float, b byte, cN text
1,7,2.5,abcd             instant, values

i,b,i                    of a relation the second column is the sign
1,+,7                    + inserts the tuple, - deletes one that equals it, or that has its key

[1]:+:7, 2.5, abcd       at instant 1 this tuple comes into the answer; - for one that leaves it
"""

from __future__ import annotations

import gzip
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv
import pyarrow.parquet as pq

from penstock.cql.engine.vector import arrow_type
from penstock.cql.meaning.catalog import RelationDef, StreamDef
from penstock.vocabulary.errors import InvalidInputError

Element = tuple[int, str, tuple[object, ...]]
"""An instant, a sign, and the values of a tuple."""
INSTANT_COLUMN, SIGN_COLUMN = "_instant", "_sign"
SIGNS = {"+": 1, "-": -1}
"""Signs of rows in a relation's data: + inserts a tuple, - deletes one."""
UNIT_US = 1_000_000
"""Microseconds of an instant in a data file of STREAM, and of 1 in a column of times; Spark's watermark has
milliseconds."""

_TYPE = re.compile(r"i|f|b|c\d+")
_LINE = re.compile(r"\[(\d+)\]:([+-]):(.*)")


def find_file(folder: Path, name: str, *endings: str) -> Path:
    """A file of a folder, as it is or compressed.

    Raises:
        InvalidInputError: There is no such file.
    """
    tried = [folder / f"{name}{ending}{packed}" for ending in ("", *endings) for packed in ("", ".gz")]
    for path in tried:
        if path.is_file():
            return path
    raise InvalidInputError(
        f"{folder} has a file {name}", "none", f"one of {', '.join(path.name for path in tried)}"
    )


def tuples_of(stream: StreamDef, folder: Path) -> pa.Table:
    """The tuples of a registered stream's file: `_instant` in microseconds, and the stream's columns.

    For a relation, `_sign` follows the instant: 1 for a row that inserts, -1 for a row that deletes.

    Args:
        stream: The stream, which names a file of the folder. The file is a data file of STREAM, or a .csv
            with a header, or a .parquet. In the latter two, the column of TIMESTAMP BY has instants (times,
            or numbers of seconds), and the column of SIGN BY has the signs of a relation.
        folder: Folder with the file.

    Raises:
        InvalidInputError: The stream names no file, or the file has another form.
    """
    relation = isinstance(stream, RelationDef)
    kind = "relation" if relation else "stream"
    if stream.data is None:
        raise InvalidInputError(
            f"{kind} {stream.name} has data",
            "none",
            f"REGISTER {kind.upper()} {stream.name} (...) FROM 'readings.csv'",
        )
    path = find_file(folder, stream.data, ".dat", ".csv", ".parquet")
    if ".csv" in path.suffixes or path.suffix == ".parquet":
        table = _in_time(_read_table(path, stream), stream, path)
        if not isinstance(stream, RelationDef):
            return table
        signs = table.column(stream.sign)
        table = table.select([INSTANT_COLUMN, *stream.tuple_columns]).add_column(1, SIGN_COLUMN, signs)
    else:
        table = read_tuples(path, stream.tuple_columns, relation)
        table = table.set_column(0, INSTANT_COLUMN, pc.multiply(table.column(INSTANT_COLUMN), UNIT_US))
    return _with_signs(table, path) if relation else table


def _with_signs(table: pa.Table, path: Path) -> pa.Table:
    """Signs as numbers."""
    texts = table.column(SIGN_COLUMN)
    places = pc.index_in(texts, pa.array(list(SIGNS)))
    if places.null_count:
        wrong = texts.filter(pc.is_null(places))[0].as_py()
        raise InvalidInputError(
            f"every row of {path} says whether it inserts or deletes", repr(wrong), "write + or -"
        )
    signs = pa.array(list(SIGNS.values()), pa.int64()).take(places)
    return table.set_column(1, SIGN_COLUMN, signs)


def no_tuples(stream: StreamDef) -> pa.Table:
    """The columns of `tuples_of`, without a row."""
    columns = [(name, arrow_type(kind)) for name, kind in stream.tuple_columns.items()]
    signs = [(SIGN_COLUMN, pa.int64())] if isinstance(stream, RelationDef) else []
    return pa.schema([(INSTANT_COLUMN, pa.int64()), *signs, *columns]).empty_table()


def _read_table(path: Path, stream: StreamDef) -> pa.Table:
    if stream.timestamp is None:
        raise InvalidInputError(
            f"{stream.name} says which column of {path.name} has the time",
            "no TIMESTAMP BY",
            "REGISTER STREAM ... FROM '...' TIMESTAMP BY at",
        )
    if isinstance(stream, RelationDef) and stream.sign is None:
        raise InvalidInputError(
            f"relation {stream.name} says which column of {path.name} has + or -",
            "no SIGN BY",
            "REGISTER RELATION ... FROM '...' TIMESTAMP BY at SIGN BY op",
        )
    kinds = {name: arrow_type(kind) for name, kind in stream.columns.items()}
    try:
        if path.suffix == ".parquet":
            table = pq.read_table(path)
        else:
            with _opened(path) as file:
                table = pcsv.read_csv(file, convert_options=pcsv.ConvertOptions(column_types=kinds))
        return table.select([*kinds]).cast(pa.schema(list(kinds.items())))
    except (pa.ArrowException, KeyError) as error:
        raise InvalidInputError(
            f"{path} has the columns of {stream.name}", str(error).strip("'"), f"{', '.join(kinds)}"
        ) from None


def _in_time(table: pa.Table, stream: StreamDef, path: Path) -> pa.Table:
    at = table.column(stream.timestamp)
    if at.null_count:
        raise InvalidInputError(f"every row of {path} has a time", f"{at.null_count} NULLs", "leave them out")
    if pa.types.is_timestamp(at.type):
        instants = at.cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    else:
        instants = pc.round(pc.multiply(at.cast(pa.float64()), float(UNIT_US))).cast(pa.int64(), safe=False)
    stamped = table.add_column(0, INSTANT_COLUMN, instants)
    return stamped.take(pc.sort_indices(instants))


def read_tuples(path: Path, columns: Mapping[str, str], signed: bool = False) -> pa.Table:
    """The tuples of a data file of STREAM: `_instant`, and the other columns under the stream's names.

    Args:
        path: The file; .gz is unpacked.
        columns: Columns of the stream, with their types.
        signed: Whether signs follow the instants, as in a relation's data; they become `_sign`.

    Raises:
        InvalidInputError: The file has another form.
    """
    with _opened(path) as file:
        types = file.readline().decode("ascii", "replace").strip().split(",")
        if not all(_TYPE.fullmatch(kind) for kind in types) or types[0] != "i":
            raise InvalidInputError(
                f"the first line of {path} has types",
                ",".join(types),
                "for example i,i,f,c4; the instant's is i",
            )
        head = {INSTANT_COLUMN: pa.int64(), **({SIGN_COLUMN: pa.string()} if signed else {})}
        if len(types) != len(columns) + len(head):
            raise InvalidInputError(
                f"{path} has {'an instant, a sign' if signed else 'an instant'} and {len(columns)} columns",
                f"{len(types)} columns",
                f"register it with {len(types) - len(head)}, or name another file",
            )
        kinds = [*head.values(), *(arrow_type(kind) for kind in columns.values())]
        names = [*head, *columns]
        if len(set(names)) < len(names):
            raise InvalidInputError("a column's name is used once", ", ".join(columns), "rename one")
        try:
            table = pcsv.read_csv(
                file,
                pcsv.ReadOptions(column_names=names),
                convert_options=pcsv.ConvertOptions(column_types=dict(zip(names, kinds, strict=True))),
            )
        except pa.ArrowException as error:
            raise InvalidInputError(
                f"{path} has values of its types", str(error), "see its first line"
            ) from None
    instants = table.column(INSTANT_COLUMN).to_numpy()
    if (instants[1:] < instants[:-1]).any():
        raise InvalidInputError(
            f"the tuples of {path} are in the order of their instants", "others", "sort them"
        )
    return table


def read_answer(path: Path, types: Sequence[str]) -> Counter[Element]:
    """The elements of an answer, and how often each element occurs."""
    found: Counter[Element] = Counter()
    kinds = [_value_of(kind) for kind in types]
    with _opened(path) as file:
        for number, line in enumerate(file, 1):
            text = line.decode("utf-8", "replace").rstrip("\n")
            if not text.strip():
                continue
            match = _LINE.fullmatch(text.strip())
            values = match[3].split(", ") if match else []
            if match is None or len(values) != len(kinds):
                raise InvalidInputError(
                    f"line {number} of {path} is an element with {len(kinds)} values",
                    text,
                    "[1]:+:7, 2.5, abcd",
                )
            try:
                made = tuple(kind(value) for kind, value in zip(kinds, values, strict=True))
            except ValueError:
                rule = f"line {number} of {path} has values of the types {', '.join(types)}"
                raise InvalidInputError(rule, text, "as the query gives them") from None
            found[int(match[1]), match[2], made] += 1
    return found


def plain_value(value: object) -> object:
    """A value in the form in which answers are compared: floats with six digits, as STREAM prints them."""
    if isinstance(value, float):
        return float(f"{value:.6g}") + 0.0
    return tuple(plain_value(each) for each in value) if isinstance(value, list) else value


def _value_of(kind: str) -> Callable[[str], object]:
    if kind in ("TINYINT", "SMALLINT", "INT", "BIGINT"):
        return int
    if kind in ("FLOAT", "DOUBLE"):
        return lambda text: plain_value(float(text))
    return str


def _opened(path: Path) -> IO[bytes]:
    return cast("IO[bytes]", gzip.open(path, "rb")) if path.suffix == ".gz" else path.open("rb")
