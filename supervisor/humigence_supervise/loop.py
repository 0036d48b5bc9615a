"""The only loop: wait for one thing, let it happen to the run, do what follows.

One thread, one wait: for a signal, for the keeper's pidfd and the ranks' pidfds, with one deadline.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable, Iterator
from typing import assert_never

from humigence_supervise.actions import (
    Action,
    Append,
    Clear,
    Consider,
    Gather,
    Launch,
    Prepare,
    Probe,
    Quarantine,
    Recover,
    Terminate,
)
from humigence_supervise.happenings import (
    Begin,
    Context,
    Happening,
    NotLaunched,
    StopRequested,
    Tick,
)
from humigence_supervise.machine import step
from humigence_supervise.phases import Ended, Waiting, WaitingForRoom, Want
from humigence_supervise.records import Entry, Event, Json, Record
from humigence_supervise.run import Run, counts_from_scratch, policy_of, promoting_of
from humigence_supervise.seams import Hands, JournalWriter, Outside
from humigence_supervise.state import State
from humigence_supervise.systemd import Notifier

TICK_S = 0.5
"""How often files are looked at; the death of a process wakes the loop at once."""

SPACE_TICK_S = 1.0
"""How often a full disk is looked at."""

MEMORY_TICK_S = 5.0
"""How often the memory of GPUs is looked at: the driver takes a while to answer."""

NEWS = frozenset(
    (
        Event.ATTEMPT_PROGRESS,
        Event.SIGNATURE_MATCHED,
        Event.LOG_SAMPLED,
        Event.CHECKPOINT_COMMITTED,
    )
)
"""What may be missing from the journal of a full disk: the files it tells of tell it too."""


class Loop:
    """A run under supervision; `until_ended` is the whole of it."""

    def __init__(
        self,
        run: Run,
        journal: JournalWriter,
        state: State,
        hands: Hands,
        outside: Outside,
        *,
        notifier: Notifier,
        tell: Callable[[Entry], None],
    ) -> None:
        """Supervise `run` from `state`, telling each journaled entry to `tell`."""
        self._run = run
        self._journal = journal
        self._state = state
        self._hands = hands
        self._outside = outside
        self._notifier = notifier
        self._tell = tell
        self._policy = policy_of(run.settings)
        self._promoting = promoting_of(run.settings)
        self._queue: deque[Happening] = deque()

    def until_ended(self, facts: dict[str, Json], readmit: tuple[str, ...] = ()) -> int:
        """Supervise until the run has ended; return the exit code of `start`.

        `facts` and `readmit`: see `Begin`.

        Raises:
            OSError: the journal cannot be written; a living attempt goes on under its keeper.
        """
        self._notifier.ready(self._summary())
        self._happen(Begin(facts, readmit))
        while not isinstance(self._state.phase, Ended):
            for stop in self._outside.wait(self._hands.descriptors(), self._timeout_s()):
                self._happen(stop)
            for happening in self._observe():
                self._happen(happening)
            self._notifier.watchdog()
        self._notifier.stopping(self._summary())
        return self._state.phase.exit_code

    # --- waiting --------------------------------------------------------------------------------

    def _timeout_s(self) -> float:
        longest_s = self._notifier.watchdog_interval_s or 5.0
        match self._state.phase:
            case Waiting(until_s=until_s):
                return max(0.0, min(longest_s, until_s - self._outside.now_s()))
            case WaitingForRoom(want=want):
                return min(longest_s, SPACE_TICK_S if want is Want.DISK else MEMORY_TICK_S)
            case _:
                return min(longest_s, TICK_S)

    def _observe(self) -> Iterator[Happening]:
        """Yield what the waiting brought: the attempt's news, its end, the passing of time."""
        yield from self._hands.observe(self._state.attempt)
        yield Tick()

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
                self._queue.extend(self._outside.wait((), SPACE_TICK_S))
        for entry in entries:
            self._tell(entry)
        records.clear()

    def _do(self, action: Action, after: State) -> Happening | None:
        hands = self._hands
        match action:
            case Prepare():
                self._journal.reserve()
                return hands.prepare(action)
            case Consider():
                return hands.consider(action)
            case Probe() | Launch() if any(isinstance(one, StopRequested) for one in self._queue):
                # It came while the journal waited for room: nothing is started after a stop.
                return NotLaunched("a stop was asked for before it was started")
            case Probe():
                return hands.probe(action)
            case Launch():
                return hands.launch(action.plan)
            case Recover():
                return hands.recover(action.attempt)
            case Gather():
                return hands.gather(after)
            case Terminate():
                hands.terminate()
            case Clear():
                hands.clear()
            case Quarantine():
                hands.quarantine(action.path, action.reason)
            case Append():
                raise AssertionError("appended before")
            case _:
                assert_never(action)
        return None

    def _context(self) -> Context:
        return Context(
            rungs=self._run.rungs,
            policy=self._policy,
            promoting=self._promoting,
            micro_samples=self._run.micro_samples,
            counts_from_scratch=counts_from_scratch(self._run.settings),
            now_s=self._outside.now_s(),
            chance=self._outside.chance(),
        )

    def _summary(self) -> str:
        """Return one line for `systemctl status`."""
        state = self._state
        rung = self._run.rungs[min(state.rung_index, len(self._run.rungs) - 1)].name
        done = self._hands.step()
        step_text = "" if done is None else f", step {done}"
        phase = type(state.phase).__name__.lower()
        return f"{self._run.paths.name}: {phase}, {rung}, attempt {state.attempt}{step_text}"
