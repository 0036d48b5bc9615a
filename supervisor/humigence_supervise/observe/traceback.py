"""The Python frames around an interesting line, in every dialect of traceback (pure)."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

_PYTHON: Final = re.compile(
    r'File "(?P<path>[^"]{1,500})", line (?P<line>\d+)(?:,? in (?P<name>\S+))?',
)
_DIALECTS: Final = (
    _PYTHON,
    # IPython 8: File ~/train.py:12, in main(args)
    re.compile(r"^\s*File (?P<path>[^\":]{1,300}):(?P<line>\d+)(?:, in (?P<name>[\w.<>]+))?"),
    # IPython 8: Cell In[3], line 2, in main(args); 7: Input In [3], in <cell line: 2>()
    re.compile(
        r"^\s*(?:Cell |Input )?(?P<path>In ?\[\d+\]), line (?P<line>\d+)(?:, in (?P<name>\w+))?"
    ),
    re.compile(
        r"^\s*Input (?P<path>In \[\d+\]), in (?:<cell line: (?P<line>\d+)>|(?P<name>[\w.]+))"
    ),
    # rich: /app/train.py:84 in forward
    re.compile(
        r"^\s*(?P<path>(?:[A-Za-z]:)?[^\s:\"]{1,300}\.pyx?):(?P<line>\d+) in ?(?P<name>\S+)?",
    ),
    # IPython before 8: the line's number stands in the source below
    re.compile(
        r"^\s*(?P<path><ipython-input-[^>]{1,80}>|[/~][^\s:]{1,300}\.pyc?) in "
        r"(?P<name>[\w.<>]+)(?P<line>)",
    ),
)
_MAY_BE_FRAME: Final = re.compile(r"File |In ?\[|\.py|<ipython-input")
_ARROW: Final = re.compile(r"^\s*(?:-{2,}>|❱) ?(\d+) ")
_NUMBERED_SOURCE: Final = re.compile(r"\s*(?:-{2,}>|❱) ?\d+ |\s*\d+ │")
"""Source lines as IPython and rich number them."""

_WRAPPED: Final = re.compile(r"^\s*(?::\d+ in\b|in [\w.<>]+\s*$)")
_WRAPPED_FIRST: Final = re.compile(r"\.pyx?(?::\d+)?\s*$")
_LIBRARY: Final = re.compile(
    r"(?:site|dist)-packages|[/\\]lib(?:64)?[/\\]python\d|[Pp]ython-?3?[\d.]+[/\\][Ll]ib[/\\]"
    r"|[/\\]envs[/\\][^/\\]+[/\\][Ll]ib[/\\]|[/\\](?:ana|mini)conda\d?[/\\][Ll]ib[/\\]"
    r"|<frozen |<string>|<stdin>|importlib|<__array_function__|__torch__|torchinductor_"
    r"|[/\\]torch[/\\](?:nn|distributed|utils|autograd|multiprocessing|_\w+|optim|cuda)[/\\]"
    r"|(?:^|[/\\])python[/\\]ray[/\\]|^/pkg/modal/|[/\\]bin[/\\][\w-]+$|\.exe[/\\]__main__\.py$",
)
_TRACEBACK: Final = "Traceback (most recent call"
_CHAINED: Final = re.compile(r"During handling of the above|The above exception was the direct")
_SPAWNED: Final = re.compile(r"-- Process (\d+) terminated with the following error")


@dataclass(frozen=True, slots=True)
class _Frame:
    """One frame; `line` and `name` are "" where the dialect leaves them out."""

    path: str
    line: str
    name: str

    @property
    def is_own(self) -> bool:
        return not _LIBRARY.search(self.path)

    def __str__(self) -> str:
        file = re.split(r"[/\\]", self.path)[-1]
        where = f"{file}:{self.line}" if self.line else file
        return f"{where} in {self.name}" if self.name else where


def user_frame(above: list[str]) -> str:
    """Return the innermost frame of the user's own code ("train.py:84 in forward"), or "".

    `above` are the lines over an exception, oldest first. The last traceback counts; where it
    never leaves library code, the one it was chained to.
    """
    arrow = ""
    chained = True
    for text in reversed(_rejoined(above)):
        if found := _ARROW.match(text):
            arrow = found[1]
        frame = _frame_in(text)
        if frame is not None:
            if frame.is_own and chained:
                return str(frame if frame.line else _Frame(frame.path, arrow, frame.name))
            arrow = ""
        if _TRACEBACK in text:
            chained = False
        elif _CHAINED.search(text):
            chained = True
    return ""


def crash_frame(below: list[str]) -> str:
    """Return the innermost user frame of a faulthandler stack, which stands below its title."""
    frames: list[_Frame] = []
    for text in below:
        if "Current thread" in text:
            frames.clear()
        if frame := _frame_in(text):
            frames.append(frame)
    return next((str(frame) for frame in frames if frame.is_own), "")


def is_in_traceback(above: list[str]) -> bool:
    """Return whether a traceback, or a part of one, stands over a line."""
    return any(_TRACEBACK in text or _frame_in(text) or _ARROW.match(text) for text in above)


def is_source(text: str, look_above: Callable[[], list[str]]) -> bool:
    """Return whether a line is source code that a traceback quotes: what it says did not happen."""
    if _NUMBERED_SOURCE.match(text):
        return True
    if not text.startswith(" " * _SOURCE_INDENT):
        return False
    above = look_above()
    return bool(above) and _PYTHON.match(above[-1].strip()) is not None


def outdented(text: str) -> str:
    """Return a message without the indent of a block; source lines are indented deeper."""
    message = text.lstrip(" ")
    return message if len(text) - len(message) < _SOURCE_INDENT else text


_SOURCE_INDENT: Final = 4


def _frame_in(text: str) -> _Frame | None:
    if not _MAY_BE_FRAME.search(text):
        return None
    for dialect in _DIALECTS:
        if found := dialect.search(text):
            name = (found["name"] or "").split("(")[0]
            return _Frame(found["path"], found["line"] or "", name)
    return None


def _rejoined(above: list[str]) -> list[str]:
    """Put together the frames that a box was too narrow for: path on one line, number below."""
    lines: list[str] = []
    for text in above:
        if lines and _WRAPPED.match(text) and _WRAPPED_FIRST.search(lines[-1]):
            glue = "" if text.lstrip().startswith(":") else " "
            lines[-1] = lines[-1].rstrip() + glue + text.strip()
        else:
            lines.append(text)
    return lines


def spawned_rank(above: list[str]) -> int | None:
    """Return the rank that torch.multiprocessing.spawn names over a traceback, None if none."""
    named = [found for text in above if (found := _SPAWNED.search(text))]
    return int(named[-1][1]) if named else None
