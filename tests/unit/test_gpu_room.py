"""Is there room on the GPUs: judged against the level before, with everybody named."""

import pytest

from humigence_supervise.domain import GpuProcess, GpuState
from humigence_supervise.gpu_room import SLACK_MIB, Room, Tenant, room, stranger_left, suspicion

TOTAL_MIB = 32607
ALICE = Tenant("GPU-aa", 4242, "alice", "python train.py", 20480)
CHOSEN = ("GPU-aa", "GPU-bb")


def card(uuid, used_mib, processes=None, **facts):
    """Return the state of GPU 0 (GPU-aa) or 1 (GPU-bb)."""
    listed = None if processes is None else tuple(GpuProcess(*one) for one in processes)
    index = int(uuid == "GPU-bb")
    return GpuState(index, uuid, total_mib=TOTAL_MIB, used_mib=used_mib, processes=listed, **facts)


# --- the level before ---------------------------------------------------------------------------


@pytest.mark.parametrize("rise_mib", [-500, 0, SLACK_MIB])
def test_a_desktop_on_the_card_delays_nobody(rise_mib):
    """The level before counts, not zero; a little more is what windows do."""
    states = (card("GPU-aa", 600 + rise_mib), card("GPU-bb", 2))
    assert room({"GPU-aa": 600, "GPU-bb": 2}, states, CHOSEN, ()) == Room(clear=True, says="")


def test_memory_of_the_dead_is_waited_for():
    """Above the slack, and no living process there: it is still being freed."""
    states = (card("GPU-aa", 600), card("GPU-bb", 3 + SLACK_MIB))
    found = room({"GPU-aa": 600, "GPU-bb": 2}, states, CHOSEN, ())
    assert found.says == (
        "257 MiB more than before the attempt are in use on GPU 1 (GPU-bb): no living process "
        "explains it, memory of the ended attempt is still being freed"
    )
    assert (found.clear, found.above_mib, found.known) == (False, {"GPU-bb": 257}, True)


def test_a_card_that_is_not_chosen_may_be_full():
    """Only the GPUs of the next attempt are in the way, and only tenants on them are told."""
    states = (card("GPU-aa", 30000), card("GPU-bb", 2))
    levels = {"GPU-aa": 600, "GPU-bb": 2}
    assert room(levels, states, ("GPU-bb",), (ALICE,)) == Room(clear=True, says="")
    assert room(levels, states, (), (ALICE,)).clear
    assert not room(levels, states, ("GPU-aa",), (ALICE,)).clear


def test_a_stranger_is_named_with_all_that_is_known():
    """Pid, user, command, MiB and GPU, in one sentence; what it explains is not being freed."""
    states = (card("GPU-aa", 21080), card("GPU-bb", 2))
    found = room({"GPU-aa": 600, "GPU-bb": 2}, states, CHOSEN, (ALICE,))
    assert found.says == (
        "20480 MiB more than before the attempt are in use on GPU 0 (GPU-aa): "
        "pid 4242 (alice, python train.py) holds 20480 MiB on GPU 0"
    )
    assert (found.clear, found.tenants) == (False, (ALICE,))


def test_a_stranger_and_the_dead_on_one_card():
    """The stranger explains a part; where it does not say how much, nothing is made up."""
    states = (card("GPU-aa", 31000),)
    found = room({"GPU-aa": 600}, states, ("GPU-aa",), (ALICE,))
    assert "holds 20480 MiB on GPU 0, the rest is memory of the ended attempt" in found.says
    silent = Tenant("GPU-aa", 7, "unknown", "unknown", None)
    found = room({"GPU-aa": 600}, states, ("GPU-aa",), (ALICE, silent))
    assert "pid 7 (unknown, unknown) holds an unknown part on GPU 0" in found.says
    assert "the rest" not in found.says


@pytest.mark.parametrize(
    ("levels", "states", "words"),
    [
        ({"GPU-aa": 600}, (), "how much memory is in use on GPU GPU-aa is unknown"),
        ({"GPU-aa": 600}, (card("GPU-aa", None),), "is in use on GPU 0 (GPU-aa) is unknown"),
        ({"GPU-aa": 600}, (card("GPU-aa", None, error="GPU is lost"),), "unknown (GPU is lost)"),
        ({}, (card("GPU-aa", 9000),), "was in use on GPU 0 (GPU-aa) before the attempt is unknown"),
    ],
)
def test_unknown_never_blocks_and_is_said(levels, states, words):
    """It would block for ever; whoever asks sees that it is no pass."""
    found = room(levels, states, ("GPU-aa",), (ALICE,))
    assert (found.clear, found.known) == (True, False)
    assert words in found.says


def test_one_card_in_the_way_beside_an_unknown_one():
    """What is known blocks; what is not is said in the same sentence."""
    states = (card("GPU-aa", 9000), card("GPU-bb", None))
    found = room({"GPU-aa": 0, "GPU-bb": 0}, states, CHOSEN, ())
    assert (found.clear, found.known, found.above_mib) == (False, False, {"GPU-aa": 9000})
    assert "GPU 1 (GPU-bb) is unknown" in found.says


# --- the stranger of an out-of-memory -----------------------------------------------------------


@pytest.mark.parametrize(
    ("used_mib", "processes", "clear"),
    [
        (20000, [(4242, 19900)], False),  # still there
        (20000, [], False),  # in a container the list is empty, the memory is not
        (20000, None, False),
        (20000, [(77, 19900)], True),  # another one has come, whose memory it is
        (20000, [(77, None)], True),  # and one that does not say what it holds
        (600, [], True),
        (600, None, True),
        (600, [(4242, 500)], True),  # it has given its memory back, and lives
        (None, [(4242, 19900)], False),
        (None, [(77, 1)], True),
    ],
)
def test_a_stranger_has_left_when_its_process_or_its_memory_is_gone(used_mib, processes, clear):
    """By the list of processes, by the memory in use, or by both, as far as they are told."""
    found = stranger_left((card("GPU-aa", used_mib, processes),), 4242, 20480.0, "GPU-aa")
    assert (found.clear, found.known) == (clear, True)
    assert bool(found.says) != clear


def test_the_stranger_is_named_while_it_stays():
    """By what is known of it now, else by what the allocator's text said."""
    states = (card("GPU-aa", 20000, [(4242, 19900)]), card("GPU-bb", 0, []))
    found = stranger_left(states, 4242, 20480.0, "GPU-aa", (ALICE,))
    assert found.says == "pid 4242 (alice, python train.py) holds 20480 MiB on GPU 0"
    assert found.tenants == (ALICE,)
    found = stranger_left(states, 4242, 20480.0, "GPU-aa")
    assert found.says == (
        "pid 4242 held 20480 MiB on GPU 0 (GPU-aa), where 20000 MiB are in use still"
    )


def test_our_own_dead_freeing_memory_are_not_the_stranger_leaving():
    """The use falls by more than the stranger held, and it is still there."""
    before, after = card("GPU-aa", 32000, [(4242, 12000)]), card("GPU-aa", 12500, [(4242, 12000)])
    assert not stranger_left((before,), 4242, 12000.0, "GPU-aa").clear
    assert not stranger_left((after,), 4242, 12000.0, "GPU-aa").clear
    assert stranger_left((card("GPU-aa", 500, []),), 4242, 12000.0, "GPU-aa").clear


@pytest.mark.parametrize(
    ("states", "pid", "held_mib"),
    [
        ((), 4242, 20480.0),
        ((card("GPU-aa", None),), 4242, 20480.0),
        ((card("GPU-aa", 20000),), 4242, None),
        ((card("GPU-aa", 20000, []),), None, None),
        ((card("GPU-aa", None, []),), None, 20480.0),
    ],
)
def test_a_silent_driver_is_unknown(states, pid, held_mib):
    """Neither processes nor memory: it is said, and blocks nobody."""
    found = stranger_left(states, pid, held_mib, "GPU-aa")
    assert (found.clear, found.known) == (True, False)
    assert "unknown" in found.says


def test_without_the_card_all_are_looked_at():
    """Where the text did not say which card it was about, the stranger may be on any."""
    states = (card("GPU-aa", 600, []), card("GPU-bb", 20000, [(4242, 19900)]))
    assert not stranger_left(states, 4242, 20480.0).clear
    assert not stranger_left(states, 4242, 20480.0, "GPU-zz").clear
    assert stranger_left(states, 4242, 20480.0, "GPU-aa").clear


def test_a_stranger_without_a_pid_is_known_by_its_memory():
    """Older allocators name nobody."""
    full, free = card("GPU-aa", 21000, [(4242, 20480)]), card("GPU-aa", 900, [])
    assert (
        "the other process held 20480 MiB" in stranger_left((full,), None, 20480.0, "GPU-aa").says
    )
    assert stranger_left((free,), None, 20480.0, "GPU-aa") == Room(clear=True, says="")


# --- which card is suspect ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({}, ""),
        ({"ecc_uncorrected": 0, "recovery": ""}, ""),
        ({"ecc_uncorrected": 3}, "3 uncorrected memory errors"),
        ({"recovery": "reset the GPU"}, "wants this done: reset the GPU"),
        ({"error": "GPU is lost"}, 'says "GPU is lost"'),
    ],
)
def test_a_suspect_card_says_why(facts, words):
    """Unknown and zero are no suspicion."""
    said = suspicion(card("GPU-aa", 0, **facts))
    assert bool(said) == bool(words)
    assert words in said


def test_all_reasons_are_told():
    """One sentence for all."""
    assert suspicion(card("GPU-aa", 0, ecc_uncorrected=1, error="x", recovery="y")).count(";") == 2
