import json
from pathlib import Path

import pytest

from humigence_supervise.config import parse_settings
from humigence_supervise.contract import JOURNAL_FILE
from humigence_supervise.run_ref import RunNotFoundError, resolve


def start(run_dir: Path) -> Path:
    """Make a folder look like a run that was started."""
    run_dir.mkdir(parents=True)
    (run_dir / JOURNAL_FILE).touch()
    return run_dir


def write_config(path: Path, **fields: object) -> Path:
    """Write a config file with these fields."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"worker": {"script": "train.py"}} | fields))
    return path


def test_a_run_directory_is_the_run(tmp_path):
    """A folder with a journal is taken as it is, absolute or seen from the working folder."""
    run_dir = start(tmp_path / "somewhere" / "demo")
    assert resolve(str(run_dir), Path("/")) == run_dir
    assert resolve("somewhere/demo/", tmp_path) == run_dir
    assert resolve(".", run_dir) == run_dir


def test_a_name_is_looked_up_below_runs(tmp_path):
    """A run's name means the folder of that name below ``runs/``."""
    run_dir = start(tmp_path / "runs" / "demo")
    assert resolve("demo", tmp_path) == run_dir


def test_a_folder_without_journal_does_not_hide_the_run_of_that_name(tmp_path):
    """A source folder called like the run is not the run."""
    (tmp_path / "demo").mkdir()
    run_dir = start(tmp_path / "runs" / "demo")
    assert resolve("demo", tmp_path) == run_dir


@pytest.mark.parametrize("fields", [{"name": "demo"}, {"name": "demo", "run_dir": "../out/x"}])
def test_a_config_means_the_run_directory_it_would_be_started_in(tmp_path, fields):
    """The answer is what the whole configuration says, relative to its file."""
    config = write_config(tmp_path / "configs" / "demo.json", **fields)
    run_dir = start(parse_settings(config.read_bytes(), config).run_dir)
    assert resolve("configs/demo.json", tmp_path) == run_dir
    assert resolve(str(config), Path("/")) == run_dir


def test_a_config_that_is_being_edited_still_names_its_run(tmp_path):
    """Unknown keys and a byte order mark do not keep anybody from looking at the run."""
    config = write_config(tmp_path / "demo.json", name="demo", wrong_key=1)
    config.write_bytes(b"\xef\xbb\xbf" + config.read_bytes())
    run_dir = start(tmp_path / "runs" / "demo")
    assert resolve("demo.json", tmp_path) == run_dir


def refusal(ref: str, cwd: Path) -> str:
    """Return the message for a reference that means no run."""
    with pytest.raises(RunNotFoundError) as caught:
        resolve(ref, cwd)
    return str(caught.value)


def test_a_config_whose_run_was_never_started_says_so(tmp_path):
    """The run directory that was expected is named, with what is missing."""
    write_config(tmp_path / "demo.json", name="demo")
    assert f"{tmp_path}/runs/demo is missing" in refusal("demo.json", tmp_path)
    (tmp_path / "runs" / "demo").mkdir(parents=True)
    assert f"has no {JOURNAL_FILE}" in refusal("demo.json", tmp_path)


def test_an_unknown_name_lists_what_was_tried_and_the_runs_there_are(tmp_path):
    """A misspelt name is answered with the names that exist."""
    start(tmp_path / "runs" / "alpha")
    start(tmp_path / "runs" / "beta")
    (tmp_path / "runs" / "no-run").mkdir()
    message = refusal("alhpa", tmp_path)
    assert "'alhpa' means no run" in message
    assert f"a path: {tmp_path}/alhpa" in message
    assert f"a run's name: {tmp_path}/runs/alhpa" in message
    assert "alpha, beta." in message
    assert "no-run" not in message


def test_with_no_runs_at_all_the_way_to_start_one_is_shown(tmp_path):
    """The first command of a newcomer gets the second one as its answer."""
    assert "humigence-supervise start CONFIG" in refusal("demo", tmp_path)


def test_many_runs_are_counted(tmp_path):
    """Ten names are listed, the rest is a number."""
    for number in range(13):
        start(tmp_path / "runs" / f"run-{number:02d}")
    assert "run-09 and 3 more" in refusal("x", tmp_path)


BAD_CONFIGS = {
    "empty": b"",
    "not json": b"{",
    "not utf-8": b"\xff\xfe{",
    "deep": b"[" * 200_000,
    "list": b"[]",
    "no name": b"{}",
    "name of a wrong type": b'{"name": 5}',
    "run_dir of a wrong type": b'{"name": "demo", "run_dir": 5}',
    "nul": b'{"name": "a\\u0000b"}',
    "huge": b" " * (4 * 1024 * 1024 + 1),
}


@pytest.mark.parametrize("raw", BAD_CONFIGS.values(), ids=BAD_CONFIGS)
def test_a_file_that_is_no_config_is_a_sentence_and_no_traceback(tmp_path, raw):
    """Whatever stands in the file, the message names it."""
    (tmp_path / "demo.json").write_bytes(raw)
    assert f"{tmp_path}/demo.json" in refusal("demo.json", tmp_path)


@pytest.mark.parametrize(
    "ref", ["", "\0", "a\0b", "..", "x" * 5000, "/dev/null", "\udcff", "\x1b[2J"]
)
def test_a_strange_reference_is_a_sentence_and_no_traceback(tmp_path, ref):
    """What cannot be a path or a name is refused as one, in a message that can be printed."""
    message = refusal(ref, tmp_path)
    assert "means no run" in message
    assert message.encode("utf-8")


def test_a_link_to_itself_is_a_sentence(tmp_path):
    """A path that cannot be looked at says why."""
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert "symbolic links" in refusal("loop", tmp_path)
    assert "symbolic links" in refusal("loop/demo", tmp_path)
