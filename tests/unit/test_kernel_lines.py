"""What lines of the kernel's log name, in the words of many kernels."""

import pytest

from humigence_supervise.kernel_lines import (
    bus_id,
    is_crash,
    is_disk_trouble,
    is_oom,
    named_bus,
    named_pid,
    oom_victims,
)

CONSTRAINT = (
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,"
    "oom_memcg=/job,task_memcg=/job,task=pt_data_worker,pid=77,uid=1000"
)


@pytest.mark.parametrize(
    "line",
    [
        "Killed process 77, UID 1000, (python) total-vm:1kB, anon-rss:1kB, file-rss:0kB",  # 2.6.32
        "Killed process 77 (python) total-vm:1kB, anon-rss:1kB, file-rss:0kB",  # 3.x to 4.18
        "Out of memory: Killed process 77 (python) total-vm:1kB, anon-rss:1kB, UID:0 pgtables:1kB",
        "Memory cgroup out of memory: Killed process 77 (pt_main_thread) total-vm:1kB",
        "Out of memory (oom_kill_allocating_task): Killed process 77 (python) total-vm:1kB",
        "oom_reaper: reaped process 77 (python), now anon-rss:0kB, file-rss:0kB, shmem-rss:8kB",
        "oom_reaper: unable to reap pid:77 (python)",
        CONSTRAINT,
    ],
)
def test_a_kill_names_its_victim(line):
    """Every generation's words, once each."""
    assert oom_victims([line]) == (77,)
    assert is_oom(line)
    assert named_pid(line) == 77


@pytest.mark.parametrize(
    "line",
    [
        "Out of memory: Kill process 77 (python) score 900 or sacrifice child",
        "python invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
        "Memory cgroup out of memory: OOM victim 77 (python) is already exiting. Skip killing",
        "Tasks in /job are going to be killed due to memory.oom.group set",
        "[  77]  1000    77   251        0    53248        0             0 python",
        "audit: Killed process 77 (python)",
        "demo: Out of memory: Killed process 77 (python)",
    ],
)
def test_what_is_no_kill_names_no_victim(line):
    """A choice, a table, a mention: nobody was killed by these."""
    assert oom_victims([line]) == ()


def test_one_kill_told_three_times_is_one():
    """The constraint, the kill and the reaper speak of one process."""
    lines = [CONSTRAINT, "Memory cgroup out of memory: Killed process 77 (x)", "oom_reaper: a"]
    assert oom_victims(lines) == (77,)


def test_a_chosen_process_that_was_exiting_was_not_killed():
    """It ended by itself; the same pid with its own kill line was."""
    spared = "Memory cgroup out of memory: OOM victim 77 (x) is already exiting. Skip killing it"
    assert oom_victims([CONSTRAINT, spared]) == ()
    assert oom_victims([CONSTRAINT, spared, "Out of memory: Killed process 77 (x)"]) == (77,)


def test_a_name_cannot_forge_a_pid():
    """A process may be called anything; only the end of the line tells its pid."""
    assert oom_victims([CONSTRAINT.replace("pt_data_worker", "a,pid=1,uid=0")]) == (77,)


@pytest.mark.parametrize(
    ("line", "bus", "pid"),
    [
        ("NVRM: Xid (PCI:0000:01:00): 79, pid='<unknown>', name=<unknown>", "0000:01:00", None),
        ("NVRM: Xid (PCI:0000:C1:00): 31, pid=1234, name=python, Ch 00000008", "0000:c1:00", 1234),
        ("NVRM: Xid (0000:03:00): 13, Graphics SM Warp Exception", "0000:03:00", None),
        ("NVRM: Xid (PCI:00000018:01:00.0): 48, pid=9, DBE", "0018:01:00", 9),
        ("NVRM: GPU 0000:01:00.0: GPU has fallen off the bus.", "0000:01:00", None),
        ("NVRM: GPU at PCI:0000:41:00: GPU-0a", "0000:41:00", None),
        ("NVRM: loading NVIDIA UNIX x86_64 Kernel Module  575.57.08", None, None),
        ("pcieport 0000:00:01.0: AER: Corrected error", None, None),
    ],
)
def test_a_line_of_the_driver_names_its_gpu(line, bus, pid):
    """In one spelling, whatever the driver's."""
    assert (named_bus(line), named_pid(line)) == (bus, pid)


@pytest.mark.parametrize(
    ("text", "same"),
    [("00000000:01:00.0", "0000:01:00"), ("0000:C1:00", "0000:c1:00"), ("[N/A]", ""), ("", "")],
)
def test_bus_ids_of_nvml_and_the_kernel_are_one(text, same):
    """Eight digits of a domain or four, with the function or without."""
    assert bus_id(text) == same


@pytest.mark.parametrize(
    "line",
    [
        "python[77]: segfault at 0 ip 00007f sp 00007f error 4 in libtorch_cuda.so[7f+1000]",
        "traps: python3.11[77] general protection fault ip:7f sp:7f error:0 in libc.so.6[7f+1000]",
        "traps: pt_autograd_0[77] trap invalid opcode ip:7f sp:7f error:0 in libfoo.so",
        "python[77]: unhandled exception: DABT (lower EL), ESR 0x92000006",
    ],
)
def test_a_crash_names_its_thread(line):
    """x86's and ARM's words."""
    assert is_crash(line)
    assert named_pid(line) == 77
    assert not is_oom(line)


@pytest.mark.parametrize(
    "line",
    [
        "I/O error, dev sda, sector 12345 op 0x1:(WRITE) flags 0x800 phys_seg 1 prio class 2",
        "blk_update_request: I/O error, dev sda, sector 12345",
        "Buffer I/O error on dev sda1, logical block 5, lost async page write",
        "EXT4-fs error (device sda1): ext4_find_entry:1455: inode #2: comm python: reading",
        "EXT4-fs (sda1): Remounting filesystem read-only",
        "XFS (sda1): Filesystem has been shut down due to log error (0x2).",
        "BTRFS error (device sda1): bdev /dev/sda1 errs: wr 1: I/O error",
        "critical medium error, dev sda, sector 5",
    ],
)
def test_trouble_of_our_disk_is_told_from_that_of_others(line):
    """A device of the checkpoint's disk, named as a whole word."""
    assert is_disk_trouble(line, frozenset({"sda", "sda1"}))
    assert not is_disk_trouble(line, frozenset({"sd", "sdb", "sda11", "nvme0n1"}))
    assert not is_disk_trouble(line, frozenset())


def test_a_disk_that_is_well_is_no_trouble():
    """Its name alone says nothing."""
    line = "EXT4-fs (sda1): mounted filesystem with ordered data mode"
    assert not is_disk_trouble(line, frozenset({"sda1"}))


@pytest.mark.parametrize("text", ["NVRM: " + "(" * 9000, "a[" * 50_000, "0000:" * 20_000])
def test_long_lines_cost_little(text):
    """No pattern runs away on a line no kernel writes."""
    assert not is_crash(text)
    assert oom_victims([text]) == ()
    assert named_bus(text) is None
