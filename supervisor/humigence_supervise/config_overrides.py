"""Which action may be asked for after which kind of failure, and what is wrong with the rest. Pure.

`policy` takes `{kind: action}` beside its other keys or under `overrides`. An action that cannot
help would end a run in the night, or try for hours what cannot succeed: it is refused at the start.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from humigence_supervise.config_text import JsonPath, JsonValue
from humigence_supervise.domain import Kind, Remedy
from humigence_supervise.presets import Preset

_DOWN: Final = Remedy.FALLBACK_SINGLE_GPU
_RETRY: Final = Remedy.RETRY_SAME
_SHRINK: Final = Remedy.REDUCE_MICROBATCH
_OLDER: Final = Remedy.RESUME_OLDER_CHECKPOINT
_WAIT: Final = Remedy.WAIT_THEN_RETRY
_STOP: Final = Remedy.STOP_AND_TELL

ALLOWED: Final[Mapping[Kind, tuple[Remedy, ...]]] = {
    Kind.HEALTHY: (),
    Kind.NCCL_INIT: (_DOWN, _RETRY, _WAIT, _STOP),
    Kind.NCCL_TIMEOUT: (_DOWN, _RETRY, _WAIT, _STOP),
    Kind.NCCL_REMOTE: (_DOWN, _RETRY, _WAIT, _STOP),
    Kind.NCCL_INTERNAL: (_DOWN, _RETRY, _WAIT, _STOP),
    Kind.NVLINK_P2P: (_DOWN, _RETRY, _WAIT, _STOP),
    Kind.RENDEZVOUS: (_DOWN, _RETRY, _WAIT, _STOP),
    Kind.CUDA_OOM: (_DOWN, _RETRY, _SHRINK, _WAIT, _STOP),
    Kind.HOST_OOM: (_DOWN, _RETRY, _SHRINK, _WAIT, _STOP),
    Kind.SHM: (_DOWN, _RETRY, _WAIT, _STOP),
    Kind.GPU_FAULT: (_DOWN, _RETRY, _WAIT, _STOP),
    Kind.GPU_UNSUPPORTED: (_RETRY, _WAIT, _STOP),
    Kind.DEVICE_ASSERT: (_DOWN, _RETRY, _OLDER, _WAIT, _STOP),
    Kind.DEVICE_MISMATCH: (_DOWN, _RETRY, _WAIT, _STOP),
    Kind.DATALOADER: (_DOWN, _RETRY, _WAIT, _STOP),
    Kind.CHECKPOINT_CORRUPT: (_RETRY, _OLDER, _WAIT, _STOP),
    Kind.DISK_FULL: (_WAIT, _STOP),
    Kind.NETWORK_HUB: (_RETRY, _WAIT, _STOP),
    Kind.PREEMPTED: (_DOWN, _RETRY, _WAIT, _STOP),
    Kind.SEGFAULT: (_DOWN, _RETRY, _WAIT, _STOP),
    Kind.NAN_DIVERGENCE: (_DOWN, _RETRY, _OLDER, _WAIT, _STOP),
    Kind.IMPORT_ERROR: (_RETRY, _WAIT, _STOP),
    Kind.CONFIG_ERROR: (_STOP,),
    Kind.USER_CODE: (_DOWN, _RETRY, _OLDER, _WAIT, _STOP),
    Kind.CUDA_INIT_FORK: (_DOWN, _RETRY, _WAIT, _STOP),
    Kind.HANG: (_DOWN, _RETRY, _WAIT, _STOP),
    Kind.PREMATURE_SUCCESS: (_RETRY, _WAIT, _STOP),
    Kind.UNKNOWN: (_DOWN, _RETRY, _WAIT, _STOP),
}
"""The actions that can make sense after a failure of a kind, in the order of the contract."""

_WHY_NOT_KIND: Final[Mapping[Kind, str]] = {
    Kind.CONFIG_ERROR: "the configuration is as wrong at the next start",
    Kind.DISK_FULL: "nothing but room on the disk helps",
}
_WHY_NOT_ACTION: Final[Mapping[Remedy, str]] = {
    _DOWN: "it would fail on a single GPU too",
    _SHRINK: "smaller micro-batches help only where memory ran out",
    _OLDER: "what failed is in no checkpoint",
    Remedy.NONE: "a failure needs an action",
}


@dataclass(frozen=True, slots=True)
class Refused:
    """An override that makes no sense: its path in the document, and what is wrong with it.

    `is_key`: with its key, whatever the value.
    """

    path: JsonPath
    what: str
    is_key: bool = False


def refused_overrides(document: JsonValue) -> list[Refused]:
    """Return the overrides of a configuration that make no sense.

    `document` is the configuration as it was parsed, valid or not; what is no override of a known
    kind by a known action is told by the models.
    """
    one_rung = len(_list_at(document, "ladder")) == 1
    unbatched = not _is_batch_known(document)
    refused: list[Refused] = []
    for path, kind, remedy in _overrides(document):
        impossible = {
            _DOWN: "the ladder has no lower rung" if one_rung else "",
            _SHRINK: "no batch is known (batch.global, batch.micro)" if unbatched else "",
        }
        if kind is Kind.HEALTHY:
            kinds = ", ".join(known for known in Kind if known is not kind)
            what = f"{kind} is no failure, nothing is done about it. Allowed: {kinds}"
            refused.append(Refused(path, what, is_key=True))
        elif remedy not in ALLOWED[kind]:
            why = _WHY_NOT_KIND.get(kind) or _WHY_NOT_ACTION[remedy]
            refused.append(_refused(path, kind, remedy, why, impossible))
        elif why := impossible.get(remedy, ""):
            refused.append(_refused(path, kind, remedy, why, impossible))
    return refused


def overrides_schema() -> dict[str, JsonValue]:
    """Return the JSON Schema of the kinds that may stand beside the other keys of `policy`."""
    return {
        kind.value: {
            "description": f"Action after a failure of the kind {kind}, in place of the default.",
            "enum": [remedy.value for remedy in remedies],
        }
        for kind, remedies in ALLOWED.items()
        if remedies
    }


def _refused(
    path: JsonPath, kind: Kind, remedy: Remedy, why: str, impossible: Mapping[Remedy, str]
) -> Refused:
    allowed = ", ".join(one for one in ALLOWED[kind] if not impossible.get(one))
    what = f'"{remedy}" makes no sense for {kind}: {why}. Allowed for {kind}: {allowed}'
    return Refused(path, what)


def _overrides(document: JsonValue) -> Iterator[tuple[JsonPath, Kind, Remedy]]:
    """Yield the overrides in both spellings."""
    policy = _object_at(document, "policy")
    for path, entries in (
        (("policy",), policy),
        (("policy", "overrides"), _object_at(policy, "overrides")),
    ):
        for key, action in entries.items():
            if key in set(Kind) and isinstance(action, str) and action in set(Remedy):
                yield (*path, key), Kind(key), Remedy(action)


def _is_batch_known(document: JsonValue) -> bool:
    """Say whether anybody states a batch: the reference worker's has a default."""
    batch = _object_at(document, "batch")
    preset = _object_at(document, "worker").get("preset", Preset.HUMIGENCE)
    stated = batch.get("global") is not None or batch.get("micro") is not None
    return stated or preset == Preset.HUMIGENCE


def _object_at(value: JsonValue, key: str) -> dict[str, JsonValue]:
    found = value.get(key) if isinstance(value, dict) else None
    return found if isinstance(found, dict) else {}


def _list_at(value: JsonValue, key: str) -> list[JsonValue]:
    found = value.get(key) if isinstance(value, dict) else None
    return found if isinstance(found, list) else []
