"""Boxes and arrows: a query as a graph of operators, which becomes the same plan as its CQL does.

boxes:
  warm:   {filter: celsius > 30, from: readings}
  some:   {random_drop: 0.5, from: warm}
  mean:   {aggregate: [device, avg(celsius) AS mean], by: device, window: RANGE 1 MIN SLIDE 1 MIN, from: some}

The box that no other box reads is the answer. A box over streams is a stream until a window makes a relation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from penstock.config.mistakes import Part, refused
from penstock.cql.errors import CqlError

KINDS = ("filter", "map", "union", "aggregate", "join", "random_drop", "window_drop")


def _list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Texts = Annotated[tuple[str, ...], BeforeValidator(_list)]


_KEYS_OF = {
    "by": ("aggregate",),
    "on": ("join",),
    "select": ("join",),
    "window": ("aggregate", "join"),
    "size_s": ("window_drop",),
}
"""Keys that only some boxes have."""


class Box(Part):
    """An operator and its inputs."""

    filter: str | None = Field(None, description="a condition, e.g. celsius > 30")
    map: Texts = Field((), description="expressions, e.g. [device, celsius * 1.8 + 32 AS fahrenheit]")
    union: Texts = Field((), description="two or more boxes or streams with the same columns")
    aggregate: Texts = Field((), description="keys and aggregates, e.g. [device, avg(celsius) AS mean]")
    join: Texts = Field((), description="two boxes or streams")
    random_drop: float | None = Field(None, ge=0, le=1, description="the fraction of tuples that is dropped")
    window_drop: float | None = Field(None, ge=0, le=1, description="the fraction of windows that is dropped")
    source: str | None = Field(None, alias="from", description="the box or stream that it reads")
    by: Texts = Field((), description="of aggregate: the columns to group by")
    on: str | None = Field(None, description="of join: a condition, e.g. a.device = b.device")
    select: Texts = Field((), description="of join: expressions; all columns by default")
    window: str | None = Field(
        None, description="of aggregate and join: RANGE 1 MIN SLIDE 1 MIN, ROWS 10, NOW"
    )
    size_s: float | None = Field(None, gt=0, alias="size", description="of window_drop: seconds of a window")

    @model_validator(mode="after")
    def _consistent(self) -> Box:
        given = [kind for kind in KINDS if getattr(self, kind) not in (None, ())]
        if len(given) != 1:
            got = " and ".join(given) or "none of them"
            raise refused(f"must have one of {', '.join(KINDS)}", got, "filter: celsius > 30")
        kind = given[0]
        if kind in ("union", "join"):
            inputs = getattr(self, kind)
            if self.source is not None:
                raise refused(f"is not a key of a {kind}", repr(self.source), f"{kind}: [a, b]", "from")
            if len(inputs) < 2 or (kind == "join" and len(inputs) > 2):
                raise refused(
                    f"must have two inputs{' or more' * (kind == 'union')}", list(inputs), "[a, b]", kind
                )
        elif self.source is None:
            raise refused("is required", "nothing", "the box or stream that it reads", "from")
        for key, of in _KEYS_OF.items():
            shown = "size" if key == "size_s" else key
            if getattr(self, key) not in (None, ()) and kind not in of:
                raise refused(f"is not a key of a {kind}", getattr(self, key), "leave it out", shown)
        if kind == "window_drop" and self.size_s is None:
            raise refused("is required beside window_drop", "nothing", "seconds of a window", "size")
        return self

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the boxes or streams that the box reads."""
        return self.union or self.join or ((self.source,) if self.source is not None else ())

    def query(self, streams: bool) -> str:
        """The box in CQL.

        Args:
            streams: Whether all inputs of the box are streams.
        """
        window = "" if self.window is None else f" [{self.window}]"
        if self.union:
            parts = [f"SELECT * FROM {name}" for name in self.union]
            return " UNION ALL ".join(f"ISTREAM({part})" if streams else part for part in parts)
        if self.join:
            both = ", ".join(f"{name}{window}" for name in self.join)
            return f"SELECT {', '.join(self.select) or '*'} FROM {both}" + (
                "" if self.on is None else f" WHERE {self.on}"
            )
        if self.aggregate:
            by = f" GROUP BY {', '.join(self.by)}" if self.by else ""
            return f"SELECT {', '.join(self.aggregate)} FROM {self.source}{window}{by}"
        made = f"SELECT {', '.join(self.map) or '*'} FROM {self.source}"
        if (condition := self._condition()) is not None:
            made += f" WHERE {condition}"
        return f"ISTREAM({made})" if streams else made

    def _condition(self) -> str | None:
        if self.random_drop is not None:
            return f"KEPT({_number(1.0 - self.random_drop)})"
        if self.window_drop is not None:
            return f"KEPT({_number(1.0 - self.window_drop)}, {_number(self.size_s or 0.0)})"
        return self.filter

    @property
    def gives_stream(self) -> bool:
        """Whether the box gives a stream if it reads streams."""
        return not (self.aggregate or self.join)


def _number(value: float) -> str:
    """A number as CQL writes it, without an exponent."""
    return f"{value:.6f}".rstrip("0").rstrip(".")


def boxes_text(boxes: Mapping[str, Box], streams: Mapping[str, Any]) -> str:
    """A graph as CQL: a view for each box, and the query for the box that no other box reads.

    Raises:
        CqlError: The boxes are no graph with one end.
    """
    known = {name.lower() for name in streams}
    for name in boxes:
        if name.lower() in known:
            raise CqlError("a box has a name of its own", repr(name), "rename it")
        known.add(name.lower())
    read = {each.lower() for box in boxes.values() for each in box.inputs}
    ends = [name for name in boxes if name.lower() not in read]
    if len(ends) != 1:
        got = ", ".join(ends) or "none: they go round in a circle"
        raise CqlError(
            "one box is the answer, and no other box reads it", got, "join or unite the others, or drop them"
        )
    kinds = {name.lower(): True for name in streams}
    lines: list[str] = []
    left = dict(boxes)
    while left:
        ready = [name for name, box in left.items() if all(each.lower() in kinds for each in box.inputs)]
        if not ready:
            name, box = next(iter(left.items()))
            missing = [each for each in box.inputs if each.lower() not in kinds]
            known_names = ", ".join([*streams, *boxes])
            unknown = [each for each in missing if each.lower() not in known]
            got = (
                f"{name}, which reads {unknown[0]}"
                if unknown
                else f"{name}, which reads itself through {missing[0]}"
            )
            raise CqlError(
                "a box reads streams and other boxes, and not itself", got, f"known: {known_names}"
            )
        for name in ready:
            box = left.pop(name)
            over_streams = all(kinds[each.lower()] for each in box.inputs)
            is_stream = kinds[name.lower()] = over_streams and box.gives_stream
            query = box.query(over_streams)
            lines.append(f"REGISTER {'STREAM' if is_stream else 'RELATION'} {name} AS {query};")
    answer = f"SELECT * FROM {ends[0]}"
    lines.append(f"ISTREAM({answer})" if kinds[ends[0].lower()] else answer)
    return "\n".join(lines)


def place_in_boxes(error: CqlError) -> str:
    """The box of a graph that an error is about."""
    if error.place is None:
        return ""
    line, _ = error.place.line_and_column(error.text)
    words = error.text.split("\n")[line - 1].split()
    return f"box {words[2]}:" if words[0] == "REGISTER" else ""
