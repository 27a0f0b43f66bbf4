"""A lane that is refused does not hold up the other lanes of its query. Needs PySpark, but no JVM."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.pipeline.spec.load import load_pipeline
from penstock.vocabulary.errors import InvalidInputError

pytest.importorskip("pyspark")

from penstock.backfill import query as backfill_query_module
from penstock.backfill.work import Backfilled


def test_the_error_of_a_refused_lane_comes_after_the_other_lanes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def backfill(spark: Any, root: Path, reader: str, *_: Any, **__: Any) -> Backfilled:
        if reader.startswith("lost"):
            raise InvalidInputError("rows are there", reader, "put them back")
        return Backfilled(reader, "here")

    log = SimpleNamespace(user_schema=None)
    stores = [SimpleNamespace(reader=reader, log=log) for reader in ("lost-1", "there", "lost-2")]
    monkeypatch.setattr(backfill_query_module, "transform_of", lambda *_: lambda rows: rows)
    monkeypatch.setattr(backfill_query_module, "lanes_of", lambda *_: stores)
    monkeypatch.setattr(backfill_query_module, "spark_schema", lambda *_: None)
    monkeypatch.setattr(backfill_query_module, "_windows", lambda *_: None)
    monkeypatch.setattr(backfill_query_module, "backfill", backfill)
    config = load_pipeline(
        {
            "log": str(tmp_path),
            "classes": {"gold": {"target": "2s"}},
            "streams": {"numbers": {"schema": {"n": "long"}}},
            "queries": {
                "count": {
                    "class": "gold",
                    "sql": "SELECT n FROM numbers",
                    "sink": {"kind": "parquet", "path": "results"},
                }
            },
        }
    )
    spark: Any = SimpleNamespace(createDataFrame=lambda *_: None)
    done: list[Backfilled] = []
    with pytest.raises(InvalidInputError, match="got: lost-1;"):
        done.extend(backfill_query_module.backfill_query(spark, config, "count"))
    assert [each.reader for each in done] == ["there"]
    assert "another lane is not backfilled: expected: rows are there; got: lost-2" in caplog.text
