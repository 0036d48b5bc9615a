"""Errors a program survived are context; what ended it stays a cause."""

import itertools

import pytest

from humigence_supervise.catalogue import load_catalogue
from humigence_supervise.domain import Role
from humigence_supervise.observe.logs import Block
from humigence_supervise.observe.recovery import sampled_progress, shows_progress
from humigence_supervise.observe.scan import Scanner

UPLOAD = (
    "Traceback (most recent call last):\n"
    '  File "/app/train.py", line 104, in upload\n'
    "ConnectionError: metrics endpoint refused the upload\n"
)
STEPS = "".join(f"step {n}/900 loss 2.{n}\n" for n in range(40))
OTHER = 'Traceback (most recent call last):\n  File "/app/b.py", line 2, in g\nValueError: b\n'
CLOSED = "RuntimeError: [/gloo/transport/tcp/pair.cc:525] Connection closed by peer\n"
BLOCK = "failed (exitcode: 1) local_rank: 1 (pid: 13) of binary: /venv/bin/python\n"
KILLED = "failed (exitcode: -9) local_rank: 1 (pid: 13) of binary: /venv/bin/python\n"


def is_forgiven(text):
    """Return whether the first exception of a text is taken for survived."""
    scanner = Scanner(load_catalogue(), "a.log")
    scanner.feed(Block(1, text.encode().split(b"\n")))
    first = next(hit for hit in scanner.finish().hits if "upload" in hit.text)
    return first.role is Role.CONTEXT


@pytest.mark.parametrize(
    ("text", "forgiven"),
    [
        (UPLOAD + STEPS, True),
        (UPLOAD, False),
        (STEPS + UPLOAD, False),
        (UPLOAD + STEPS[:60], False),
        (UPLOAD + STEPS + OTHER, True),
        (UPLOAD + STEPS + OTHER + BLOCK, True),
        (UPLOAD + STEPS + CLOSED, False),
        (UPLOAD + STEPS + BLOCK, False),
        (UPLOAD + STEPS + KILLED, True),
        (UPLOAD + "Kernel panic - not syncing\n" * 40, False),
    ],
)
def test_training_that_went_on_forgives(text, forgiven):
    """Ten steps after an error show that it was survived, unless nothing else explains the end.

    Steps printed behind the error that ended a rank are another rank's, or stdout's that was
    written out last.
    """
    assert is_forgiven(text) is forgiven


def test_what_the_hardware_reports_is_not_forgiven():
    """A card that fell off the bus stays the cause, however many steps come after."""
    xid = "NVRM: Xid (PCI:0000:65:00): 79, pid=1234, GPU has fallen off the bus.\n"
    scanner = Scanner(load_catalogue(), "a.log")
    scanner.feed(Block(1, (xid + STEPS).encode().split(b"\n")))
    assert [hit.role for hit in scanner.finish().hits] == [Role.ROOT]


@pytest.mark.parametrize(
    ("line", "shows"),
    [
        (b"step 3/90 loss 2.1", True),
        (b"{'loss': 1.03, 'epoch': 0.8}", True),
        (b" 32%|###  | 65/204 [39:24<1:23:19, 35.97s/it]", True),
        (b"iter 400: train loss 1.2", True),
        (b"loading shard 3 of 8", False),
        (b"loss of connection", False),
        (b"", False),
    ],
)
def test_what_shows_progress(line, shows):
    """A loss or a moving bar is progress; words alone are not."""
    assert shows_progress(line) is shows


def test_which_lines_are_looked_at_depends_on_their_number():
    """All of the first lines and then every fiftieth, in whatever blocks they come."""
    lines = [b"step 1 loss 2.0"] * 2_000
    whole = sampled_progress(1, lines)
    assert whole == [*range(1, 501), *range(550, 2_001, 50)]
    for size in (1, 7, 333):
        parts = [sampled_progress(at + 1, lines[at : at + size]) for at in range(0, 2_000, size)]
        assert list(itertools.chain(*parts)) == whole
