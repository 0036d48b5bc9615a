import json
import shlex
from pathlib import Path

from humigence_supervise.checkpoints.choose import Choice
from humigence_supervise.config import parse_settings
from humigence_supervise.domain import Checkpoint, Gpu, Host
from humigence_supervise.journal import open_journal
from humigence_supervise.plan_text import plan_text
from humigence_supervise.plan_view import describe, plan_document
from humigence_supervise.records import Event, Record

FILE = Path("/jobs/c.json")
NO_CHECKPOINT = Choice(None, note="There is no checkpoint.")
TWO_GPUS = tuple(Gpu(n, f"GPU-{n}", "RTX 5090", 32607, 30000 + n) for n in (0, 1))


def _document(host=Host(cpu_count=2), choice=NO_CHECKPOINT, inherited=None, **changes):  # noqa: B008
    text = json.dumps({"name": "demo", "worker": {"script": "train.py"}, **changes})
    settings = parse_settings(text.encode(), FILE)
    return describe(settings, FILE, host=host, choice=choice, attempt=1, inherited=inherited or {})


def test_each_rung_has_its_command_environment_sums_and_gpus():
    """The document is complete, and it is JSON."""
    document = _document(Host(gpus=TWO_GPUS, cpu_count=16))
    assert json.loads(json.dumps(document)) == document
    two, one = document["rungs"]
    assert (two["rung"], one["rung"]) == ("multi_gpu", "single_gpu")
    assert two["sums"] == "8 = 2 ranks x 1 x micro-batch 4"
    assert one["sums"] == "8 = 1 rank x 2 x micro-batch 4"
    assert [gpu["uuid"] for gpu in one["gpus"]] == ["GPU-1"]
    assert two["argv"][1:3] == ["-m", "torch.distributed.run"]
    (debug,) = [change for change in two["env"] if change["name"] == "NCCL_DEBUG"]
    assert debug["setter"] == "hardened"
    assert debug["why"]
    assert (two["problem"], one["problem"]) == (None, None)


def test_a_machine_without_gpus_shows_the_plan_and_how_many_it_would_need():
    """Placeholders stand for the missing GPUs and are called so; the sums are those of two."""
    document = _document(
        accelerator="cuda", ladder=[{"name": "a", "gpus": 2}, {"name": "b", "gpus": 1}]
    )
    two, one = document["rungs"]
    assert "needs 2 GPU(s), this machine shows 0" in two["problem"]
    assert two["placeholder_gpus"]
    assert two["world_size"] == 2
    assert all("PLACEHOLDER" in gpu["uuid"] for gpu in two["gpus"])
    assert one["sums"] == "8 = 1 rank x 2 x micro-batch 4"
    text = plan_text(document)
    assert "cannot run here" in text
    assert "shown with placeholders" in text


def test_only_the_missing_gpus_are_placeholders():
    """With one GPU the single rung runs as it is, and still with the sums of two."""
    ladder = [{"name": "a", "gpus": 2}, {"name": "b", "gpus": 1}]
    document = _document(Host(gpus=TWO_GPUS[:1]), accelerator="cuda", ladder=ladder)
    two, one = document["rungs"]
    assert [gpu["uuid"] for gpu in two["gpus"]] == ["GPU-0", "GPU-PLACEHOLDER-1"]
    assert (one["problem"], one["gpus"][0]["uuid"]) == (None, "GPU-0")
    assert one["batch"]["global"] == 8


def test_placeholders_give_all_rungs_the_same_global_batch():
    """Also those that need none: the sums are those of the machine the ladder asks for."""
    ladder = [{"name": "a"}, {"name": "b", "gpus": 2}, {"name": "c", "gpus": 1}]
    document = _document(Host(gpus=TWO_GPUS[:1]), accelerator="cuda", ladder=ladder)
    assert [rung["placeholder_gpus"] for rung in document["rungs"]] == [False, True, False]
    assert [rung["batch"]["global"] for rung in document["rungs"]] == [8, 8, 8]


def test_all_gpus_and_named_gpus_have_placeholders_too():
    """Two are assumed for all; a named one stands for itself."""
    (everything,) = _document(accelerator="cuda", ladder=[{"name": "a", "gpus": "all"}])["rungs"]
    assert everything["world_size"] == 2
    ladder = [{"name": "a", "gpus": [3, "GPU-xyz"]}]
    (named,) = _document(accelerator="cuda", ladder=ladder)["rungs"]
    assert [gpu["uuid"] for gpu in named["gpus"]] == ["GPU-PLACEHOLDER-3", "GPU-xyz"]


def test_a_rung_whose_sums_fail_shows_only_its_problem():
    """The other rungs are still shown."""
    document = _document(
        ladder=[{"name": "a", "gpus": 2}, {"name": "b", "gpus": 3}, {"name": "c", "gpus": 1}]
    )
    good, bad, last = document["rungs"]
    assert "1, 2 ranks would do" in bad["problem"]
    assert "argv" not in bad
    assert (good["problem"], last["problem"]) == (None, None)
    assert "1, 2 ranks would do" in plan_text(document)


def test_the_checkpoint_that_would_be_used_is_named():
    """In the document, in the text, and in what the worker would get."""
    checkpoint = Checkpoint(Path("/ck/step-00000020"), step=20, samples=160)
    document = _document(choice=Choice(checkpoint))
    assert document["checkpoint"] == {"path": "/ck/step-00000020", "step": 20, "samples": 160}
    env = {change["name"]: change["value"] for change in document["rungs"][1]["env"]}
    assert env["HUMIGENCE_RESUME_FROM"] == "/ck/step-00000020"
    assert "step 20: /ck/step-00000020" in plan_text(document)
    assert "There is no checkpoint." in plan_text(_document())


def test_the_text_shows_who_set_what_and_a_command_to_copy():
    """Setter, variable and reason in one line; the command is quoted for a shell."""
    worker = {"script": "train.py", "args": ["a b", "$HOME"], "env": {"NCCL_DEBUG": "WARN"}}
    document = _document(worker=worker, inherited={"OMP_NUM_THREADS": "4", "PET_X": "1"})
    text = plan_text(document)
    lines = [line.split() for line in text.splitlines()]
    assert any(line[:2] == ["config", "NCCL_DEBUG=WARN"] for line in lines)
    assert any(line[:2] == ["inherited", "OMP_NUM_THREADS=4"] for line in lines)
    assert ["removed", "PET_X"] in lines
    command = next(line for line in text.splitlines() if "train.py" in line)
    assert shlex.split(command.strip().removeprefix("command"))[-2:] == ["a b", "$HOME"]


def test_later_rungs_show_only_what_differs():
    """What is the same as above is counted, what differs is shown."""
    document = _document(
        ladder=[{"name": "a", "gpus": 2}, {"name": "b", "gpus": 1, "env": {"Z": "1"}}]
    )
    _, second = plan_text(document).split("Rung 2 of 2")
    assert "variables as above" in second
    assert "Z=1" in second
    assert "HUMIGENCE_RUNG=b" in second
    assert "NCCL_IB_DISABLE" not in second


def test_secrets_and_control_characters_do_not_reach_the_terminal():
    """A token is redacted, an escape sequence written out."""
    worker = {"script": "t.py", "env": {"HF_TOKEN": "hf_secret", "PLAIN": "a\u001b[31mb\nc"}}
    document = _document(worker=worker)
    text = plan_text(document)
    assert "hf_secret" not in json.dumps(document) + text
    assert "PLAIN=" in text
    assert "\x1b" not in text


def test_the_document_of_this_machine_is_made_without_touching_anything(tmp_path):
    """No folder appears; a run that was there before counts its attempts on."""
    text = json.dumps({"name": "x", "accelerator": "cpu", "worker": {"module": "m"}})
    settings = parse_settings(text.encode(), tmp_path / "c.json")
    document = plan_document(settings, tmp_path / "c.json")
    assert document["rungs"][0]["attempt"] == 1
    assert not any(tmp_path.iterdir())
    (settings.run_dir / "attempts" / "0004").mkdir(parents=True)
    document = plan_document(settings, tmp_path / "c.json")
    assert document["rungs"][0]["attempt"] == 5


def test_what_is_missing_and_what_was_learned_is_shown(tmp_path):
    """The script is not there, and a GPU failed in this run: whoever plans has to know both."""
    text = (
        '{"name": "demo", "run_dir": "run", "accelerator": "cpu", "worker": {"script": "gone.py"}}'
    )
    settings = parse_settings(text.encode(), tmp_path / "config.json")
    (tmp_path / "run").mkdir()
    journal, _ = open_journal(tmp_path / "run" / "journal.jsonl", "demo")
    journal.append([Record(Event.GPU_READMITTED, "", facts={"excluded_gpus": ["GPU-1"]})])
    journal.close()
    document = plan_document(settings, tmp_path / "config.json")
    (problem,) = [one for one in document["problems"] if "gone.py" in one]
    assert document["excluded_gpus"] == ["GPU-1"]
    shown = plan_text(document)
    assert problem in shown
    assert "GPU-1" in shown
