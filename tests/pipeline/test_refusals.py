"""A pipeline file with a mistake: each is told with its place, the rule and a hint, on one line."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from penstock.pipeline.spec.load import load_pipeline
from penstock.streams.protocol import RESERVED_COLUMNS
from penstock.vocabulary.errors import InvalidInputError, UnknownNameError

READINGS: dict[str, Any] = {
    "schema": {"device": "long", "celsius": "double", "at": "timestamp"},
    "event_time": "at",
    "source": {"kind": "generator", "rate": 1000},
}
GOOD: dict[str, Any] = {
    "log": "logs",
    "classes": {"gold": {"target": "2s"}, "bulk": {"target": "30s"}},
    "streams": {"readings": READINGS, "hot": {"schema": {"device": "long"}}},
    "queries": {
        "find": {
            "class": "gold",
            "sql": "SELECT device FROM readings",
            "sink": {"kind": "log", "stream": "hot"},
        },
        "count": {"class": "bulk", "sql": "SELECT count(*) FROM hot", "mode": "complete"},
    },
}


FAMILY = (
    "REGISTER QUERY a AS SELECT max(celsius) FROM readings [RANGE 1 MIN] WHERE device = 1; "
    "REGISTER QUERY b AS SELECT max(celsius) FROM readings [RANGE 1 MIN] WHERE device = 2"
)


def changed(path: str, value: object) -> dict[str, Any]:
    """The good pipeline with one key set; `None` removes it."""
    raw = copy.deepcopy(GOOD)
    *outer, last = path.split("/")
    part = raw
    for key in outer:
        part = part.setdefault(key, {})
    if value is None:
        del part[last]
    else:
        part[last] = value
    return raw


ROOMS: dict[str, Any] = {
    "schema": {"id": "long", "name": "string", "op": "string", "at": "timestamp"},
    "event_time": "at",
    "changes": {"sign": "op", "key": ["id"]},
}
"""The changes of a relation."""


def beside(text: str, rooms: dict[str, Any] | None = None, **query: Any) -> dict[str, Any]:
    """The good pipeline with a relation, and a query in CQL."""
    raw = changed("streams/rooms", {**ROOMS, **(rooms or {})})
    raw["queries"]["count"] = {"class": "bulk", "cql": text, **query}
    return raw


JOINED = "SELECT name, celsius FROM readings [RANGE 1 MIN], rooms WHERE device = id"


def test_a_query_in_cql_may_read_changes_beside_a_stream() -> None:
    pipeline = load_pipeline(beside(JOINED))
    assert pipeline.streams_of("count") == ("readings", "rooms")
    assert pipeline.governed_streams_of("count") == ("readings",)
    by_key = beside(JOINED)
    by_key["streams"]["readings"] = {**READINGS, "key": "device"}
    by_key["classes"]["bulk"]["shed"] = "key"
    load_pipeline(by_key)  # what is never shed needs no key


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (
            beside("SELECT count(*) FROM rooms"),
            "queries.count.cql must read a stream beside relations.*got: rooms",
        ),
        (
            beside("REGISTER RELATION names (id int); SELECT names.id FROM readings [NOW], names"),
            "queries.count.cql a query of a pipeline reads the pipeline's streams; got: names",
        ),
        (beside(JOINED, answers="windows"), "a query by windows reads streams.*got: relation rooms"),
        (
            beside(JOINED.replace("1 MIN]", "1 MIN SLIDE 1 MIN]"), estimates=True),
            "estimates are by window.*got: answers: relation",
        ),
        (
            beside(JOINED, {"changes": {"sign": "id"}}),
            r"rooms.changes.sign must be a column of texts, \+ or -",
        ),
        (beside(JOINED, {"changes": {"sign": "po"}}), "rooms.changes.sign .*'po'.* mean 'op'"),
        (
            beside(JOINED, {"changes": {"sign": "op", "key": ["at"]}}),
            "must have columns of the relation's tup",
        ),
        (beside(JOINED, {"schema": None}), "streams.rooms.changes needs a schema"),
        (beside(JOINED, {"lateness": "2s"}), "streams.rooms.lateness is not a key beside changes"),
        (beside(JOINED, {"partitions": 2}), "streams.rooms.key must be a column by which changes find their"),
        (beside(JOINED, {"partitions": 2, "key": "name"}), "got: 'name'; hint: key: id, so that a tuple's"),
    ],
)
def test_changes_that_cannot_be_read_so_are_refused(raw: dict[str, Any], message: str) -> None:
    if raw["streams"]["rooms"]["schema"] is None:
        del raw["streams"]["rooms"]["schema"], raw["streams"]["rooms"]["event_time"]
    with pytest.raises((InvalidInputError, UnknownNameError), match=message) as refused:
        load_pipeline(raw)
    assert "hint" in str(refused.value)


def test_a_governed_query_that_would_shed_changes_is_refused() -> None:
    raw = beside(JOINED)
    raw["queries"]["count"] = {"class": "bulk", "sql": "SELECT count(*) FROM rooms"}
    with pytest.raises(InvalidInputError, match=r"queries.count.sql must not read a stream of changes.*shed"):
        load_pipeline(raw)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (
            "stream",
            {},
            "a key of the pipeline must be one of .*; got: 'stream'; hint: did you mean 'streams'",
        ),
        ("streams", {}, "streams must not be empty"),
        ("queries", None, "queries is required; got: nothing"),
        (
            "trigger",
            "1s",
            "the pipeline: trigger is not a key; got: '1s'; hint: Penstock decides when a micro-batch",
        ),
        ("classes/gold/target", "2 lightyears", "classes.gold.target must have a unit of"),
        (
            "classes/idle",
            {"target": "2s"},
            "classes.idle must have a query; got: none; hint: give it one, or",
        ),
        # streams
        ("streams/my-readings", READINGS, "streams.my-readings must have a name of letters, digits and _"),
        (
            "streams/Readings",
            READINGS,
            "streams.Readings must differ by more than case; got: 'readings', which",
        ),
        ("streams/readings/schmea", {}, "streams.readings must .*'schmea'.* mean 'schema'"),
        ("streams/readings/schema", None, "streams.readings.schema is required unless the source is log"),
        ("streams/readings/schema", {}, "streams.readings.schema must not be empty"),
        ("streams/readings/schema", {"at": 3}, "streams.readings.schema.at must be a text; got: 3"),
        (
            "streams/readings/schema/x",
            "lnog",
            "schema.x: a column's type must .*; got: 'lnog'; .* mean 'long'",
        ),
        (
            "streams/readings/schema/x",
            "xml",
            "schema.x: a column's type must .*; hint: long, int, double",
        ),
        ("streams/readings/schema/x", "decimal(50,2)", r"schema.x: decimal\(p,s\) must have 1 to 38 digits"),
        ("streams/readings/schema/x", "decimal(5,6)", r"schema.x: decimal\(p,s\) must"),
        ("streams/readings/schema/ ", "long", "schema must have names for its columns"),
        ("streams/readings/schema/DEVICE", "long", "DEVICE must differ .* got: 'device' and 'DEVICE'"),
        (
            "streams/readings/event_time",
            "att",
            "event_time must be one of .*; got: 'att'; hint: did you mean 'at'",
        ),
        (
            "streams/readings/event_time",
            "device",
            "event_time must be a timestamp column; got: 'device', a long",
        ),
        (
            "streams/readings/key",
            "devise",
            "key must be one of .*; got: 'devise'; hint: did you mean 'device'",
        ),
        ("streams/readings/partitions", 0, "streams.readings.partitions must be at least 1; got: 0"),
        (
            "streams/readings/lateness",
            "-1s",
            "lateness must be 0 or a positive number of seconds; got: '-1s'",
        ),
        ("streams/hot/lateness", "1s", "streams.hot.lateness needs an event_time; got: 1s"),
        # sources
        (
            "streams/readings/source",
            "replays",
            "source.kind must be one of .*; got: 'replays'; .* mean 'replay'",
        ),
        (
            "streams/readings/source",
            {},
            "source.kind is required; got: .*; hint: one of replay, generator, log",
        ),
        ("streams/readings/source", [1], "streams.readings.source must be a mapping"),
        ("streams/readings/source/rate", -1, "source.rate.rate_per_s must be more than 0; got: -1"),
        ("streams/readings/source/rate", "fast", "source.rate.rate_per_s must be a number; got: 'fast'"),
        ("streams/readings/source/rate", {"kind": "step"}, "source.rate.kind must .*'step'.* mean 'steps'"),
        (
            "streams/readings/source/rate",
            {"kind": "on_off", "hihg_for": 1},
            "source.rate must .* mean 'high_for'",
        ),
        (
            "streams/readings/source/rate",
            {"kind": "steps", "steps": [{"from": 0, "rate": 1}]},
            "source.rate.steps.0 must .*'rate'.* mean 'rate_per_s'",
        ),
        (
            "streams/readings/source/rate",
            {"kind": "steps", "steps": [{"from": 1, "rate_per_s": 1}]},
            r"source.rate.steps must begin at 0s and be in order of time; got: \[1.0\]",
        ),
        (
            "streams/readings/source/values",
            {"devise": {"low": 0, "high": 1}},
            "values.devise must .* mean 'device'",
        ),
        (
            "streams/readings/source/values",
            {"at": {"low": 0, "high": 1}},
            "values.at can have a range only in",
        ),
        (
            "streams/readings/source/values",
            {"device": {"low": 1}},
            "values.device must have low and high, or choices",
        ),
        (
            "streams/readings/source/values",
            {"device": {"low": 2, "high": 1}},
            "low no larger than high; got: 2 > 1",
        ),
        (
            "streams/readings/source/values",
            {"device": {"choices": ["a"]}},
            "must have choices of type BIGINT",
        ),
        (
            "streams/readings/source/values",
            {"device": {"choices": []}},
            "values.device.choices must not be empty",
        ),
        (
            "streams/readings/source",
            {"kind": "replay", "trace": "none.txt"},
            "trace must be a file that exists",
        ),
        ("streams/readings/source", {"kind": "replay", "scale": 0}, "source.scale must be more than 0"),
        (
            "streams/readings/source",
            {"kind": "files"},
            "source.path is required; got: nothing; hint: a file or a",
        ),
        (
            "streams/readings/source",
            {"kind": "files", "path": "in/*"},
            r"source.path must say its format .*; got: '\*'",
        ),
        (
            "streams/readings/source",
            {"kind": "files", "path": "*", "format": "xls"},
            "format must .*; got: 'xls'",
        ),
        ("streams/readings/schema/day", "date", "source.values.day is required for a column of type DATE"),
        # queries
        (
            "queries/find/class",
            "glod",
            "queries.find.class must be one of bulk, gold; got: 'glod'; .* mean 'gold'",
        ),
        (
            "queries/find/class",
            None,
            "queries.find.class is required; got: nothing; hint: one of the classes",
        ),
        (
            "queries/find/trigger",
            "5 seconds",
            "queries.find.trigger is not a key; got: '5 seconds'; hint: Penstock",
        ),
        (
            "queries/find/slq",
            "SELECT 1",
            "a key of the pipeline, queries.find must .*; got: 'slq'; .* mean 'sql'",
        ),
        (
            "queries/find/sql",
            None,
            "queries.find must have one of sql, function, cql, cql_file, boxes; got: none",
        ),
        ("queries/find/function", "a:b", "queries.find must have one of .*; got: sql and function"),
        ("queries/find/cql", "SELECT 1", "queries.find must have one of .*; got: sql and cql"),
        ("queries/find/answers", "windows", "queries.find.answers is a key beside cql alone; got: 'windows'"),
        ("queries/find/sql", " ", "queries.find.sql must not be empty"),
        ("queries/find/sql", "SELECT 1", "queries.find.sql must read a stream; got: 'SELECT 1'"),
        (
            "queries/find/sql",
            "SELECT * FROM readngs",
            "find.sql must read a stream: readings, hot; got: 'readngs'; .* mean 'readings'",
        ),
        (
            "queries/find/streams",
            ["readngs"],
            "queries.find.streams must .*; got: 'readngs'; .* mean 'readings'",
        ),
        ("queries/find/streams", "readings", "queries.find.streams must be a list; got: 'readings'"),
        ("queries/find/metadata", ["_wieght"], "queries.find.metadata must .*'_wieght'.* mean '_weight'"),
        ("queries/find/metadata", "all", "queries.find.metadata must be true, false or a list; got: 'all'"),
        ("queries/find/mode", "apend", "queries.find.mode must be one of .*; got: 'apend'; .* mean 'append'"),
        ("queries/find/mode", "complete", "queries.find.mode must be append or update for a log sink"),
        ("queries/find/shuffle_partitions", 0, "queries.find.shuffle_partitions must be at least 1"),
        ("queries/a b", {"class": "gold", "sql": "FROM readings"}, "queries.a b must have a name of letters"),
        (
            "queries/mine",
            {"class": "gold", "function": "mine"},
            "queries.mine.function must be module:function; got",
        ),
        (
            "queries/mine",
            {"class": "gold", "function": "a:b"},
            "queries.mine.streams is required beside a function",
        ),
        # sinks
        ("queries/find/sink", "consle", "queries.find.sink.kind must .*; got: 'consle'; .* mean 'console'"),
        (
            "queries/find/sink",
            "parquet",
            "queries.find.sink.path is required; got: nothing; hint: a directory",
        ),
        (
            "queries/find/sink",
            {"kind": "log", "stream": "hott"},
            "find.sink.stream must .*'hott'.* mean 'hot'",
        ),
        (
            "queries/count/sink",
            {"kind": "parquet", "path": "x"},
            "queries.count.mode must be append for a parquet",
        ),
    ],
)
def test_a_mistake_is_named_with_its_place_and_a_hint(path: str, value: object, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message) as caught:
        load_pipeline(changed(path, value))
    assert str(caught.value).startswith(("expected: the pipeline: ", "expected: a key of the pipeline"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", [*RESERVED_COLUMNS, "_Arrival"])
def test_a_column_named_like_metadata_is_refused(name: str) -> None:
    with pytest.raises(
        InvalidInputError, match=f"schema.{name} is the name of a metadata column.* rename it"
    ):
        load_pipeline(changed(f"streams/readings/schema/{name}", "long"))


def test_a_log_sink_into_a_stream_that_is_fed_is_refused() -> None:
    query = {"class": "gold", "sql": "SELECT device FROM hot", "sink": {"kind": "log", "stream": "readings"}}
    with pytest.raises(
        InvalidInputError, match="stream that nothing else feeds; got: 'readings', fed by generator"
    ):
        load_pipeline(changed("queries/count", query))


def test_a_query_that_feeds_itself_is_refused() -> None:
    query = {"class": "gold", "sql": "SELECT device FROM hot", "sink": {"kind": "log", "stream": "hot"}}
    raw = changed("queries/find", query)
    with pytest.raises(
        InvalidInputError, match=r"sink\.stream must not be a stream that the query reads; got: 'hot'"
    ):
        load_pipeline(raw)


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (
            {"sink": {"kind": "parquet", "path": "out"}},
            {"sink": {"kind": "parquet", "path": "./x/../out/"}},
            "queries.b must have a parquet path of its own; got: '.*out', which a has",
        ),
        (
            {"sink": {"kind": "log", "stream": "hot"}},
            {"sink": {"kind": "log", "stream": "hot"}},
            "queries.b must have a log stream of its own to write to",
        ),
        (
            {"sink": {"kind": "memory", "name": "B"}},
            {"sink": "memory"},
            "queries.b must have a memory table of its own",
        ),
        ({"checkpoint": "cp"}, {"checkpoint": "cp"}, "queries.b must have a checkpoint of its own"),
    ],
    ids=["parquet_path", "log_stream", "memory_table", "checkpoint"],
)
def test_two_queries_do_not_write_to_one_place(
    first: dict[str, object], second: dict[str, object], message: str
) -> None:
    query = {"class": "gold", "sql": "SELECT device FROM readings"}
    with pytest.raises(InvalidInputError, match=message):
        load_pipeline({**GOOD, "queries": {"a": {**query, **first}, "b": {**query, **second}}})


def test_a_class_that_sheds_by_key_needs_streams_with_a_key() -> None:
    raw = changed("classes/gold/shed", "key")
    with pytest.raises(
        InvalidInputError, match=r"streams\.readings\.key is required, because query find of class gold"
    ):
        load_pipeline(raw)
    raw["streams"]["readings"]["key"] = "device"
    assert load_pipeline(raw).streams["readings"].key == "device"


def test_an_unknown_class_has_the_error_of_an_unknown_name() -> None:
    with pytest.raises(UnknownNameError):
        load_pipeline(changed("queries/find/class", "iron"))


def test_two_queries_of_one_name_in_a_file_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "twice.yaml"
    path.write_text("queries:\n  a: {sql: x}\n  a: {sql: y}\n", encoding="utf-8")
    with pytest.raises(InvalidInputError, match=r"the key 'a' stands twice in .*, line 3"):
        load_pipeline(path)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"cql": "SELECT device FROM"}, "queries.find.cql line 1, column 19: .*; got: .*; hint"),
        ({"cql": "SELECT device FROM readngs [NOW]"}, "queries.find.cql line 1, column 20: .*readngs"),
        ({"cql": "SELECT d FROM readings [NOW]"}, "queries.find.cql line 1, column 8: .*'d'"),
        ({"cql": "SELECT 1; SELECT 2"}, "queries.find.cql .*"),
        (
            {"cql": "SELECT device FROM readings [NOW]; SELECT device FROM readings [NOW]"},
            "queries.find.cql of several queries each has a name, .*; got: 2 without a name",
        ),
        (
            {"cql": "SELECT device FROM readings [ROWS 2]", "answers": "windows"},
            r"queries.find.cql a window whose result comes once closes.*; got: \[rows 2\]; hint: give",
        ),
        (
            {
                "cql": "REGISTER QUERY a AS SELECT max(celsius) FROM readings [RANGE 1 MIN]; "
                "REGISTER QUERY b AS SELECT min(celsius) FROM readings [RANGE 1 MIN]"
            },
            "queries.find.cql several queries of one key differ in constants alone.*; got: a and b, which",
        ),
        (
            {"cql": FAMILY, "answers": "relation"},
            "queries.find.cql queries with names are computed together.*; got: answers: relation",
        ),
        (
            {"cql": FAMILY.replace("RANGE 1 MIN", "ROWS 2")},
            r"queries.find.cql a window whose result comes once closes.*; got: \[rows 2\]",
        ),
        (
            {"cql": FAMILY.replace("QUERY b", "QUERY A")},
            "queries.find.cql line 1, column .*: a name is registered once; got: 'A'",
        ),
        (
            {"cql": "REGISTER VIEW a AS SELECT device FROM readings"},
            "queries.find.cql cql has a query; got: none",
        ),
        (
            {"cql": "SELECT device AS _T FROM readings"},
            "_t, _d, sic stand beside the columns of an answer; got: '_T'",
        ),
        (
            {"cql": FAMILY.replace("max(celsius)", "max(celsius) AS query")},
            "beside the columns .*; got: 'query'",
        ),
        ({"cql_file": "nowhere.cql"}, "queries.find.cql_file a file of CQL exists.*nowhere.cql"),
        ({"cql": "SELECT device FROM readings", "answers": "all"}, "queries.find.answers must be .*"),
        (
            {"cql": "SELECT device FROM readings", "mode": "update"},
            "queries.find.mode must be append for cql",
        ),
        (
            {"cql": "SELECT device FROM readings", "metadata": True},
            "queries.find.metadata is not a key beside cql",
        ),
        (
            {"cql": "SELECT device FROM readings", "streams": ["readings"]},
            "queries.find.streams is not a key beside cql",
        ),
    ],
)
def test_a_query_in_cql_is_refused_at_its_place(query: dict[str, Any], message: str) -> None:
    raw = changed("queries/find", {"class": "gold", "sink": {"kind": "log", "stream": "hot"}, **query})
    with pytest.raises(InvalidInputError, match=message):
        load_pipeline(raw)


def test_the_streams_of_a_query_in_cql_are_those_that_it_names_also_through_views() -> None:
    text = (
        "REGISTER VIEW warm AS SELECT device FROM Readings [RANGE 1 MIN] WHERE celsius > 30; "
        "SELECT w.device FROM warm w, hot [NOW] h WHERE w.device = h.device"
    )
    config = load_pipeline(changed("queries/both", {"class": "gold", "cql": text}))
    assert config.streams_of("both") == ("readings", "hot")
