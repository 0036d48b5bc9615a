"""Bad input from the command line: one clear sentence, the right exit code, never a traceback."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from humigence_supervise.contract import EXIT_CONFIG, EXIT_USAGE

GOOD = {"name": "demo", "accelerator": "cpu", "worker": {"script": "train.py"}}


def humigence(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the command line."""
    argv = [sys.executable, "-m", "humigence_supervise.cli", *map(str, words)]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)


def refused(*words: str | Path, code: int) -> str:
    """Run the command line, expect a refusal, and return what it said."""
    done = humigence(*words)
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    assert done.stderr.strip()
    return done.stderr


def with_content(folder: Path, content: bytes) -> Path:
    """Write a configuration and the script it names."""
    (folder / "train.py").write_text("print('hello')\n")
    path = folder / "config.json"
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "empty"),
        (b"\xff\xfe{}", "UTF-8"),
        (b'{"name": "a", "name": "b"}', "stands twice"),
        (b'{"name": "demo", "stop": {"grace_s": 1e400}}', "1e400"),
        (b"[" * 10_000_000, "larger than"),
        (b"[" * 1_000_000, "nested"),
        (b'{"name": "demo", "wrker": {}}', '"worker"'),
        (b'{"name": "demo"} x', "config.json:1:"),
        (b"[]", "object"),
    ],
    ids=[
        "empty",
        "utf8",
        "duplicate",
        "1e400",
        "10-MB",
        "nesting",
        "unknown-key",
        "trailing",
        "array",
    ],
)
@pytest.mark.parametrize("verb", ["start", "plan"])
def test_a_bad_configuration_is_refused(
    tmp_path: Path, content: bytes, said: str, verb: str
) -> None:
    """78, with the file and what is wrong; nothing is created."""
    path = with_content(tmp_path, content)
    message = refused(verb, path, code=EXIT_CONFIG)
    assert said in message
    assert str(path) in message
    assert not (tmp_path / "runs").exists()


def test_a_missing_configuration_and_a_folder_are_refused(tmp_path: Path) -> None:
    """The path is named, and what was expected."""
    assert "does not exist" in refused("start", tmp_path / "no.json", code=EXIT_CONFIG)
    assert "is a folder" in refused("start", tmp_path, code=EXIT_CONFIG)


def test_a_byte_order_mark_is_accepted(tmp_path: Path) -> None:
    """Windows editors write one; it says nothing."""
    path = with_content(tmp_path, b"\xef\xbb\xbf" + json.dumps(GOOD).encode())
    assert humigence("plan", path).returncode == 0


@pytest.mark.parametrize(
    ("worker", "said"),
    [
        ({"script": "missing.py"}, "missing.py"),
        ({"script": "train.py", "python": "/no/such/python"}, "/no/such/python"),
        ({"script": "train.py", "cwd": "nowhere"}, "nowhere"),
    ],
)
def test_what_the_worker_needs_is_checked_first(
    tmp_path: Path, worker: dict[str, str], said: str
) -> None:
    """A missing script, interpreter or folder is named before anything starts."""
    path = with_content(tmp_path, json.dumps({**GOOD, "worker": worker}).encode())
    assert said in refused("start", path, code=EXIT_CONFIG)
    assert not list(tmp_path.glob("runs/*/attempts"))


def test_a_run_directory_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    """A file in the way (which stops root too) is named."""
    (tmp_path / "runs").write_text("in the way")
    path = with_content(tmp_path, json.dumps(GOOD).encode())
    assert str(tmp_path / "runs") in refused("start", path, code=EXIT_CONFIG)


@pytest.mark.parametrize(
    "words",
    [
        ("start",),
        ("frobnicate",),
        ("status", "no-such-run"),
        ("events", "no-such-run"),
        ("stop", "no-such-run"),
        ("diagnose", "/no/such/file"),
        ("logs", "no-such-run", "--rank", "-1"),
    ],
)
def test_a_wrong_command_line_is_a_usage_error(words: tuple[str, ...]) -> None:
    """64, with what was meant or what there is."""
    refused(*words, code=EXIT_USAGE)
