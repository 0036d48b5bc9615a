"""The report's two pictures as inline SVG: the attempts over time, and the loss. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from humigence_supervise.curves import Curve, Point
from humigence_supervise.history import AttemptStory
from humigence_supervise.report_page import duration, safe
from humigence_supervise.spent import Stretch

_WIDTH: Final = 720
_LEFT: Final = 8
_RIGHT: Final = 712
_ROW: Final = 44
_BAR: Final = 22
_ROOM_FOR_NUMBER: Final = 26
_TICKS: Final = 4

_LOSS_LEFT: Final = 62
_LOSS_TOP: Final = 26
_LOSS_BOTTOM: Final = 262
_LOSS_HEIGHT: Final = 300


def timeline_svg(
    stories: Sequence[AttemptStory], parts: Sequence[Stretch], ended: Mapping[int, str]
) -> str:
    """Return attempts as bars by rung over wall time, and below what the time went into.

    `ended` is how each attempt ended: "failed", "completed", "ended" or "running".
    """
    begin_s, end_s = parts[0].begin_s, parts[-1].end_s
    span_s = max(end_s - begin_s, 1e-9)

    def x_of(at_s: float) -> float:
        share = (min(max(at_s, begin_s), end_s) - begin_s) / span_s
        return _LEFT + share * (_RIGHT - _LEFT)

    rungs = list(dict.fromkeys(story.rung for story in stories))
    drawn = [_text(_LEFT, row * _ROW + 14, rung) for row, rung in enumerate(rungs)]
    for story in stories:
        top = rungs.index(story.rung) * _ROW + 19
        left = x_of(story.begun_s)
        right = x_of(end_s if story.cleared_s is None else story.cleared_s)
        says = f"Attempt {story.number} on {story.rung}: {story.how or 'still running'}"
        drawn.append(_bar(left, right, top, f"a-{ended[story.number]}", says))
        if right - left >= _ROOM_FOR_NUMBER:
            number = _text(left + 5, top + 15, str(story.number), "inside")
            drawn.append(number)
    top = len(rungs) * _ROW
    drawn.append(_text(_LEFT, top + 14, "where the time went"))
    for part in parts:
        says = f"{part.use.value}: {duration(part.end_s - part.begin_s)}"
        place = (x_of(part.begin_s), x_of(part.end_s), top + 19)
        drawn.append(_bar(*place, f"u-{part.use.name.lower()}", says))
    axis = top + _ROW + 8
    drawn.extend(_time_axis(axis, span_s))
    return _svg(axis + 26, "Timeline of the attempts", drawn)


def loss_svg(curves: Sequence[Curve], incidents: Sequence[tuple[int, int]]) -> str:
    """Return the loss over the steps; `incidents` are (number, completed steps) to be marked.

    Steps that were done again later are drawn dashed. "" where no loss is known.
    """
    points = [point for curve in curves for point in curve.points]
    if not points:
        return ""
    marked = [step for _, step in incidents]
    first = min([step for step, _ in points] + marked)
    last = max([step for step, _ in points] + marked)
    low, high = min(loss for _, loss in points), max(loss for _, loss in points)

    def x_of(step: float) -> float:
        return _LOSS_LEFT + _share(step, first, last) * (_RIGHT - _LOSS_LEFT)

    def y_of(loss: float) -> float:
        return _LOSS_BOTTOM - _share(loss, low, high) * (_LOSS_BOTTOM - _LOSS_TOP)

    drawn = _loss_axes(first, last, low, high)
    for curve in curves:
        for part, style in _kept_and_again(curve):
            drawn.append(_line([(x_of(step), y_of(loss)) for step, loss in part], style))
    for number, step in incidents:
        x = x_of(step)
        drawn.append(_rule(x, _LOSS_TOP, x, _LOSS_BOTTOM, "mark"))
        title = f"<title>Incident {number} after step {step}</title>"
        drawn.append(f'<circle class="spot" cx="{x:.1f}" cy="14" r="9">{title}</circle>')
        drawn.append(_text(x, 18, str(number), "inside", "middle"))
    return _svg(_LOSS_HEIGHT, "Loss over the steps, incidents marked", drawn)


def _kept_and_again(curve: Curve) -> list[tuple[Sequence[Point], str]]:
    """Return the part of a curve that counts, and the part that was done again."""
    if curve.kept_step is None:
        return [(curve.points, "curve")]
    kept = [point for point in curve.points if point[0] <= curve.kept_step]
    again = [point for point in curve.points if point[0] > curve.kept_step]
    return [(kept, "curve"), ([*kept[-1:], *again], "curve again")]


def _time_axis(y: float, span_s: float) -> list[str]:
    drawn = [_rule(_LEFT, y, _RIGHT, y, "grid")]
    for tick in range(_TICKS + 1):
        x = _LEFT + (_RIGHT - _LEFT) * tick / _TICKS
        anchor = {0: "start", _TICKS: "end"}.get(tick, "middle")
        drawn.append(_text(x, y + 16, duration(span_s * tick / _TICKS), "", anchor))
    return drawn


def _loss_axes(first: int, last: int, low: float, high: float) -> list[str]:
    drawn = []
    for tick in range(_TICKS + 1):
        share = tick / _TICKS
        y = _LOSS_BOTTOM - share * (_LOSS_BOTTOM - _LOSS_TOP)
        loss = low * (1 - share) + high * share
        drawn.append(_rule(_LOSS_LEFT, y, _RIGHT, y, "grid"))
        drawn.append(_text(_LOSS_LEFT - 6, y + 4, f"{loss:.4g}", "", "end"))
    for tick in sorted({0, _TICKS // 2, _TICKS}) if last > first else [0]:
        x = _LOSS_LEFT + (_RIGHT - _LOSS_LEFT) * tick / _TICKS
        anchor = {0: "start", _TICKS: "end"}.get(tick, "middle")
        step = first + (last - first) * tick // _TICKS
        drawn.append(_text(x, _LOSS_BOTTOM + 18, f"step {step}", "", anchor))
    return drawn


def _share(value: float, low: float, high: float) -> float:
    """Return where a value lies between two others, 0 to 1; halves keep huge ones finite."""
    span = high / 2 - low / 2
    return min(1.0, max(0.0, (value / 2 - low / 2) / span)) if span > 0 else 0.5


def _line(places: Sequence[tuple[float, float]], style: str) -> str:
    if not places:
        return ""
    if len(places) == 1:
        (x, y), *_ = places
        return f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="2.5"></circle>'
    joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    return f'<polyline class="{style}" points="{joined}"></polyline>'


def _bar(left: float, right: float, top: float, style: str, says: str) -> str:
    width = max(right - left, 1.5)
    return (
        f'<rect class="{style}" x="{left:.1f}" y="{top:.1f}" width="{width:.1f}"'
        f' height="{_BAR}"><title>{safe(says)}</title></rect>'
    )


def _rule(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    return f'<line class="{style}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"></line>'


def _text(x: float, y: float, says: str, style: str = "", anchor: str = "start") -> str:
    return (
        f'<text class="{style}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{safe(says)}</text>'
    )


def _svg(height: float, label: str, drawn: Sequence[str]) -> str:
    body = "\n".join(one for one in drawn if one)
    return (
        f'<div class="wide"><svg viewBox="0 0 {_WIDTH} {height:.0f}" role="img"'
        f' aria-label="{safe(label)}">\n{body}\n</svg></div>'
    )
