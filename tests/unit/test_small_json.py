"""Small records of other processes: read, or refused without waiting."""

import os

import pytest

from humigence_supervise.small_json import load_small_json, read_small_json


def test_a_file_and_a_link_to_it_are_read(tmp_path):
    """What a link leads to counts."""
    path = tmp_path / "a.json"
    path.write_text('{"a": [1]}')
    (tmp_path / "link").symlink_to(path)
    assert load_small_json(path) == read_small_json(tmp_path / "link") == {"a": [1]}


@pytest.mark.parametrize(
    "make",
    [
        os.mkfifo,
        os.mkdir,
        lambda path: path.symlink_to(path),
        lambda path: path.symlink_to("/dev/zero"),
        lambda _: None,
    ],
    ids=["fifo", "folder", "loop", "device", "missing"],
)
def test_what_is_no_regular_file_is_an_error_at_once(tmp_path, make):
    """Nothing waits for a writer and nothing reads without end; no descriptor stays open."""
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    make(tmp_path / "a.json")
    with pytest.raises(OSError):  # noqa: PT011 - each has its own text
        load_small_json(tmp_path / "a.json")
    assert read_small_json(tmp_path / "a.json") is None
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b'{"half', "Unterminated"),
        (b"\xff{}", "decode"),
        (b"[" * 900, "nested|Expecting"),
        (b'"' + b"x" * 2000 + b'"', "longer than 1000 bytes"),
    ],
)
def test_what_is_no_small_json_is_a_value_error(tmp_path, raw, why):
    """Torn, undecodable, deep and long files are told, never a crash."""
    (tmp_path / "a.json").write_bytes(raw)
    with pytest.raises(ValueError, match=why):
        load_small_json(tmp_path / "a.json", 1000)
    (tmp_path / "a.json").write_bytes(b"[" * 500_000)
    assert read_small_json(tmp_path / "a.json") is None
