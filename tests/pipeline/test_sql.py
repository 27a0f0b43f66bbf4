"""Which streams a SQL text reads."""

from __future__ import annotations

import pytest

from penstock.pipeline.spec.sql import streams_in

STREAMS = ("readings", "alerts")


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        pytest.param("SELECT * FROM readings", ("readings",), id="from"),
        pytest.param("select * from READINGS r where r.x > 1", ("readings",), id="any_case"),
        pytest.param("SELECT 1 FROM `readings`", ("readings",), id="quoted"),
        pytest.param(
            "SELECT 1 FROM alerts a\nLEFT JOIN readings AS r ON 1", ("alerts", "readings"), id="join"
        ),
        pytest.param("SELECT 1 FROM readings r, alerts", ("readings", "alerts"), id="comma"),
        pytest.param("SELECT 1 FROM readings JOIN alerts USING (x)", ("readings", "alerts"), id="no_alias"),
        pytest.param("WITH r AS (SELECT * FROM readings) SELECT * FROM r JOIN r", ("readings",), id="with"),
        pytest.param("SELECT * FROM (SELECT * FROM readings) x", ("readings",), id="subquery"),
        pytest.param("SELECT * FROM STREAM(readings)", ("readings",), id="stream_function"),
        pytest.param("SELECT 1 FROM readings UNION ALL SELECT 1 FROM alerts", STREAMS, id="union"),
        pytest.param("SELECT alerts FROM readings", ("readings",), id="a_column_of_a_streams_name"),
        pytest.param(
            "SELECT 'x FROM alerts' FROM readings -- FROM alerts", ("readings",), id="texts_and_comments"
        ),
        pytest.param(
            "SELECT /* FROM\n alerts */ 1 FROM devices, readings", ("readings",), id="a_static_table"
        ),
        pytest.param("SELECT 1 FROM readings_old", (), id="a_longer_name"),
        pytest.param("SELECT 1", (), id="nothing"),
    ],
)
def test_the_streams_after_from_and_join_are_found(sql: str, expected: tuple[str, ...]) -> None:
    assert streams_in(sql, STREAMS) == expected
