"""What configuration files share: YAML to checked parts, and a mistake as one line that says where it is.

A part is a pydantic model. Its validators raise `refused(...)`, which knows the key it is about;
`checked(...)` turns the first mistake into an `InvalidInputError` with file, key, rule, value and hint.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Tag, ValidationError, ValidationInfo
from pydantic_core import InitErrorDetails, PydanticCustomError

from penstock.vocabulary.durations import parse_duration_s
from penstock.vocabulary.errors import InvalidInputError, UnknownNameError

ModelT = TypeVar("ModelT", bound=BaseModel)

REFUSED = "penstock_refused"
"""Type of the errors that our own validators raise."""


class Part(BaseModel):
    """A part of a configuration: no unknown keys; a file has `target: 2s`, Python `target_s=2.0`."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_by_name=True, validate_by_alias=True, allow_inf_nan=False
    )


def refused(rule: str, got: object, hint: str, *path: str) -> ValidationError:
    """The error to raise in a validator.

    Args:
        rule: What the key must be, its name left out: "must be ...".
        got: What it is, as it is to be shown.
        hint: What to do instead.
        path: The key, from the part that is being validated.
    """
    return _located({"text": f" {rule}", "got": str(got), "hint": hint}, got, path)


def unknown_name(name: str, known: Iterable[str], *path: str) -> ValidationError:
    """The error to raise for a name that is not among the known ones; the nearest is suggested."""
    return _located({"known": tuple(known)}, name, path)


@contextmanager
def placing(*path: str) -> Iterator[None]:
    """Says at which key an `InvalidInputError` of other code happened."""
    try:
        yield
    except InvalidInputError as error:
        raise _located(
            {"text": f": {error.rule}", "got": str(error.got), "hint": error.hint}, error.got, path
        ) from None


def _located(context: dict[str, Any], got: object, path: tuple[str, ...]) -> ValidationError:
    kind = PydanticCustomError(REFUSED, "refused", context)
    return ValidationError.from_exception_data(REFUSED, [InitErrorDetails(type=kind, loc=path, input=got)])


def _seconds(value: object, info: ValidationInfo, allow_zero: bool = False) -> float:
    name = (info.field_name or "it").removesuffix("_s")
    try:
        return parse_duration_s(value, name, allow_zero=allow_zero)
    except InvalidInputError as error:
        raise refused(error.rule.removeprefix(f"{name} "), error.got, error.hint) from None


def _seconds_or_zero(value: object, info: ValidationInfo) -> float:
    return _seconds(value, info, allow_zero=True)


Seconds = Annotated[float, BeforeValidator(_seconds)]
"""A duration, `2s` or a number of seconds, above 0."""

SecondsOrZero = Annotated[float, BeforeValidator(_seconds_or_zero)]


# -- files ----------------------------------------------------------------------------------------


class _Loader(yaml.SafeLoader):
    """YAML that refuses a key which stands twice: the first of two queries of one name would vanish."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"the key {key.value!r} stands twice", problem_mark=key.start_mark
                )
            seen.add(key.value if isinstance(key, yaml.ScalarNode) else "")
        return node


def read_mapping(path: Path, what: str, examples: str) -> dict[str, Any]:
    """The keys and values of a YAML file; an empty file has none.

    Args:
        path: The file.
        what: What it is, e.g. "scenario".
        examples: Where good ones are.
    """
    try:
        raw = yaml.load(path.read_bytes(), _Loader)
    except FileNotFoundError:
        raise InvalidInputError(f"the {what} file must exist", repr(str(path)), "check the path") from None
    except OSError as error:
        raise InvalidInputError(
            f"the {what} file must be readable", f"{str(path)!r}: {error.strerror}", "check the path"
        ) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        problem = " ".join(str(getattr(error, "problem", None) or error).split())[:100]
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark is not None else ""
        raise InvalidInputError(
            f"a {what} file must be YAML", f"{problem} in {str(path)!r}{line}", f"see {examples}"
        ) from None
    if raw is None:
        return {}
    if not isinstance(raw, dict):
        raise InvalidInputError(
            f"a {what} file must be a mapping of keys to values",
            f"{reprlib.repr(raw)} in {str(path)!r}",
            f"write lines such as `key: value`; see {examples}",
        )
    return {str(key): value for key, value in raw.items()}


# -- errors ---------------------------------------------------------------------------------------

_RULES = {
    "missing": "is required",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "finite_number": "must be a finite number",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "string_type": "must be a text",
    "dict_type": "must be a mapping of keys to values",
    "model_type": "must be a mapping of keys to values",
    "model_attributes_type": "must be a mapping of keys to values",
    "dataclass_type": "must be a mapping of keys to values",
    "tuple_type": "must be a list",
    "path_type": "must be a path",
    "too_short": "must not be empty",
    "greater_than": "must be more than {gt:g}",
    "greater_than_equal": "must be at least {ge:g}",
    "less_than": "must be less than {lt:g}",
    "less_than_equal": "must be at most {le:g}",
}
"""pydantic's errors in our words; what is not here keeps pydantic's."""


def checked(
    model: type[ModelT], raw: Any, where: str, base: Path | None = None, hint: str = "see docs/"
) -> ModelT:
    """A model from plain values; the first mistake is an `InvalidInputError`.

    Args:
        model: What they are to become.
        raw: The values.
        where: What to call their origin in an error, e.g. the file.
        base: The directory that relative paths are relative to.
        hint: For keys that do not say what they expect.
    """
    try:
        return model.model_validate(raw, context={"base": base, "where": where})
    except ValidationError as error:
        raise as_invalid_input(error, where, model, hint) from None


def as_invalid_input(
    error: ValidationError,
    where: str,
    root: type[BaseModel] | None = None,
    default_hint: str = "see docs/policies.md",
) -> InvalidInputError:
    """The most telling of pydantic's errors as rule, value and hint on one line."""
    errors = error.errors(include_url=False)
    # A misspelt key is often missing under its right name too: the misspelling is the cause.
    first = next((e for e in errors if e["type"] == "extra_forbidden"), errors[0])
    kind, got, context = first["type"], first["input"], first.get("ctx", {})
    part, steps, reached, description = _walk(root, first["loc"])
    path = ".".join(steps)
    subject = f"{where}: {path}" if path else where
    if kind == REFUSED:
        if "known" in context:
            return UnknownNameError(subject, str(got), context["known"])
        return InvalidInputError(f"{subject}{context['text']}", context["got"], context["hint"])
    if kind == "extra_forbidden":
        keys = [] if part is None else [f.alias or name for name, f in part.model_fields.items()]
        *outer, last = steps
        inside = f"{where}, {'.'.join(outer)}" if outer else where
        return UnknownNameError(f"a key of {inside}", last, keys)
    if kind == "union_tag_invalid":
        tag = f"{subject}.{_tag_key(reached)}"
        return UnknownNameError(tag, str(context["tag"]), _tags(reached))
    if kind == "union_tag_not_found":
        return InvalidInputError(
            f"{subject}.{_tag_key(reached)} is required",
            reprlib.repr(got),
            f"one of {', '.join(_tags(reached))}",
        )
    if kind == "literal_error" and isinstance(got, str):
        return UnknownNameError(subject, got, re.findall(r"'([^']*)'", context["expected"]))
    rule = _RULES[kind].format(**context) if kind in _RULES else first["msg"]
    shown = "nothing" if kind == "missing" else reprlib.repr(got)
    return InvalidInputError(
        f"{subject if path else f'{where}: it'} {rule}", shown, description or default_hint
    )


def _walk(
    root: type[BaseModel] | None, location: tuple[int | str, ...]
) -> tuple[type[BaseModel] | None, list[str], Any, str | None]:
    """Follows a location through the models.

    Returns:
        The part that has the last key, the location without the tags that pydantic puts in for the branches
        of a union, the type that was reached, and what the last key with a description is to be.
    """
    part: type[BaseModel] | None = None
    steps: list[str] = []
    reached: Any = root
    description: str | None = None
    for step in location:
        members = _members(reached)
        if step == "[key]":  # the key of the mapping, not its value
            continue
        if len(members) > 1:
            tagged = [member for member in members if str(step) in _tags_of(member)]
            if tagged:
                reached = tagged[0]
                continue
        steps.append(str(step))  # `refused` gives keys without tags
        at, part = (members[0] if len(members) == 1 else None), None
        if isinstance(at, type) and issubclass(at, BaseModel):
            part = at
            fields = {alias: f for name, f in at.model_fields.items() for alias in (name, f.alias or name)}
            field = fields.get(str(step))
            reached = field.annotation if field else None
            description = (field.description if field else None) or description
        elif get_origin(at) in (dict, Mapping, tuple, list):
            reached = get_args(at)[1 if get_origin(at) in (dict, Mapping) else 0]
        else:
            reached = None
    return part, steps, reached, description


def _members(kind: Any) -> list[Any]:
    """The branches of a union, of anything else itself; `None` is no branch, annotations are taken off."""
    if get_origin(kind) is Annotated and not any(isinstance(mark, Tag) for mark in kind.__metadata__):
        return _members(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        return [member for member in get_args(kind) if member is not type(None)]
    return [] if kind is None else [get_args(kind)[0] if get_origin(kind) is Annotated else kind]


def _tags_of(member: Any) -> list[str]:
    """What pydantic may call a branch of a union: its tag, or its `kind` or `by`."""
    if get_origin(member) is Annotated:
        return [mark.tag for mark in member.__metadata__ if isinstance(mark, Tag)]
    for key in _TAG_KEYS:
        if isinstance(member, type) and issubclass(member, BaseModel) and key in member.model_fields:
            kind = member.model_fields[key].annotation
            return list(get_args(kind)) if get_origin(kind) is Literal else []
    return []


_TAG_KEYS = ("kind", "by")
"""Keys by which the branches of a union are told apart."""


def _tag_key(union: Any) -> str:
    """The key by which the branches of a union are told apart."""
    parts = [m for m in _members(union) if isinstance(m, type) and issubclass(m, BaseModel)]
    return next((key for key in _TAG_KEYS if any(key in part.model_fields for part in parts)), "kind")


def _tags(union: Any) -> list[str]:
    return [tag for member in _members(union) for tag in _tags_of(member)]
