"""Which names of the kernel's log are the disk under a folder."""

import os

from humigence_supervise.observe.disks import disks_of


def block(sys, name, *, parent=None, number=None):
    """Add a block device, a partition where it has a parent, as sysfs shows it."""
    folder = sys / "devices" / (f"{parent}/{name}" if parent else name)
    folder.mkdir(parents=True)
    if parent:
        (folder / "partition").write_text("1\n")
    for place in ("class/block", "dev/block"):
        (sys / place).mkdir(parents=True, exist_ok=True)
    (sys / "class/block" / name).symlink_to(folder)
    if number:
        (sys / "dev/block" / number).symlink_to(folder)
    return folder


def number_of(folder):
    """Return a folder's device as sysfs names it."""
    number = folder.stat().st_dev
    return f"{os.major(number)}:{os.minor(number)}"


def test_a_partition_is_its_disk_too(tmp_path):
    """Errors name either; of NVMe also the controller."""
    block(tmp_path / "sys", "nvme0n1p2", parent="nvme0n1", number=number_of(tmp_path))
    assert disks_of(tmp_path, tmp_path / "sys") == {"nvme0n1p2", "nvme0n1", "nvme0"}


def test_a_mapped_device_is_what_it_is_made_of(tmp_path):
    """LVM, LUKS and RAID: the devices below, to their disks."""
    mapped = block(tmp_path / "sys", "dm-0", number=number_of(tmp_path))
    part = block(tmp_path / "sys", "sda2", parent="sda")
    (mapped / "slaves").mkdir()
    (mapped / "slaves" / "sda2").symlink_to(part)
    assert disks_of(tmp_path, tmp_path / "sys") == {"dm-0", "sda2", "sda"}


def test_btrfs_is_found_by_its_mount(tmp_path):
    """Its device number names no block device; the innermost mount does."""
    block(tmp_path / "sys", "sdc1", parent="sdc")
    block(tmp_path / "sys", "sdd1", parent="sdd")
    mounts = tmp_path / "mounts"
    lines = (("/", "/dev/sdd1"), (tmp_path, "/dev/sdc1"), (tmp_path / "other", "/dev/sdd1"))
    mounts.write_text(
        "".join(f"27 1 0:41 / {point} rw - btrfs {device} rw\n" for point, device in lines)
    )
    assert disks_of(tmp_path, tmp_path / "sys", mounts) == {"sdc1", "sdc"}


def test_no_disk_and_no_answer_are_no_names(tmp_path):
    """NFS, a folder that is gone, a machine without sysfs."""
    mounts = tmp_path / "mounts"
    mounts.write_text("27 1 0:41 / / rw - nfs4 server:/export rw\ngarbage\n")
    assert disks_of(tmp_path, tmp_path / "sys", mounts) == frozenset()
    assert disks_of(tmp_path / "none") == frozenset()
    assert disks_of(tmp_path, tmp_path / "sys", tmp_path / "none") == frozenset()
