"""What is looked at before an attempt, on a machine whose nvidia-smi is pretended."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from humigence_supervise.actions import Consider, Means, Prepare, Probe
from humigence_supervise.config import parse_settings
from humigence_supervise.contract import (
    EXIT_CONFIG,
    EXIT_GAVE_UP,
    EXIT_HOPELESS,
    MANIFEST_FILE,
    MANIFEST_FORMAT,
    PLAN_FILE,
    checkpoint_name,
)
from humigence_supervise.decisions import Stranger
from humigence_supervise.domain import Accelerator, Gpu, RunPaths
from humigence_supervise.happenings import Considered, Happening, NoRoom, NotPrepared, Prepared
from humigence_supervise.ladder import rungs
from humigence_supervise.observe.host_facts import START_FILE, note_start
from humigence_supervise.phases import Want
from humigence_supervise.plan_file import public_plan
from humigence_supervise.preparing import Preparation
from humigence_supervise.run import Run
from humigence_supervise.way_up import Promote

UUIDS = tuple(f"GPU-{n}1111111-2222-3333-4444-555555555555" for n in range(3))
BUSES = tuple(f"0000:0{n + 1}:00" for n in range(3))
TOTAL_MIB = 32_000
SMI = """#!/bin/sh
# A pretended nvidia-smi: what it answers stands in the files beside it.
here=$(dirname "$0")
echo >>"$here/asked"
case "$1" in
  *compute-apps*) cat "$here/processes" ;;
  *memory.free*) cat "$here/free" ;;
  *) cat "$here/used" ;;
esac
"""
NVML = """
class NVMLError(Exception):
    pass
class Memory:
    total = used = 0
NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC = 1, 0
def nvmlInit(): pass
def nvmlDeviceGetCount(): return len(UUIDS)
def nvmlDeviceGetHandleByIndex(index): return index
def nvmlDeviceGetUUID(gpu): return UUIDS[gpu]
def nvmlDeviceGetMemoryInfo(gpu): return Memory
def nvmlDeviceGetTotalEccErrors(gpu, kind, counter): return ERRORS[gpu]
"""
MULTI, PAIR, SINGLE = range(3)
STRANGER_PID = 4711


@dataclass
class Machine:
    """A folder with a run and a pretended nvidia-smi."""

    folder: Path
    run: Run

    def has(self, *used_mib: int, stranger: tuple[int, int] | None = None) -> None:
        """Have one GPU for each number, so much of it in use; a stranger holds MiB of one."""
        used_lines, free_lines = "", ""
        for index, used in enumerate(used_mib):
            card = f"{index}, {UUIDS[index]}"
            bus = f"0000{BUSES[index]}.0"
            used_lines += f"{card}, {bus}, {TOTAL_MIB}, {used}, 40, RTX 5090\n"
            free_lines += f"{card}, RTX 5090, {TOTAL_MIB}, {TOTAL_MIB - used}, 580.95, {bus}\n"
        listed = ""
        if stranger is not None:
            listed = f"{UUIDS[stranger[0]]}, {STRANGER_PID}, {stranger[1]}\n"
        for name, text in (("used", used_lines), ("free", free_lines), ("processes", listed)):
            (self.folder / "bin" / name).write_text(text)

    def breaks(self) -> None:
        """Have nvidia-smi fail."""
        (self.folder / "bin" / "nvidia-smi").write_text("#!/bin/sh\nexit 9\n")

    def asked(self) -> int:
        """Return how often nvidia-smi was asked."""
        asked = self.folder / "bin" / "asked"
        return asked.stat().st_size if asked.exists() else 0

    def checkpoint(self, step: int) -> Path:
        """Write a good checkpoint."""
        path = self.run.paths.checkpoint_dir / checkpoint_name(step)
        path.mkdir(parents=True)
        data = bytes(100)
        (path / "model").write_bytes(data)
        entry = {"path": "model", "size": 100, "sha256": hashlib.sha256(data).hexdigest()}
        manifest = {
            "format": MANIFEST_FORMAT,
            "run": self.run.paths.id,
            "step": step,
            "samples": step * 8,
            "world_size": 1,
            "files": [entry],
        }
        (path / MANIFEST_FILE).write_text(json.dumps(manifest))
        return path

    def trained(self, attempt: int, gpus: tuple[int, ...] = (0,)) -> None:
        """Note an attempt that starts now, on these GPUs."""
        note_start(self.run.attempt_dir(attempt), [gpu(index) for index in gpus])

    def prepare(self, wanted: Prepare) -> Happening:
        """Prepare an attempt."""
        return Preparation(self.run).prepare(wanted)

    def gpus(self, wanted: Prepare) -> tuple[int, ...]:
        """Return the GPUs of the attempt that is prepared."""
        found = self.prepare(wanted)
        assert isinstance(found, Prepared), found
        return tuple(one.index for one in found.plan.gpus)


def gpu(index: int) -> Gpu:
    """Return a GPU as a plan names it."""
    return Gpu(index, UUIDS[index], "RTX 5090", TOTAL_MIB, TOTAL_MIB, BUSES[index])


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A run with three rungs on a machine of two idle GPUs."""
    document = {
        "name": "demo",
        "accelerator": "cuda",
        "worker": {"script": "train.py", "preset": "torchrun"},
        "ladder": [
            {"name": "multi", "gpus": "all"},
            {"name": "pair", "gpus": 2},
            {"name": "single", "gpus": 1},
        ],
    }
    settings = parse_settings(json.dumps(document).encode(), tmp_path / "config.json")
    paths = RunPaths("demo", "id", tmp_path / "run", tmp_path / "run" / "checkpoints")
    (tmp_path / "bin").mkdir()
    smi = tmp_path / "bin" / "nvidia-smi"
    smi.write_text(SMI)
    smi.chmod(0o755)
    # Not one of a machine that has GPUs, nor its NVML.
    monkeypatch.setenv("PATH", f"{smi.parent}:/usr/bin:/bin")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    (tmp_path / "pynvml.py").write_text("raise ImportError")
    made = Machine(tmp_path, Run(settings, paths, rungs(settings), Accelerator.CUDA, 2, None))
    made.has(0, 0)
    return made


def wanted(
    rung: int = MULTI,
    attempt: int = 2,
    step: int = 0,
    *,
    excluded: tuple[str, ...] = (),
    suspect: tuple[str, ...] = (),
) -> Prepare:
    """Return the wish for an attempt after which there are lower rungs."""
    return Prepare(Means(rung, None, excluded, suspect), attempt, step)


# --- what is looked at first ---------------------------------------------------------------------


def test_the_disk_is_asked_before_the_gpus(machine: Machine) -> None:
    """While it is full it is asked every second, and a driver takes a while to answer."""
    full = replace(wanted(), need_mib=10**9)
    found = machine.prepare(full)
    assert isinstance(found, NoRoom)
    assert (found.want, found.need_mib) == (Want.DISK, 10**9)
    assert found.free_mib is not None
    assert machine.asked() == 0
    machine.has()  # nor are GPUs that are not there any more a reason to go on
    assert isinstance(machine.prepare(full), NoRoom)
    assert isinstance(machine.prepare(wanted()), NotPrepared)
    assert machine.asked() > 0


def test_gpus_are_asked_before_checkpoints_are_read_and_moved(machine: Machine) -> None:
    """A bad checkpoint is put aside only when an attempt is made without it."""
    bad = machine.checkpoint(20)
    machine.checkpoint(10)
    machine.trained(1)
    machine.has(9_000, 0)
    wish = replace(wanted(step=20), bad_step=20)
    found = machine.prepare(wish)
    assert isinstance(found, NoRoom)
    assert bad.exists()
    machine.has()
    assert isinstance(machine.prepare(wish), NotPrepared)
    assert bad.exists()
    machine.has(0, 0)
    assert isinstance(machine.prepare(wish), Prepared)
    assert not bad.exists()


@pytest.mark.parametrize(("attempt", "code"), [(1, EXIT_CONFIG), (2, EXIT_GAVE_UP)])
@pytest.mark.parametrize("there", ["none", "silent", "one of two"])
def test_gpus_that_are_missing(machine: Machine, there: str, attempt: int, code: int) -> None:
    """At the start a mistake of the configuration; later a lower rung may do with those left."""
    lower_may_do = attempt > 1 and there == "one of two"
    match there:
        case "none":
            machine.has()
        case "silent":
            machine.breaks()
        case _:
            machine.has(0)
    found = machine.prepare(wanted(PAIR, attempt))
    assert isinstance(found, NotPrepared)
    assert (found.exit_code, found.lower_may_do) == (code, lower_may_do)
    assert 'rung "pair" needs 2 GPU(s)' in found.reason
    assert ("nvidia-smi" in found.reason) is (there == "silent")


# --- which GPUs ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rung", "excluded", "suspect", "chosen"),
    [
        (MULTI, (), (), (0, 1, 2)),
        (MULTI, (UUIDS[1],), (), (0, 2)),
        (MULTI, (), (UUIDS[1],), (0, 1, 2)),
        (PAIR, (), (), (1, 2)),
        (PAIR, (), (UUIDS[1],), (0, 2)),
        (PAIR, (BUSES[2],), (UUIDS[1],), (0, 1)),
        (SINGLE, (), (), (2,)),
        (SINGLE, ("2",), (UUIDS[1],), (0,)),
    ],
)
def test_a_probe_tries_the_gpus_that_the_attempt_will_have(
    machine: Machine,
    rung: int,
    excluded: tuple[str, ...],
    suspect: tuple[str, ...],
    chosen: tuple[int, ...],
) -> None:
    """Those with most free memory, without the excluded ones, suspects last."""
    machine.has(900, 500, 100)
    wish = wanted(rung, excluded=excluded, suspect=suspect)
    assert machine.gpus(wish) == chosen
    probe = Preparation(machine.run).probe(Probe(wish.means, 2))
    assert tuple(one.index for one in probe.gpus) == chosen


@pytest.mark.parametrize(("errors", "chosen"), [((0, 0), 1), ((0, 3), 0), ((2, 3), 1)])
def test_a_gpu_that_the_driver_speaks_against_is_taken_last(
    machine: Machine, errors: tuple[int, int], chosen: int
) -> None:
    """Uncorrected memory errors make a card suspect, though it has most memory free."""
    machine.has(500, 0)
    (machine.folder / "pynvml.py").write_text(f"UUIDS = {UUIDS[:2]}\nERRORS = {errors}\n{NVML}")
    assert machine.gpus(wanted(SINGLE)) == (chosen,)


# --- memory of the GPUs --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rung", "used_mib", "waits"),
    [
        (MULTI, (500, 0), False),
        (MULTI, (700, 200), False),
        (MULTI, (9_000, 0), True),
        (MULTI, (500, 9_000), True),
        # The other one is taken: what is on this one delays nobody.
        (SINGLE, (9_000, 0), False),
        (SINGLE, (9_000, 9_500), True),
    ],
)
def test_memory_that_was_free_before_is_waited_for(
    machine: Machine, rung: int, used_mib: tuple[int, int], *, waits: bool
) -> None:
    """On the chosen GPUs, with patience, above a desktop's coming and going."""
    machine.has(500, 0)
    machine.trained(1)
    machine.has(*used_mib)
    found = machine.prepare(wanted(rung))
    assert isinstance(found, NoRoom if waits else Prepared), found
    if isinstance(found, NoRoom):
        assert found.want is Want.GPU_MEMORY
        assert "more than before the attempt" in found.reason
    assert isinstance(machine.prepare(replace(wanted(rung), patient=False)), Prepared)


@pytest.mark.parametrize(
    ("noted", "waits"),
    [
        ((1, 2, 3), True),
        # A probe notes none: what was before the attempt before it counts.
        ((1,), True),
        ((), False),
    ],
)
def test_the_level_is_that_before_the_last_attempt_that_noted_one(
    machine: Machine, noted: tuple[int, ...], *, waits: bool
) -> None:
    """Where nobody noted one, nothing is waited for."""
    for attempt in (1, 2, 3):
        machine.trained(attempt, (0, 1) if attempt in noted else ())
    machine.has(9_000, 0)
    assert isinstance(machine.prepare(wanted(attempt=4)), NoRoom if waits else Prepared)


def test_a_level_of_before_a_reboot_is_none(machine: Machine) -> None:
    """Who is on the card since then is no remainder of the attempt."""
    machine.trained(1)
    note = machine.run.attempt_dir(1) / START_FILE
    note.write_text(json.dumps({**json.loads(note.read_text()), "boot_id": "another"}))
    machine.has(9_000, 0)
    assert isinstance(machine.prepare(wanted()), Prepared)


NAMES = (UUIDS[0], "0", BUSES[0], "")
"""What an out-of-memory may call the card of the stranger; "": it did not say."""


@pytest.mark.parametrize("name", NAMES)
def test_a_stranger_is_waited_for_on_a_chosen_gpu(machine: Machine, name: str) -> None:
    """However the card was called, and until it has left."""
    wish = replace(wanted(), stranger=Stranger(name, STRANGER_PID, 20_000))
    machine.has(20_500, 0, stranger=(0, 20_000))
    found = machine.prepare(wish)
    assert isinstance(found, NoRoom)
    assert found.want is Want.GPU_MEMORY
    assert f"pid {STRANGER_PID}" in found.reason
    machine.has(500, 0)
    assert isinstance(machine.prepare(wish), Prepared)


@pytest.mark.parametrize("name", NAMES)
def test_a_stranger_on_another_gpu_delays_nobody(machine: Machine, name: str) -> None:
    """The single rung takes the free one; where nobody said which card, any may be meant."""
    wish = replace(wanted(SINGLE), stranger=Stranger(name, STRANGER_PID, 20_000))
    machine.has(20_500, 0, stranger=(0, 20_000))
    if name:
        assert machine.gpus(wish) == (1,)
    else:
        assert isinstance(machine.prepare(wish), NoRoom)


@pytest.mark.parametrize(
    ("patient", "lowest", "seen", "waits"),
    [
        (True, False, True, True),
        (True, True, True, True),
        (False, False, True, False),
        (False, True, True, True),
        # Nobody tells whether it is there: with patience, and not for ever.
        (True, False, False, True),
        (True, True, False, True),
        (False, False, False, False),
        (False, True, False, False),
    ],
)
def test_patience_ends_where_there_is_a_lower_rung_or_nothing_is_seen(
    machine: Machine, *, patient: bool, lowest: bool, seen: bool, waits: bool
) -> None:
    """On the lowest rung a stranger that is seen to be there is waited for without end."""
    machine.has(20_500, 20_500, stranger=(0, 20_000))
    stranger = Stranger(UUIDS[0], STRANGER_PID, 20_000)
    if not seen:
        used = machine.folder / "bin" / "used"
        used.write_text(used.read_text().replace("20500", "[N/A]"))
        stranger = Stranger(UUIDS[0], None, None)
    wish = replace(wanted(), stranger=stranger, patient=patient, lowest_rung=lowest)
    assert isinstance(machine.prepare(wish), NoRoom if waits else Prepared)


# --- which checkpoint ----------------------------------------------------------------------------


@pytest.mark.parametrize("can_be_moved", [True, False])
def test_a_bad_checkpoint_is_put_aside_and_passed_over_in_any_case(
    machine: Machine, *, can_be_moved: bool
) -> None:
    """So is what was saved after it; a folder that lets nothing be moved brings neither back."""
    newer, bad, good = (machine.checkpoint(step) for step in (30, 20, 10))
    shelf = bad.parent / "quarantine"
    if not can_be_moved:
        shelf.write_text("A file where the folder should be.")
    found = machine.prepare(replace(wanted(step=30), bad_step=20))
    assert isinstance(found, Prepared)
    assert found.refused == ()
    assert found.plan.resume_from is not None
    assert found.plan.resume_from.path == good
    assert bad.exists() is newer.exists() is not can_be_moved
    if can_be_moved:
        reason = (shelf / f"{bad.name}-1" / "REASON.txt").read_text()
        assert "the training failed with it" in reason


def test_without_a_bad_step_the_newest_is_taken(machine: Machine) -> None:
    """Nothing is put aside that nobody spoke against."""
    newest = machine.checkpoint(20)
    machine.checkpoint(10)
    found = machine.prepare(wanted(step=20))
    assert isinstance(found, Prepared)
    assert found.plan.resume_from is not None
    assert found.plan.resume_from.path == newest


def test_a_bad_checkpoint_that_is_gone_already_hinders_nobody(machine: Machine) -> None:
    """It was put aside before the supervisor died."""
    machine.checkpoint(10)
    found = machine.prepare(replace(wanted(step=20), bad_step=20))
    assert isinstance(found, Prepared)
    assert found.plan.resume_from is not None
    assert found.plan.resume_from.step == 10


def test_the_only_checkpoint_being_bad_does_not_begin_the_run_anew(machine: Machine) -> None:
    """Steps were saved: a person has to say that they are given up."""
    machine.checkpoint(20)
    found = machine.prepare(replace(wanted(step=20), bad_step=20))
    assert isinstance(found, NotPrepared)
    assert (found.exit_code, found.lower_may_do) == (EXIT_HOPELESS, False)
    assert "--fresh" in found.reason


def test_a_damaged_checkpoint_is_refused_on_the_way(machine: Machine) -> None:
    """It is told with the plan, which resumes from an older one."""
    damaged = machine.checkpoint(20)
    (damaged / "model").write_bytes(b"torn")
    machine.checkpoint(10)
    found = machine.prepare(wanted(step=20))
    assert isinstance(found, Prepared)
    assert [(one.path, one.damaged) for one in found.refused] == [(damaged, True)]
    assert damaged.exists()


# --- the way up ----------------------------------------------------------------------------------


def considered(
    machine: Machine, *, excluded: tuple[str, ...] = (), suspect: tuple[str, ...] = ()
) -> str:
    """Return what hinders the highest rung, while attempt 2 trains on GPU 1 alone."""
    consider = Consider(Promote(MULTI, "It may."), Means(MULTI, None, excluded, suspect), 2)
    answer = Preparation(machine.run).consider(consider)
    assert isinstance(answer, Considered)
    assert answer.promote == consider.promote
    return answer.hindrance


def trains_on_gpu_1(machine: Machine) -> None:
    """Have attempt 2 train on GPU 1, with a desktop on GPU 0."""
    machine.has(500, 0)
    found = machine.prepare(wanted(SINGLE))
    assert isinstance(found, Prepared)
    machine.trained(2, (1,))
    (machine.run.attempt_dir(2) / PLAN_FILE).write_text(json.dumps(public_plan(found.plan)))


@pytest.mark.parametrize(
    ("used_mib", "hindrance"),
    [
        ((500, 30_000), ""),  # ours
        ((700, 30_000), ""),
        ((9_500, 30_000), "9000 MiB more than before the attempt are in use on GPU 0"),
        ((0,), "it would have 1 ranks now, no more than this one"),
        ((), "it cannot be planned: "),
    ],
)
def test_what_hinders_the_way_up(
    machine: Machine, used_mib: tuple[int, ...], hindrance: str
) -> None:
    """A healthy attempt is not ended for a rung that could not be had."""
    trains_on_gpu_1(machine)
    machine.has(*used_mib)
    found = considered(machine)
    assert bool(found) is bool(hindrance)
    assert hindrance in found


def test_a_rung_without_its_excluded_gpu_is_not_worth_it(machine: Machine) -> None:
    """What it would gain is out of the run; a suspicion alone is no hindrance, the probe tells."""
    trains_on_gpu_1(machine)
    assert considered(machine, suspect=(UUIDS[0],)) == ""
    assert "1 ranks now" in considered(machine, excluded=(UUIDS[0],))


def test_a_rung_for_which_a_driver_does_not_answer_is_not_taken(machine: Machine) -> None:
    """Unknown is no permission to end what works."""
    trains_on_gpu_1(machine)
    machine.breaks()
    assert "cannot be planned" in considered(machine)
