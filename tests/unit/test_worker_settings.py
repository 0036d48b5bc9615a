"""The worker's configuration: what is accepted, and how every mistake is named."""

import json
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from humigence_worker.settings import (
    FaultName,
    FaultSetting,
    LrSchedule,
    WorkerConfigError,
    WorkerSettings,
    load_settings,
    snapshot,
)

CONFIGS = Path(__file__).parents[2] / "configs" / "worker"


@pytest.fixture
def write(tmp_path):
    """Return a function that writes a configuration and returns its path."""

    def write(content):
        path = tmp_path / "config.json"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def refusal(path):
    """Return the message that refuses the configuration at `path`."""
    with pytest.raises(WorkerConfigError) as caught:
        load_settings(path)
    return str(caught.value)


def test_every_key_has_a_default(write):
    """An empty object is a whole configuration, equal to the dataclass's own defaults."""
    assert load_settings(write("{}")) == WorkerSettings()


def test_values_are_read_with_their_types(write):
    """Numbers, words, flags and faults arrive typed; a whole number is a fine float."""
    loaded = load_settings(
        write(
            '{"seed": 7, "learning_rate": 1, "bf16": true, "lr_schedule": "linear", "faults": '
            '[{"name": "hang", "step": 3, "rank": 1}, {"name": "abort", "step": 4, "rank": "any"}]}'
        )
    )
    assert (loaded.seed, loaded.learning_rate, loaded.bf16) == (7, 1.0, True)
    assert isinstance(loaded.learning_rate, float)
    assert loaded.lr_schedule is LrSchedule.LINEAR
    assert loaded.faults == (
        FaultSetting(FaultName.HANG, step=3, rank=1),
        FaultSetting(FaultName.ABORT, step=4, rank=None),
    )


def test_micro_batch_follows_the_batch_size(write):
    """Without micro_batch, all samples of a device and step go through at once."""
    assert load_settings(write('{"per_device_train_batch_size": 6}')).micro_batch == 6
    given = '{"per_device_train_batch_size": 6, "micro_batch": 3}'
    assert load_settings(write(given)).micro_batch == 3


def test_epochs_replace_the_default_of_steps(write):
    """Exactly one of epochs and max_steps is set in what comes out."""
    loaded = load_settings(write('{"epochs": 2}'))
    assert (loaded.epochs, loaded.max_steps) == (2, None)
    loaded = load_settings(write('{"max_steps": 5, "epochs": null}'))
    assert (loaded.epochs, loaded.max_steps) == (None, 5)


def test_a_byte_order_mark_is_accepted(write):
    """A file as some editors save it is read like any other."""
    assert load_settings(write(b'\xef\xbb\xbf{"seed": 3}')).seed == 3


def test_relative_paths_are_relative_to_the_file(write, tmp_path):
    """Data and the folder of a fault are found beside the configuration, from any directory."""
    loaded = load_settings(
        write('{"data": "texts", "faults": [{"name": "fill_disk", "step": 1, "folder": "full"}]}')
    )
    assert loaded.data == str(tmp_path / "texts")
    assert loaded.faults[0].folder == str(tmp_path / "full")
    assert load_settings(write('{"data": "/abs"}')).data == "/abs"
    assert load_settings(write('{"data": "stdlib"}')).data == "stdlib"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", ["empty", "{}"]),
        (" \n", ["empty"]),
        (b'{"data": "\xff"}', ["line 1", "UTF-8"]),
        ("[1]", ["a list", "object"]),
        ('{"seed": 1,\n}', ["line 2", "not valid JSON"]),
        ('{"seed": 1,\n "seed": 2}', ["line 2", '"seed"', "twice"]),
        ('{\n"learning_rate": 1e400}', ["line 2", "1e400", "too large"]),
        ('{"learning_rate": NaN}', ["line 1", "NaN", "finite"]),
        ('{"dropout": -Infinity}', ["-Infinity", "finite"]),
        ('{"seed": ' + "9" * 5000 + "}", ["line 1", "5000 digits"]),
        ("[" * 100_000, ["nested too deeply"]),
        ('{"a":' * 100_000, ["nested too deeply"]),
        ('{\n\n"warmup_step": 1}', ["line 3", "warmup_step", "unknown", '"warmup_steps"']),
        ('{"lr": 1}', ["unknown", '"learning_rate"']),
        ('{"num_train_epochs": 1}', ["unknown", '"epochs"']),
        ('{"zzz": 1}', ["unknown", "known are", "seq_len"]),
        ('{"seed": 1.5}', ["seed", "whole number", "1.5"]),
        ('{"seed": true}', ["seed", "whole number", "true or false"]),
        ('{"seed": -1}', ["seed", "from 0", "-1"]),
        ('{"seed": "1"}', ["seed", "a string"]),
        ('{"seq_len": 4}', ["seq_len", "from 8 to 65536", "4"]),
        ('{"learning_rate": "fast"}', ["learning_rate", "a number", "a string"]),
        ('{"bf16": 1}', ["bf16", "true or false", "a number"]),
        ('{"data": 1}', ["data", "a string"]),
        ('{"data": ""}', ["data", "empty"]),
        ('{"data": "\\ud800"}', ["data", "surrogate"]),
        ('{"data": null}', ["data", "null"]),
        ('{"lr_schedule": "cosinus"}', ["cosine, linear, constant", 'mean "cosine"']),
        ('{"faults": {}}', ["faults", "a list", "an object"]),
        ('{"faults": [1]}', ["faults[0]", "an object", "a number"]),
        ('{"faults": [{"step": 1}]}', ["faults[0].name", "missing"]),
        ('{"faults": [{"name": "sigkil", "step": 1}]}', ["faults[0].name", 'mean "sigkill"']),
        ('{"faults": [{"name": "hang", "stp": 1}]}', ["faults[0].stp", '"step"']),
        ('{"faults": [{"name": "hang", "step": 0}]}', ["faults[0].step", "from 1"]),
        ('{"faults": [{"name": "hang", "step": 1, "rank": "all"}]}', ["faults[0].rank"]),
        ('{"faults": [{"name": "hang", "step": 1, "folder": "x"}]}', ["faults[0]", "fill_disk"]),
        ('{"faults": [{"name": "fill_disk", "step": 1}]}', ["faults[0]", "folder"]),
        ('{"epochs": 1, "max_steps": 1}', ["epochs", "max_steps", "one of the two"]),
        ('{"max_steps": null}', ["max_steps", "epochs"]),
        ('{"d_model": 130, "n_heads": 4}', ["d_model", "130", "multiple of 8"]),
        ('{"micro_batch": 3}', ["micro_batch", "does not divide", "4"]),
    ],
)
def test_a_mistake_is_named_with_its_place(write, content, expected):
    """Every refusal names the file and says what is wrong, where, and what is allowed."""
    path = write(content)
    message = refusal(path)
    for word in [str(path), *expected]:
        assert word in message
    assert len(message) < 2000


def test_a_path_that_is_no_file_is_named(tmp_path):
    """A missing file and a folder are told apart."""
    assert "no such file" in refusal(tmp_path / "absent.json")
    assert "folder" in refusal(tmp_path)
    assert "cannot be read" in refusal(tmp_path / ("x" * 300))


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.json")), ids=lambda path: path.name)
def test_shipped_configurations_load(path):
    """No configuration in the repository rots."""
    assert isinstance(load_settings(path), WorkerSettings)


def test_configurations_are_shipped():
    """The test above has something to read."""
    assert {path.name for path in CONFIGS.glob("*.json")} >= {"demo-cpu.json", "humigence.json"}


@settings(max_examples=50, deadline=None)
@given(
    st.builds(
        WorkerSettings,
        seed=st.integers(0, 2**63 - 1),
        learning_rate=st.floats(0, 10),
        bf16=st.booleans(),
        lr_schedule=st.sampled_from(LrSchedule),
        faults=st.tuples(
            st.builds(
                FaultSetting,
                st.sampled_from([name for name in FaultName if name is not FaultName.FILL_DISK]),
                st.integers(1, 10**9),
                st.none() | st.integers(0, 7),
            )
        ),
    )
)
def test_a_snapshot_reads_back_as_the_same_settings(tmp_path_factory, given):
    """What is written for the record is the configuration itself, floats to the last bit."""
    path = tmp_path_factory.mktemp("snapshot") / "config.snapshot.json"
    path.write_text(json.dumps(snapshot(given)))
    assert load_settings(path) == given


def test_a_snapshot_keeps_epochs_and_folders(write, tmp_path):
    """The settings that are absent by default come back too, paths absolute."""
    loaded = load_settings(
        write(
            '{"epochs": 3, "data": "d", "faults": '
            '[{"name": "fill_disk", "step": 1, "folder": "f", "max_mib": 5}]}'
        )
    )
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    (moved / "c.json").write_text(json.dumps(snapshot(loaded)))
    assert load_settings(moved / "c.json") == loaded


def test_a_snapshot_names_every_key_that_is_set():
    """Nothing that decides a run is left to a default that a later version might change."""
    unset = {"epochs"}
    assert set(snapshot(WorkerSettings())) == {f.name for f in fields(WorkerSettings)} - unset


def test_settings_need_no_torch():
    """A mistake in the configuration is reported before seconds of imports."""
    code = "import sys, humigence_worker.settings; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
