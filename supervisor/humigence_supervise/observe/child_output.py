"""Ask another program, for a bounded time and a bounded amount of output."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

MAX_BYTES: Final = 256 * 1024
_REAP_S: Final = 0.2
"""A killed child is gone at once, unless the kernel holds it."""


class NoAnswerError(ValueError):
    """The program could not be started, failed, or did not answer in time; says which.

    `output` is what it had printed until then; `code` its exit code, None when it did not end.
    """

    def __init__(
        self, message: str, output: bytes | bytearray = b"", code: int | None = None
    ) -> None:
        """Say why there is no answer."""
        super().__init__(message)
        self.output = output.decode(errors="replace")
        self.code = code


def ask(argv: Sequence[str], timeout_s: float, environ: Mapping[str, str] | None = None) -> str:
    """Return what `argv` printed (stdout and stderr together), when it ended with 0.

    The child is never waited for beyond `timeout_s`: one that a broken driver holds in the
    kernel is killed and left behind.

    Raises:
        NoAnswerError: in every other case.
    """
    deadline = time.monotonic() + timeout_s
    try:
        child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environ,
            start_new_session=True,
        )
    except OSError as error:
        raise NoAnswerError(f"{argv[0]} cannot be started: {error.strerror}") from error
    assert child.stdout is not None
    output = bytearray()
    try:
        with child.stdout as pipe:
            _read(pipe.fileno(), deadline, output)
        if len(output) > MAX_BYTES:
            _abandon(child)
            raise NoAnswerError(f"{argv[0]} printed more than {MAX_BYTES} bytes")
        code = child.wait(max(deadline - time.monotonic(), 0))
    except subprocess.TimeoutExpired as error:
        _abandon(child)
        raise NoAnswerError(f"{argv[0]} did not answer within {timeout_s:g} s", output) from error
    text = output.decode(errors="replace")
    if code != 0:
        first = text.strip().splitlines()[:1]
        raise NoAnswerError(f"{argv[0]} ended with {code}: {''.join(first)[:200]}", output, code)
    return text


def _read(descriptor: int, deadline: float, output: bytearray) -> None:
    """Append all output to its end, or a little more than MAX_BYTES of it."""
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while len(output) <= MAX_BYTES:
            left = deadline - time.monotonic()
            if left <= 0 or not selector.select(left):
                raise subprocess.TimeoutExpired("", left)
            chunk = os.read(descriptor, 65_536)
            if not chunk:
                break
            output += chunk


def _abandon(child: subprocess.Popen[bytes]) -> None:
    """Kill the child and what it started; not yet reaped, so its group is surely its own."""
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            child.wait(_REAP_S)
