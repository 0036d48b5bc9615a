import json
import os
import time
from pathlib import Path

import pytest

from humigence_supervise.config import ConfigError, config_schema, parse_settings
from humigence_supervise.domain import Kind, Launcher, Remedy
from humigence_supervise.presets import Preset
from humigence_supervise.settings_file import read_settings, with_run_dir

FILE = Path("/jobs/demo.json")


def _settings_of(document, **changes):
    return parse_settings(json.dumps({**document, **changes}).encode(), FILE)


def _problems_of(text):
    with pytest.raises(ConfigError) as caught:
        parse_settings(text if isinstance(text, bytes) else text.encode(), FILE)
    return caught.value.problems


def test_the_smallest_configuration_has_the_documented_defaults():
    """What the contract calls the smallest one is enough, and every default is the contract's."""
    settings = parse_settings(b'{"name": "demo", "worker": {"script": "train.py"}}', FILE)
    assert settings.run_dir == Path("/jobs/runs/demo")
    assert settings.accelerator == "auto"
    assert settings.worker.script == Path("/jobs/train.py")
    assert settings.worker.cwd == Path("/jobs")
    assert settings.worker.preset is Preset.HUMIGENCE
    assert settings.checkpoints.dir == Path("/jobs/runs/demo/checkpoints")
    assert settings.checkpoints.keep == 3
    assert settings.policy.attempts_without_progress == 3
    assert settings.stop.grace_s == 60
    assert [(rung.name, rung.gpus, rung.launcher, rung.args) for rung in settings.ladder] == [
        ("multi_gpu", "all", Launcher.TORCHRUN, ()),
        ("single_gpu", 1, Launcher.PYTHON, ("--fallback_single_gpu",)),
    ]


def test_a_foreign_worker_gets_no_fallback_argument():
    """A parser that does not know the option would refuse it."""
    settings = _settings_of({"name": "x"}, worker={"script": "t.py", "preset": "hf_trainer"})
    assert settings.ladder[1].args == ()


def test_without_a_program_the_reference_worker_runs():
    """The default module stands in only where neither script nor module is named."""
    assert _settings_of({"name": "x"}).worker.module == "humigence_worker.train"
    assert _settings_of({"name": "x"}, worker={"script": "t.py"}).worker.module is None


def test_paths_are_seen_from_the_file():
    """Relative paths become absolute without a look at the disk; absolute ones stay."""
    settings = _settings_of(
        {"name": "x"},
        run_dir="../runs/x",
        worker={"script": "/srv/t.py", "cwd": "work", "python": "venv/bin/python"},
        checkpoints={"dir": "/ckpt"},
        metrics={"textfile": "metrics.prom"},
    )
    assert settings.run_dir == Path("/runs/x")
    assert settings.worker.script == Path("/srv/t.py")
    assert settings.worker.cwd == Path("/jobs/work")
    assert settings.worker.python == Path("/jobs/venv/bin/python")
    assert settings.checkpoints.dir == Path("/ckpt")
    assert settings.metrics.textfile == Path("/runs/x/metrics.prom")


def test_a_bare_interpreter_name_stays_for_the_search_in_path():
    """Only a name without a slash is searched; the default is what the shell passes."""
    named = _settings_of({"name": "x"}, worker={"python": "python3.12"})
    assert named.worker.python == Path("python3.12")
    own = parse_settings(b'{"name": "x"}', FILE, own_python=Path("/venv/bin/python"))
    assert own.worker.python == Path("/venv/bin/python")


def test_overrides_are_words_of_the_contract():
    """Kinds and actions become the enums that policy knows."""
    settings = _settings_of({"name": "x"}, policy={"overrides": {"cuda_oom": "retry_same"}})
    assert settings.policy.overrides == {Kind.CUDA_OOM: Remedy.RETRY_SAME}
    flat = _settings_of({"name": "x"}, policy={"cuda_oom": "retry_same", "retries": 0})
    assert flat.policy.overrides == {Kind.CUDA_OOM: Remedy.RETRY_SAME}


def test_gpus_take_all_three_forms():
    """All, a count, and a list of indices or UUIDs, of which indices become text."""
    ladder = [
        {"name": "a", "gpus": "all"},
        {"name": "b", "gpus": 2},
        {"name": "c", "gpus": [1, "GPU-ab"]},
    ]
    settings = _settings_of({"name": "x"}, ladder=ladder)
    assert [rung.gpus for rung in settings.ladder] == ["all", 2, ("1", "GPU-ab")]


def test_every_section_is_accepted_whole():
    """All keys of the contract together are one valid configuration."""
    settings = _settings_of(
        {"$schema": "config.schema.json", "name": "x", "run_dir": "r", "accelerator": "cuda"},
        worker={
            "module": "pkg.train",
            "args": ["{run_dir}", "{attempt}", "{world_size}"],
            "python": "python3",
            "cwd": ".",
            "env": {"A": "b"},
            "preset": "torchrun",
            "resume_args": ["--resume={checkpoint}"],
            "batch_args": ["{micro_batch}", "{grad_accum}"],
            "progress": {"pattern": r"step (\d+)"},
        },
        batch={"global": 8, "micro": 4},
        ladder=[{"name": "one", "gpus": 1, "env": {"B": "c"}, "args": [], "launcher": "python"}],
        policy={
            "overrides": {"hang": "stop_and_tell"},
            "retries": 0,
            "attempts_without_progress": 5,
            "max_attempts": {"count": 9, "period_s": 3600},
            "backoff": {"first_s": 0, "max_s": 10, "factor": 1, "jitter": 0},
        },
        hang={
            "enabled": False,
            "startup_s": 1,
            "stall_factor": 2,
            "stall_min_s": 3,
            "sections": {"checkpoint_s": 4, "eval_s": 5.5},
        },
        promote={"enabled": False, "after_s": 1, "max_promotions": 0},
        checkpoints={"dir": "c", "layout": "dcp", "keep": 1, "min_free_mib": 0},
        success={"target_step": 100},
        stop={"grace_s": 0.5},
        notify=[{"url": "https://example.org/x", "on": ["run.failed"]}, {"command": ["mail"]}],
        metrics={"port": 9100},
    )
    assert settings.batch.global_samples == 8
    assert settings.hang.sections.eval_s == 5.5
    assert settings.notify[1].command == ("mail",)


# configuration, place and path, words of the message
INVALID = [
    ("{}", "1:1: ", 'needs "name"'),
    ("[]", "1:1: ", "must be an object"),
    ('{"name": "X"}', "1:10: name: ", "a-z 0-9"),
    ('{"name": ".."}', "1:10: name: ", "start with"),
    ('{"name": "a/b"}', "1:10: name: ", "a-z 0-9"),
    ('{"name": 1}', "1:10: name: ", "must be a string, not 1"),
    ('{"name": "x",\n "acelerator": "cpu"}', "2:2: acelerator: ", 'did you mean "accelerator"'),
    ('{"name": "x", "accelerator": "gpu"}', "accelerator: ", "Allowed: auto, cuda, cpu"),
    ('{"name": "x", "worker": {"scrpt": "t"}}', "worker.scrpt: ", 'did you mean "script"'),
    ('{"name": "x", "worker": "t.py"}', "worker: ", "must be an object"),
    ('{"name": "x", "worker": {"args": "-x"}}', "worker.args: ", "must be a list"),
    ('{"name": "x", "worker": {"args": [1]}}', "worker.args[0]: ", "must be a string"),
    ('{"name": "x", "worker": {"script": "a", "module": "b"}}', "worker: ", "both"),
    ('{"name": "x", "worker": {"preset": "torchrun"}}', "worker: ", 'needs "script" or "module"'),
    ('{"name": "x", "worker": {"module": "a b"}}', "worker.module: ", "Python module name"),
    ('{"name": "x", "worker": {"args": ["{chkpoint}"]}}', "worker.args: ", "{checkpoint}"),
    ('{"name": "x", "worker": {"env": {"RANK": "0"}}}', "worker.env: ", "supervisor sets itself"),
    ('{"name": "x", "worker": {"env": {"A=B": "0"}}}', "worker.env: ", 'has no "="'),
    (
        '{"name": "x", "worker": {"env": {"CUDA_VISIBLE_DEVICES": "0"}}}',
        "worker.env: ",
        "ladder[].gpus",
    ),
    ('{"name": "x", "worker": {"progress": {"pattern": "("}}}', "pattern: ", "regular expression"),
    ('{"name": "x", "worker": {"progress": {"pattern": "a"}}}', "pattern: ", "one group"),
    ('{"name": "x", "batch": {"global": 0}}', "batch.global: ", "at least 1, not 0"),
    ('{"name": "x", "batch": {"micro": 1.5}}', "batch.micro: ", "whole number, not 1.5"),
    ('{"name": "x", "batch": {"micro": true}}', "batch.micro: ", "whole number"),
    ('{"name": "x", "ladder": []}', "ladder: ", "must not be empty"),
    ('{"name": "x", "ladder": [{"name": "a"}, {"name": "a"}]}', "ladder: ", "unique"),
    ('{"name": "x", "ladder": [{"gpus": 1}]}', "ladder[0]: ", 'needs "name"'),
    ('{"name": "x", "ladder": [{"name": "a", "gpus": 0}]}', "ladder[0].gpus: ", "number of GPUs"),
    ('{"name": "x", "ladder": [{"name": "a", "gpus": "some"}]}', "ladder[0].gpus: ", '"all"'),
    ('{"name": "x", "ladder": [{"name": "a", "gpus": []}]}', "ladder[0].gpus: ", "list of indices"),
    ('{"name": "x", "ladder": [{"name": "a", "gpus": [0, "0"]}]}', "ladder[0].gpus: ", "twice"),
    (
        '{"name": "x", "ladder": [{"name": "a", "gpus": 2, "launcher": "python"}]}',
        "ladder[0]: ",
        "one process",
    ),
    ('{"name": "x", "policy": {"cuda_om": "retry_same"}}', "policy.cuda_om: ", '"cuda_oom"'),
    ('{"name": "x", "policy": {"hang": "retry"}}', "policy.hang: ", "retry_same"),
    (
        '{"name": "x", "policy": {"overrides": {"cuda_om": "retry_same"}}}',
        "policy.overrides.cuda_om: ",
        'did you mean "cuda_oom"',
    ),
    (
        '{"name": "x", "policy": {"overrides": {"hang": "retry"}}}',
        "policy.overrides.hang: ",
        "retry_same",
    ),
    ('{"name": "x", "policy": {"backoff": {"first_s": 500}}}', "policy.backoff: ", "above"),
    ('{"name": "x", "policy": {"max_attempts": {"period_s": 0}}}', "period_s: ", "more than 0"),
    ('{"name": "x", "hang": {"sections": {"evl_s": 1}}}', "hang.sections.evl_s: ", "eval_s"),
    ('{"name": "x", "hang": {"enabled": "yes"}}', "hang.enabled: ", "must be true or false"),
    ('{"name": "x", "success": {"target_step": 1, "marker": "m"}}', "success: ", "one of"),
    ('{"name": "x", "stop": {"grace_s": "60"}}', "stop.grace_s: ", 'must be a number, not "60"'),
    ('{"name": "x", "notify": [{}]}', "notify[0]: ", "needs one of"),
    ('{"name": "x", "notify": [{"command": []}]}', "notify[0].command: ", "not be empty"),
    ('{"name": "x", "notify": [{"url": "ftp://x"}]}', "notify[0].url: ", "http://"),
    ('{"name": "x", "metrics": {"port": 70000}}', "metrics.port: ", "at most 65535"),
    ('{"name": "x",\n "name": "y"}', "2:2: name: ", "stands twice: in line 1"),
    (
        '{"name": "x", "worker": {"script": "t", "preset": "torchrun", "args": ["{micro_batch}"]}}',
        "1:1: ",
        "batch.global",
    ),
]


@pytest.mark.parametrize(("text", "where", "words"), INVALID)
def test_each_mistake_is_named_with_place_path_and_what_is_allowed(text, where, words):
    """One mistake gives one problem: file, line, column, JSON path, and what would be right."""
    (problem,) = _problems_of(text)
    assert problem.startswith(f"{FILE}:")
    assert where in problem
    assert words in problem


def test_all_mistakes_of_a_file_are_told_together_in_order():
    """A person corrects a file once; the tenth problem is the last one told in full."""
    wrong = ", ".join(f'"wrong{number:02d}": 1' for number in range(12))
    problems = _problems_of(f'{{{wrong}, "name": "x", "name": "y"}}')
    assert [f"wrong{n:02d}: unknown key" in problems[n] for n in range(10)] == [True] * 10
    assert problems[10] == f"{FILE}: and 3 more problems"


def test_a_value_of_the_environment_is_never_repeated():
    """A wrong value may still be a secret; elsewhere the value helps and is shown."""
    (problem,) = _problems_of('{"name": "x", "worker": {"env": {"TOKEN": 123456789}}}')
    assert "worker.env.TOKEN" in problem
    assert "123456789" not in problem
    (problem,) = _problems_of('{"name": "x", "stop": {"grace_s": "123456789"}}')
    assert "123456789" in problem


def test_braces_that_are_no_placeholder_are_left_alone():
    """JSON, empty braces, and doubled ones are plain text."""
    args = ['{"a": {"b": 1}}', "{}", "{0}", "{{checkpoint}}", "a{b", "{CAPITALS}"]
    settings = _settings_of({"name": "x"}, worker={"args": args})
    assert settings.worker.args == tuple(args)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is empty"),
        (b"\xff\xfe{", "is not UTF-8: byte 0xff at byte offset 0"),
        (b'{"name": "x", "stop": {"grace_s": 1e400}}', "too large"),
        (b'{"name": "x"} and more', "after the end"),
    ],
)
def test_text_that_is_no_json_is_one_sentence(data, words):
    """The name of the file comes first, then what is wrong."""
    (problem,) = _problems_of(data)
    assert problem.startswith(str(FILE))
    assert words in problem


def test_ten_megabytes_of_nesting_end_at_once():
    """Size or depth refuses them, long before the stack or the patience ends."""
    begun = time.monotonic()
    (problem,) = _problems_of(b"[" * 10_000_000)
    assert "larger than" in problem
    (problem,) = _problems_of(b"[" * 4_000_000)
    assert "nested deeper" in problem
    assert time.monotonic() - begun < 2


def test_settings_cannot_be_changed():
    """A value that was validated stays what it was."""
    settings = _settings_of({"name": "x"})
    with pytest.raises(ValueError, match="frozen"):
        settings.name = "y"


def test_the_schema_describes_every_key():
    """`schema config` is documentation: no key is without a description of its own or its type."""
    schema = config_schema()
    definitions = [schema, *schema["$defs"].values()]
    for definition in definitions:
        for key, entry in definition.get("properties", {}).items():
            described = "description" in entry or "$ref" in entry
            assert described, key
    assert schema["additionalProperties"] is False
    assert schema["required"] == ["name"]


# --- reading the file ---------------------------------------------------------------------------


def _read_problem(path):
    with pytest.raises(ConfigError) as caught:
        read_settings(path)
    (problem,) = caught.value.problems
    return problem


def test_a_file_is_read_with_its_own_folder_as_base(tmp_path, monkeypatch):
    """The working folder plays no part, and a link to the folder leads to the real one."""
    real = tmp_path / "real"
    real.mkdir()
    (real / "c.json").write_text('{"name": "x", "run_dir": "../r"}')
    (tmp_path / "link").symlink_to(real)
    monkeypatch.chdir(tmp_path)
    settings = read_settings(Path("link/c.json"))
    assert settings.run_dir == (tmp_path / "r").resolve()
    assert settings.worker.python.is_absolute()


def test_a_bare_interpreter_is_found_in_path(tmp_path, monkeypatch):
    """A name is looked up; one that is nowhere stays for preflight to tell."""
    python = tmp_path / "bin" / "mypython"
    python.parent.mkdir()
    python.write_text("#!/bin/sh\n")
    python.chmod(0o755)
    monkeypatch.setenv("PATH", str(python.parent))
    config = tmp_path / "c.json"
    config.write_text('{"name": "x", "worker": {"python": "mypython"}}')
    assert read_settings(config).worker.python == python
    config.write_text('{"name": "x", "worker": {"python": "nopython"}}')
    assert read_settings(config).worker.python == Path("nopython")


def test_a_file_that_cannot_be_read_is_one_sentence(tmp_path):
    """Missing, a folder, a FIFO and a link to nothing each have their own."""
    (tmp_path / "other.json").write_text("{}")
    missing = _read_problem(tmp_path / "missing.json")
    assert "does not exist" in missing
    assert "other.json" in missing
    assert "is a folder" in _read_problem(tmp_path)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    assert "is not a file" in _read_problem(fifo)
    (tmp_path / "dangling").symlink_to("nowhere")
    assert "does not exist" in _read_problem(tmp_path / "dangling")
    (tmp_path / "file").write_text("")
    assert "cannot be read" in _read_problem(tmp_path / "file" / "c.json")


def test_a_file_that_is_too_large_is_not_read_whole(tmp_path):
    """The limit holds for a sparse terabyte as well."""
    path = tmp_path / "large.json"
    with path.open("wb") as file:
        file.truncate(2**40)
    assert "larger than" in _read_problem(path)


def test_another_run_directory_takes_its_contents_along(tmp_path, monkeypatch):
    """What lay in the old run directory lies in the new one; what lay elsewhere stays."""
    monkeypatch.chdir(tmp_path)
    inside = _settings_of({"name": "x"}, metrics={"textfile": "m.prom"})
    moved = with_run_dir(inside, Path("elsewhere"))
    assert moved.run_dir == tmp_path / "elsewhere"
    assert moved.checkpoints.dir == tmp_path / "elsewhere" / "checkpoints"
    assert moved.metrics.textfile == tmp_path / "elsewhere" / "m.prom"
    outside = _settings_of({"name": "x"}, checkpoints={"dir": "/ckpt"})
    assert with_run_dir(outside, Path("elsewhere")).checkpoints.dir == Path("/ckpt")
    assert with_run_dir(inside, None) is inside
