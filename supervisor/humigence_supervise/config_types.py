"""Types of configuration values that need more than their shape checked.

A message here is the end of a sentence that begins with the key: "`worker.args` has an unknown
placeholder ...".
"""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from humigence_supervise.presets import PLACEHOLDERS, placeholders_in

NAME_PATTERN: Final = r"^[a-z0-9_][a-z0-9._-]{0,99}$"
MODULE_PATTERN: Final = r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$"
EVENT_PATTERN: Final = r"^[a-z]+\.[a-z_]+$"
URL_PATTERN: Final = r"^https?://[^\s]+$"

PATTERN_WORDS: Final = {
    NAME_PATTERN: "must be 1 to 100 of the characters a-z 0-9 . _ - and start with a-z 0-9 _",
    MODULE_PATTERN: "must be a Python module name such as package.train",
    EVENT_PATTERN: "must be an event name such as run.completed",
    URL_PATTERN: "must be a URL that starts with http:// or https://",
}

_OWN_VARIABLES: Final = re.compile(
    r"HUMIGENCE_.*|RANK|LOCAL_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|MASTER_ADDR|MASTER_PORT"
)
_GPUS_SCHEMA: Final = {
    "anyOf": [
        {"const": "all"},
        {"type": "integer", "minimum": 1},
        {"type": "array", "minItems": 1, "items": {"type": ["string", "integer"]}},
    ]
}


class Model(BaseModel):
    """Base of all sections: frozen, no conversions, no unknown keys."""

    model_config = ConfigDict(
        frozen=True, strict=True, extra="forbid", use_attribute_docstrings=True
    )


def _check_args(args: tuple[str, ...]) -> tuple[str, ...]:
    for arg in args:
        for name in placeholders_in(arg):
            if name not in PLACEHOLDERS:
                known = ", ".join(f"{{{known}}}" for known in PLACEHOLDERS)
                raise ValueError(
                    f"has an unknown placeholder {{{name}}}; known are {known} "
                    f"(write {{{{{name}}}}} for the literal text)"
                )
    return args


def _check_env(env: dict[str, str]) -> dict[str, str]:
    for name in env:
        if not name or "=" in name:
            raise ValueError(f'has a variable called "{name}"; a name is not empty and has no "="')
        if _OWN_VARIABLES.fullmatch(name):
            raise ValueError(f"sets {name}, which the supervisor sets itself; remove it")
        if name == "CUDA_VISIBLE_DEVICES":
            raise ValueError("sets CUDA_VISIBLE_DEVICES; choose GPUs with ladder[].gpus instead")
    return env


MAX_RANKS = 1024
"""More processes on one box are a slip of the finger that would fill its process table."""


def _check_gpus(value: object) -> object:
    allowed = f'"all", a number of GPUs from 1 to {MAX_RANKS}, or a list of indices or UUIDs'
    match value:
        case "all":
            return value
        case bool():
            pass
        case int() if 1 <= value <= MAX_RANKS:
            return value
        case list() | tuple() if value and all(
            isinstance(gpu, str | int) and not isinstance(gpu, bool) for gpu in value
        ):
            names = tuple(str(gpu) for gpu in value)
            if len(set(names)) < len(names):
                raise ValueError("names a GPU twice; each rank needs its own")
            return names
        case _:
            pass
    raise ValueError(f"must be {allowed}")


def _check_regex(pattern: str) -> str:
    try:
        groups = re.compile(pattern).groups
    except re.error as error:
        raise ValueError(f"is no regular expression: {error}") from error
    if groups != 1:
        raise ValueError(f"needs one group, the step: like (\\d+); it has {groups}")
    return pattern


def _check_not_empty(words: tuple[str, ...]) -> tuple[str, ...]:
    if not words:
        raise ValueError("must not be empty")
    return words


Args = Annotated[tuple[str, ...], AfterValidator(_check_args)]
Env = Annotated[dict[str, str], AfterValidator(_check_env)]
Gpus = Annotated[
    Literal["all"] | int | tuple[str, ...],
    BeforeValidator(_check_gpus),
    WithJsonSchema(_GPUS_SCHEMA),
]
StepPattern = Annotated[str, AfterValidator(_check_regex)]
Name = Annotated[str, Field(pattern=NAME_PATTERN)]
ModuleName = Annotated[str, Field(pattern=MODULE_PATTERN)]
EventName = Annotated[str, Field(pattern=EVENT_PATTERN)]
Url = Annotated[str, Field(pattern=URL_PATTERN)]
Command = Annotated[tuple[str, ...], AfterValidator(_check_not_empty)]
Seconds = Annotated[float, Field(ge=0, le=31_536_000)]
Count = Annotated[int, Field(ge=1, le=1_000_000_000)]
