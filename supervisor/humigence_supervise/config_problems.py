"""What pydantic found wrong, in a person's words: place, JSON path, what is allowed."""

from __future__ import annotations

import difflib
import json
import re
import types
import typing
from typing import Final

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from humigence_supervise.config_care import PolicySettings
from humigence_supervise.config_models import Settings
from humigence_supervise.config_text import Document, JsonPath, Place
from humigence_supervise.config_types import PATTERN_WORDS
from humigence_supervise.domain import Kind

Problem = tuple[Place, str, str]
"""Place, readable JSON path, what is wrong there."""

_SHOWN_CHARS: Final = 40
_SHAPES: Final = {
    "string_type": "must be a string",
    "path_type": "must be a string, a path",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "dict_type": "must be an object {...}",
    "model_type": "must be an object {...}",
    "model_attributes_type": "must be an object {...}",
    "tuple_type": "must be a list [...]",
    "list_type": "must be a list [...]",
    "string_too_short": "must not be empty",
}
_BOUNDS: Final = {"ge": "at least", "gt": "more than", "le": "at most"}


def readable_path(path: JsonPath) -> str:
    """Return `ladder[1].gpus` for ("ladder", 1, "gpus")."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")


def describe(document: Document, detail: ErrorDetails) -> Problem:
    """Return where and what one of pydantic's errors is, with the nearest allowed word."""
    loc: JsonPath = detail["loc"]
    match detail["type"]:
        case "missing":
            parent = loc[:-1]
            return document.place_of_value(parent), readable_path(parent), f'needs "{loc[-1]}"'
        case "extra_forbidden":
            return document.place_of_key(loc), readable_path(loc), _unknown_key(loc)
        case _ if loc and loc[-1] == "[key]":
            # A key of a mapping, not of a model: pydantic marks it so.
            path = loc[:-1]
            what = f"unknown name; {_choice(str(path[-1]), _expected(detail))}"
            return document.place_of_key(path), readable_path(path), what
        case _:
            path = _existing(document, loc)
            return document.place_of_value(path), readable_path(path), _wrong_value(path, detail)


def _existing(document: Document, loc: JsonPath) -> JsonPath:
    """Return where the value stands that pydantic names; it may have been moved before."""
    if loc not in document.value_at and loc[:2] == ("policy", "overrides"):
        loc = ("policy", *loc[2:])
    while loc not in document.value_at:
        loc = loc[:-1]
    return loc


def _wrong_value(path: JsonPath, detail: ErrorDetails) -> str:
    kind = detail["type"]
    context = detail.get("ctx", {})
    shown = _shown(path, detail["input"])
    match kind:
        case "value_error":
            return str(context["error"])
        case "enum" | "literal_error":
            word = detail["input"] if isinstance(detail["input"], str) else ""
            return f"{shown} is not known; {_choice(word, _expected(detail))}"
        case "string_pattern_mismatch":
            return f"{PATTERN_WORDS[context['pattern']]}, not {shown}"
        case "greater_than_equal" | "greater_than" | "less_than_equal":
            bound = next(bound for bound in _BOUNDS if bound in context)
            return f"must be {_BOUNDS[bound]} {context[bound]}, not {shown}"
        case _:
            return f"{_SHAPES.get(kind, detail['msg'])}, not {shown}"


def _expected(detail: ErrorDetails) -> list[str]:
    """Return the allowed words; pydantic gives them as one text: 'a', 'b' or 'c'."""
    return re.findall(r"'([^']*)'", str(detail.get("ctx", {}).get("expected", "")))


def _choice(word: str, allowed: list[str]) -> str:
    near = difflib.get_close_matches(word, allowed, n=1)
    meant = f'did you mean "{near[0]}"? ' if near else ""
    return f"{meant}Allowed: {', '.join(allowed)}"


def _unknown_key(loc: JsonPath) -> str:
    model = _model_at(loc[:-1])
    known = [field.alias or name for name, field in model.model_fields.items()]
    if model is PolicySettings:
        known += [kind.value for kind in Kind]
    return f"unknown key; {_choice(str(loc[-1]), known)}"


def _model_at(path: JsonPath) -> type[BaseModel]:
    """Return the model whose object stands at `path`."""
    model: type[BaseModel] = Settings
    for part in path:
        if isinstance(part, str):
            by_key = {field.alias or name: field for name, field in model.model_fields.items()}
            model = _model_in(by_key[part].annotation)
    return model


def _model_in(annotation: object) -> type[BaseModel]:
    """Return the model inside `X`, `X | None`, or `tuple[X, ...]`."""
    if isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias):
        assert issubclass(annotation, BaseModel)
        return annotation
    return _model_in(typing.get_args(annotation)[0])


def _shown(path: JsonPath, value: object) -> str:
    """Show a value briefly; a value of an environment may be a secret and is only typed."""
    match value:
        case dict():
            return "an object"
        case list() | tuple():
            return "a list"
        case _ if "env" in path:
            return {"str": "this string", "NoneType": "null"}.get(
                type(value).__name__, "this number"
            )
        case _:
            text = json.dumps(value, default=str)
            return text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + '..."'
