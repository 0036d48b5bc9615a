"""Which GPUs a rung takes: by count, by name, or all; excluded and suspect ones."""

from __future__ import annotations

import pytest

from humigence_supervise.batching import PlanError
from humigence_supervise.domain import Gpu, Host, Launcher, Rung
from humigence_supervise.gpu_choice import is_called, select_gpus

A = Gpu(0, "GPU-aa", "RTX 5090", 32_000, 20_000, "0000:01:00")
B = Gpu(1, "GPU-bb", "RTX 5090", 32_000, 30_000, "0000:02:00")
C = Gpu(2, "GPU-cc", "RTX 5090", 32_000, None, "")
HOST = Host(gpus=(A, B, C))


def chosen(
    gpus: str | int | tuple[str, ...],
    *,
    excluded: tuple[str, ...] = (),
    suspect: tuple[str, ...] = (),
    host: Host = HOST,
) -> tuple[Gpu, ...]:
    """Return what a rung that wants `gpus` takes."""
    return select_gpus(Rung("a", gpus, Launcher.TORCHRUN), host, excluded, suspect)


@pytest.mark.parametrize(
    ("gpu", "name", "is_it"),
    [
        (A, "GPU-aa", 1),
        (A, "0", 1),
        (A, "0000:01:00", 1),
        (A, "1", 0),
        (A, "GPU-bb", 0),
        (A, "GPU-a", 0),
        (A, "", 0),
        # A card of unknown bus id is not everything that has no name.
        (C, "", 0),
    ],
)
def test_what_a_gpu_is_called(gpu: Gpu, name: str, is_it: int) -> None:
    """UUID, index and bus id; a log may say any of them."""
    assert is_called(gpu, name) == bool(is_it)


@pytest.mark.parametrize(
    ("gpus", "excluded", "suspect", "taken"),
    [
        # All that may be used, in order of rank; suspicion alone takes none away.
        ("all", (), (), (A, B, C)),
        ("all", ("GPU-bb",), (), (A, C)),
        ("all", ("0",), (), (B, C)),
        ("all", (), ("GPU-aa",), (A, B, C)),
        # A count takes those with most free memory, unknown last, and gives them in order.
        (1, (), (), (B,)),
        (2, (), (), (A, B)),
        (3, (), (), (A, B, C)),
        # A suspect one only when there is no other, an excluded one never.
        (1, (), ("GPU-bb",), (A,)),
        (1, (), ("0000:02:00", "0"), (C,)),
        (1, (), ("GPU-aa", "GPU-bb", "GPU-cc"), (B,)),
        (2, (), ("GPU-bb",), (A, C)),
        (2, ("GPU-aa",), ("GPU-bb",), (B, C)),
        (1, ("1",), ("0",), (C,)),
        (1, ("0000:02:00", "2"), (), (A,)),
        # Names are taken as they stand, suspect or not.
        (("1", "0"), (), ("1",), (B, A)),
        (("GPU-cc",), (), (), (C,)),
        # An exclusion of a card that is not there any more changes nothing.
        (1, ("GPU-zz",), (), (B,)),
    ],
)
def test_which_gpus_are_taken(
    gpus: str | int | tuple[str, ...],
    excluded: tuple[str, ...],
    suspect: tuple[str, ...],
    taken: tuple[Gpu, ...],
) -> None:
    """Excluded: not at all. Suspect: only without another choice."""
    assert chosen(gpus, excluded=excluded, suspect=suspect) == taken


@pytest.mark.parametrize(
    ("gpus", "excluded", "host", "words"),
    [
        (3, ("GPU-aa",), HOST, ("needs 3 GPU(s)", "shows 3, 1 of them excluded", "--readmit-gpu")),
        (("GPU-aa",), ("0",), HOST, ("needs GPU GPU-aa", "1 of them excluded", "nvidia-smi -r")),
        ("all", ("0", "1", "2"), HOST, ("needs a GPU", "3 of them excluded")),
        (4, (), HOST, ("shows 3: 0 RTX 5090 (GPU-aa), 1 ", '"accelerator": "cpu"')),
        (1, (), Host(), ("shows 0: none", '"gpus"')),
        (1, (), Host(unread=("NVML hangs.",)), ("none; NVML hangs.",)),
    ],
)
def test_too_few_say_how_many_and_what_to_do(
    gpus: str | int | tuple[str, ...],
    excluded: tuple[str, ...],
    host: Host,
    words: tuple[str, ...],
) -> None:
    """A GPU that was excluded calls for another remedy than one that never was there."""
    with pytest.raises(PlanError) as caught:
        chosen(gpus, excluded=excluded, host=host)
    for word in words:
        assert word in str(caught.value)
