"""What `import penstock` gives."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import penstock
from penstock import Producer, Status, streams, testing
from penstock.policies.load.base import Manager
from penstock.policies.shedding.base import BatchShedder
from penstock.streams.flight.server import FlightServer
from penstock.streams.layout import LogConfig
from penstock.vocabulary import model
from penstock.vocabulary.errors import InvalidInputError, PenstockError
from penstock.vocabulary.histogram import Delays


def test_every_public_name_is_there_and_completed() -> None:
    assert dir(penstock) == sorted(penstock.__all__)
    for name in penstock.__all__:
        assert getattr(penstock, name) is not None
    assert callable(penstock.attach)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'penstock' has no attribute 'attatch'"):
        penstock.attatch  # type: ignore[attr-defined]


def test_importing_penstock_loads_no_spark() -> None:
    code = "import sys, penstock; print('pyspark' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == "False\n"


def test_what_an_application_catches_and_annotates_with_is_public() -> None:
    assert penstock.PenstockError is PenstockError
    assert issubclass(InvalidInputError, penstock.PenstockError)
    assert penstock.Flow.__name__ == "Flow"
    assert inspect.signature(penstock.attach).return_annotation == "Flow"
    assert inspect.signature(penstock.Flow.status).return_annotation == Status.__name__
    assert inspect.signature(Producer).parameters["log"].annotation == "StreamWriter"


# -- docstrings -----------------------------------------------------------------------------------


def undocumented(cls: type) -> list[str]:
    """Public attributes of a class that have no docstring."""
    own = {name: each for name, each in vars(cls).items() if not name.startswith("_")}
    parts = [name for name, each in own.items() if inspect.isroutine(each) or isinstance(each, property)]
    return [f"{cls.__name__}.{name}" for name in parts if not inspect.getdoc(getattr(cls, name))]


def classes_of(module: ModuleType) -> list[type]:
    found = [each for name, each in vars(module).items() if inspect.isclass(each) and name[0] != "_"]
    return [cls for cls in found if cls.__module__ == module.__name__]


PUBLIC = [
    *(penstock.Flow, penstock.Producer, penstock.Status, LogConfig, FlightServer, Delays),
    *(Manager, BatchShedder, *classes_of(testing), *classes_of(model)),
]


@pytest.mark.parametrize("cls", PUBLIC, ids=lambda cls: cls.__name__)
def test_every_public_class_and_its_methods_say_what_they_are(cls: type) -> None:
    assert inspect.getdoc(cls)
    assert undocumented(cls) == []


def test_every_public_function_says_what_it_does() -> None:
    for module in (penstock, streams):
        for name in module.__all__:
            each = getattr(module, name)
            assert not callable(each) or inspect.getdoc(each), name


def protocols() -> Iterator[tuple[str, ast.ClassDef]]:
    for path in sorted(Path(penstock.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and "Protocol" in map(ast.unparse, node.bases):
                yield f"{path.name}:{node.name}", node


def test_every_method_of_a_protocol_says_what_whoever_implements_it_must_do() -> None:
    found = dict(protocols())
    assert len(found) > 20
    missing = [
        f"{name}.{method.name}"
        for name, protocol in found.items()
        for method in protocol.body
        if isinstance(method, ast.FunctionDef) and not protocol.name.startswith("_")
        if not method.name.startswith("_") and not ast.get_docstring(method)
    ]
    assert missing == []
