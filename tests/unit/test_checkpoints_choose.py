import hashlib
import json
import os
import subprocess
from pathlib import Path

import pytest

from humigence_supervise.checkpoints.choose import (
    REASON_FILE,
    candidates,
    free_mib,
    needed_mib,
    newest_good,
    owner,
    quarantine,
)
from humigence_supervise.checkpoints.verdict import Standing
from humigence_supervise.contract import MANIFEST_FILE, MANIFEST_FORMAT, checkpoint_name

RUN = "demo"
MIB = 1024 * 1024


def write_checkpoint(folder: Path, step: int, size: int = 100) -> Path:
    """Write a good checkpoint with one file of `size` bytes."""
    path = folder / checkpoint_name(step)
    path.mkdir(parents=True)
    data = bytes(size)
    (path / "model").write_bytes(data)
    entry = {"path": "model", "size": size, "sha256": hashlib.sha256(data).hexdigest()}
    manifest = {
        "format": MANIFEST_FORMAT,
        "run": RUN,
        "step": step,
        "samples": step * 8,
        "world_size": 1,
        "files": [entry],
    }
    (path / MANIFEST_FILE).write_text(json.dumps(manifest))
    return path


@pytest.fixture
def small_disk(tmp_path):
    """A real file system of 1 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "none", place], check=False, capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip("mounting a tmpfs is not permitted here")
    yield place
    subprocess.run(["umount", place], check=True)


def test_candidates_are_sorted_by_number_and_not_by_text_or_time(tmp_path):
    """Step 100000000 (nine digits) is newer than step 99999999 whatever their times say."""
    for step in (100_000_000, 9, 99_999_999, 10):
        write_checkpoint(tmp_path, step)
    os.utime(tmp_path / checkpoint_name(9))
    assert [one.step for one in candidates(tmp_path)] == [100_000_000, 99_999_999, 10, 9]


@pytest.mark.parametrize(
    "name",
    [
        ".tmp-step-00000030",
        "step-00000030.tmp",
        ".step-00000030",
        "step-30",
        "step-0000000030",
        "step-0000003x",
        "step-\u0660\u0660\u0660\u0660\u0660\u0660\u0663\u0660",
        "step-" + "9" * 200,
        "step-0000003\u00b2",
        "step-",
        "quarantine",
        "checkpoint-30",
    ],
)
def test_asides_and_foreign_names_are_no_candidates(tmp_path, name):
    """Only exactly a checkpoint's name is one: a save in progress belongs to its writer."""
    write_checkpoint(tmp_path, 20)
    write_checkpoint(tmp_path, 30).rename(tmp_path / name)
    choice = newest_good(tmp_path, run=RUN)
    assert choice.checkpoint is not None
    assert choice.checkpoint.step == 20
    assert choice.refused == ()


def test_the_newest_good_one_is_chosen_and_torn_ones_are_named(tmp_path):
    """Damaged newer checkpoints are refused with a reason, older ones are not looked at."""
    for step in (10, 20, 30, 40):
        write_checkpoint(tmp_path, step)
    (tmp_path / checkpoint_name(40) / MANIFEST_FILE).unlink()
    (tmp_path / checkpoint_name(30) / "model").write_bytes(b"\1" * 100)
    (tmp_path / checkpoint_name(10) / "model").unlink()
    choice = newest_good(tmp_path, run=RUN)
    assert choice.checkpoint is not None
    assert (choice.checkpoint.step, choice.checkpoint.samples) == (20, 160)
    assert [(one.step, one.standing) for one in choice.refused] == [
        (40, Standing.DAMAGED),
        (30, Standing.DAMAGED),
    ]
    assert "cut short" in choice.refused[0].reason
    assert "SHA-256" in choice.refused[1].reason
    assert choice.folder_read


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    """It is foreign and not damaged, so nobody moves it away; the reason names both runs."""
    write_checkpoint(tmp_path, 10)
    choice = newest_good(tmp_path, run="other")
    assert choice.checkpoint is None
    assert choice.refused[0].standing is Standing.FOREIGN
    assert "demo" in choice.refused[0].reason
    assert "other" in choice.refused[0].reason
    assert newest_good(tmp_path, run=None).checkpoint is not None


def test_the_owner_is_told_without_reading_the_weights(tmp_path):
    """The newest whole checkpoint names the run; its digests are for whoever resumes."""
    assert owner(tmp_path / "none") is None
    write_checkpoint(tmp_path, 10)
    (write_checkpoint(tmp_path, 20) / "model").write_bytes(b"\1" * 100)
    change_run(tmp_path / checkpoint_name(20), "newer")
    assert owner(tmp_path) == "newer"
    (tmp_path / checkpoint_name(20) / "model").unlink()
    assert owner(tmp_path) == RUN
    (tmp_path / "loop").symlink_to("loop")
    assert owner(tmp_path / "loop") is None


def change_run(path: Path, run: str) -> None:
    """Write another run into a manifest."""
    manifest = json.loads((path / MANIFEST_FILE).read_text())
    (path / MANIFEST_FILE).write_text(json.dumps(manifest | {"run": run}))


def test_no_checkpoint_is_said_in_a_sentence(tmp_path):
    """Missing, empty and all-damaged folders are told apart, and none of them is unread."""
    missing = newest_good(tmp_path / "none", run=RUN)
    empty = newest_good(tmp_path, run=RUN)
    (tmp_path / checkpoint_name(3)).mkdir()
    damaged = newest_good(tmp_path, run=RUN)
    assert "does not exist" in missing.note
    assert "no checkpoint" in empty.note
    assert "is good" in damaged.note
    for choice in (missing, empty, damaged):
        assert choice.checkpoint is None
        assert choice.folder_read


@pytest.mark.parametrize(
    "make",
    [
        lambda path: path.symlink_to(path),
        lambda path: path.symlink_to("unmounted-disk"),
        lambda path: path.write_text("x"),
    ],
    ids=["loop", "dangling", "file"],
)
def test_a_folder_that_cannot_be_listed_is_not_an_empty_one(tmp_path, make):
    """A symlink loop, a dangling link or a file: unread, so nobody starts from scratch on it."""
    folder = tmp_path / "checkpoints"
    make(folder)
    choice = newest_good(folder, run=RUN)
    assert choice.checkpoint is None
    assert not choice.folder_read
    assert str(folder) in choice.note
    assert needed_mib(folder) is None


def test_a_link_to_another_disk_is_followed(tmp_path):
    """The checkpoint folder may be a link to where the space is."""
    write_checkpoint(tmp_path / "big", 10)
    (tmp_path / "checkpoints").symlink_to(tmp_path / "big")
    choice = newest_good(tmp_path / "checkpoints", run=RUN)
    assert choice.checkpoint is not None
    assert choice.checkpoint.path == tmp_path / "checkpoints" / checkpoint_name(10)


def test_quarantine_moves_and_keeps_everything(tmp_path):
    """A damaged checkpoint is moved with its content and the reason; the next one beside it."""
    places = []
    for content in ("first", "second"):
        path = write_checkpoint(tmp_path, 30)
        (path / "model").write_text(content)
        places.append(quarantine(path, f"damaged: {content}"))
        assert not path.exists()
    assert [place.name for place in places] == [f"{checkpoint_name(30)}-{n}" for n in (1, 2)]
    for place, content in zip(places, ("first", "second"), strict=True):
        assert place.parent == tmp_path / "quarantine"
        assert (place / checkpoint_name(30) / "model").read_text() == content
        assert (place / REASON_FILE).read_text() == f"damaged: {content}\n"
    assert candidates(tmp_path) == ()


def test_quarantine_never_overwrites_what_is_there(tmp_path):
    """A name that is taken, even by a file, is left as it is."""
    taken = tmp_path / "quarantine" / f"{checkpoint_name(30)}-1"
    taken.parent.mkdir()
    taken.write_text("mine")
    place = quarantine(write_checkpoint(tmp_path, 30), "damaged")
    assert place.name == f"{checkpoint_name(30)}-2"
    assert taken.read_text() == "mine"


def test_quarantine_of_a_link_moves_the_link(tmp_path):
    """What a link leads to is not touched."""
    target = write_checkpoint(tmp_path / "elsewhere", 30)
    link = tmp_path / checkpoint_name(30)
    link.symlink_to(target)
    place = quarantine(link, "damaged")
    assert (place / link.name).is_symlink()
    assert (target / "model").exists()


@pytest.mark.parametrize("target", ["nowhere", checkpoint_name(30)], ids=["dangling", "loop"])
def test_quarantine_of_a_link_that_leads_nowhere(tmp_path, target):
    """A link that cannot be followed is moved like any other thing of that name."""
    link = tmp_path / checkpoint_name(30)
    link.symlink_to(target)
    place = quarantine(link, "damaged")
    assert (place / link.name).readlink() == Path(target)
    assert not os.path.lexists(link)


def test_quarantine_of_nothing_shelves_nothing(tmp_path):
    """What has gone meanwhile is an error, and no empty place is made for it."""
    with pytest.raises(FileNotFoundError):
        quarantine(tmp_path / checkpoint_name(30), "damaged")
    assert list(tmp_path.iterdir()) == []


def test_quarantine_is_durable(tmp_path, monkeypatch):
    """Every folder whose names changed is synced, after the move."""
    synced = []
    path = write_checkpoint(tmp_path, 30)

    def fsync(descriptor, really=os.fsync):
        synced.append((str(Path(f"/proc/self/fd/{descriptor}").readlink()), path.exists()))
        really(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    place = quarantine(path, "damaged")
    assert {(str(folder), False) for folder in (place, place.parent, tmp_path)} <= set(synced)


def test_quarantine_that_cannot_move_leaves_it_where_it_is(tmp_path):
    """With the shelf's name taken by a file nothing is moved and the error is the caller's."""
    path = write_checkpoint(tmp_path, 30)
    (tmp_path / "quarantine").write_text("in the way")
    with pytest.raises(OSError, match="exists"):
        quarantine(path, "damaged")
    assert (path / "model").exists()


def test_quarantine_works_on_a_full_disk(small_disk):
    """On a full disk, where saves tear, the torn one is moved even if no reason can be written."""
    path = write_checkpoint(small_disk, 30)
    fill(small_disk / "filler")
    assert free_mib(small_disk) == 0
    place = quarantine(path, "torn")
    assert (place / checkpoint_name(30) / MANIFEST_FILE).exists()


def test_quarantine_on_a_read_only_disk_moves_nothing(small_disk):
    """On a disk remounted read-only this is an error, and good checkpoints stay usable."""
    path = write_checkpoint(small_disk, 30)
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with pytest.raises(OSError, match="Read-only"):
        quarantine(path, "damaged")
    assert newest_good(small_disk, run=RUN).checkpoint is not None


def test_the_room_a_save_needs_is_the_largest_of_the_newest(tmp_path):
    """Sizes are rounded up to MiB; a torn newest one does not make the need look small."""
    assert needed_mib(tmp_path) is None
    write_checkpoint(tmp_path, 10, 9 * MIB)
    write_checkpoint(tmp_path, 20, 2 * MIB)
    write_checkpoint(tmp_path, 30, 3 * MIB)
    (write_checkpoint(tmp_path, 40, 1) / MANIFEST_FILE).unlink()
    assert needed_mib(tmp_path) == 4


def test_free_space_is_that_of_the_disk_the_path_will_be_on(small_disk):
    """A path that is not there yet is answered for the nearest folder above it."""
    assert free_mib(small_disk) == 1
    assert free_mib(small_disk / "not" / "yet") == 1
    (small_disk / "data").write_bytes(bytes(MIB // 2))
    assert free_mib(small_disk) == 0


def test_a_disk_without_inodes_has_no_room(small_disk):
    """Space is left, and still no file can be made: that is a full disk."""
    subprocess.run(["mount", "-o", "remount,nr_inodes=40", small_disk], check=True)
    assert free_mib(small_disk) == 1
    for number in range(30):
        (small_disk / str(number)).touch()
    assert free_mib(small_disk) == 0


def test_free_space_of_a_link_to_itself_is_unknown(tmp_path):
    """What cannot be asked is unknown, not zero."""
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    assert free_mib(loop) is None


def fill(path: Path) -> None:
    """Write until the disk is full."""
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return
