"""The one place where the supervisor sleeps, and where signals, time and chance come from."""

from __future__ import annotations

import random
import select
import signal
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from humigence_supervise import contract
from humigence_supervise.happenings import StopRequested

STOPS: Final = {
    signal.SIGTERM: StopRequested(contract.EXIT_SIGTERM),
    signal.SIGINT: StopRequested(contract.EXIT_SIGINT),
    signal.SIGQUIT: StopRequested(contract.EXIT_SIGTERM, now=True),
}
"""What ends a run."""

IGNORED: Final = (signal.SIGHUP, signal.SIGPIPE, signal.SIGUSR1, signal.SIGUSR2)
"""A closed terminal stops no training, and neither does a signal meant for a worker."""


class Waiter:
    """Sleeps until something happens; made by `signals_awaited`."""

    def __init__(self, wakeup: socket.socket) -> None:
        """Take the socket on which a signal arrives as its number in one byte."""
        self._wakeup = wakeup

    def now_s(self) -> float:
        """Return Unix time."""
        return time.time()

    def chance(self) -> float:
        """Return one draw in [0, 1)."""
        return random.random()  # noqa: S311 - jitter is no secret

    def wait(self, descriptors: Iterable[int], timeout_s: float) -> list[StopRequested]:
        """Sleep until a descriptor is readable, a signal comes or the time is over.

        Returns what signals asked for.
        """
        # Made anew each time: a closed pidfd's number is soon that of another process.
        poll = select.poll()
        for descriptor in (self._wakeup.fileno(), *descriptors):
            poll.register(descriptor, select.POLLIN)
        poll.poll(timeout_s * 1000)
        try:
            signums = self._wakeup.recv(4096)
        except BlockingIOError:
            return []
        return [STOPS[signal.Signals(signum)] for signum in signums if signum in STOPS]


@contextmanager
def signals_awaited() -> Iterator[Waiter]:
    """Have signals wake the yielded waiter; the old handling comes back after."""
    receiver, sender = socket.socketpair()
    receiver.setblocking(False)  # noqa: FBT003 - the standard library's own signature
    sender.setblocking(False)  # noqa: FBT003 - as above
    old_wakeup = signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
    old = {signum: signal.signal(signum, _noted) for signum in STOPS}
    old |= {signum: signal.signal(signum, signal.SIG_IGN) for signum in IGNORED}
    try:
        yield Waiter(receiver)
    finally:
        for signum, handler in old.items():
            signal.signal(signum, handler)
        signal.set_wakeup_fd(old_wakeup)
        receiver.close()
        sender.close()


def _noted(_signum: int, _frame: object) -> None:
    """Do nothing here: the byte on the wakeup descriptor says it all."""
