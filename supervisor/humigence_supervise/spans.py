"""Runs of consecutive optimizer steps as single values: the arithmetic under the ledger."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Span:
    """Steps `first_step` to `last_step` (both included), each of `size` samples, joined.

    Step k has the samples [first_sample + (k - first_step) * size, the same + size).
    """

    first_step: int
    last_step: int
    first_sample: int
    size: int

    @property
    def end_sample(self) -> int:
        """One past the last sample."""
        return self.sample_before(self.last_step + 1)

    def sample_before(self, step: int) -> int:
        """Where the samples of `step` begin, if it follows the pattern of this span."""
        return self.first_sample + (step - self.first_step) * self.size

    def until(self, last_step: int) -> Span:
        """Return the part that ends with `last_step`."""
        return Span(self.first_step, last_step, self.first_sample, self.size)

    def since(self, first_step: int) -> Span:
        """Return the part that begins with `first_step`."""
        return Span(first_step, self.last_step, self.sample_before(first_step), self.size)


def append(spans: list[Span], span: Span) -> None:
    """Append to ascending spans, joining with the last one where the pattern goes on."""
    if spans:
        last = spans[-1]
        follows = last.last_step + 1 == span.first_step and last.end_sample == span.first_sample
        if follows and last.size == span.size:
            spans[-1] = last.until(span.last_step)
            return
    spans.append(span)


def cut(spans: list[Span], first_step: int) -> list[Span]:
    """Remove every step from `first_step` on out of ascending spans; return what was removed."""
    removed: list[Span] = []
    while spans and spans[-1].last_step >= first_step:
        span = spans.pop()
        if span.first_step < first_step:
            spans.append(span.until(first_step - 1))
            span = span.since(first_step)
        removed.append(span)
    return removed[::-1]


def merge(one: list[Span], other: list[Span]) -> tuple[list[Span], list[tuple[int, int]]]:
    """Return the steps of both (ascending), and the step ranges about which they differ.

    Where they differ, `one` is taken.
    """
    if not one or one == other:
        return list(other), []
    merged: list[Span] = []
    differing: list[tuple[int, int]] = []
    left, right = one[::-1], other[::-1]
    while left and right:
        a, b = left.pop(), right.pop()
        if a.first_step != b.first_step:
            early, late = (a, b) if a.first_step < b.first_step else (b, a)
            end = min(early.last_step, late.first_step - 1)
            append(merged, early.until(end))
            _put_back(left, a, end)
            _put_back(right, b, end)
            continue
        end = min(a.last_step, b.last_step)
        append(merged, a.until(end))
        if a.until(end) != b.until(end):
            differing.append((a.first_step, end))
        _put_back(left, a, end)
        _put_back(right, b, end)
    for span in left[::-1] or right[::-1]:
        append(merged, span)
    return merged, differing


def _put_back(stack: list[Span], span: Span, done_step: int) -> None:
    """Put back what of a span lies after `done_step`."""
    if span.first_step > done_step:
        stack.append(span)
    elif span.last_step > done_step:
        stack.append(span.since(done_step + 1))


@dataclass(slots=True)
class Track:
    """The steps one rank completed, line by line; the newest span is kept as plain numbers.

    `repeats` are lines that did not advance: the step had been completed before.
    """

    repeats: list[Span] = field(default_factory=list)
    _closed: list[Span] = field(default_factory=list)
    _first_step: int = 0
    _last_step: int = -1
    _first_sample: int = 0
    _next_sample: int = 0
    _size: int = 0

    def add(self, step: int, first: int, last: int) -> None:
        """Take in one completed step and its samples (half-open)."""
        joins = first == self._next_sample and last - first == self._size
        if joins and step == self._last_step + 1 and self._last_step >= 0:
            self._last_step, self._next_sample = step, last
        elif step <= self._last_step:
            append(self.repeats, Span(step, step, first, last - first))
        else:
            self._close(self._closed)
            self._first_step = self._last_step = step
            self._first_sample, self._next_sample, self._size = first, last, last - first

    def spans(self) -> list[Span]:
        """Return all completed steps, ascending."""
        spans = list(self._closed)
        self._close(spans)
        return spans

    def _close(self, spans: list[Span]) -> None:
        if self._last_step >= 0:
            newest = Span(self._first_step, self._last_step, self._first_sample, self._size)
            append(spans, newest)
