"""docs/spark.md has every key of a flow and a pipeline with its default, every method of a flow, and every
field of its status.

Pages that name files name files that are there; the map in src/penstock names every package.
"""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic.fields import FieldInfo
from tests.test_imports import LAYERS

from penstock.config.flow import CapacityConfig, ClassConfig, FlowConfig, Governing
from penstock.config.mistakes import Part
from penstock.config.old_keys import OLD
from penstock.config.shed_settings import SampleSettings, ShedSettings
from penstock.config.shedding import (
    BalanceSicSettings,
    KeySettings,
    OldestSettings,
    RandomSettings,
    RangeSettings,
    UtilitySettings,
    WindowSettings,
)
from penstock.config.spark import SparkConfig
from penstock.pipeline.spec.pipeline import PipelineConfig, QueryConfig
from penstock.pipeline.spec.sinks import LogSink, MemorySink, ParquetSink
from penstock.pipeline.spec.sources import FilesSource, GeneratorSource, ReplaySource
from penstock.pipeline.spec.streams import StreamConfig
from penstock.streams.protocol import RESERVED_COLUMNS
from penstock.vocabulary.schema import _TYPES
from penstock.vocabulary.status import ClassStatus, QueryStatus, ReaderStatus, Status

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "penstock"
PAGE = (ROOT / "docs" / "spark.md").read_text(encoding="utf-8")
INSIDE = ("how-it-works", "plants", "streams", "records", "capacity")
"""Pages that name files of the source."""
PARTS: list[type[Part]] = [
    FlowConfig,
    ClassConfig,
    CapacityConfig,
    PipelineConfig,
    StreamConfig,
    ReplaySource,
    GeneratorSource,
    FilesSource,
    QueryConfig,
    SparkConfig,
    ParquetSink,
    LogSink,
    MemorySink,
]

pytestmark = pytest.mark.docs


def documented(part: str, page: str = PAGE) -> dict[str, str]:
    """Default by key, from the table under the mark."""
    table = page.partition(f"<!-- keys: {part} -->\n")[2].partition("\n\n")[0]
    return dict(re.findall(r"^\| `(\w+)` \| `?([^`|]+?)`? \| .+ \|$", table, re.MULTILINE))


def written(name: str, field: FieldInfo) -> str:
    """A default as the page writes it."""
    value: Any = field.default
    if field.is_required():
        return "required"
    if isinstance(value, Part):
        return str(getattr(value, "kind", getattr(value, "by", "{}")))
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float | int):
        return f"{value:g}s" if name.endswith("_s") else f"{value:g}"
    return {None: "none", (): "[]"}.get(value, str(value)) if not isinstance(value, dict) else "{}"


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.__name__)
def test_every_key_is_documented_with_its_default(part: type[Part]) -> None:
    inherited = Governing.model_fields if part is PipelineConfig else {}
    own = {
        n: f
        for n, f in part.model_fields.items()
        if n not in inherited and n != "kind" and f.json_schema_extra is not OLD
    }
    assert documented(part.__name__) == {f.alias or n: written(n, f) for n, f in own.items()}


KINDS: list[type[ShedSettings]] = [
    SampleSettings,
    KeySettings,
    OldestSettings,
    RandomSettings,
    BalanceSicSettings,
    UtilitySettings,
    RangeSettings,
    WindowSettings,
]
SHEDDING_PAGE = (ROOT / "docs" / "shedding.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_setting_of_shed_is_documented_with_its_default(kind: type[ShedSettings]) -> None:
    own = {n: f for n, f in kind.model_fields.items() if n not in ("by", "otherwise")}
    wanted = {field.alias or name: written(name, field) for name, field in own.items()}
    assert documented(kind.__name__, SHEDDING_PAGE) == wanted


def test_every_kind_of_shed_is_in_the_table_of_kinds() -> None:
    table = SHEDDING_PAGE.partition("<!-- kinds of shed -->\n")[2].partition("\n\n")[0]
    names = [name for kind in KINDS for name in get_args(kind.model_fields["by"].annotation)]
    assert re.findall(r"^\| `([\w-]+)` \| ", table, re.MULTILINE)[1:] == names


def test_every_type_and_metadata_column_is_documented() -> None:
    assert [name for name in RESERVED_COLUMNS if f"| `{name}` |" not in PAGE] == []
    told = {"bigint": "bigint", "smallint": "short", "tinyint": "byte"}
    assert [name for name in _TYPES if f"`{told.get(name, name)}`" not in PAGE] == []


def test_every_method_of_a_flow_is_mentioned() -> None:
    flow = (SOURCE / "spark" / "driver" / "flow.py").read_text(encoding="utf-8")
    inside = flow.partition("class Flow:")[2].partition("class QueryReaders:")[0]
    methods = set(re.findall(r"^    def ([a-z]\w*)\(", inside, re.MULTILINE))
    methods -= {"request", "resend_changes"}  # the agent's
    assert [name for name in sorted(methods) if f"flow.{name}(" not in PAGE] == []


def documented_fields(kind: str, page: str = PAGE) -> list[str]:
    """Names in the first column of the table under the mark."""
    table = page.partition(f"<!-- fields: {kind} -->\n")[2].partition("\n\n")[0]
    return [name for line in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", line.split("|")[1])]


@pytest.mark.parametrize("kind", [Status, ClassStatus, QueryStatus, ReaderStatus])
def test_every_field_of_the_status_is_documented_once(kind: type[Any]) -> None:
    assert sorted(documented_fields(kind.__name__)) == sorted(field.name for field in fields(kind))


def test_an_undocumented_field_is_noticed() -> None:
    assert "quota" not in documented_fields("ClassStatus", PAGE.replace("`quota`", "`quotas`"))


def test_an_undocumented_key_is_noticed() -> None:
    assert "slots" not in documented("FlowConfig", PAGE.replace("| `slots` |", "| `slot` |"))


# -- files that pages name ------------------------------------------------------------------------


@pytest.mark.parametrize("page", INSIDE)
def test_files_that_are_named_exist(page: str) -> None:
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:\w+/)+(?:\w+\.py)?)`", text)) - {"checkpoints/"}
    assert named, "the page names no file"
    assert [name for name in sorted(named) if not (SOURCE / name).exists()] == []


def test_the_map_of_the_source_names_every_package_in_an_order_that_imports_follow() -> None:
    named = re.findall(r"^\| `(\w+)/` \|", (SOURCE / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert named == [package for layer in LAYERS for package in layer]
    assert sorted(named) == sorted(path.parent.name for path in SOURCE.glob("*/__init__.py"))
