"""The steps that the output of a worker without progress files shows, and the target it shows (fs).

Whoever takes a finished training for an unfinished one ruins a night, so a number is given only
where the text is clear, and None everywhere else. What is concluded, and what is not:

- Steps are read with `worker.progress.pattern`, else with the preset's. A number that goes back
  counts something else than the steps of the run (the batches of an epoch, a second training).
- Of progress bars, only the training's is read: the one whose total the program announced
  ("Total optimization steps = 1000"), else, with a preset that promises it, the first one without
  a description; one that only a later bar outruns is doubtful, it may be a preparation's.
- The total of that bar is the target. A pattern shows none, and neither does Lightning's bar.
- Steps below the one that the attempt was resumed at are counted from the resumption, or the
  program began anew: which of both, the output does not say.
- Where the middle of an output was not read, only its end can tell the last step.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from humigence_supervise.config import Settings
from humigence_supervise.contract import PLAN_FILE, RANKS_DIR
from humigence_supervise.observe.characters import decode, visible
from humigence_supervise.observe.logs import OpenLog
from humigence_supervise.presets import PRESETS, TrainingBar
from humigence_supervise.small_json import read_small_object

_STREAMS: Final = ("stderr.log", "stdout.log")
_BYTES_IN_ALL: Final = 8 << 20
_FILE_BYTES: Final = 4 << 20
_LINE_CHARS: Final = 2_000
"""No line that tells a step is longer; the user's pattern is not tried on more."""

_MOST_STEPS: Final = 10**12
"""A larger number is none of steps."""

_STRIDES: Final = 8
"""So many of the last distances between two steps tell how often the program shows one."""

_LINE_END: Final = re.compile(rb"[\r\n]+")
_BAR: Final = re.compile(
    r"\s*(Steps: +)?\d{1,3}%\|[^|]{0,400}\| *(\d{1,12})/(\d{1,12}) \[[^]]{0,80}?(?:it/s|s/it)"
)
"""A bar of iterations, tqdm's own unit; one of bytes or examples counts no steps."""

_ANNOUNCED: Final = re.compile(r"Total optimization steps = (\d[\d,]{0,15})(?![\d.])")
_RESUMED: Final = re.compile(r"Resum(?:ed|ing) from checkpoint")
_BAR_WORDS: Final = (b"%|", b"Total optimization steps", b"from checkpoint")

_SECOND: Final = 2
"""A program that goes on counting where it was resumed shows no step below this one."""


@dataclass(frozen=True, slots=True)
class LogSteps:
    """Completed steps, as an output shows them; None where it does not, or not clearly.

    `first` and `last` are the smallest above 0, if any, and the largest. `stride` is how many
    steps may have followed the last one that was shown; 0 for a bar, which draws its end.
    """

    first: int | None = None
    last: int | None = None
    target: int | None = None
    stride: int | None = None

    def ends_before(self, target: int) -> bool:
        """Say whether the output shows clearly that this step was not reached."""
        if self.last is None or self.stride is None:
            return False
        return self.last < target and self.last + self.stride < target


@dataclass(frozen=True, slots=True)
class _Output:
    """The lines of one file, those of the end apart where the middle was not read."""

    head: list[str]
    tail: list[str]
    whole: bool

    @property
    def lines(self) -> list[str]:
        return [*self.head, *self.tail]


def read_log_steps(attempt_dir: Path, settings: Settings) -> LogSteps:
    """Return the steps that the ranks' output shows; never raises OSError.

    An output that cannot be read shows nothing.
    """
    worker = settings.worker
    facts = PRESETS[worker.preset]
    own = worker.progress.pattern
    if own is None and facts.training_bar is not None:
        return _from_bar(attempt_dir, facts.training_bar)
    pattern = own or facts.step_pattern
    return LogSteps() if pattern is None else _from_pattern(attempt_dir, re.compile(pattern))


# --- lines that tell a step ---------------------------------------------------------------------


def _from_pattern(attempt_dir: Path, pattern: re.Pattern[str]) -> LogSteps:
    """Read all ranks: some programs let the first one speak, others the last."""
    paths = sorted(attempt_dir.glob(f"{RANKS_DIR}/*/std*.log"))
    most_bytes = min(_FILE_BYTES, _BYTES_IN_ALL // max(1, len(paths)))
    found: list[LogSteps] = []
    for path in paths:
        output = _read(path, most_bytes)
        head, tail = _matches(pattern, output.head), _matches(pattern, output.tail)
        if head or tail:
            unclear = not output.whole and not tail
            found.append(LogSteps() if unclear else _counted([*head, *tail]))
    if not found or any(steps.last is None for steps in found):
        return LogSteps()
    furthest = max(found, key=lambda steps: steps.last or 0)
    firsts = [steps.first for steps in found if steps.first is not None]
    first = min(firsts, default=None)
    if first is not None and first < _resumed_at(attempt_dir):
        return LogSteps()
    return LogSteps(first, furthest.last, None, furthest.stride)


def _matches(pattern: re.Pattern[str], lines: list[str]) -> list[int]:
    found = (pattern.search(line, 0, _LINE_CHARS) for line in lines)
    steps = (int(match[1]) for match in found if match and (match[1] or "").isdecimal())
    return [step for step in steps if step <= _MOST_STEPS]


def _counted(steps: list[int]) -> LogSteps:
    """Return what a series of steps shows."""
    if _goes_back(steps):
        return LogSteps()
    shown = sorted(set(steps))
    gaps = [later - step for step, later in itertools.pairwise(shown[-_STRIDES - 1 :])]
    # One step alone: the first one of a program that shows every so many of them, if it is not
    # the very first one, after which the next may come at any distance.
    stride = max(gaps) if gaps else (shown[0] if shown[0] > 1 else None)
    return LogSteps(_first(shown), shown[-1], None, stride)


def _goes_back(steps: list[int]) -> bool:
    return any(later < step for step, later in itertools.pairwise(steps))


def _first(shown: list[int]) -> int | None:
    return next((step for step in shown if step > 0), None)


# --- progress bars ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Bar:
    """A bar as it was drawn once; `described`: it has the one description a training bar may."""

    count: int
    total: int
    described: bool


def _from_bar(attempt_dir: Path, which: TrainingBar) -> LogSteps:
    """Read rank 0, which alone draws the training's bar, mostly to stderr."""
    folder = attempt_dir / RANKS_DIR / "0"
    outputs = [_read(folder / name, _FILE_BYTES, _may_matter) for name in _STREAMS]
    lines = [line for output in outputs for line in output.lines]
    announced = {int(match[1].replace(",", "")) for match in map(_ANNOUNCED.search, lines) if match}
    if len(announced) > 1 or (not announced and which is TrainingBar.ANNOUNCED):
        return LogSteps()
    total = next(iter(announced), None)
    shown = (_of_training(output, total) for output in outputs)
    steps = next((steps for steps in shown if steps is not None), LogSteps())
    begun_at = _resumed_at(attempt_dir)
    if which is TrainingBar.ANNOUNCED and any(map(_RESUMED.search, lines)):
        begun_at = max(begun_at, _SECOND)
    return LogSteps() if steps.first is not None and steps.first < begun_at else steps


def _of_training(output: _Output, announced: int | None) -> LogSteps | None:
    """Return what the training's bar shows in one stream; None where it is not drawn."""
    bars = _bars(output.lines, described=announced is not None)
    total = bars[0].total if announced is None and bars else announced
    counts = [bar.count for bar in bars if bar.total == total]
    if not counts or total is None:
        return None
    ends_unread = not output.whole and all(bar.total != total for bar in _bars(output.tail))
    doubtful = announced is None and _is_overtaken(bars, total)
    clear = not (ends_unread or doubtful or _goes_back(counts))
    return LogSteps(_first(counts), counts[-1], total, 0) if clear else LogSteps()


def _may_matter(raw: bytes) -> bool:
    return any(word in raw for word in _BAR_WORDS)


def _bars(lines: list[str], *, described: bool = True) -> list[_Bar]:
    """Return the bars without a description, and those that are called "Steps" if `described`."""
    found = (_BAR.match(line) for line in lines)
    bars = [_Bar(int(m[2]), int(m[3]), bool(m[1])) for m in found if m]
    return [bar for bar in bars if bar.total and (described or not bar.described)]


def _is_overtaken(bars: list[_Bar], training: int) -> bool:
    """Say whether another bar was drawn only after the last time this one was, and counts further.

    The first one was then perhaps that of some preparation, and the other one the training's. One
    that goes on behind another was interrupted by an evaluation: it is the training's.
    """
    last = max(at for at, bar in enumerate(bars) if bar.total == training)
    goes_on = any(bar.total != training for bar in bars[:last])
    return not goes_on and any(bar.count > bars[last].count for bar in bars[last + 1 :])


# --- files --------------------------------------------------------------------------------------


def _resumed_at(attempt_dir: Path) -> int:
    """Return the step whose checkpoint the attempt was given, 0 for none."""
    match read_small_object(attempt_dir / PLAN_FILE):
        case {"resume_from": {"step": int(step)}}:
            return step
        case _:
            return 0


def _read(
    path: Path, most_bytes: int, wanted: Callable[[bytes], bool] = lambda _raw: True
) -> _Output:
    """Read the first quarter of so many bytes and the last three; what cannot be read is empty."""
    try:
        with closing(OpenLog(path)) as log:
            size = os.fstat(log.descriptor).st_size
            if size <= most_bytes:
                return _Output(_lines(os.pread(log.descriptor, size, 0), wanted), [], whole=True)
            head = os.pread(log.descriptor, most_bytes // 4, 0)
            left = most_bytes - len(head)
            tail = os.pread(log.descriptor, left, size - left)
    except OSError:
        return _Output([], [], whole=False)
    # The line at the cut is not whole, on both sides.
    head = head[: max(head.rfind(b"\r"), head.rfind(b"\n")) + 1]
    cut = _LINE_END.search(tail)
    return _Output(
        _lines(head, wanted), _lines(tail[cut.end() :] if cut else b"", wanted), whole=False
    )


def _lines(data: bytes, wanted: Callable[[bytes], bool]) -> list[str]:
    """Return the lines a person saw, every drawing of a bar as one."""
    return [visible(decode(raw)) for raw in _LINE_END.split(data) if raw and wanted(raw)]
