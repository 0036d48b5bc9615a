"""What stands before a message: ranks, hosts, levels, loggers, margins (pure).

Every entry is one program's way to mark its lines; they stack in any order, so the caller peels
them in a loop. A pattern must be anchored in what no message begins with.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_LEVEL: Final = (
    r"(?:TRACE|DEBUG|INFO|NOTICE|SUCCESS|WARNING|WARN|ERROR|CRITICAL|FATAL|EXCEPTION"
    r"|debug|info|warning|error|critical)"
)
_SOURCE: Final = r"[\w./<>\\-]{1,120}\.(?:py|pyx|cc|cpp|cu|c|h|hpp|go|rs)"
_NO_SOURCE: Final = r"(?![\w./-]*\.(?:py|pyx|cc|cpp|cu|cuh|c|h|hpp|go|rs):)"

_SURE_RANK: Final = (
    r"\[[Rr](?:ank|ANK)[ :=]{0,2}(\d{1,5})\]:? ?",  # torch 2.2 and later; Lightning
    r"\([Rr]ank[ :=]{0,2}(\d{1,5})\):? ?",
    r"[Rr]ank[ _]?(\d{1,5})(?:\[\d+\]\[\w+\])?: ?",  # composer: rank0[1234][MainThread]:
)
_RANK: Final = (
    r"\[[A-Za-z_-]{1,20}\d*\|(\d{1,5})\]: ?",  # torchx: [trainer0|0]:
    r"\[[A-Za-z_-]{2,20}(\d{1,5})\]: ?",  # torchrun --tee: [default0]:
    r"\[\d{1,4},(?:mpirank:)?(\d{1,5})(?:,[\w.-]{1,60})?\]<std\w{3,4}>: ?",  # mpirun, SageMaker
    r"\[(\d{1,5})\]<std\w{3,4}>: ?",  # horovodrun with gloo
    r"(\d{1,5}): ",  # srun --label
    r"\[?" + _NO_SOURCE + r"[\w.-]{1,80}:(\d{1,5})\]:? ?",
    r"\[(\d{1,5})\]: ?",
    r"\[(?:[Gg][Pp][Uu]|[Ww]orker)[ :]?(\d{1,5})\]:? ?",
    r"[\w.-]{1,80}:\d+:\d+ \[(\d{1,3})\] ",  # NCCL: host:pid:tid [device]
    r"\[(\d{1,3})\] (?=NCCL |[\w/]+\.(?:cc|h|cu|c):\d+ )",
)
_OTHER: Final = (
    r"\[[IWEF] [\w./-]+:\d+\]\s*",  # glog of torch before 2.1
    r"\((?:[\w .:<>\[\]-]{1,80}[ ,])?(?:rank=(\d{1,5}) )?pid=\w+(?:, ip=[\d.a-f:]+)?\) ?",  # ray
    r"\((?:raylet|autoscaler|gcs_server|driver)[^()]{0,40}\) ?",
    r"(?:stderr|stdout)(?:: ?| [FP] )",  # Kubernetes' log files: stderr F
    r"\[pod/[^\]]{1,160}\] ?",
    r"(?!\S*Error)[A-Za-z][\w.-]{0,59}-?\d{1,4}: ",  # pdsh: trainer-2:
    r"\d{1,3}(?:\.\d{1,3}){3}: ",
    r"[A-Za-z][\w.-]{0,60}[_-]\d{1,4} {0,20}\| ?",  # docker compose: trainer-1  |
    r"wandb: (?!ERROR|WARNING)",
    r"(?:\[[\w.]{1,60}\])?\[" + _LEVEL + r" {0,8}\](?: - |:)?\s*",
    r"\[" + _LEVEL + r"\|[^\]]{1,80}\]\s?",  # transformers: [INFO|trainer.py:12]
    r"\[" + _SOURCE + r":\d+(?::\w+)?\]:?\s?",  # DeepSpeed: [launch.py:315:sigkill_handler]
    r"(?:- [\w.<>/ -]{1,80}? )?- {1,4}"
    + _LEVEL
    + r" {0,8}-[->]? {0,4}(?:[a-z_][\w.]{0,80} - {1,3})?",
    r"[|-] {0,8}" + _LEVEL + r" {0,8}[|-] (?:[\w.<>]{1,80}:[\w.<>]{1,80}:\d+ - )?",  # loguru
    _LEVEL + r":[\w.]{1,80}:\s?",  # logging's own default
    _LEVEL + r" {1,8}[\w.]{1,60}\.py:\d+ -- ",  # ray: WARNING worker.py:1829 --
    _LEVEL + r" {1,8}[\w.]{1,60} {2,8}",
    r"\([\w./-]{1,80}\.py \d+\): " + _LEVEL + r"\s",  # Swin: (main.py 12): INFO
    _LEVEL + r" {1,8}(?:[\w.]{1,80}: |(?=[\w.]{0,80}(?:Error|Exception): ))",
    r"(?:ERROR|CRITICAL|FATAL|[Ee]rror)\s?[:|-]\s{1,4}(?=[\w.]{0,80}(?:Error|Exception)\b)",
    r">{2,3} (?!\w+ ?[=(.])",  # transformers: ... >> message
    r"\[\s*\d{1,9}\.\d{6}\] ?",  # kernel log
    r"[│┃║|](?= |$) ?",  # boxes of rich, margins of exception groups
    r"\+ (?=Exception Group)",
)
_STRIPPED: Final = re.compile(
    r"(?:[│┃║]|\[repeated \d+x across cluster\](?: \(Ray dedup.{0,200})?)$"
    # ray: possibilities, not facts
    r"|There are some potential root causes\.(?: ?\(\d\) [^()]{0,200}){1,6}",
)
_PREFIX: Final = re.compile(r"\s*(?:" + "|".join((*_SURE_RANK, *_RANK, *_OTHER)) + ")")
_SURE: Final = range(1, len(_SURE_RANK) + 1)


@dataclass(frozen=True, slots=True)
class Prefix:
    """The length of a leading prefix, the rank it tells, and whether that is the global one."""

    end: int
    rank: int | None
    sure: bool


def leading_prefix(text: str) -> Prefix | None:
    """Return the prefix at the start of `text`, None where there is none."""
    found = _PREFIX.match(text)
    if found is None or not found.end():
        return None
    group = found.lastindex
    rank = int(found[group]) if group else None
    return Prefix(found.end(), rank, group in _SURE)


def without_margin(text: str) -> str:
    """Return `text` without what stands behind a message: a box's wall, ray's remarks."""
    return _STRIPPED.sub("", text).rstrip()
