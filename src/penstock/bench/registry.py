"""Which benches there are: functions marked by `@bench` in the `run.py` files of a checkout's `bench`."""

from __future__ import annotations

import fnmatch
import importlib
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from penstock.bench.report import EXPECTED_FILE, ExpectedRow, PaperFigures, read_expected
from penstock.vocabulary.errors import InvalidInputError, PenstockError, UnknownNameError

if TYPE_CHECKING:
    from penstock.bench.runner import BenchRun

BenchFunction = Callable[["BenchRun"], None]

ENVIRONMENT_VARIABLE = "PENSTOCK_BENCH"
_PACKAGE = "penstock_benches"
_MARK = "__penstock_bench__"
_RUN_FILE = "run.py"


@dataclass(frozen=True)
class Bench:
    """One bench: a function, and the rows that it is expected to report."""

    id: str
    title: str
    function: BenchFunction
    expected: tuple[ExpectedRow, ...]
    of_paper: bool = False

    @property
    def figures(self) -> PaperFigures:
        """How the paper's figures are held; a bench that is not of a paper has none."""
        return PaperFigures.of(self.expected if self.of_paper else ())


def figures_by_folder(benches: Iterable[Bench]) -> dict[str, PaperFigures]:
    """How the figures of each paper are held; `all` has those of all of them."""
    rows: dict[str, list[ExpectedRow]] = {}
    for found in benches:
        if found.of_paper:
            rows.setdefault(found.id.partition("/")[0], []).extend(found.expected)
    counted = {folder: PaperFigures.of(of_folder) for folder, of_folder in rows.items()}
    return {**counted, "all": PaperFigures.of(row for of_folder in rows.values() for row in of_folder)}


def bench(name: str, title: str) -> Callable[[BenchFunction], BenchFunction]:
    """Registers a function of a `run.py` as the bench `<folder>/<name>`."""
    if not name or any(letter in name for letter in "/*?[ "):
        raise InvalidInputError("a bench's name is one word", repr(name), "fig12; the folder comes before it")

    def mark(function: BenchFunction) -> BenchFunction:
        setattr(function, _MARK, (name, title))
        return function

    return mark


def find_root() -> Path:
    """The `bench` folder: PENSTOCK_BENCH, else above this source file, else above the working directory."""
    told = os.environ.get(ENVIRONMENT_VARIABLE)
    if told:
        if not _is_root(Path(told)):
            raise InvalidInputError(
                f"{ENVIRONMENT_VARIABLE} names a folder that holds papers/ or micro/",
                repr(told),
                "point it at the bench folder of a checkout",
            )
        return Path(told).resolve()
    for start in (Path(__file__).resolve().parent, Path.cwd()):
        for folder in (start, *start.parents):
            # The package itself has a folder of this name, so the name alone does not tell.
            if _is_root(folder / "bench"):
                return folder / "bench"
    raise PenstockError(
        "benches are not part of the installed package and no bench folder was found; "
        f"hint: run from a checkout, or set {ENVIRONMENT_VARIABLE}"
    )


def _is_root(folder: Path) -> bool:
    return (folder / "papers").is_dir() or (folder / "micro").is_dir()


def load_benches(root: Path | None = None) -> dict[str, Bench]:
    """Every bench by its id, in the order of the folders and of the functions in them."""
    root = find_root() if root is None else root
    _open_package(root)
    folders = [
        f.parent for pattern in (f"papers/*/{_RUN_FILE}", f"*/{_RUN_FILE}") for f in root.glob(pattern)
    ]
    found: dict[str, Bench] = {}
    for folder in sorted(folders):
        found.update(_load_folder(folder))
    return found


def _open_package(root: Path) -> None:
    """Makes the folders importable as one package: a `run.py` may import its neighbours relatively."""
    for name in [n for n in sys.modules if n == _PACKAGE or n.startswith(f"{_PACKAGE}.")]:
        del sys.modules[name]
    package = ModuleType(_PACKAGE)
    package.__path__ = [str(root / "papers"), str(root)]
    sys.modules[_PACKAGE] = package
    importlib.invalidate_caches()


def _load_folder(folder: Path) -> dict[str, Bench]:
    try:
        module = importlib.import_module(f"{_PACKAGE}.{folder.name}.{_RUN_FILE.removesuffix('.py')}")
    except PenstockError:
        raise
    except Exception as error:
        raise PenstockError(
            f"{folder / _RUN_FILE} does not load: {type(error).__name__}: {error}; "
            "hint: import it in Python to see where"
        ) from error
    marked = [f for f in vars(module).values() if hasattr(f, _MARK)]
    functions: dict[str, tuple[str, BenchFunction]] = {}
    for function in marked:
        name, title = getattr(function, _MARK)
        if name in functions and functions[name][1] is not function:
            raise InvalidInputError(f"{folder.name}: bench names differ", repr(name), "rename one of the two")
        functions[name] = (title, function)
    expected = read_expected(folder / EXPECTED_FILE, folder.name, list(functions))
    return {
        f"{folder.name}/{name}": Bench(
            f"{folder.name}/{name}",
            title,
            function,
            expected.get(name, ()),
            of_paper=folder.parent.name == "papers",
        )
        for name, (title, function) in functions.items()
    }


def select(benches: dict[str, Bench], wanted: Sequence[str]) -> list[Bench]:
    """The benches that ids, folders, patterns such as `tu2006/*`, or `all` name; each once."""
    if not wanted:
        raise InvalidInputError(
            "a bench id is needed", "none", "penstock bench list shows them; all runs all"
        )
    chosen: dict[str, Bench] = {}
    for name in wanted:
        pattern = "*" if name == "all" else name
        hits = [b for i, b in benches.items() if fnmatch.fnmatchcase(i, pattern) or i.startswith(f"{name}/")]
        if not hits:
            raise UnknownNameError("bench id", name, benches)
        chosen.update({b.id: b for b in hits})
    return list(chosen.values())
