"""The only loop: wait for one thing, let it happen to the run, do what follows.

One thread, one wait: a poll of the signal wakeup descriptor, the keeper's pidfd and the ranks'
pidfds, with one deadline.
"""

from __future__ import annotations

import errno
import random
import select
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import assert_never

from humigence_supervise import contract
from humigence_supervise.effects import Effects
from humigence_supervise.happenings import (
    Action,
    Append,
    Begin,
    Clear,
    Context,
    Gather,
    Happening,
    Launch,
    Prepare,
    Quarantine,
    QuarantineStep,
    Recover,
    StopRequested,
    Terminate,
    Tick,
)
from humigence_supervise.journal import Journal
from humigence_supervise.machine import step
from humigence_supervise.records import Entry, Event, Json, Record
from humigence_supervise.run import Run, policy_of
from humigence_supervise.state import Ended, State, Waiting, WaitingForSpace
from humigence_supervise.systemd import Notifier

TICK_S = 0.5
"""How often files are looked at; the death of a process wakes the loop at once."""

SPACE_TICK_S = 1.0
"""How often a full disk is looked at."""

NEWS = frozenset(
    (
        Event.ATTEMPT_PROGRESS,
        Event.SIGNATURE_MATCHED,
        Event.LOG_SAMPLED,
        Event.CHECKPOINT_COMMITTED,
    )
)
"""What may be missing from the journal of a full disk: the files it tells of tell it too."""

STOPS = {
    signal.SIGTERM: StopRequested(contract.EXIT_SIGTERM),
    signal.SIGINT: StopRequested(contract.EXIT_SIGINT),
    signal.SIGQUIT: StopRequested(contract.EXIT_SIGTERM, now=True),
}
"""What ends a run."""

IGNORED = (signal.SIGHUP, signal.SIGPIPE, signal.SIGUSR1, signal.SIGUSR2)
"""A closed terminal stops no training, and neither does a signal meant for a worker."""


class Loop:
    """A run under supervision; `until_ended` is the whole of it."""

    def __init__(
        self,
        run: Run,
        journal: Journal,
        state: State,
        effects: Effects,
        *,
        notifier: Notifier,
        tell: Callable[[Entry], None],
    ) -> None:
        """Supervise `run` from `state`, telling each journaled entry to `tell`."""
        self._run = run
        self._journal = journal
        self._state = state
        self._effects = effects
        self._notifier = notifier
        self._tell = tell
        self._policy = policy_of(run.settings)
        self._queue: deque[Happening] = deque()

    def until_ended(self, facts: dict[str, Json]) -> int:
        """Supervise until the run has ended; return the exit code of `start`.

        Raises:
            OSError: the journal cannot be written; a living attempt goes on under its keeper.
        """
        with _signals() as wakeup:
            self._notifier.ready(self._summary())
            self._happen(Begin(facts))
            while not isinstance(self._state.phase, Ended):
                self._wait(wakeup)
                for happening in self._observe():
                    self._happen(happening)
                self._notifier.watchdog()
            self._notifier.stopping(self._summary())
            return self._state.phase.exit_code

    # --- waiting --------------------------------------------------------------------------------

    def _wait(self, wakeup: socket.socket) -> None:
        """Sleep until a process ends, a signal comes, or the deadline passes."""
        # Made anew each time: a closed pidfd's number is soon that of another process.
        poll = select.poll()
        for descriptor in (wakeup.fileno(), *self._descriptors()):
            poll.register(descriptor, select.POLLIN)
        poll.poll(self._timeout_s() * 1000)
        for signum in _read_signals(wakeup):
            if signum in STOPS:
                self._happen(STOPS[signal.Signals(signum)])

    def _descriptors(self) -> Iterator[int]:
        if self._effects.keeper is not None:
            yield self._effects.keeper.pidfd
        if self._effects.watch is not None:
            yield from self._effects.watch.descriptors()

    def _timeout_s(self) -> float:
        longest_s = self._notifier.watchdog_interval_s or 5.0
        match self._state.phase:
            case Waiting(until_s=until_s):
                return max(0.0, min(longest_s, until_s - time.time()))
            case WaitingForSpace():
                return min(longest_s, SPACE_TICK_S)
            case _:
                return min(longest_s, TICK_S)

    def _observe(self) -> Iterator[Happening]:
        """Yield what the waiting brought: the attempt's news, its end, the passing of time."""
        effects = self._effects
        if effects.watch is not None:
            yield from effects.watch.poll()
        if effects.keeper is not None and effects.keeper.ended:
            yield from effects.last_words()
            yield effects.attempt_gone(self._state.attempt)
        for_space = isinstance(self._state.phase, WaitingForSpace)
        yield Tick(effects.free_mib() if for_space else None)

    # --- happening ------------------------------------------------------------------------------

    def _happen(self, happening: Happening) -> None:
        """Step the machine over `happening` and over everything its actions answer with."""
        self._queue.append(happening)
        while self._queue:
            before = self._state
            after, actions = step(before, self._queue.popleft(), self._context())
            self._act(actions, after)
            if after is not before:
                self._notifier.status(self._summary())

    def _act(self, actions: tuple[Action, ...], after: State) -> None:
        """Journal before act: what was appended is durable before the next action is done."""
        records: list[Record] = []
        for action in actions:
            if isinstance(action, Append):
                records.append(action.record)
                continue
            self._write(records)
            answer = self._do(action, after)
            if answer is not None:
                self._queue.append(answer)
        self._write(records)
        self._state = after

    def _write(self, records: list[Record]) -> None:
        """Journal the records and tell them; on a full disk, decisions wait and news is dropped.

        Training goes on meanwhile: it needs no decision, and its keeper needs no supervisor.
        """
        news = all(record.event in NEWS for record in records)
        while True:
            try:
                entries = self._journal.append(records, decisive=not news)
                break
            except OSError as problem:
                if problem.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                if news:
                    entries = ()
                    break
                self._notifier.status(f"The journal's disk is full ({self._journal.path}).")
                self._notifier.watchdog()
                select.select([], [], [], SPACE_TICK_S)
        for entry in entries:
            self._tell(entry)
        records.clear()

    def _do(self, action: Action, after: State) -> Happening | None:
        effects = self._effects
        match action:
            case Prepare():
                self._journal.reserve()
                return effects.prepare(action)
            case Launch():
                return effects.launch(action.plan)
            case Recover():
                return effects.recover(action.attempt)
            case Gather():
                return effects.gather(after)
            case Terminate():
                effects.terminate()
            case Clear():
                effects.clear()
            case Quarantine():
                effects.quarantine(action.path, action.reason)
            case QuarantineStep():
                effects.quarantine_step(action.step, action.reason)
            case Append():
                raise AssertionError("appended before")
            case _:
                assert_never(action)
        return None

    def _context(self) -> Context:
        return Context(
            rungs=self._run.rungs,
            policy=self._policy,
            micro_samples=self._run.micro_samples,
            now_s=time.time(),
            chance=random.random(),  # noqa: S311 - jitter is no secret
        )

    def _summary(self) -> str:
        """Return one line for `systemctl status`."""
        state = self._state
        rung = self._run.rungs[min(state.rung_index, len(self._run.rungs) - 1)].name
        watch = self._effects.watch
        progress = watch.last_progress if watch is not None else None
        step_text = f", step {progress.step}" if progress is not None else ""
        phase = type(state.phase).__name__.lower()
        return f"{self._run.paths.name}: {phase}, {rung}, attempt {state.attempt}{step_text}"


@contextmanager
def _signals() -> Iterator[socket.socket]:
    """Have signals arrive as bytes on the yielded socket; the old handling comes back after."""
    receiver, sender = socket.socketpair()
    receiver.setblocking(False)  # noqa: FBT003 - the standard library's own signature
    sender.setblocking(False)  # noqa: FBT003 - as above
    old_wakeup = signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
    old = {signum: signal.signal(signum, _noted) for signum in STOPS}
    old |= {signum: signal.signal(signum, signal.SIG_IGN) for signum in IGNORED}
    try:
        yield receiver
    finally:
        for signum, handler in old.items():
            signal.signal(signum, handler)
        signal.set_wakeup_fd(old_wakeup)
        receiver.close()
        sender.close()


def _noted(_signum: int, _frame: object) -> None:
    """Do nothing here: the byte on the wakeup descriptor says it all."""


def _read_signals(wakeup: socket.socket) -> bytes:
    try:
        return wakeup.recv(4096)
    except BlockingIOError:
        return b""
