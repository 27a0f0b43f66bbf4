"""A query as boxes and arrows is the same plan as its CQL, and refused with the box that is wrong."""

from __future__ import annotations

from typing import Any

import pytest
from tests.pipeline.test_refusals import READINGS, changed

from penstock.cql.analysis.explain import Words
from penstock.cql.meaning.catalog import Catalog, StreamDef
from penstock.cql.meaning.lower import lowered
from penstock.cql.meaning.plan import Map, Plan
from penstock.pipeline.spec.cql import answers_of, continuous
from penstock.pipeline.spec.load import load_pipeline
from penstock.pipeline.spec.pipeline import PipelineConfig
from penstock.vocabulary.errors import InvalidInputError

MEAN = {"aggregate": ["device", "avg(celsius) AS mean"], "by": "device", "window": "RANGE 1 MIN SLIDE 1 MIN"}


def pipeline(boxes: dict[str, Any]) -> PipelineConfig:
    return load_pipeline(changed("queries/more", {"class": "gold", "boxes": boxes}))


@pytest.mark.parametrize(
    ("boxes", "cql"),
    [
        (
            {"warm": {"filter": "celsius > 30", "from": "readings"}},
            "ISTREAM(SELECT * FROM readings WHERE celsius > 30)",
        ),
        (
            {"mean": {**MEAN, "from": "warm"}, "warm": {"filter": "celsius > 30", "from": "readings"}},
            "SELECT device, avg(celsius) AS mean FROM ISTREAM(SELECT * FROM readings WHERE celsius > 30) "
            "[RANGE 1 MIN SLIDE 1 MIN] GROUP BY device",
        ),
        (
            {"some": {"random_drop": 0.25, "from": "readings"}, "mean": {**MEAN, "from": "some"}},
            "SELECT device, avg(celsius) AS mean FROM ISTREAM(SELECT * FROM readings WHERE KEPT(0.75)) "
            "[RANGE 1 MIN SLIDE 1 MIN] GROUP BY device",
        ),
        (
            {"some": {"window_drop": 0.5, "size": 60, "from": "readings"}},
            "ISTREAM(SELECT * FROM readings WHERE KEPT(0.5, 60))",
        ),
        (
            {"a": {"map": "device", "from": "readings"}, "both": {"union": ["a", "hot"]}},
            "ISTREAM(SELECT device FROM readings) UNION ALL ISTREAM(SELECT * FROM hot)",
        ),
        (
            {
                "met": {
                    "join": ["readings", "hot"],
                    "on": "readings.device = hot.device",
                    "window": "RANGE 10 SEC",
                    "select": "readings.celsius",
                }
            },
            "SELECT readings.celsius FROM readings [RANGE 10 SEC], hot [RANGE 10 SEC] "
            "WHERE readings.device = hot.device",
        ),
        (
            {"mean": {**MEAN, "from": "readings"}, "high": {"filter": "mean > 30", "from": "mean"}},
            "SELECT device, mean FROM (SELECT device, avg(celsius) AS mean FROM readings "
            "[RANGE 1 MIN SLIDE 1 MIN] GROUP BY device) WHERE mean > 30",
        ),
    ],
)
def test_boxes_mean_what_their_cql_means(boxes: dict[str, Any], cql: str) -> None:
    config = pipeline(boxes)
    found, expected = config.continuous("more").query, continuous(cql, config.streams).query
    assert found.names == expected.names
    assert operators(found.plan) == operators(expected.plan)


def test_boxes_over_streams_leave_windows_what_they_are() -> None:
    boxes = {
        "warm": {"filter": "celsius > 30", "from": "readings"},
        "some": {"random_drop": 0.5, "from": "warm"},
        "mean": {**MEAN, "from": "some"},
    }
    assert answers_of(pipeline(boxes).continuous("more"), None) == "windows"


def operators(plan: Plan) -> list[str]:
    """The operators of a lowered plan in words, from the top, without selects of all columns as they are."""
    streams = (("readings", READINGS["schema"]), ("hot", {"device": "long"}))
    catalog = Catalog()
    for name, columns in streams:
        catalog.add(StreamDef(name, dict(columns)))
    words, plan = Words(catalog), lowered(plan)
    words.learn(plan)

    def changes_nothing(each: Plan) -> bool:
        labels = [words.column(column.name) for column in each.inputs[0].columns] if each.inputs else []
        return isinstance(each, Map) and [words.text(item) for item in each.items] == labels

    return [words.of(each) for each in plan.walk() if not changes_nothing(each)]


@pytest.mark.parametrize(
    ("boxes", "message"),
    [
        ({}, "queries.more.boxes must not be empty"),
        (
            {"a": {"from": "readings"}},
            "queries.more.boxes.a must have one of filter, map, .*; got: none of them",
        ),
        ({"a": {"filter": "device > 1"}}, "queries.more.boxes.a.from is required"),
        (
            {"a": {"filter": "device > 1", "from": "b"}},
            "a box reads streams and other boxes.*; got: a, which reads b",
        ),
        (
            {"a": {"filter": "x", "from": "b"}, "b": {"filter": "x", "from": "a"}},
            "queries.more.boxes one box is the answer.*; got: none: they go round in a circle",
        ),
        (
            {
                "a": {"filter": "device > 1", "from": "b"},
                "b": {"union": ["a", "readings"]},
                "c": {"filter": "device > 1", "from": "readings"},
            },
            "and not itself; got: a, which reads itself through b",
        ),
        (
            {
                "a": {"filter": "device > 1", "from": "readings"},
                "b": {"filter": "device > 1", "from": "readings"},
            },
            "one box is the answer, and no other box reads it; got: a, b",
        ),
        (
            {"readings": {"filter": "device > 1", "from": "hot"}},
            "a box has a name of its own; got: 'readings'",
        ),
        ({"a": {"filter": "speed > 1", "from": "readings"}}, "queries.more.boxes box a: .*'speed'"),
        ({"a": {"filter": "device >", "from": "readings"}}, "queries.more.boxes box a: "),
        ({"a": {"random_drop": 1.5, "from": "readings"}}, "queries.more.boxes.a.random_drop must be"),
        ({"a": {"window_drop": 0.5, "from": "readings"}}, "queries.more.boxes.a.size is required beside"),
        ({"a": {"union": ["readings"]}}, "queries.more.boxes.a.union must have two inputs or more"),
        (
            {"a": {"join": ["hot", "readings"], "from": "hot"}},
            "queries.more.boxes.a.from is not a key of a join",
        ),
        (
            {"a": {"filter": "device > 1", "from": "hot", "by": "device"}},
            "boxes.a.by is not a key of a filter",
        ),
        (
            {"a": {**MEAN, "from": "readings"}, "b": {"random_drop": 0.5, "from": "a"}},
            "queries.more.boxes box b: KEPT chooses among the rows of one stream",
        ),
    ],
)
def test_a_wrong_graph_is_refused_with_its_box(boxes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        pipeline(boxes)
