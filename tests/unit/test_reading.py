"""`diagnose FILE...`: files, folders, stdin, and the public document."""

import json
import subprocess
import sys

import pytest

from humigence_supervise.diagnose import diagnose
from humigence_supervise.domain import Kind
from humigence_supervise.reading import diagnosis_document, diagnosis_text, read_input

OOM = (
    "step 1 loss 2.0\n"
    "[rank0]: RuntimeError: [/gloo/gloo/transport/tcp/pair.cc:525] Connection closed by peer\n"
    "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
)
KEYS = {"input", "kind", "root", "symptoms", "action", "reason", "remedy", "confidence"}
KEYS |= {"gpu", "context", "unread"}


def document(path, exit_code=None):
    """Return the public document of a path."""
    return diagnosis_document(str(path), diagnose(read_input(str(path), exit_code)))


def test_document_is_the_contract(tmp_path):
    """One log file gives exactly the promised keys, with the line that proves it."""
    log = tmp_path / "train.log"
    log.write_text(OOM)
    found = document(log)
    assert set(found) == KEYS
    assert found["kind"] == "cuda_oom"
    assert found["action"] == "reduce_microbatch"
    assert found["root"] == {
        "rank": 1,
        "file": str(log),
        "line": 3,
        "text": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "signature": "cuda_oom.allocator",
    }
    assert found["symptoms"] == [
        {"kind": "nccl_remote", "rank": 0, "line": 2, "signature": "gloo.connection_closed"}
    ]
    json.dumps(found)


@pytest.mark.parametrize(
    ("text", "exit_code", "kind"),
    [
        ("step 1 loss 2.0\n", None, "healthy"),
        ("step 1 loss 2.0\n", 0, "healthy"),
        ("step 1 loss 2.0\n", 1, "unknown"),
        ("step 1 loss 2.0\n", -11, "segfault"),
        ("step 1 loss 2.0\n", 78, "config_error"),
        ("[1] exits with return code = -11\n", None, "segfault"),
        (
            "Process finished with exit code 137 (interrupted by signal 9: SIGKILL)\n",
            None,
            "unknown",
        ),
        ("", None, "unknown"),
        ("All DDP processes registered. Starting ddp with 2 processes\n-----\n", None, "hang"),
        (
            "All DDP processes registered. Starting ddp with 2 processes\na 1\nb 2\nc 3\nd 4\n",
            None,
            "healthy",
        ),
    ],
)
def test_exit_code_and_text_together(tmp_path, text, exit_code, kind):
    """What a person says of the exit counts; without it the text alone decides."""
    log = tmp_path / "a.log"
    log.write_text(text)
    assert document(log, exit_code)["kind"] == kind


def test_attempt_folder(tmp_path):
    """An attempt's folder is read as the supervisor reads it."""
    (tmp_path / "plan.json").write_text('{"world_size": 2}')
    stderr = tmp_path / "ranks/1/stderr.log"
    stderr.parent.mkdir(parents=True)
    stderr.write_text("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n")
    found = document(tmp_path)
    assert (found["kind"], found["root"]["rank"]) == ("cuda_oom", 1)


def test_folder_of_logs(tmp_path):
    """A folder of logs is read together, ranks taken from the names; one without logs is said."""
    (tmp_path / "rank0.log").write_text("[c10d] recvValue failed: failed to recv, got 0 bytes\n")
    (tmp_path / "rank3.log").write_text("RuntimeError: CUDA error: out of memory\n")
    assert document(tmp_path)["root"]["rank"] == 3
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(ValueError, match="no log files"):
        read_input(str(empty), None)


@pytest.mark.parametrize("path", ["/nowhere/a.log", "a\0b"])
def test_missing_input_is_said(path):
    """A path that is not there is a message with what to do."""
    with pytest.raises(ValueError, match="Name a log file or folder"):
        read_input(path, None)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00" * 5_000,
        b"\xff\xfe\xfd",
        b"\r" * 5_000,
        b"\n" * 5_000,
        b"[" * 5_000,
        b"\x1b[" * 999,
    ],
)
def test_any_bytes_are_read(tmp_path, data):
    """No content is an exception, and the document is always JSON."""
    log = tmp_path / "a.log"
    log.write_bytes(data)
    json.dumps(document(log))


def test_text_for_people_cannot_act_on_their_terminal(tmp_path):
    """Control characters of a log are shown, not obeyed."""
    log = tmp_path / "a.log"
    log.write_bytes(b"ValueError: a\x1b]0;owned\x07\xe2\x80\xaeb\n")
    text = diagnosis_text(str(log), diagnose(read_input(str(log), 1)))
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "ValueError" in text
    assert "to do" in text


def test_stdin():
    """`-` reads what is piped in."""
    script = (
        "from humigence_supervise.reading import read_input\n"
        "from humigence_supervise.diagnose import diagnose\n"
        "print(diagnose(read_input('-', None)).kind)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script],
        input=OOM.encode(),
        capture_output=True,
        check=True,
        timeout=60,
    )
    assert ended.stdout.decode().strip() == Kind.CUDA_OOM


def test_data_is_not_called_healthy(tmp_path):
    """A file that is no text is unknown and says so; a log with NUL bytes in it is a log."""
    data = tmp_path / "model.bin"
    data.write_bytes(bytes(range(256)) * 64)
    found = document(data)
    assert (found["kind"], found["action"]) == ("unknown", "retry_same")
    assert "is not text" in found["reason"]
    data.write_bytes(bytes(100_000))
    assert document(data)["kind"] == "unknown"
    log = tmp_path / "train.log"
    log.write_bytes(b"step 1 loss 2.0\n" + bytes(4096) + b"\nstep 2 loss 1.9\n")
    assert document(log)["kind"] == "healthy"


def test_text_for_people_shows_the_lines_around_the_proof(tmp_path, monkeypatch):
    """The proof is marked among its neighbours: of a file, a folder, an attempt, by any path."""
    log = tmp_path / "train.log"
    log.write_text(OOM)
    attempt = tmp_path / "0001"
    attempt.mkdir()
    (attempt / "launcher.log").write_text(OOM)
    monkeypatch.chdir(tmp_path)
    for source in (log, "train.log", attempt, "0001"):
        text = diagnosis_text(str(source), diagnose(read_input(str(source), None)))
        assert "        1 | step 1 loss 2.0\n" in text
        assert ">      3 | [rank1]: torch.OutOfMemoryError" in text


def test_one_unreadable_file_does_not_hide_the_others(tmp_path):
    """Every file is read; what could not be is named at the end, with the code of a usage error."""
    log = tmp_path / "train.log"
    log.write_text(OOM)
    words = ["diagnose", str(tmp_path / "gone"), "", str(log), "--json"]
    ended = subprocess.run(
        [sys.executable, "-m", "humigence_supervise.cli", *words],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 64
    assert json.loads(ended.stdout)["kind"] == "cuda_oom"
    assert "gone cannot be read" in ended.stderr
    assert "A name is empty" in ended.stderr
