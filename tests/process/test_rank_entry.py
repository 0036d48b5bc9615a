"""The doorway: own logs, own process file, same process; and a clear sentence where it fails."""

import json
import os
import subprocess

import pytest
from support import FAST_PYTHON, PYTHON, RANK_ENTRY

from humigence_supervise import contract, rank_entry

TELL = """
import json, os, sys
print(json.dumps([os.getpid(), sys.argv, sys.path[0], sys.stdout.write_through, os.getcwd(),
                  os.environ["TORCHELASTIC_ERROR_FILE"], len(os.listdir("/proc/self/fd"))]))
print("to stderr", file=sys.stderr)
"""


@pytest.fixture
def attempt(tmp_path):
    """An attempt's folder with room for rank 3, and a worker that tells what it is."""
    (tmp_path / "ranks" / "3").mkdir(parents=True)
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "tell.py").write_text(TELL)
    return tmp_path


def enter(attempt_dir, *arguments, cwd=None, **changes):
    """Run the doorway as rank 3 to the worker's end; an environment change of None unsets."""
    environ = {**os.environ, "RANK": "3", "LOCAL_RANK": "1"}
    environ["HUMIGENCE_ATTEMPT_DIR"] = str(attempt_dir)
    environ.update({"PYTHONUNBUFFERED": None, **changes})
    environ = {name: value for name, value in environ.items() if value is not None}
    process = subprocess.Popen(
        [*FAST_PYTHON, RANK_ENTRY, *arguments],
        env=environ,
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    out, err = process.communicate(timeout=20)
    return process, out, err


def test_names_are_those_of_the_contract():
    """The plain file repeats names of the contract; none may differ."""
    assert rank_entry.EXIT_NO_DOORWAY == contract.EXIT_INTERNAL
    assert rank_entry.ENV_ATTEMPT_DIR == contract.ENV_ATTEMPT_DIR


@pytest.mark.parametrize("form", ["script", "module"])
def test_worker_keeps_its_process_and_semantics(attempt, form):
    """Script and module run in the doorway's own process, as if they had been started directly."""
    code = attempt / "code"
    named = [str(code / "tell.py")] if form == "script" else ["-m", "tell"]
    process, out, err = enter(attempt, *named, "--flag", "two words", cwd=code)
    assert (process.returncode, out, err) == (0, "", "")
    folder = attempt / "ranks" / "3"
    pid, argv, path, unbuffered, cwd, error_file, fds = json.loads(
        (folder / "stdout.log").read_text()
    )
    assert pid == process.pid
    assert argv == [str(code / "tell.py"), "--flag", "two words"]
    assert (path, cwd, unbuffered) == (str(code), str(code), True)
    assert error_file == str(folder / contract.RANK_ERROR_FILE)
    assert fds == 4  # the three and the listing's own
    assert (folder / "stderr.log").read_text() == "to stderr\n"


def test_process_file_names_this_process(attempt):
    """process.json holds rank, local rank, pid and the start time the kernel says."""
    (attempt / "me.py").write_text(
        "import os; print(open('/proc/self/stat').read().rsplit(')')[1].split()[19])"
    )
    process, _, _ = enter(attempt, str(attempt / "me.py"))
    folder = attempt / "ranks" / "3"
    said = json.loads((folder / contract.RANK_PROCESS_FILE).read_text())
    assert set(said) == contract.RankProcess.__required_keys__
    assert (said["rank"], said["local_rank"], said["pid"]) == (3, 1, process.pid)
    assert said["start_ticks"] == int((folder / "stdout.log").read_text())
    assert sorted(os.listdir(folder)) == ["process.json", "stderr.log", "stdout.log"]  # noqa: PTH208


def test_exit_code_passes_through(attempt):
    """The worker's exit code is the doorway's, since it is the same process."""
    (attempt / "end.py").write_text("raise SystemExit(143)")
    assert enter(attempt, str(attempt / "end.py"))[0].returncode == 143


def test_logs_are_appended(attempt):
    """What a log held before stays in it."""
    log = attempt / "ranks" / "3" / "stdout.log"
    log.write_text("before\n")
    (attempt / "say.py").write_text("print('after')")
    enter(attempt, str(attempt / "say.py"))
    assert log.read_text() == "before\nafter\n"


@pytest.mark.parametrize(
    ("changes", "arguments", "words"),
    [
        ({}, (), "no worker was named"),
        ({"RANK": None}, ("x.py",), "KeyError('RANK')"),
        ({"RANK": "first"}, ("x.py",), "first"),
        ({"LOCAL_RANK": None}, ("x.py",), "KeyError('LOCAL_RANK')"),
        ({"HUMIGENCE_ATTEMPT_DIR": None}, ("x.py",), "KeyError('HUMIGENCE_ATTEMPT_DIR')"),
        ({"RANK": "4"}, ("x.py",), "rank 4 cannot use its folder"),
    ],
)
def test_refusals_are_sentences(attempt, changes, arguments, words):
    """What is missing is named on the inherited stderr, with what to do, and the code is 70."""
    process, out, err = enter(attempt, *arguments, **changes)
    assert process.returncode == rank_entry.EXIT_NO_DOORWAY
    assert out == ""
    assert err.startswith("humigence-supervise: ")
    assert words in err
    assert "To do: " in err
    assert err.count("\n") == 1
    assert "Traceback" not in err


def test_missing_script_is_pythons_own_error(attempt):
    """A script that is not there is told by Python, in the rank's own log."""
    process, _, err = enter(attempt, "/no/such/script.py")
    assert (process.returncode, err) == (2, "")
    assert (
        "can't open file '/no/such/script.py'"
        in (attempt / "ranks" / "3" / "stderr.log").read_text()
    )


def test_interpreter_gone_is_told(attempt):
    """An interpreter that vanished before the worker is executed is named, with code 70."""
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import rank_entry;"
        "sys.executable = '/gone/python'; sys.exit(rank_entry.main(['x.py']))"
    )
    environ = {"RANK": "3", "LOCAL_RANK": "1", "HUMIGENCE_ATTEMPT_DIR": str(attempt)}
    answer = subprocess.run(
        [*FAST_PYTHON, "-c", program, RANK_ENTRY.parent],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == rank_entry.EXIT_NO_DOORWAY
    assert "rank 3 cannot execute /gone/python: No such file or directory" in answer.stderr


def test_written_for_python_3_8():
    """The doorway parses as Python 3.8 and imports nothing but os and sys."""
    program = (
        "import ast, sys; tree = ast.parse(open(sys.argv[1]).read(), feature_version=(3, 8));"
        "found = [n for n in ast.walk(tree) if isinstance(n, ast.Import)];"
        "print(sorted(name.name for n in found for name in n.names))"
    )
    answer = subprocess.run(
        [PYTHON, "-c", program, RANK_ENTRY], capture_output=True, text=True, check=True
    )
    assert answer.stdout == "['os', 'sys']\n"
