"""Arrivals, the form of every workload; trace files; and scaling to a wanted rate."""

from __future__ import annotations

import gzip
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from penstock.vocabulary.errors import InvalidInputError, require_positive

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]

# A typing error (a rate of 1e12, bins of 1 ns) must not fill the memory: 2e8 float64 are 1.6 GB.
MAX_ARRIVALS = 200_000_000
# About three years. Epoch stamps (1.7e9 s) are beyond it, so they are refused, not simulated as silence.
MAX_TIME_S = 1e8

_GZIP_MAGIC = b"\x1f\x8b"
_UTF8_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, eq=False)
class Arrivals:
    """A workload: when tuples arrive.

    Attributes:
        times_s: Sorted arrival times within [0, duration_s]; a private, read-only copy.
        duration_s: Length of the workload, which may go on after the last arrival.
        name: Name of the workload in tables and plots.
    """

    times_s: Floats
    duration_s: float
    name: str

    def __post_init__(self) -> None:
        require_positive("duration_s", self.duration_s, "give the length of the workload in seconds")
        times_s = np.array(self.times_s, dtype=np.float64)
        if times_s.ndim != 1:
            raise InvalidInputError(
                "times_s must be one list of numbers", f"{times_s.ndim} dimensions", "flatten the array"
            )
        if not np.all(times_s[1:] >= times_s[:-1]):
            raise InvalidInputError(
                "times_s must be sorted numbers", "a time before its predecessor, or nan", "use np.sort"
            )
        if times_s.size and not (times_s[0] >= 0 and times_s[-1] <= self.duration_s):
            raise InvalidInputError(
                f"times_s must lie between 0 and duration_s = {self.duration_s:g}",
                f"{times_s[0]:g} to {times_s[-1]:g}",
                "shift the times or lengthen the duration",
            )
        times_s.setflags(write=False)
        object.__setattr__(self, "times_s", times_s)

    @property
    def count(self) -> int:
        """Number of arrivals."""
        return int(self.times_s.size)

    @property
    def mean_rate_per_s(self) -> float:
        """Arrivals per second over the whole duration."""
        return self.count / self.duration_s

    def counts_per(self, bin_s: float) -> Counts:
        """Arrivals in each bin of `bin_s`; the last bin may reach beyond the duration."""
        require_positive("bin_s", bin_s, "give the width of a bin in seconds")
        # The guards against rounding: 1.1 / 0.1 = 11.000000000000002 is 11 bins, and the arrival at
        # 0.3 / 0.1 = 2.9999999999999996 opens bin 3.
        bins = max(1, require_countable("bins", np.ceil(self.duration_s / bin_s - 1e-9)))
        index = np.minimum((self.times_s / bin_s + 1e-9).astype(np.int64), bins - 1)
        return np.bincount(index, minlength=bins).astype(np.int64)


def require_countable(what: str, count: float) -> int:
    """Returns the count as an int; rejects one that would fill the memory."""
    if not count <= MAX_ARRIVALS:
        raise InvalidInputError(
            f"the number of {what} must not exceed {MAX_ARRIVALS}",
            f"{count:g}",
            "lower the rate or the duration",
        )
    return int(count)


def seeded(seed: int) -> np.random.Generator:
    """The random numbers of one workload."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise InvalidInputError("seed must be a whole number, 0 or more", repr(seed), "use seed=0")
    return np.random.Generator(np.random.PCG64(int(seed)))


def scale_rate(arrivals: Arrivals, rate_scale: float, seed: int = 0) -> Arrivals:
    """Multiplies the number of arrivals; bursts stay where they are.

    Every arrival is kept floor(rate_scale) times, and a random choice of them once more, so that the total is
    exactly round(rate_scale * count). The first copy keeps its time; the others fall at random into the gap
    before the next arrival.
    """
    _require_scale("rate_scale", rate_scale)
    if rate_scale == 1.0:
        return arrivals
    rng = seeded(seed)
    times_s, n = arrivals.times_s, arrivals.count
    total = _require_some(require_countable("arrivals", np.rint(n * rate_scale)), arrivals.name)
    copies = np.full(n, total // n, dtype=np.int64)
    copies[rng.choice(n, size=total % n, replace=False)] += 1
    gaps_s = np.diff(times_s, append=max(arrivals.duration_s, times_s[-1]))
    offsets = rng.random(total)
    first_copy = (np.cumsum(copies) - copies)[copies > 0]
    offsets[first_copy] = 0.0
    scaled_s = np.repeat(times_s, copies) + offsets * np.repeat(gaps_s, copies)
    scaled_s = np.minimum(np.sort(scaled_s), arrivals.duration_s)
    return Arrivals(scaled_s, arrivals.duration_s, f"{arrivals.name} x{rate_scale:.4g}")


def overload(arrivals: Arrivals, capacity_per_s: float, factor: float, seed: int = 0) -> Arrivals:
    """Scales the workload so that its mean rate is `factor` times the capacity."""
    require_positive("capacity_per_s", capacity_per_s, "give the tuples per second the plant can process")
    require_positive("factor", factor, "1 is exactly the capacity, 2 twice as much")
    _require_some(arrivals.count, arrivals.name)
    return scale_rate(arrivals, factor * capacity_per_s / arrivals.mean_rate_per_s, seed)


def read_trace(
    path: str | Path, time_scale: float = 1.0, rate_scale: float = 1.0, seed: int = 0, origin: float = 0.0
) -> Arrivals:
    """Reads a trace file, plain or gzipped (told by its content, not its name).

    A file has one arrival time in seconds per line, or lines `second,count` (a header is allowed), whose
    arrivals are spread evenly over the second; so are times that are all whole seconds. Blank lines and
    lines starting with # are skipped. The trace lasts to the end of its last second, or of its last unit if
    the file counts in another unit.

    Args:
        path: The file.
        time_scale: Multiplies the times: 0.5 plays twice as fast, 1e-6 reads microseconds.
        rate_scale: Multiplies the number of arrivals: counts directly, times by `scale_rate`.
        seed: For `scale_rate`.
        origin: The file's time that becomes 0, in the file's unit (traces stamped with the time of day).
    """
    _require_scale("time_scale", time_scale)
    _require_scale("rate_scale", rate_scale)
    path = Path(path)
    rows = _Rows.of(path, _content(path))
    if rows.has_counts:
        seconds, counts = _seconds_and_counts(rows, origin)
        cumulated = np.rint(np.cumsum(counts) * rate_scale)  # rounding the sum diffuses the rounding error
        total = _require_some(require_countable("arrivals", cumulated[-1]), path.name)
        scaled = np.diff(cumulated, prepend=0.0).astype(np.int64)
        rank = np.arange(total) - np.repeat(np.cumsum(scaled) - scaled, scaled)
        times = np.repeat(seconds, scaled) + rank / np.repeat(scaled, scaled)
        end = seconds[-1] + 1.0
    else:
        times = _numbers(rows, 0, "an arrival time") - origin
        _check_times(rows, times, times[1:] < times[:-1], "arrival times must be sorted")
        times = _spread_whole_seconds(times)
        end = np.floor(times[-1]) + 1.0
    if end * time_scale > MAX_TIME_S:
        raise InvalidInputError(
            f"a trace must end within {MAX_TIME_S:g} s of its origin",
            f"{end * time_scale:g} s in {_quoted(path)}",
            f"pass origin={times[0] + origin:.15g} for times of day, time_scale for other units",
        )
    arrivals = Arrivals(times * time_scale, float(end * time_scale), path.name)
    return arrivals if rows.has_counts else scale_rate(arrivals, rate_scale, seed)


def _spread_whole_seconds(times: Floats) -> Floats:
    """Spreads times that were logged in whole seconds over their second; else all rows would come at once."""
    if (times != np.floor(times)).any():
        return times
    _, first, counts = np.unique(times, return_index=True, return_counts=True)
    rank = np.arange(times.size) - np.repeat(first, counts)
    return times + rank / np.repeat(counts, counts)


def _content(path: Path) -> bytes:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise InvalidInputError("the trace file must exist", _quoted(path), "check the path") from None
    except IsADirectoryError:
        raise InvalidInputError(
            "a trace must be a file", f"the directory {_quoted(path)}", "name a file inside it"
        ) from None
    except OSError as error:
        raise InvalidInputError(
            "the trace file must be readable",
            f"{_quoted(path)}: {error.strerror}",
            "check the path and its rights",
        ) from None
    if not data.startswith(_GZIP_MAGIC):
        return data
    try:
        return gzip.decompress(data)
    except (EOFError, OSError, zlib.error) as error:
        raise InvalidInputError(
            "a gzipped trace must be whole", f"{_quoted(path)}: {error}", "fetch or compress the file again"
        ) from None


@dataclass(frozen=True)
class _Rows:
    """The data rows of a file; all lines are kept, so that an error can name the line number."""

    path: Path
    lines: list[bytes]
    rows: list[bytes]
    skipped_rows: int
    has_counts: bool

    @staticmethod
    def of(path: Path, content: bytes) -> _Rows:
        lines = content.removeprefix(_UTF8_BOM).splitlines()
        rows = [line for line in lines if _is_data(line)]
        has_counts = bool(rows) and b"," in rows[0]
        header_rows = int(has_counts and not any(_is_number(field) for field in rows[0].split(b",")))
        if len(rows) == header_rows:
            raise InvalidInputError(
                "a trace must hold at least one arrival",
                f"no data in {_quoted(path)}",
                "check the file's content",
            )
        found = _Rows(path, lines, rows[header_rows:], header_rows, has_counts)
        commas = np.fromiter((row.count(b",") for row in found.rows), np.int64, len(found.rows))
        rule = "every line must be second,count" if has_counts else "every line must be one arrival time"
        found.reject(commas != has_counts, rule, "use one format throughout, as in the first line of data")
        return found

    def reject(self, bad: npt.NDArray[np.bool_], rule: str, hint: str) -> None:
        """Rejects the first row marked bad, if there is one."""
        if bad.any():
            self.reject_row(int(np.argmax(bad)), rule, hint)

    def reject_row(self, row: int, rule: str, hint: str) -> NoReturn:
        numbers = [number for number, line in enumerate(self.lines, start=1) if _is_data(line)]
        line_number = numbers[row + self.skipped_rows]
        text = self.rows[row].strip().decode("utf-8", errors="replace")
        shown = repr(text if len(text) <= 40 else text[:37] + "...")
        raise InvalidInputError(rule, f"{shown} in {_quoted(self.path)}, line {line_number}", hint)


def _seconds_and_counts(rows: _Rows, origin: float) -> tuple[Floats, Floats]:
    seconds = _numbers(rows, 0, "a second") - origin
    counts = _numbers(rows, 1, "a count")
    _check_times(rows, seconds, seconds[1:] <= seconds[:-1], "seconds must be sorted, each named once")
    rows.reject(seconds != np.floor(seconds), "a second must be a whole number", "count per whole second")
    rows.reject(
        (counts < 0) | (counts != np.floor(counts)),
        "a count must be a whole number, 0 or more",
        "count arrivals; scale them by rate_scale",
    )
    if not counts.any():
        raise InvalidInputError(
            "a trace must hold at least one arrival",
            f"only counts of 0 in {_quoted(rows.path)}",
            "check the file's content",
        )
    return seconds, counts


def _numbers(rows: _Rows, column: int, what: str) -> Floats:
    fields = [row.split(b",")[column] for row in rows.rows] if rows.has_counts else rows.rows
    try:
        values = np.fromiter(map(float, fields), np.float64, len(fields))
    except ValueError:
        bad = next(row for row, field in enumerate(fields) if not _is_number(field))
        rows.reject_row(bad, f"{what} must be a number", "give plain numbers; comments start with #")
    rows.reject(~np.isfinite(values), f"{what} must be a finite number", "remove the line")
    return values


def _check_times(rows: _Rows, times: Floats, backwards: npt.NDArray[np.bool_], sorted_rule: str) -> None:
    rows.reject(
        times < 0, "times must not be negative", "times count from the start of the trace, or from origin"
    )
    rows.reject(np.concatenate(([False], backwards)), sorted_rule, "sort the file, for example with sort -n")


def _is_data(line: bytes) -> bool:
    stripped = line.strip()
    return bool(stripped) and not stripped.startswith(b"#")


def _is_number(field: bytes) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True


def _require_scale(name: str, value: float) -> None:
    require_positive(name, value, "1 leaves the trace as it is, 2 doubles it")


def _require_some(count: int, name: str) -> int:
    if count < 1:
        raise InvalidInputError(
            "a scaled workload must keep at least one arrival",
            f"none in {name}",
            "scale less, or a longer workload",
        )
    return count


def _quoted(path: Path) -> str:
    return repr(str(path))  # a line break in a name must not break the one-line message
