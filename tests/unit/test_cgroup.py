"""Which counter of kills for memory is ours, on every layout of cgroups."""

import pytest

from humigence_supervise.observe.cgroup import NoCounterError, own_counter, read_kills

EVENTS = "low 0\nhigh 3\nmax 9\noom 5\noom_kill {}\noom_group_kill 0\n"
CONTROL = "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n"


def machine(folder, cgroup, *mounts):
    """Lay out /proc/self with this cgroup line and (kind, root, options) mounted at `cg<n>`."""
    proc = folder / "proc"
    proc.mkdir()
    (proc / "cgroup").write_text(cgroup)
    lines = ["22 27 0:21 / /proc rw,relatime - proc proc rw\n"]
    for number, (kind, root, options) in enumerate(mounts):
        point = str(folder / f"cg{number}").replace(" ", "\\040")
        lines.append(f"3{number} 23 0:2{number} {root} {point} rw shared:4 - {kind} x {options}\n")
    (proc / "mountinfo").write_text("".join(lines))
    return proc


def counter(folder, place, text):
    """Write a counter's file."""
    path = folder / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_version_2(tmp_path):
    """The file memory.events of the own cgroup."""
    proc = machine(tmp_path, "0::/user.slice/job\n", ("cgroup2", "/", "rw"))
    file = counter(tmp_path, "cg0/user.slice/job/memory.events", EVENTS.format(4))
    counter(tmp_path, "cg0/user.slice/memory.events", EVENTS.format(40))
    found = own_counter(proc)
    assert (found.file, found.kills) == (file, 4)
    file.write_text(EVENTS.format(6))
    assert read_kills(found.file) == 6


def test_where_the_own_has_no_controller_the_nearest_above_counts(tmp_path):
    """Processes are charged to the nearest cgroup that has the memory controller."""
    proc = machine(tmp_path, "0::/a/b/c\n", ("cgroup2", "/", "rw"))
    (tmp_path / "cg0/a/b/c").mkdir(parents=True)
    file = counter(tmp_path, "cg0/a/memory.events", EVENTS.format(1))
    assert own_counter(proc).file == file


def test_version_1_and_hybrid(tmp_path):
    """Where version 1 has the memory controller, that counts, whatever else is mounted."""
    cgroup = "5:cpu,cpuacct:/x\n4:hugetlb,memory:/job one\n0::/y\n"
    folder = tmp_path / "with blank"
    folder.mkdir()
    mounts = (("cgroup2", "/", "rw"), ("cgroup", "/", "rw,cpu"), ("cgroup", "/", "rw,memory"))
    proc = machine(folder, cgroup, *mounts)
    counter(folder, "cg0/y/memory.events", EVENTS.format(9))
    file = counter(folder, "cg2/job one/memory.oom_control", CONTROL.format(2))
    found = own_counter(proc)
    assert (found.file, found.kills) == (file, 2)


@pytest.mark.parametrize(
    ("path", "root"),
    [("/", "/"), ("/docker/ab", "/docker/ab"), ("/../../other", "/"), ("/elsewhere", "/docker/ab")],
)
def test_in_a_container_the_mount_itself_is_the_own_cgroup(tmp_path, path, root):
    """With a cgroup namespace of its own or without, in version 1 and 2."""
    proc = machine(tmp_path, f"0::{path}\n", ("cgroup2", root, "rw"))
    file = counter(tmp_path, "cg0/memory.events", EVENTS.format(3))
    counter(tmp_path, "memory.events", EVENTS.format(7))
    assert own_counter(proc).file == file


@pytest.mark.parametrize("text", ["", "oom_kill\n", "oom_kill x\n", "oom_kill -1\n", "max 3\n"])
def test_what_does_not_count_is_no_counter(tmp_path, text):
    """Kernels before 4.13 count nothing; the cgroup above is not asked beyond the mount."""
    proc = machine(tmp_path, "0::/job\n", ("cgroup2", "/", "rw"))
    counter(tmp_path, "cg0/job/memory.events", text)
    counter(tmp_path, "memory.events", EVENTS.format(7))
    with pytest.raises(NoCounterError, match="no cgroup here counts"):
        own_counter(proc)


@pytest.mark.parametrize("cgroup", ["", "garbage", "0:", ":::", "4:memory", "0::/job\n"])
def test_odd_tables_are_no_counter(tmp_path, cgroup):
    """Nothing is raised but the one error, also without any mount."""
    proc = machine(tmp_path, cgroup)
    with pytest.raises(NoCounterError):
        own_counter(proc)
    with pytest.raises(NoCounterError, match="unknown: No such file"):
        own_counter(tmp_path / "none")


def test_a_counter_that_is_gone_says_so(tmp_path):
    """A cgroup that was removed meanwhile is named."""
    with pytest.raises(NoCounterError, match=r"memory\.events: No such file"):
        read_kills(tmp_path / "memory.events")
