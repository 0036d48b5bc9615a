"""What launchers, schedulers and shells print about the end of a process (pure).

Sources: torch/distributed/elastic (1.9 to 2.13), torch/multiprocessing/spawn.py, DeepSpeed
launcher/launch.py, accelerate, Lightning strategies/launchers, Slurm src/srun, Open MPI prte,
MPICH hydra, horovod runner, bash and zsh, docker, kubectl describe.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from humigence_supervise.domain import ExitStatus

# ruff: noqa: RUF001 - Chinese shells print full-width parentheses
_WORDS: Final = {
    9: "Killed|Out Of Memory|Getötet|Tué|Processus arrêté|Terminado \\(killed\\)|已杀死|已殺掉"
    "|強制終了|Убито|Morto|Ucciso|죽었음|Unicestwiony",
    15: "Terminated|Beendet|Complété|已终止|Завершено",
    11: "Segmentation fault|Speicherzugriffsfehler|Erreur de segmentation"
    "|Violación de segmento|段错误|吐核|程式記憶體區段錯誤|Ошибка сегментирования"
    "|Falha de segmentação|Errore di segmentazione|세그멘테이션 오류|Naruszenie ochrony pamięci",
    6: "Aborted|Abort trap|Abgebrochen|Abandon|Abortado|已放弃|中止|Аварийный останов|Annullato",
    7: "Bus error|Bus-Zugriffsfehler|Erreur du bus|Error del bus|总线错误|Ошибка шины",
    4: "Illegal instruction|Ungültiger Maschinenbefehl|Instruction non permise|非法指令",
    8: "Floating point exception|Gleitkomma-Ausnahme|浮点数例外",
}
"""How Slurm and shells name a signal, in the languages of glibc and macOS."""

_SIGNAL_WORD: Final = (
    "(?:" + "|".join(f"(?P<w{number}>{words})" for number, words in _WORDS.items()) + ")"
)
_ZSH_WORD: Final = (
    "(?:(?P<z9>killed)|(?P<z15>terminated)|(?P<z11>segmentation fault)|(?P<z6>abort)"
    "|(?P<z7>bus error)|(?P<z4>illegal hardware instruction)|(?P<z8>floating point exception))"
)
_SHELL: Final = (
    r"^(?:[^\s:][^:]{0,200}: (?:line|Zeile|ligne|línea|行) ?\d+: +\d+ |\[\d+\] ?[+-]? *(?:\d+ +)?"
    r"|(?:-?bash|sh): (?:line \d+: +\d+ )?)?"
)
_ZSH: Final = r"^(?:zsh: |\[\d+\] +[+-]? *\d+ )"
_COMMAND: Final = (
    r"(?:: \d{1,2})?(?:\s{0,40}[(（][^()（）]{1,40}[)）](?:\s.{0,500})?|\s{2,}.{0,500})?$"
)

_JOB: Final = tuple(
    re.compile(pattern)
    for pattern in (
        r"exits with return code = (?P<code>-?\d+)",
        r"Process finished with exit code (?P<code>-?\d+)",
        r"returned non-zero exit status (?P<code>-?\d+)",
        r"died with <Signals\.(?P<name>SIG[A-Z]+)",
        r"[Cc]hild process with PID \d+ terminated with code (?P<code>-?[1-9]\d*)",
        r"[Cc]ommand exited with non-zero status (?P<code>\d+)",
        r"terminated by signal (?P<number>\d+)",
        r"\*\*\* (?P<name>SIG[A-Z]+) \(.{1,80}received by PID \d+",
        r"terminated by signal (?P<name>SIG[A-Z]+)",
        r"\bexited with code (?P<code>[1-9]\d{0,2})\b",
        r"^\s*\"?[Ee]xit ?[Cc]ode\"?: +(?P<code>[1-9]\d{0,2})\b",
        r"EXIT STRING: .{1,60}\(signal (?P<number>\d+)\)",
        _SHELL + _SIGNAL_WORD + _COMMAND,
        r"^[^\s:][^:]{0,200}: line \d+: +\d+ " + _SIGNAL_WORD + r"\b.{0,500}$",
        _ZSH + _ZSH_WORD + _COMMAND,
    )
)
_SRUN_END: Final = r"(?:Exited with exit code (?P<code>\d+)|" + _SIGNAL_WORD + ")"
_MPI_END: Final = r".{0,200}exited on signal (?P<number>\d+)"
_RANK: Final = tuple(
    re.compile(pattern)
    for pattern in (
        r"\(exitcode: (?P<code>-?\d+)\) local_rank: (?P<rank>\d+) \(pid: (?P<pid>\d+)\)",
        r"[Pp]rocess (?P<rank>\d+) terminated with exit code (?P<code>\d+)",
        r"[Pp]rocess (?P<rank>\d+) terminated with signal (?P<name>SIG[A-Z]+)",
        r"srun: error: \S{1,80}: tasks? (?P<ranks>[\d,-]{1,400}): " + _SRUN_END,
        r"process rank (?P<rank>\d+) with PID (?P<pid>\d+) " + _MPI_END,
        r"Process (?P<rank>\d+) exit with status code (?P<code>[1-9]\d*)",
    )
)
_SAYS_FIRST: Final = "exited on signal"
_EXIT_ROW: Final = re.compile(r"exitcode *: *(?P<code>-?\d+) *\(pid: *(?P<pid>\d+)\)")
_SIGNAL_ROW: Final = re.compile(
    r"[Ss]ignal (?P<number>\d+) \(SIG[A-Z]+\) received by PID (?P<pid>\d+)"
)
_RANK_ROW: Final = re.compile(r"rank *:? *(\d+) *\(local.rank: *(\d+)\)")
_HEADING: Final = re.compile(r"^\W{0,4}(Root Cause|Other Failures|Failures:)")
_NAME_ROW: Final = re.compile(r"Process name: (?:\[\[\d+,\d+\],)?(\d+)")
_CODE_ROW: Final = re.compile(r"^\s*Exit code: +(?P<code>\d+)")
_HYDRA_ROW: Final = re.compile(r"RANK (\d+) PID (\d+) RUNNING AT")
_HYDRA_END: Final = re.compile(r"KILLED BY SIGNAL: (?P<number>\d+)|^=?\s*EXIT CODE: (?P<code>\d+)")
_BLOCK_LINES: Final = 12
_MAX_RANKS: Final = 1_024

MAY_TELL_END: Final = re.compile(
    b"xit|XIT|ignal|IGNAL|illed|ermin|ault|bort|bgebr|us error|llegal|loating|Out Of Memory"
    b"|return code|PID|Speicher|Erreur|Beendet|Abandon|Morto|Ucciso|Errore|Annull|Unicestw"
    b"|[\xc3\xe4-\xe9\xd0\xec\xed\xf6]",
)
"""A quick look at a raw line: without one of these it says nothing about an end."""


@dataclass(frozen=True, slots=True)
class Ended:
    """One report: `ranks` is empty for the job as a whole, `pid` 0 where it is not told.

    `is_first`: the launcher says that this process failed first.
    """

    ranks: tuple[int, ...]
    pid: int
    status: ExitStatus
    is_first: bool = False


def ended_in(text: str, look_above: Callable[[], list[str]]) -> Ended | None:
    """Return what a line says about an ended process, None if nothing.

    `look_above` returns the lines right above; of a block, the rank stands in another line than
    the code.
    """
    if found := _EXIT_ROW.search(text) or _SIGNAL_ROW.search(text):
        above = look_above()
        rank = _rank_of_block(above, text)
        if rank is None:
            return None
        return Ended((rank,), int(found["pid"]), _status(found), _is_root_cause(above))
    if found := _CODE_ROW.match(text):
        named = _last(_NAME_ROW, look_above()[-4:])
        if named is not None:
            return Ended((int(named[1]),), 0, _status(found), is_first=True)
    if found := _HYDRA_END.search(text):
        named = _last(_HYDRA_ROW, look_above()[-4:])
        if named is not None:
            return Ended((int(named[1]),), int(named[2]), _status(found), is_first=True)
    for pattern in _RANK:
        if found := pattern.search(text):
            parts = found.groupdict()
            ranks = _numbers(parts.get("ranks") or parts["rank"])
            pid = int(parts.get("pid") or 0)
            return Ended(ranks, pid, _status(found), _SAYS_FIRST in text)
    for pattern in _JOB:
        if found := pattern.search(text):
            return Ended((), 0, _status(found))
    return None


def block_rank(above: list[str]) -> int | None:
    """Return the rank whose entry of a torchrun block the next line stands in, None outside."""
    for at in range(len(above) - 1, max(-1, len(above) - _BLOCK_ENTRY_LINES), -1):
        if _EXIT_ROW.search(above[at]):
            return _rank_of_block(above[:at], above[at])
        if _HEADING.match(above[at]) or _RULE.match(above[at]):
            return None
    return None


_BLOCK_ENTRY_LINES: Final = 60
_RULE: Final = re.compile(r"\s*[=*-]{5,}\s*$")


def status_of(code: int) -> ExitStatus:
    """Turn a code as Python's subprocess counts it (negative: signal) into a status."""
    return ExitStatus(code=code) if code >= 0 else ExitStatus(signal=-code)


def more_telling(known: ExitStatus | None, new: ExitStatus) -> ExitStatus:
    """Return which of two reports of one job's end says more: a crash, a kill, any code."""
    if known is None or _weight(new) > _weight(known):
        return new
    return known


def _weight(status: ExitStatus) -> int:
    if status.signal is not None:
        return 2 if status.signal in _CLEARING_SIGNALS else 3
    return 1 if status.code else 0


_CLEARING_SIGNALS: Final = (1, 15)
"""With these a shell or a launcher clears away what did nothing wrong."""


def _rank_of_block(above: list[str], text: str) -> int | None:
    row = _last(_RANK_ROW, [*above[-_BLOCK_LINES:], text])
    return int(row[1]) if row else None


def _is_root_cause(above: list[str]) -> bool:
    heading = _last(_HEADING, above[-_BLOCK_LINES:])
    return heading is not None and heading[1] == "Root Cause"


def _last(pattern: re.Pattern[str], texts: list[str]) -> re.Match[str] | None:
    return next((found for text in reversed(texts) if (found := pattern.search(text))), None)


def _status(found: re.Match[str]) -> ExitStatus:
    parts = found.groupdict()
    if parts.get("code"):
        return status_of(int(parts["code"]))
    if parts.get("number"):
        return ExitStatus(signal=int(parts["number"]))
    if parts.get("name"):
        known = signal.Signals.__members__.get(parts["name"])
        return ExitStatus(signal=int(known)) if known else ExitStatus()
    numbers = (n for n in _WORDS if parts.get(f"w{n}") or parts.get(f"z{n}"))
    return ExitStatus(signal=next(numbers, None))


def _numbers(text: str) -> tuple[int, ...]:
    """Return the task numbers of "3", "0-3,5"."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first.isdecimal() and (last.isdecimal() or not last):
            found += range(int(first), min(int(last or first), int(first) + _MAX_RANKS) + 1)
    return tuple(found[:_MAX_RANKS])
