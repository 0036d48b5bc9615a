import json
import os
import stat
import sys
from pathlib import Path

import pytest

from humigence_supervise.config import ConfigError, parse_settings
from humigence_supervise.domain import Gpu, Host
from humigence_supervise.preflight import check_ladder, preflight

OWN = Path(sys.executable)


def _settings(folder, **changes):
    (folder / "train.py").touch()
    document = {"name": "x", "worker": {"script": "train.py"}, **changes}
    return parse_settings(json.dumps(document).encode(), folder / "c.json", own_python=OWN)


def _problems(settings):
    with pytest.raises(ConfigError) as caught:
        preflight(settings)
    return caught.value.problems


def test_a_sound_configuration_passes_and_has_a_private_run_directory(tmp_path):
    """The folder is made for this user alone and holds nothing yet."""
    settings = _settings(tmp_path)
    preflight(settings)
    preflight(settings)
    assert stat.S_IMODE(settings.run_dir.stat().st_mode) == 0o700
    assert list(settings.run_dir.iterdir()) == []


@pytest.mark.parametrize(
    ("worker", "words"),
    [
        ({"script": "gone.py"}, "worker.script: {}/gone.py does not exist"),
        ({"script": "."}, "worker.script: {} is not a file"),
        ({"python": "no-such-python"}, 'worker.python: "no-such-python" is not in PATH'),
        ({"python": "bin/python"}, "worker.python: {}/bin/python does not exist"),
        ({"python": "../x/train.py"}, "worker.python: {}/train.py cannot be executed"),
        ({"cwd": "gone"}, "worker.cwd: {}/gone does not exist"),
        ({"cwd": "train.py"}, "worker.cwd: {}/train.py is not a folder"),
    ],
)
def test_what_is_missing_of_the_worker_is_named(tmp_path, worker, words):
    """The key, the path, and what is wrong with it; nothing is made on disk."""
    folder = tmp_path / "x"
    folder.mkdir()
    settings = _settings(folder, worker=worker)
    (problem,) = _problems(settings)
    assert words.format(folder) in problem
    assert not settings.run_dir.exists()


def test_everything_that_is_missing_is_told_at_once(tmp_path):
    """A person repairs a configuration once."""
    worker = {"script": "gone.py", "python": "no-such-python", "cwd": "gone"}
    (tmp_path / "file").touch()
    problems = _problems(_settings(tmp_path, worker=worker, run_dir="file/run"))
    keys = [problem.partition(":")[0] for problem in problems]
    assert keys == ["worker.script", "worker.python", "worker.cwd", "run_dir"]


@pytest.mark.parametrize("key", ["run_dir", "checkpoints"])
def test_a_file_in_the_way_of_a_folder_is_named(tmp_path, key):
    """The file that is in the way, and the folder that was wanted."""
    (tmp_path / "file").touch()
    where = "file/deep/folder" if key == "run_dir" else {"dir": str(tmp_path / "file/deep/folder")}
    (problem,) = _problems(_settings(tmp_path, **{key: where}))
    assert f"{tmp_path}/file is a file where a folder is needed" in problem
    assert "deep/folder" in problem


def test_a_link_to_nothing_is_named(tmp_path):
    """A disk that is not mounted must not become a folder on another disk."""
    (tmp_path / "disk").symlink_to(tmp_path / "unmounted")
    (problem,) = _problems(_settings(tmp_path, run_dir="disk"))
    assert "link to nothing" in problem


def test_a_place_that_cannot_be_written_is_named():
    """Where even root may not make a folder; permissions alone do not tell."""
    document = {"name": "x", "run_dir": "/proc/humigence", "worker": {"module": "m"}}
    settings = parse_settings(json.dumps(document).encode(), Path("/c.json"), own_python=OWN)
    (problem,) = _problems(settings)
    assert problem.startswith("run_dir: ")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_named(tmp_path):
    """An ordinary user's reason."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    (problem,) = _problems(_settings(tmp_path, run_dir="closed/run"))
    assert "may not be written by this user" in problem


def test_every_rung_must_be_possible_before_the_first_is_started(tmp_path):
    """A fallback that would fail on its sums or its GPUs is refused now, with what would do."""
    ladder = [{"name": "a", "gpus": 2}, {"name": "b", "gpus": 3}, {"name": "c", "gpus": 1}]
    settings = _settings(tmp_path, accelerator="cpu", ladder=ladder)
    with pytest.raises(ConfigError, match=r"^ladder\[1\]: .*1, 2 ranks would do") as caught:
        check_ladder(settings, Host(cpu_count=2))
    assert len(caught.value.problems) == 1
    check_ladder(_settings(tmp_path, accelerator="cpu", ladder=ladder[::2]), Host(cpu_count=2))


def test_a_ladder_that_needs_more_gpus_than_there_are_is_refused(tmp_path):
    """Both rungs without a GPU, only the first with one."""
    settings = _settings(
        tmp_path, accelerator="cuda", ladder=[{"name": "a", "gpus": 2}, {"name": "b", "gpus": 1}]
    )
    one = Host(gpus=(Gpu(0, "GPU-a", "x", 1, 1),))
    two = Host(gpus=(*one.gpus, Gpu(1, "GPU-b", "x", 1, 1)))
    check_ladder(settings, two)
    for host, count in ((Host(), 2), (one, 1)):
        with pytest.raises(ConfigError) as caught:
            check_ladder(settings, host)
        assert len(caught.value.problems) == count
