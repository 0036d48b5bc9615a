"""Steps and targets in the output of programs that write no progress files."""

import json
import os
import time

import pytest

from humigence_supervise.config_models import Settings
from humigence_supervise.observe import log_steps
from humigence_supervise.observe.log_steps import LogSteps, read_log_steps
from humigence_supervise.observe.success import unproven

NOTHING = LogSteps()
LOADING = "Map: 100%|##########| 1000/1000 [00:01<00:00, 812.10 examples/s]\n"
SHARDS = "Loading checkpoint shards: 100%|#####| 2/2 [00:04<00:00,  2.10s/it]\n"
ANNOUNCED = "INFO:__main__:  Total optimization steps = {}\n"
SUMMARY = "{'train_runtime': 116.19, 'train_samples_per_second': 6.8, 'epoch': 0.15}\n"


def settings_of(preset, pattern=None, **success):
    """Return the settings of a foreign script."""
    worker = {"script": "train.py", "preset": preset}
    if pattern:
        worker["progress"] = {"pattern": pattern}
    text = json.dumps({"name": "x", "worker": worker, "success": success})
    return Settings.model_validate_json(text)


def bar(count, total, before=""):
    """Return a bar as tqdm draws it, over the one before."""
    rate = "?" if count == 0 else "4.55"
    share = f"{100 * count // total:3d}%"
    return (
        f"\r{before}{share}|{'#' * (10 * count // total):10}| {count}/{total} [00:02<?, {rate}it/s]"
    )


def bars(*counts, total, before=""):
    """Return several drawings of one bar and the end of its line."""
    return "".join(bar(count, total, before) for count in counts) + "\n"


@pytest.fixture
def attempt(tmp_path):
    """Return a function that writes a stream of a rank and gives the attempt's folder."""

    def write(text, *, rank=0, stream="stderr"):
        path = tmp_path / "ranks" / str(rank) / f"{stream}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return tmp_path

    return write


def resumed(attempt_dir, step):
    """Say in the attempt's plan that it was given a checkpoint."""
    plan = {"resume_from": {"path": "/c", "step": step, "samples": 0}}
    (attempt_dir / "plan.json").write_text(json.dumps(plan))


def read(attempt_dir, preset, pattern=None):
    """Return what the output shows."""
    return read_log_steps(attempt_dir, settings_of(preset, pattern))


def why(attempt_dir, preset, pattern=None, **success):
    """Return why exit code 0 proves nothing."""
    return unproven(settings_of(preset, pattern, **success), attempt_dir, progress_seen=False)


# --- the bar of the trainer of transformers -----------------------------------------------------


def test_the_training_bar_is_the_first_one_without_a_description(attempt):
    """Loading has one; evaluation comes later, inside and after the training."""
    text = LOADING + SHARDS + bar(0, 1000) + bar(60, 1000) + bars(0, 50, total=50)
    where = attempt(text + bars(61, 120, total=1000) + bars(0, 50, total=50))
    assert read(where, "hf_trainer") == LogSteps(60, 120, 1000, 0)
    assert why(where, "hf_trainer") == "its output shows step 120, the target is 1000"


def test_a_bar_of_another_unit_counts_no_steps(attempt):
    """Files are downloaded, and data is read, under bars that have no description either."""
    other = "".join(f" 35%|###  | 73/208 [00:20<00:40,  9.1{unit}/s]\n" for unit in ("MB", "ex"))
    where = attempt(other + bars(0, 60, total=1000))
    assert read(where, "hf_trainer") == LogSteps(60, 60, 1000, 0)
    attempt(other + " 6%|#  | 60/1000 [31:02<9:04:10, 10.31s/it, loss=1.2]\n")
    assert read(where, "hf_trainer") == LogSteps(60, 60, 1000, 0)


def test_a_training_that_reached_its_target_is_believed(attempt):
    """The bar is drawn once more when it is closed."""
    where = attempt(LOADING + bars(0, 60, 1000, total=1000) + bars(0, 50, total=50))
    assert read(where, "hf_trainer") == LogSteps(60, 1000, 1000, 0)
    assert why(where, "hf_trainer") == ""


def test_a_training_that_began_no_step_is_not_believed(attempt):
    """A bar that stands at 0 says so."""
    where = attempt(bars(0, total=1000))
    assert read(where, "hf_trainer") == LogSteps(None, 0, 1000, 0)
    assert why(where, "hf_trainer") == "its output shows step 0, the target is 1000"


def test_a_training_that_returned_was_stopped_by_its_own_rule(attempt):
    """Early stopping prints the summary; without it, it was no end."""
    where = attempt(bars(0, 60, 700, total=1000))
    assert why(where, "hf_trainer") == "its output shows step 700, the target is 1000"
    attempt(SUMMARY, stream="stdout")
    assert why(where, "hf_trainer") == ""


def test_a_configured_target_counts_more_than_the_program_s_own_end(attempt):
    """Who names the step that must be reached means it; a smaller one than the bar's is enough."""
    where = attempt(bars(0, 60, 700, total=1000))
    attempt(SUMMARY, stream="stdout")
    assert why(where, "hf_trainer", target_step=800) == (
        "its output shows step 700, the target is 800"
    )
    assert why(where, "hf_trainer", target_step=700) == ""
    assert why(where, "hf_trainer", exit_code_only=True) == ""


def test_a_summary_that_may_stand_in_an_unreadable_stream_is_no_missing_one(attempt):
    """What could not be searched is unknown, not absent."""
    where = attempt(bars(0, 120, total=1000))
    os.mkfifo(where / "ranks" / "0" / "stdout.log")
    assert why(where, "hf_trainer") == ""


def test_text_around_a_bar_does_not_hide_it(attempt):
    """Colours, cursor codes, a message glued to its end; one glued to its front describes it."""
    text = f"{bar(0, 1000)}`loss_type=None` was set\n\x1b[A\x1b[32m{bar(7, 1000)}\x1b[0m\n"
    where = attempt(text + "warned  1%|#  | 8/1000 [00:02<?, 4it/s]\n" + bars(9, total=1000))
    assert read(where, "hf_trainer") == LogSteps(7, 9, 1000, 0)


@pytest.mark.parametrize("preparation", [bars(0, 100, total=100), bars(0, 100, total=5000)])
def test_a_bar_of_the_script_itself_may_come_first(attempt, preparation):
    """One that another bar outruns is perhaps not the training's: nothing is concluded."""
    where = attempt(preparation + bars(0, 60, 1000, total=1000))
    assert read(where, "hf_trainer") == NOTHING
    assert why(where, "hf_trainer", target_step=1000) == ""


def test_a_bar_that_goes_on_behind_another_is_the_training_s(attempt):
    """An evaluation may take more batches than the training takes steps."""
    evaluation = bars(0, 3000, total=3000)
    where = attempt(bars(0, 60, total=1000) + evaluation + bars(61, 120, total=1000) + evaluation)
    assert read(where, "hf_trainer") == LogSteps(60, 120, 1000, 0)


def test_an_announced_total_settles_which_bar_it_is(attempt):
    """It is printed where the log level is info; large numbers have commas."""
    text = ANNOUNCED.format("1,200") + bars(0, 100, total=5000) + bars(0, 60, total=1200)
    where = attempt(text)
    assert read(where, "hf_trainer") == LogSteps(60, 60, 1200, 0)
    attempt(text + ANNOUNCED.format(60))
    assert read(where, "hf_trainer") == NOTHING


def test_a_bar_that_begins_anew_counts_no_steps_of_the_run(attempt):
    """A second training, or the batches of an epoch."""
    where = attempt(bars(0, 60, 120, total=120) + bars(0, 60, total=120))
    assert read(where, "hf_trainer") == NOTHING


def test_only_rank_0_draws_the_bar(attempt):
    """A bar of another rank is the script's own."""
    where = attempt(bars(0, 60, total=5000), rank=1)
    assert read(where, "hf_trainer") == NOTHING


def test_without_a_bar_nothing_is_concluded(attempt, tmp_path):
    """An output that says nothing, and none at all."""
    assert read(tmp_path, "hf_trainer") == NOTHING
    where = attempt(LOADING + SHARDS + "done\n")
    assert read(where, "hf_trainer") == NOTHING
    assert why(where, "hf_trainer", target_step=5) == ""


def test_a_resumed_training_goes_on_counting(attempt):
    """Its first step is above the checkpoint's; below it, nobody knows what it counts."""
    where = attempt(bars(0, 501, 620, total=1000))
    resumed(where, 500)
    assert read(where, "hf_trainer") == LogSteps(501, 620, 1000, 0)
    attempt(bars(0, 1, 500, total=1000))
    assert read(where, "hf_trainer") == NOTHING


# --- accelerate's examples ----------------------------------------------------------------------


def test_an_accelerate_script_has_to_announce_its_total(attempt):
    """A bare bar may count the batches of an epoch that is left at the last step."""
    where = attempt(bars(0, 60, total=1000))
    assert read(where, "accelerate") == NOTHING
    attempt(ANNOUNCED.format(1000) + LOADING + bars(0, 60, total=1000))
    assert read(where, "accelerate") == LogSteps(60, 60, 1000, 0)
    assert why(where, "accelerate") == "its output shows step 60, the target is 1000"
    attempt(ANNOUNCED.format(1000) + LOADING + bars(0, 60, 1000, total=1000))
    assert why(where, "accelerate") == ""


def test_the_bar_of_diffusers_is_called_steps(attempt):
    """That one description is a training's, once its total was announced."""
    where = attempt(ANNOUNCED.format(500) + bars(0, 60, total=500, before="Steps: "))
    assert read(where, "accelerate") == LogSteps(60, 60, 500, 0)
    attempt(ANNOUNCED.format(500) + bars(0, 60, total=500, before="Epochs: "))
    assert read(where, "accelerate") == NOTHING


def test_a_resumed_script_may_count_from_its_resumption(attempt):
    """Old ones do: their bar ends short of its total, and nothing can be concluded from it."""
    start = ANNOUNCED.format(1000) + "Resumed from checkpoint: out/step_500\n"
    where = attempt(start + bars(0, 1, 500, total=1000))
    assert read(where, "accelerate") == NOTHING
    attempt(start + bars(0, 500, 620, total=1000))
    assert read(where, "accelerate") == LogSteps(500, 620, 1000, 0)


# --- lines that tell a step ---------------------------------------------------------------------


def iterations(*steps):
    """Return nanoGPT's lines."""
    return "".join(f"iter {step}: loss 1.2345, time 561.94ms, mfu 15.3%\n" for step in steps)


def test_nanogpt_shows_steps_and_no_target(attempt):
    """Only the configured target says what is missing."""
    where = attempt(iterations(0, 10, 20, 30), stream="stdout")
    assert read(where, "nanogpt") == LogSteps(10, 30, None, 10)
    assert why(where, "nanogpt") == ""
    assert why(where, "nanogpt", target_step=2000) == (
        "its output shows step 30, the target is 2000"
    )


def test_steps_that_are_not_shown_may_have_followed(attempt):
    """One line in ten steps: the 2005th has none."""
    where = attempt(iterations(*range(0, 2001, 10)), stream="stdout")
    assert why(where, "nanogpt", target_step=2005) == ""
    assert why(where, "nanogpt", target_step=2011) != ""


@pytest.mark.parametrize(("step", "clear"), [(0, False), (1, False), (120, True)])
def test_one_step_alone_tells_little(attempt, step, clear):
    """After the very first one, the next line may come at any distance."""
    where = attempt(iterations(step), stream="stdout")
    assert bool(why(where, "nanogpt", target_step=1000)) is clear


def test_the_configured_pattern_wins_over_the_preset(attempt):
    """It is tried on every rank's output; the furthest counts."""
    where = attempt(bars(0, 60, total=1000) + "step 5 done\nstep 6 done\n")
    attempt("step 5 done\nstep 6 done\nstep 7 done\n", rank=3, stream="stdout")
    for preset in ("hf_trainer", "torchrun", "lightning"):
        assert read(where, preset, r"^step (\d+) done$") == LogSteps(5, 7, None, 1)


def test_steps_that_go_back_are_no_steps_of_the_run(attempt):
    """A pattern that fits the batches of an epoch counts them anew in each."""
    where = attempt(iterations(0, 10, 20, 0, 10), stream="stdout")
    assert read(where, "nanogpt") == NOTHING
    assert why(where, "nanogpt", target_step=2000) == ""


def test_what_a_pattern_finds_need_be_no_number(attempt):
    """A group that is optional or wide is passed over where it holds none."""
    where = attempt("step\nstep five\nstep 5\n")
    assert read(where, "torchrun", r"step(?: (\w+))?") == LogSteps(5, 5, None, 5)


def test_steps_below_the_resumption_are_of_another_count(attempt):
    """The program began anew, or counts from there."""
    where = attempt(iterations(10, 20, 30), stream="stdout")
    resumed(where, 20)
    assert read(where, "nanogpt") == NOTHING
    resumed(where, 10)
    assert read(where, "nanogpt").last == 30


@pytest.mark.parametrize("preset", ["lightning", "torchrun"])
def test_a_preset_without_a_pattern_shows_nothing(attempt, preset):
    """Lightning's bar counts the batches of an epoch."""
    epoch = bars(0, 60, 120, total=1000, before="Epoch 0: ")
    where = attempt(epoch + bars(0, 60, total=1000))
    assert read(where, preset) == NOTHING
    assert why(where, preset) == ""
    assert why(where, preset, target_step=1000) == ""


# --- large and strange outputs ------------------------------------------------------------------


def test_of_a_large_output_the_end_decides(attempt, monkeypatch):
    """Steps in the middle are not read; where the end shows none, the last one is unknown."""
    monkeypatch.setattr(log_steps, "_FILE_BYTES", 4000)
    where = attempt(bars(*range(100), total=1000) + "x" * 5000 + "\n" + bars(500, total=1000))
    assert read(where, "hf_trainer").last == 500
    attempt(bars(*range(100), total=1000) + "x" * 5000 + "\n")
    assert read(where, "hf_trainer") == NOTHING
    attempt(iterations(*range(100)) + "x" * 5000, stream="stdout")
    assert read(where, "nanogpt") == NOTHING


@pytest.mark.parametrize("most_bytes", range(4000, 4040, 4))
def test_a_line_that_was_cut_is_not_read(attempt, monkeypatch, most_bytes):
    """Half a number would be a wrong one, on both sides of what was left out."""
    monkeypatch.setattr(log_steps, "_FILE_BYTES", most_bytes)
    where = attempt("".join(f"step {step}\n" for step in range(1000, 3000)))
    assert read(where, "torchrun", r"(\d+)$") == LogSteps(1000, 2999, None, 1)


def test_bytes_that_are_no_text_are_survived(attempt):
    """NUL, bad UTF-8, and numbers that no counter reaches."""
    where = attempt(b"\xff\xfe\0\r\n" * 10 + b"iter " + b"9" * 5000 + b": loss\n\niter 3: loss\n")
    assert read(where, "nanogpt").last == 3
    assert read(where, "torchrun", r"iter (\d+)").last == 3


def test_reading_takes_a_moment(attempt):
    """A night's bars in one stream, and chatter in those of eight ranks."""
    where = attempt("".join(bar(step, 200_000) for step in range(100_000)) + "\n")
    for rank in range(8):
        attempt("some line of a log that nobody reads\n" * 50_000, rank=rank, stream="stdout")
    begun = time.monotonic()
    assert read(where, "hf_trainer").last == 99_999
    assert read(where, "torchrun", r"step (\d+)") == NOTHING
    assert time.monotonic() - begun < 10
