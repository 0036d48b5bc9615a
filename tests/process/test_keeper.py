"""The keeper: records the end, leaves nothing alive, hears signals, tells the truth."""

import signal
import time

from humigence_supervise import contract, keeper

DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf'); signal.pause()"


def test_names_are_those_of_the_contract():
    """The plain file repeats names of the contract; none may differ."""
    for name in ("KEEPER_LOCK", "PLAN_FILE", "KEEPER_FILE", "EXIT_FILE", "LAUNCHER_LOG"):
        assert getattr(keeper, name) == getattr(contract, name)
    assert keeper.RANKS_DIR == contract.RANKS_DIR
    assert keeper.RANK_PROCESS_FILE == contract.RANK_PROCESS_FILE
    assert keeper.EXIT_LOCKED == contract.EXIT_RUN_HELD


def test_exit_code_is_recorded(run):
    """A launcher that ends by itself is recorded with its code, as reaped, and not as stopped."""
    kept = run.start_python("raise SystemExit(7)")
    record = run.ended(kept)
    assert record["launcher"]["code"] == 7
    assert record["launcher"]["signal"] is None
    assert record["reaped"] == [record["launcher"]]
    assert (record["stop"], record["error"], record["survivors"]) == ("none", None, [])
    assert set(record) == contract.ExitRecord.__required_keys__


def test_signal_is_recorded(run):
    """A launcher killed by a signal is recorded with the signal and no code."""
    kept = run.start_python("import os; os.abort()")
    record = run.ended(kept)
    assert (record["launcher"]["code"], record["launcher"]["signal"]) == (None, signal.SIGABRT)


def test_deaf_launcher_gets_its_grace_and_no_more(run):
    """SIGTERM ignored: the launcher lives for the grace and is then killed."""
    kept = run.start_python(DEAF, grace_s=0.5)
    run.said("deaf")
    begun = time.monotonic()
    kept.stop()
    record = run.ended(kept)
    assert 0.5 <= time.monotonic() - begun < 2.0
    assert (record["stop"], record["launcher"]["signal"]) == ("graceful", signal.SIGKILL)
