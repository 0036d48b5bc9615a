"""The kernel's log as it is read: records, gaps, forgeries, floods."""

import os
import socket
import stat
import time
from dataclasses import replace

import pytest

from humigence_supervise.observe.kernel_log import (
    KEPT_RECORDS,
    KMSG,
    collect,
    parse_record,
    read_kernel,
)

KILL = "Out of memory: Killed process 4243 (python) total-vm:9000kB, UID:0 pgtables:1kB"


def record(seq, text, priority=3, flags="-", tail=""):
    """Return the bytes of one read of /dev/kmsg."""
    return f"{priority},{seq},{seq * 1000},{flags};{text}\n{tail}".encode()


@pytest.fixture
def log():
    """Give a descriptor that behaves as /dev/kmsg does: one read, one record; and its writer."""
    reader, writer = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    reader.settimeout(0)
    with reader, writer:
        yield reader.fileno(), writer


def texts(descriptor, after=-1, wanted=lambda _: True):
    """Return what is read from a descriptor."""
    reading = collect(lambda: os.read(descriptor, 16_384), after, wanted)
    assert reading.whole
    return [one.text for one in reading.records]


def reader(*answers):
    """Return a read() that gives these records, raises these errors, and then would block."""
    left = iter(answers)

    def read():
        answer = next(left, BlockingIOError())
        if isinstance(answer, OSError):
            raise answer
        return answer

    return read


def test_only_records_after_the_mark_are_read(log):
    """The sequence number tells, not the clock."""
    descriptor, writer = log
    for seq in range(10, 20):
        writer.send(record(seq, f"line {seq}"))
    assert texts(descriptor, after=17) == ["line 18", "line 19"]


def test_what_user_space_wrote_is_no_word_of_the_kernel(log):
    """A facility other than 0 is user space's: whoever may write there could forge a kill."""
    descriptor, writer = log
    writer.send(record(1, KILL, priority=(1 << 3) | 3))
    writer.send(record(2, KILL, priority=3))
    reading = collect(lambda: os.read(descriptor, 16_384), -1, lambda _: True)
    assert [one.seq for one in reading.records] == [2]


def test_dictionary_lines_and_escapes(log):
    """The lines of a device's dictionary are left out; what was escaped is put back."""
    descriptor, writer = log
    tail = " SUBSYSTEM=pci\n DEVICE=+pci:0000:01:00.0\n"
    writer.send(record(1, "NVRM: Xid (PCI:0000:01:00): 79, pid=\\x27<unknown>\\x27", tail=tail))
    writer.send(record(2, "caller", flags="-,caller=T123"))
    assert texts(descriptor) == ["NVRM: Xid (PCI:0000:01:00): 79, pid='<unknown>'", "caller"]


def test_continuation_records_are_one_line(log):
    """What was printed in pieces is read as a whole, from kernels before 4.10 as well."""
    descriptor, writer = log
    writer.send(record(1, "Killed process ", flags="c"))
    writer.send(record(2, "4243 (python)", flags="+"))
    writer.send(record(3, "next"))
    assert texts(descriptor) == ["Killed process 4243 (python)", "next"]


def test_overwritten_records_are_counted_and_the_rest_is_read():
    """EPIPE says that the buffer turned over; reading goes on, and what is missing is known."""
    read = reader(record(5, "a"), BrokenPipeError(), record(90, "b"), record(91, "c"))
    reading = collect(read, 4, lambda _: True)
    assert ([one.text for one in reading.records], reading.missed) == (["a", "b", "c"], 84)
    assert reading.whole


def test_nothing_is_missed_where_nothing_is():
    """From the mark on without a gap; of what came before the mark nobody asks."""
    assert collect(reader(record(7, "a"), record(8, "b")), 6, lambda _: True).missed == 0
    assert collect(reader(record(700, "a")), -1, lambda _: True).missed == 0


def test_a_log_without_end_costs_its_limit():
    """A log that grows faster than it is read is given up, and that is said."""
    seq = iter(range(10**9))
    begun = time.monotonic()
    reading = collect(lambda: record(next(seq), "x" * 900), -1, lambda _: False, most_s=0.1)
    assert time.monotonic() - begun < 2
    assert (reading.whole, reading.records) == (False, ())
    flooded = collect(lambda: record(next(seq), KILL), -1, lambda _: True)
    assert len(flooded.records) <= KEPT_RECORDS + 1
    assert not flooded.whole


def test_an_error_of_the_device_is_raised():
    """Only "would block" and "overwritten" are usual."""
    with pytest.raises(PermissionError):
        collect(reader(record(1, "a"), PermissionError(1, "no")), -1, lambda _: True)


@pytest.mark.parametrize(
    "raw",
    [b"", b";", b"\n", b"3,1,2;x", b"a,b,c,-;x", b"3,1,2,-", b"\xff" * 9000, b",,,;x"],
)
def test_garbage_is_no_record(raw):
    """Bytes of another device are skipped."""
    assert parse_record(raw) is None


def test_another_file_in_its_place_is_not_read(tmp_path):
    """A console, /dev/null or a FIFO there (as containers have it) never holds or fools us."""
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "file").write_bytes(record(1, KILL))
    for place in (tmp_path / "fifo", tmp_path / "file", "/dev/null", tmp_path / "none"):
        with pytest.raises(OSError, match=r"not the kernel's log|No such file"):
            read_kernel(-1, lambda _: True, place)


def readable():
    """Tell whether this machine lets us read its log."""
    try:
        os.close(os.open(KMSG, os.O_RDONLY | os.O_NONBLOCK))
    except OSError:
        return False
    return stat.S_ISCHR(KMSG.stat().st_mode)


@pytest.mark.skipif(not readable(), reason="/dev/kmsg may not be read here")
def test_the_real_log_is_read_and_a_real_forgery_is_not():
    """What is written to /dev/kmsg comes back with a new number, and is not believed."""
    mark = read_kernel(-1, lambda _: False)
    assert mark.whole
    assert mark.newest_seq > 0
    descriptor = os.open(KMSG, os.O_WRONLY)
    try:
        os.write(descriptor, f"<3>{KILL} test\n".encode())
    except OSError:
        pytest.skip("/dev/kmsg may not be written here")
    finally:
        os.close(descriptor)
    after = read_kernel(mark.newest_seq, lambda _: True)
    if after.newest_seq == mark.newest_seq:
        pytest.skip("this kernel drops what is written to /dev/kmsg (printk.devkmsg=off)")
    assert not any(KILL in one.text for one in after.records)


def test_an_escaped_line_break_cannot_begin_a_line_of_its_own():
    """Bytes above are put back; a control character stays written out."""
    record = parse_record(rb"6,1,5,-;comm\x0aOut of memory: Killed process 7 na\xc3me")
    assert record is not None
    assert "\n" not in record.text
    assert r"comm\x0aOut of memory" in record.text
    assert parse_record(b"6,1,5,-;caf\\x21") == replace(record, text="caf!")
