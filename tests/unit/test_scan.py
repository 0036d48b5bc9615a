"""Whole texts -> hits: ranks mixed in one file, broken lines, clocks, floods, odd encodings."""

import time

import pytest

from humigence_supervise.catalogue import load_catalogue
from humigence_supervise.domain import Hit, Kind, Role
from humigence_supervise.observe.logs import Block
from humigence_supervise.observe.scan import Scan, Scanner


def scan_bytes(data: bytes, lines_a_block: int = 1_000_000, rank: int | None = None) -> Scan:
    """Scan the content of one file, given in blocks."""
    scanner = Scanner(load_catalogue(), "a.log", rank, 2024)
    lines = data.split(b"\n")
    for start in range(0, len(lines), lines_a_block):
        scanner.feed(Block(start + 1, lines[start : start + lines_a_block]))
    return scanner.finish()


def scan(text: str) -> Scan:
    """Scan a text as one file."""
    return scan_bytes(text.encode())


def causes(text: str) -> list[Hit]:
    """Return the hits of a text that can be causes."""
    return [hit for hit in scan(text).hits if hit.role is Role.ROOT]


def kinds(text: str) -> set[Kind]:
    """Return the kinds of the causes of a text."""
    return {hit.kind for hit in causes(text)}


TRACEBACK = """\
Traceback (most recent call last):
  File "/app/train.py", line 84, in main
    model(x)
  File "/app/{file}", line {line}, in forward
    return x @ w
{error}
"""
MISMATCH = (
    "RuntimeError: Expected all tensors to be on the same device, but found cuda:0 and cuda:1!"
)


ASSERT = "RuntimeError: CUDA error: device-side assert triggered"


def prefixed(text: str, prefix: str) -> list[str]:
    """Return the lines of a text with a prefix before each."""
    return [prefix + line for line in text.splitlines()]


@pytest.mark.parametrize(
    "prefixes",
    [
        ("[rank0]: ", "[rank1]: "),
        ("[default0]:[rank0]: ", "[default1]:[rank1]: "),
        ("0: ", "1: "),
        ("[1,0]<stderr>:", "[1,1]<stderr>:"),
        ("[1,mpirank:0,algo-1]<stderr>:", "[1,mpirank:1,algo-2]<stderr>:"),
        ("2024-01-02T03:04:05.6Z stderr F [rank0]: ", "2024-01-02T03:04:05.6Z stderr F [rank1]: "),
    ],
)
def test_interleaved_ranks_keep_their_frames(prefixes):
    """Two tracebacks shuffled line by line: each error gets its own rank and frame."""
    a = prefixed(TRACEBACK.format(file="a.py", line=1, error="ValueError: a"), prefixes[0])
    b = prefixed(TRACEBACK.format(file="b.py", line=2, error="ValueError: b"), prefixes[1])
    text = "\n".join(line for pair in zip(a, b, strict=True) for line in pair)
    found = [(hit.text, hit.rank, hit.frame) for hit in causes(text)]
    assert found == [
        ("ValueError: a", 0, "a.py:1 in forward"),
        ("ValueError: b", 1, "b.py:2 in forward"),
    ]


@pytest.mark.parametrize(
    "line",
    [
        ASSERT.replace("RuntimeError: ", "RuntimeErrorRuntimeError: : ") + ASSERT[14:],
        f"RuntimeError: CUDA error{ASSERT}",
        f"[rank0]: RuntimeError: CUDA err[rank1]: {ASSERT}",
    ],
)
def test_words_of_two_ranks_shuffled(line):
    """The same message printed by two ranks at once is still found."""
    head = TRACEBACK.format(file="a.py", line=1, error="")
    assert Kind.DEVICE_ASSERT in kinds(head + line)


@pytest.mark.parametrize("width", [60, 61, 62, 63, 64, 65, 70, 76, 80, 100])
def test_a_message_broken_at_the_terminals_width(width):
    """Copied from a narrow terminal, a message broken anywhere, also inside a word, is found."""
    text = "[rank1]: " + MISMATCH
    broken = "\n".join(text[at : at + width] for at in range(0, len(text), width))
    assert Kind.DEVICE_MISMATCH in kinds("step 1 loss 2.0\n" + broken + "\n")


def test_a_message_broken_at_a_space():
    """Rich breaks a message between words."""
    error = (
        "RuntimeError: Expected all tensors to be on the same\n"
        "device, but found cuda:0 and cuda:1!\n"
    )
    assert Kind.DEVICE_MISMATCH in kinds("╭── Traceback (most recent call last) ──╮\n" + error)


def test_what_two_unrelated_lines_say_together_is_nothing():
    """Lines with their ranks' prefixes are not joined to one another."""
    head = "[rank0]: a long line of some length that says Expected all tensors to be on the same"
    assert Kind.DEVICE_MISMATCH not in kinds(
        head + "\n[rank1]: device, but found cuda:0 and cuda:1!"
    )


def test_an_oom_is_read_to_its_end():
    """The sums of an OOM text stand in the lines that a narrow box broke it into."""
    text = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a\n"
        "total capacity of 23.69 GiB of which 1.19 GiB is free. Process 4242 has 20.00 GiB\n"
        "memory in use.\n"
        "\n"
        "Process 77 has 1 GiB memory in use.\n"
    )
    [hit] = causes(text)
    assert "Process 4242 has 20.00 GiB memory in use." in hit.text
    assert "Process 77" not in hit.text


def test_quoted_source_is_no_evidence():
    """A traceback's source lines say what would be raised, not what was."""
    text = (
        "Traceback (most recent call last):\n"
        '  File "/app/train.py", line 84, in main\n'
        '    raise FloatingPointError("loss is nan, stopping")\n'
        "KeyError: 'loss'\n"
    )
    assert [(hit.kind, hit.line) for hit in causes(text)] == [(Kind.USER_CODE, 4)]
    assert kinds("FloatingPointError: loss is nan, stopping\n") == {Kind.NAN_DIVERGENCE}


@pytest.mark.parametrize("codec", ["utf-16", "utf-16-le", "utf-8-sig", "latin-1"])
def test_any_encoding(codec):
    """The error is found in a log of any encoding, with Windows' line ends."""
    text = "step 1\r\nTraceback (most recent call last):\r\nRuntimeError: CUDA out of memory ä\r\n"
    hits = [hit for hit in scan_bytes(text.encode(codec)).hits if hit.role is Role.ROOT]
    assert [(hit.kind, hit.line) for hit in hits] == [(Kind.CUDA_OOM, 3)]


def stamped(*lines: str) -> list[float | None]:
    """Return the times of the causes of some lines."""
    return [hit.at_s for hit in causes("\n".join(lines))]


OOM = "torch.OutOfMemoryError: CUDA out of memory."
NAN = "FloatingPointError: Loss became infinite or NaN at iteration=137!"


def test_times_of_one_clock_are_kept():
    """Stamps of one format can be compared: the later line of the file was the earlier error."""
    later, earlier = stamped(f"[2024-01-01 00:00:09,5] {OOM}", f"[2024-01-01 00:00:02,0] {NAN}")
    assert later - earlier == 7.5


def test_times_of_two_clocks_are_not_compared():
    """A logger's local time and glog's are not one clock: the minority has no time."""
    times = stamped(
        f"2024-01-01 02:00:00 {OOM}",
        f"E0101 00:00:01.000000 1 a.cc:3] {NAN}",
        f"E0101 00:00:02.000000 1 a.cc:3] {OOM}",
    )
    assert times[0] is None
    assert times[2] - times[1] == 1.0


def test_a_clock_that_all_lines_have_wins():
    """The container runtime stamps every line in UTC, whatever stands behind it."""
    times = stamped(
        f"2024-01-01T00:00:05Z 2024-01-01 02:00:00 {OOM}",
        f"2024-01-01T00:00:03Z {NAN}",
        f"2024-01-01T00:00:04Z E0101 00:00:00.000000 1 a.cc:3] {NAN}",
    )
    assert [at_s - times[1] for at_s in times] == [2.0, 0.0, 1.0]


def test_a_year_that_turned_gives_no_times():
    """Stamps without a year on both sides of New Year would be in the wrong order."""
    times = stamped(
        f"E1231 23:59:59.000000 1 a.cc:3] {NAN}",
        f"E0101 00:00:01.000000 1 a.cc:3] {OOM}",
    )
    assert times == [None, None]


@pytest.mark.parametrize(
    ("stamp", "at_s"),
    [
        ("1970-01-01T00:01:00.5Z ", 60.5),
        ("1970-01-01T02:01:00+02:00 ", 60.0),
        ("1970/01/01 00:01:00 ", 60.0),
        ("01/01/1970 00:01:00 ", 60.0),
        ("Jan 01 00:01:00 host1 python[12]: ", 60.0),
        ("[01/01 00:01:00 d2.engine]: ", 60.0),
        ("ERROR 01-01 00:01:00 [core.py:7] ", 60.0),
        ("E0101 00:01:00.250000 77 a.cc:3] ", 60.25),
        ("[rank1]:[E101 00:01:00.250000000 ProcessGroupNCCL.cpp:607] ", 60.25),
        ('{"time": "1970-01-01T00:01:00Z", "log": "', 60.0),
        ("13:45:00 ", None),
        ("99/99 00:01:00 - ", None),
    ],
)
def test_every_stamp_gives_the_time(stamp, at_s):
    """Each format of stamp is read; a time of day alone is none."""
    scanner = Scanner(load_catalogue(), "a.log", None, 1970)
    end = '"}' if stamp.startswith("{") else ""
    scanner.feed(Block(1, [(stamp + OOM + end).encode()]))
    [hit] = scanner.finish().hits
    assert hit.at_s == at_s


def test_blocks_do_not_matter():
    """The same lines give the same answer however they are cut into blocks."""
    text = "".join(
        [
            *(f"step {n}/900 loss 2.{n}\n" for n in range(700)),
            TRACEBACK.format(file="a.py", line=1, error=f"{OOM} Tried to allocate 2.00 GiB. GPU 0"),
            "has a total capacity of 23.69 GiB\n\n",
            *(f"step {n}/900 loss 2.{n}\n" for n in range(700, 705)),
            TRACEBACK.format(file="b.py", line=2, error="ValueError: b"),
            "Fatal Python error: Segmentation fault\n\n",
            'Current thread 0x1 (most recent call first):\n  File "/app/c.py", line 3 in g\n',
            "failed (exitcode: -11) local_rank: 1 (pid: 5) of binary: python\n",
        ],
    ).encode()
    whole = scan_bytes(text)
    assert any(hit.frame == "c.py:3 in g" for hit in whole.hits)
    assert any("23.69 GiB" in hit.text for hit in whole.hits)
    assert [scan_bytes(text, size) == whole for size in (1, 2, 7, 61, 500)] == [True] * 5


@pytest.mark.parametrize(
    "line",
    [
        b"ValueError: %s",
        b"[rank1]: RuntimeError: CUDA out of memory %s",
        b"Traceback (most recent call last): %s",
        b"srun: error: n: task 3: Killed %s",
        b'  File "/app/%s.py", line 3, in f',
        b'{"log": "ValueError: %s", "stream": "stderr"}',
    ],
)
def test_a_flood_of_different_errors_costs_bounded_time(line):
    """Sixty thousand errors of as many shapes take seconds at most, and the last cause is seen."""
    names = (bytes([97 + n % 23, 97 + n // 23 % 23, 97 + n // 529 % 23]) for n in range(60_000))
    data = b"\n".join(
        line % (name * 3 + b"%c" % (97 + n // 12_167)) for n, name in enumerate(names)
    )
    started = time.process_time()
    result = scan_bytes(data + b"\nRuntimeError: CUDA error: device-side assert triggered")
    assert time.process_time() - started < 8.0
    assert result.hits[-1].kind is Kind.DEVICE_ASSERT
    assert len(result.hits) < 500


@pytest.mark.parametrize(
    "filler",
    [
        b"x",
        b" ",
        b"\\",
        b"\t",
        b"- ",
        b"1: ",
        b"Error: ",
        b"[rank0]:",
        b"\\n",
        b'Traceback (most recent call last): File "a", line 3',
    ],
)
def test_a_long_line_costs_bounded_time(filler):
    """A hot line of 100 kB is read in under a second, alone and as somebody's neighbour."""
    long = b"RuntimeError: CUDA out of memory " + (filler * 100_000)[:100_000]
    started = time.process_time()
    scan_bytes(long + b"\nValueError: x\n" + long)
    assert time.process_time() - started < 2.0


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ("OSError: [Errno 28] 设备上没有空间: '/data/x'", Kind.DISK_FULL),
        ("OSError: [WinError 112] 磁盘空间不足。", Kind.DISK_FULL),
        ("OSError: [Errno 12] Impossible d'allouer de la mémoire", Kind.HOST_OOM),
        ("OSError: [WinError 1455] 页面文件太小 无法完成操作。", Kind.HOST_OOM),
        ("OSError: [WinError 10048] 通常每个套接字地址只允许使用一次。", Kind.RENDEZVOUS),
        ("FileNotFoundError: [WinError 3] 系统找不到指定的路径。: 'D:\\\\new'", Kind.CONFIG_ERROR),
        ("ImportError: DLL load failed: Das Modul wurde nicht gefunden.", Kind.IMPORT_ERROR),
    ],
)
@pytest.mark.parametrize("codec", ["utf-8", "utf-16"])
def test_any_language(error, kind, codec):
    """The system's own words come in the user's language, on Windows often as UTF-16."""
    text = TRACEBACK.format(file="a.py", line=1, error=error).replace("\n", "\r\n")
    found = [hit for hit in scan_bytes(text.encode(codec)).hits if hit.role is Role.ROOT]
    assert [(hit.kind, hit.frame) for hit in found] == [(kind, "a.py:1 in forward")]


@pytest.mark.parametrize("times", [5, 50, 600])
def test_the_last_of_many_equal_errors_is_seen(times):
    """An error survived time and again still ends the log when it comes a last time."""
    error = TRACEBACK.format(file="a.py", line=1, error="requests.exceptions.ConnectionError: x")
    steps = "".join(f"step {number} loss 0.5\n" for number in range(20))
    text = (error + steps) * times + error
    found = scan(text)
    last = [hit for hit in found.hits if hit.line == text.count("\n")]
    assert [(hit.kind, hit.role) for hit in last] == [(Kind.NETWORK_HUB, Role.ROOT)]
    assert len(found.hits) < 100
