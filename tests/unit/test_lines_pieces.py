"""What one raw line can hold: progress bars, JSON, escapes, flattened tracebacks, glued ranks."""

import json

import pytest

from humigence_supervise.observe.characters import Narrower, decode, visible
from humigence_supervise.observe.lines import read_line

TRACEBACK = (
    "Traceback (most recent call last):\n"
    '  File "/app/train.py", line 84, in <module>\n'
    "    main()\n"
    '  File "/app/model.py", line 12, in forward\n'
    '    raise ValueError("bad shape")\n'
    "ValueError: bad shape"
)
ESC = "\x1b"


def texts(raw):
    """Return the texts of all lines in a raw line."""
    return [line.text.strip() for line in read_line(raw)]


@pytest.mark.parametrize(
    ("raw", "seen"),
    [
        ("\x1b[31mValueError\x1b[0m: x", "ValueError: x"),
        ("\x1b[1;38;5;196mValueError: x\x1b[0m", "ValueError: x"),
        ("\x1b]0;user@host: ~\x07ValueError: x", "ValueError: x"),
        ("\x1b]0;title\x1b\\ValueError: x", "ValueError: x"),
        ("[31mValueError[39m: x", "ValueError: x"),
        ("[0;31mValueError[0m: x", "ValueError: x"),
        ("[mValueError: x", "ValueError: x"),
        ("^[[31mValueError^[[0m: x", "ValueError: x"),
        ("\\u001b[31mValueError\\u001b[0m: x", "ValueError: x"),
        ("\\x1b[31mValueError\\x1b[0m: x", "ValueError: x"),
        ("\\033[31mValueError\\033[0m: x", "ValueError: x"),
        ("#033[31mValueError#033[0m: x", "ValueError: x"),
        ("\u241b[31mValueError: x", "ValueError: x"),
        ("\x1b[2K\x1b[1AValueError: x", "ValueError: x"),
        ("[AValueError: x", "ValueError: x"),
        ("[KValueError: x", "ValueError: x"),
        ("Value\0Error: x\x00", "ValueError: x"),
        ("\ufeffValueError: x", "ValueError: x"),
        ("tensor[K]", "tensor[K]"),
        ("[Kernel] x", "[Kernel] x"),
        ("a[31]m", "a[31]m"),
    ],
)
def test_only_what_was_visible_remains(raw, seen):
    """Colours, titles and cursor codes go in every notation; brackets of the text stay."""
    assert visible(raw) == seen


@pytest.mark.parametrize("codec", ["utf-16", "utf-16-le", "utf-16-be"])
def test_utf_16_is_read(codec):
    """PowerShell writes redirected output as UTF-16, with and without a byte order mark.

    One of the characters holds the newline byte.
    """
    bom = b"\xfe\xff" if codec == "utf-16-be" else b""
    data = bom + "step 1\r\nRuntimeError: Größe\r\n设备上没有空间".encode(codec)
    lines = Narrower().lines(data.split(b"\n"))
    assert [decode(line).strip("\ufeff\r") for line in lines] == [
        "step 1",
        "RuntimeError: Größe",
        "设备上没有空间",
    ]


def test_utf_16_appended_to_utf_8_is_read():
    """A file that began as UTF-8 and went on as UTF-16 is read to its end."""
    data = b"step 1\n" + "ValueError: x\r\n".encode("utf-16-le")
    lines = Narrower().lines(data.split(b"\n"))
    assert [decode(line).strip("\r") for line in lines[:2]] == ["step 1", "ValueError: x"]


def test_narrow_lines_are_left_alone():
    """A stray NUL does not make a line UTF-16."""
    raw = [b"ValueError: \0x", b"plain"]
    assert Narrower().lines(raw) == raw


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ("Getötet".encode(), "Getötet"),
        ("Getötet".encode("latin-1"), "Getötet"),
        (b"\xff\xfe\xc3\xa4", "\ufffd\ufffdä"),
        ("已杀死".encode(), "已杀死"),
    ],
)
def test_old_encodings_are_read(raw, text):
    """What is no UTF-8 at all is the old Western encoding; a damaged line keeps its good part."""
    assert decode(raw) == text


@pytest.mark.parametrize(
    "raw",
    [
        "100%|#####| 5/5 [00:01<00:00,  3.2it/s]\rValueError: x",
        " 32%|███  | 65/204 [39:24<1:23:19, 35.97s/it]ValueError: x",
        "Epoch 0:  6%|██ | 32/50 [6:28:43<01:39:17, 1.37it/s, loss=2.6, v_num=95nc]ValueError: x",
        "Map:   0%|          | 0/1000 [00:00<?, ? examples/s]ValueError: x",
        "loss: 0.5\x08\x08\x08\x08ValueError: x",
        "ValueError: x\r 33%|███ | 66/204 [39:24<1:23:19, 35.97s/it]",
        "ValueError: x 33%|███ | 66/204 [39:24<1:23:19, 35.97s/it]",
        "Value[rank1]: ValueError: x",
        "[rank0]: Runtime[rank1]: ValueError: x",
        "it/s]E0526 16:50:43.858000 1404 torch/distributed/elastic/api.py:851] ValueError: x",
        "loss=1[E ProcessGroupNCCL.cpp:458] ValueError: x",
        "ValueErrorValueError: : x",
        '{"log": "ValueError: x\\n", "stream": "stderr", "time": "2024-01-01T00:00:00Z"}',
        '{"message": "ValueError: x", "level": "ERROR"}',
        '2024-01-01T00:00:00Z {"msg": "ValueError: x", "rank": 3}',
        '{"levelname": "ERROR", "message": "failed", "exc_info": "Traceback\\nValueError: x"}',
        '{"severity":"ERROR","textPayload":"ValueError: x"}',
        '{"text": "a", "record": {"message": "ValueError: x", "level": {"name": "ERROR"}}}',
    ],
)
def test_an_error_glued_to_something_stands_alone(raw):
    """The message is a line of its own, whatever was printed before or behind it."""
    assert "ValueError: x" in texts(raw)


@pytest.mark.parametrize(
    "raw",
    [
        json.dumps({"message": TRACEBACK}),
        json.dumps({"log": TRACEBACK + "\n", "stream": "stderr"}),
        json.dumps({"error": {"message": TRACEBACK}}),
        json.dumps({"msg": "failed", "traceback": TRACEBACK.split("\n")}),
        "job failed: " + json.dumps(TRACEBACK),
        "job failed: " + json.dumps(json.dumps(TRACEBACK)),
        repr(TRACEBACK.encode()),
        TRACEBACK.replace("\n", "#012"),
        TRACEBACK.replace("\n", "\\r\\n"),
        TRACEBACK.replace("\n", " "),
        TRACEBACK.replace("\n", ""),
        "10:00 ERROR " + TRACEBACK.replace("\n    ", " ").replace("\n  ", " ").replace("\n", " "),
        "[rank1]: " + TRACEBACK.replace("\n", "\\n\x1b[0m"),
    ],
)
def test_a_traceback_on_one_line_is_unfolded(raw):
    """Escaped, wrapped in JSON or flattened: frames and exception are lines again."""
    found = texts(raw)
    assert any(text.startswith('File "/app/model.py", line 12, in forward') for text in found)
    assert "ValueError: bad shape" in found


def test_the_rank_and_time_of_a_json_record_are_told():
    """A structured record's rank and time belong to every line of its message."""
    raw = '{"time": "1970-01-01T00:01:00Z", "rank": 3, "message": "a\\nValueError: x"}'
    lines = read_line(raw)
    assert [(line.text, line.rank, line.at_s) for line in lines] == [
        ("a", 3, 60.0),
        ("ValueError: x", 3, 60.0),
    ]


@pytest.mark.parametrize(
    "raw",
    [
        "FileNotFoundError: [Errno 2] No such file or directory: 'C:\\new\\train.jsonl'",
        'File "C:\\nets\\train.py", line 5, in main',
        "{'loss': 0.5, 'epoch': 1}",
        '{"loss": 0.5, "step": 3}',
        "[1/5] block] x",
        "ratio 50% | 3",
    ],
)
def test_other_lines_stay_whole(raw):
    """A path with a backslash n, numbers in JSON, and brackets of the text are not cut."""
    assert texts(raw) == [raw]


@pytest.mark.parametrize(
    "filler",
    [
        "x",
        "\\n",
        "\\",
        " ",
        "(",
        "- ",
        "[",
        "{",
        "]",
        '{"log": "',
        "1/1 [",
        "%|",
        'File "',
        "\x1b[",
        "Error: : ",
        "#012",
    ],
)
def test_a_huge_line_costs_bounded_time(filler):
    """100 kB of anything is taken apart well within a second and gives bounded pieces."""
    import time  # noqa: PLC0415 - this test alone measures

    raw = "Traceback (most recent call last): " + (filler * 100_000)[:100_000]
    started = time.process_time()
    lines = read_line(raw)
    assert time.process_time() - started < 0.9
    assert len(lines) <= 200


def test_half_a_character_in_a_json_record_can_be_written_out():
    """An escape cut in two is replaced; what stands around it is read."""
    lines = read_line(json.dumps({"log": "ValueError: no \ud83c good\n"}))
    assert [line.text for line in lines] == ["ValueError: no ? good"]
