import hashlib
import json
import os
import random
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from humigence_supervise.checkpoints.verdict import Standing
from humigence_supervise.checkpoints.verify import verify
from humigence_supervise.contract import MANIFEST_FILE, MANIFEST_FORMAT, checkpoint_name

RUN = "demo-20260102-1"
FILES = {
    "model.safetensors": random.Random(1).randbytes(5000),
    "state.json": b'{"step": 120}',
    "ranks/rng-0.json": b"[1, 2, 3]",
}


def write_checkpoint(folder: Path, step: int = 120, **changes: object) -> Path:
    """Write a whole checkpoint as a worker does, with fields of the manifest changed."""
    path = folder / checkpoint_name(step)
    entries = []
    for name, data in FILES.items():
        file = path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
        digest = hashlib.sha256(data).hexdigest()
        entries.append({"path": name, "size": len(data), "sha256": digest})
    manifest = {
        "format": MANIFEST_FORMAT,
        "run": RUN,
        "step": step,
        "samples": step * 8,
        "world_size": 2,
        "files": entries,
    }
    (path / MANIFEST_FILE).write_text(json.dumps(manifest | changes))
    return path


@pytest.fixture
def checkpoint(tmp_path):
    """A good checkpoint of step 120."""
    return write_checkpoint(tmp_path)


@pytest.fixture
def stranger():
    """A checkpoint below a folder that any user may walk through, seen by one who is not root."""
    folder = Path(tempfile.mkdtemp(prefix="humigence-test-"))
    folder.chmod(0o755)
    path = write_checkpoint(folder)
    was_root = os.geteuid() == 0
    if was_root:
        os.seteuid(65534)
    try:
        yield path, was_root
    finally:
        if was_root:
            os.seteuid(0)
        for place in (path, *path.rglob("*")):
            if not place.is_symlink():
                place.chmod(0o700)
        shutil.rmtree(folder)


def chmod(path: Path, mode: int, *, was_root: bool) -> None:
    """Change a mode as the owner although the test runs as a stranger."""
    if was_root:
        os.seteuid(0)
    path.chmod(mode)
    if was_root:
        os.seteuid(65534)


def test_a_whole_checkpoint_is_good(checkpoint):
    """A checkpoint whose files match its manifest is good, with its step and samples."""
    verdict = verify(checkpoint, run=RUN)
    assert verdict.good
    assert verdict.checkpoint is not None
    assert (verdict.checkpoint.step, verdict.checkpoint.samples) == (120, 960)
    assert verdict.checkpoint.path == checkpoint
    assert "digests match" in verdict.reason


def test_unlisted_files_and_unknown_fields_do_no_harm(tmp_path):
    """A later version may add files and fields without making its checkpoints bad."""
    path = write_checkpoint(tmp_path, note="new")
    (path / "extra.txt").write_text("x")
    assert verify(path).good


@pytest.mark.parametrize("name", FILES)
def test_a_removed_file_is_damage(checkpoint, name):
    """A listed file that is missing makes the checkpoint damaged, by name."""
    (checkpoint / name).unlink()
    verdict = verify(checkpoint)
    assert verdict.standing is Standing.DAMAGED
    assert name in verdict.reason


@pytest.mark.parametrize("name", [*FILES, MANIFEST_FILE])
def test_a_truncated_file_is_damage_at_any_length(checkpoint, name):
    """A file cut anywhere is found by its size, a manifest by its JSON."""
    file = checkpoint / name
    data = file.read_bytes()
    for length in sorted({len(data) * part // 20 for part in range(20)}):
        file.write_bytes(data[:length])
        assert verify(checkpoint, digests=False).standing is Standing.DAMAGED, length
    file.write_bytes(data)
    assert verify(checkpoint).good


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_is_found_by_the_digest_alone(checkpoint, name):
    """One bit flipped anywhere is damage, and sizes alone do not claim to have looked."""
    file = checkpoint / name
    data = file.read_bytes()
    chance = random.Random(name)
    for _ in range(50):
        position = chance.randrange(len(data) * 8)
        flipped = bytearray(data)
        flipped[position // 8] ^= 1 << position % 8
        file.write_bytes(flipped)
        verdict = verify(checkpoint)
        assert verdict.standing is Standing.DAMAGED
        assert "SHA-256" in verdict.reason
    unseen = verify(checkpoint, digests=False)
    assert unseen.good
    assert "not compared" in unseen.reason


def test_a_folder_without_manifest_was_cut_short(checkpoint):
    """The manifest is written last: without it the save never ended."""
    (checkpoint / MANIFEST_FILE).unlink()
    verdict = verify(checkpoint)
    assert verdict.standing is Standing.DAMAGED
    assert "cut short" in verdict.reason


def test_the_step_in_the_name_must_be_the_step_in_the_manifest(tmp_path):
    """A folder renamed to a higher step is no checkpoint of that step."""
    path = write_checkpoint(tmp_path)
    renamed = path.rename(tmp_path / checkpoint_name(130))
    verdict = verify(renamed)
    assert verdict.standing is Standing.DAMAGED
    assert "step 130" in verdict.reason
    assert "step 120" in verdict.reason


def test_a_checkpoint_of_another_run_is_refused_only_when_a_run_is_asked_for(checkpoint):
    """The run's id is compared when it is given."""
    verdict = verify(checkpoint, run="other")
    assert verdict.standing is Standing.FOREIGN
    assert RUN in verdict.reason
    assert verify(checkpoint, run=None).good


@pytest.mark.parametrize(
    "name",
    [
        "/etc/hostname",
        "../secret",
        "a/../../secret",
        "a//b",
        "./a",
        "",
        "a/.",
        "a\0b",
        MANIFEST_FILE,
    ],
)
def test_a_listed_path_never_leaves_the_folder(tmp_path, name):
    """Absolute, climbing and unclean paths in a manifest are damage; nothing outside is opened."""
    secret = tmp_path / "secret"
    secret.write_bytes(b"x")
    entry = {"path": name, "size": 1, "sha256": hashlib.sha256(b"x").hexdigest()}
    verdict = verify(write_checkpoint(tmp_path, files=[entry]))
    assert verdict.standing is Standing.DAMAGED
    assert "no path in the folder" in verdict.reason


@pytest.mark.parametrize("name", ["state.json", "ranks", MANIFEST_FILE])
def test_a_link_is_never_followed_inside_a_checkpoint(checkpoint, tmp_path, name):
    """A link in place of a file or folder is damage, even where its target has the same bytes."""
    moved = tmp_path / "elsewhere"
    (checkpoint / name).rename(moved)
    (checkpoint / name).symlink_to(moved)
    assert verify(checkpoint).standing is Standing.DAMAGED


@pytest.mark.parametrize("name", ["state.json", MANIFEST_FILE])
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_a_fifo_or_a_folder_is_no_file(checkpoint, name, make):
    """What is no regular file is damage and does not hold the reader for ever."""
    (checkpoint / name).unlink()
    make(checkpoint / name)
    verdict = verify(checkpoint)
    assert verdict.standing is Standing.DAMAGED
    assert "no regular file" in verdict.reason


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: path.write_text("x"), "no folder"),
        (lambda path: path.symlink_to(path), "to itself"),
        (lambda path: path.symlink_to("nowhere"), "nowhere"),
        (lambda path: path.mkdir(), "cut short"),
    ],
)
def test_what_is_no_folder_is_damage(tmp_path, make, said):
    """A file, a link to itself, a link to nothing and an empty folder are no checkpoints."""
    path = tmp_path / checkpoint_name(7)
    make(path)
    verdict = verify(path)
    assert verdict.standing is Standing.DAMAGED
    assert said in verdict.reason


def test_a_checkpoint_that_went_away_is_missing_not_damaged(tmp_path):
    """A worker may remove its old checkpoints at any time; that is no damage."""
    assert verify(tmp_path / checkpoint_name(1)).standing is Standing.MISSING


def test_another_name_is_no_checkpoint(tmp_path):
    """A good folder under another name is refused with the names that are expected."""
    path = write_checkpoint(tmp_path).rename(tmp_path / "step-120")
    verdict = verify(path)
    assert verdict.standing is Standing.DAMAGED
    assert "step-00000120" in verdict.reason


@pytest.mark.parametrize("name", ["", "state.json", MANIFEST_FILE, "ranks"])
def test_no_permission_is_unknown_and_neither_good_nor_damage(stranger, name):
    """What may not be read says nothing about the checkpoint; with the permission it is good."""
    path, was_root = stranger
    assert verify(path).good
    chmod(path / name, 0, was_root=was_root)
    verdict = verify(path)
    assert verdict.standing is Standing.UNKNOWN
    assert not verdict.good
    assert verdict.checkpoint is None
    assert "ermission" in verdict.reason


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_an_input_output_error_is_unknown(tmp_path):
    """A disk that cannot deliver the bytes (a real EIO) makes the verdict unknown."""
    empty = {"path": "state.json", "size": 0, "sha256": hashlib.sha256(b"").hexdigest()}
    path = write_checkpoint(tmp_path, files=[empty])
    file = path / "state.json"
    file.write_bytes(b"")
    assert verify(path).good
    # Reading a process's memory at address 0 is the one read that fails with EIO everywhere.
    mounted = subprocess.run(["mount", "--bind", f"/proc/{os.getpid()}/mem", file], check=False)
    if mounted.returncode != 0:
        pytest.skip("mounting is not permitted here")
    try:
        verdict = verify(path)
    finally:
        subprocess.run(["umount", file], check=True)
    assert verdict.standing is Standing.UNKNOWN
    assert "Input/output error" in verdict.reason


BAD_MANIFESTS = {
    "empty": b"",
    "not json": b"{",
    "not utf-8": b'{"format": "\xff"}',
    "deep": b"[" * 100_000,
    "a list": b"[]",
    "a number with too many digits": b"9" * 5000,
}


@pytest.mark.parametrize("raw", BAD_MANIFESTS.values(), ids=BAD_MANIFESTS)
def test_a_manifest_that_is_no_json_object_is_damage(checkpoint, raw):
    """Garbage in place of a manifest is damage and never an exception."""
    (checkpoint / MANIFEST_FILE).write_bytes(raw)
    verdict = verify(checkpoint)
    assert verdict.standing is Standing.DAMAGED
    assert MANIFEST_FILE in verdict.reason


@pytest.mark.parametrize(
    "changes",
    [
        {"format": "humigence-checkpoint-2"},
        {"format": None},
        {"run": None},
        {"run": 5},
        {"step": "120"},
        {"step": True},
        {"step": -1},
        {"step": 120.0},
        {"step": 10**30},
        {"samples": None},
        {"samples": -8},
        {"world_size": 0},
        {"files": []},
        {"files": {}},
        {"files": ["state.json"]},
        {"files": [{"path": "state.json", "size": 13}]},
        {"files": [{"path": "state.json", "size": -1, "sha256": "0" * 64}]},
        {"files": [{"path": 3, "size": 13, "sha256": "0" * 64}]},
    ],
)
def test_a_wrong_field_of_a_manifest_is_damage(tmp_path, changes):
    """Every field is checked for type and range."""
    path = write_checkpoint(tmp_path)
    manifest = json.loads((path / MANIFEST_FILE).read_text())
    (path / MANIFEST_FILE).write_text(json.dumps(manifest | changes))
    assert verify(path).standing is Standing.DAMAGED


def test_a_file_listed_twice_is_damage(tmp_path):
    """A manifest names each file once."""
    path = write_checkpoint(tmp_path)
    manifest = json.loads((path / MANIFEST_FILE).read_text())
    manifest["files"].append(manifest["files"][0])
    (path / MANIFEST_FILE).write_text(json.dumps(manifest))
    verdict = verify(path)
    assert verdict.standing is Standing.DAMAGED
    assert "twice" in verdict.reason


def test_verifying_leaves_no_descriptor_open(checkpoint):
    """Good or damaged, every file and folder is closed again."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    verify(checkpoint)
    (checkpoint / "state.json").unlink()
    verify(checkpoint)
    os.mkfifo(checkpoint / "state.json")
    verify(checkpoint)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
