"""The allocator setting that lets torch join free pieces of GPU memory. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from humigence_supervise.domain import EnvChange
from humigence_supervise.environment_table import version_of

_TORCH_RENAMED_IT: Final = (2, 10)
_OLD_NAME: Final = "PYTORCH_CUDA_ALLOC_CONF"
_NEW_NAME: Final = "PYTORCH_ALLOC_CONF"
_KEY: Final = "expandable_segments"


def defragmented(
    changes: tuple[EnvChange, ...], inherited: Mapping[str, str], torch_version: str | None
) -> tuple[EnvChange, ...]:
    """Return the changes with expandable segments switched on, merged with what is set already.

    Both names are read, as a worker would; the one its torch knows is written.
    """
    set_already = {**inherited, **{change.name: change.value for change in changes}}
    version = version_of(torch_version)
    new = version is not None and version >= _TORCH_RENAMED_IT
    name = _NEW_NAME if new else _OLD_NAME
    other = _OLD_NAME if new else _NEW_NAME
    value = _merged(set_already.get(name) or set_already.get(other) or "")
    why = "GPU memory was free, but in pieces; torch joins them"
    own = EnvChange(name, value, "hardened", why, "pytorch.org: CUDA semantics, memory management")
    return (*(change for change in changes if change.name != name), own)


def _merged(options: str) -> str:
    kept = [one for one in options.split(",") if one.strip() and one.split(":")[0].strip() != _KEY]
    return ",".join((*kept, f"{_KEY}:True"))
