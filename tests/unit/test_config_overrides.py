"""Which action may be configured after which kind of failure, pair by pair."""

import json
from pathlib import Path

import pytest

from humigence_supervise.config import ConfigError, config_schema, parse_settings
from humigence_supervise.config_overrides import ALLOWED, refused_overrides
from humigence_supervise.domain import Kind, Remedy

FILE = Path("/jobs/demo.json")

# kind                fallback retry reduce older wait stop none
DECIDED = """
healthy                  -       -     -      -     -    -    -
nccl_init                yes     yes   -      -     yes  yes  -
nccl_timeout             yes     yes   -      -     yes  yes  -
nccl_remote              yes     yes   -      -     yes  yes  -
nccl_internal            yes     yes   -      -     yes  yes  -
nvlink_p2p               yes     yes   -      -     yes  yes  -
rendezvous               yes     yes   -      -     yes  yes  -
cuda_oom                 yes     yes   yes    -     yes  yes  -
host_oom                 yes     yes   yes    -     yes  yes  -
shm                      yes     yes   -      -     yes  yes  -
gpu_fault                yes     yes   -      -     yes  yes  -
gpu_unsupported          -       yes   -      -     yes  yes  -
device_assert            yes     yes   -      yes   yes  yes  -
device_mismatch          yes     yes   -      -     yes  yes  -
dataloader               yes     yes   -      -     yes  yes  -
checkpoint_corrupt       -       yes   -      yes   yes  yes  -
disk_full                -       -     -      -     yes  yes  -
network_hub              -       yes   -      -     yes  yes  -
preempted                yes     yes   -      -     yes  yes  -
segfault                 yes     yes   -      -     yes  yes  -
nan_divergence           yes     yes   -      yes   yes  yes  -
import_error             -       yes   -      -     yes  yes  -
config_error             -       -     -      -     -    yes  -
user_code                yes     yes   -      yes   yes  yes  -
cuda_init_fork           yes     yes   -      -     yes  yes  -
hang                     yes     yes   -      -     yes  yes  -
premature_success        -       yes   -      -     yes  yes  -
unknown                  yes     yes   -      -     yes  yes  -
"""
ROWS = [line.split() for line in DECIDED.split("\n") if line]
PAIRS = [
    pytest.param(Kind(kind), remedy, word == "yes", id=f"{kind}-{remedy}")
    for kind, *words in ROWS
    for remedy, word in zip(Remedy, words, strict=True)
]


def problems_of(**document):
    """Return what is wrong with a configuration, "" for nothing."""
    text = json.dumps({"name": "x", **document})
    try:
        parse_settings(text.encode(), FILE)
    except ConfigError as error:
        return list(error.problems)
    return []


def test_the_table_decides_every_pair():
    """No kind and no action was forgotten."""
    assert [Kind(row[0]) for row in ROWS] == list(Kind)
    assert set(ALLOWED) == set(Kind)
    assert len(PAIRS) == len(Kind) * len(Remedy)


@pytest.mark.parametrize(("kind", "remedy", "allowed"), PAIRS)
def test_each_pair_is_taken_or_refused_in_both_spellings(kind, remedy, allowed):
    """A refusal names kind, action and what is allowed, at the place where it was written."""
    entry = {kind.value: remedy.value}
    for policy, where in ((entry, "policy"), ({"overrides": entry}, "policy.overrides")):
        problems = problems_of(policy=policy)
        if allowed:
            assert problems == []
            continue
        (problem,) = problems
        assert f": {where}.{kind}: " in problem
        assert "Allowed" in problem
        if kind is not Kind.HEALTHY:
            assert f'"{remedy}" makes no sense for {kind}: ' in problem
            told = problem.rpartition(f"Allowed for {kind}: ")[2].split(", ")
            assert told == list(ALLOWED[kind])


@pytest.mark.parametrize(
    ("kind", "remedy", "why"),
    [
        ("config_error", "retry_same", "as wrong at the next start"),
        ("disk_full", "retry_same", "room on the disk"),
        ("network_hub", "fallback_single_gpu", "on a single GPU too"),
        ("hang", "reduce_microbatch", "memory ran out"),
        ("segfault", "resume_older_checkpoint", "in no checkpoint"),
        ("unknown", "none", "needs an action"),
        ("healthy", "stop_and_tell", "is no failure"),
    ],
)
def test_a_refusal_says_why(kind, remedy, why):
    """The reason is that of the kind, where nothing else helps it, else that of the action."""
    (problem,) = problems_of(policy={kind: remedy})
    assert why in problem


def test_the_place_is_the_line_it_stands_in():
    """Of the value; of the key where no value would do."""
    text = """{"name": "x", "policy": {
  "retries": 2,
  "hang": "reduce_microbatch",
  "overrides": {"segfault": "retry_same",
    "healthy": "retry_same",
    "disk_full":
      "retry_same"}}}"""
    with pytest.raises(ConfigError) as caught:
        parse_settings(text.encode(), FILE)
    places = [problem.split(": ")[:2] for problem in caught.value.problems]
    assert places == [
        [f"{FILE}:3:11", "policy.hang"],
        [f"{FILE}:5:5", "policy.overrides.healthy"],
        [f"{FILE}:7:7", "policy.overrides.disk_full"],
    ]


def test_it_is_told_together_with_everything_else():
    """A configuration that is wrong elsewhere still has its overrides judged, each problem once."""
    problems = problems_of(stop={"grace_s": "60"}, policy={"hang": "none", "shm": "retry"})
    assert [problem.split(": ")[1] for problem in problems] == [
        "stop.grace_s",
        "policy.hang",
        "policy.shm",
    ]


def test_there_is_nothing_to_fall_back_to_on_a_ladder_of_one_rung():
    """The default ladder has two; with one only, the action is not offered either."""
    one = [{"name": "only", "gpus": 2}]
    two = [*one, {"name": "single", "gpus": 1}]
    policy = {"hang": "fallback_single_gpu"}
    assert problems_of(policy=policy, ladder=two) == []
    (problem,) = problems_of(policy=policy, ladder=one)
    assert "the ladder has no lower rung" in problem
    assert problem.endswith("Allowed for hang: retry_same, wait_then_retry, stop_and_tell")
    assert problems_of(policy={"hang": "retry_same"}, ladder=one) == []


def test_a_batch_that_nobody_stated_cannot_be_reduced():
    """The reference worker has one; a foreign script's has to be in the configuration."""
    foreign = {"script": "t.py", "preset": "hf_trainer"}
    policy = {"cuda_oom": "reduce_microbatch"}
    (problem,) = problems_of(policy=policy, worker=foreign)
    assert "no batch is known (batch.global, batch.micro)" in problem
    assert "reduce_microbatch" not in problem.rpartition("Allowed")[2]
    assert problems_of(policy=policy, worker=foreign, batch={"micro": 4, "global": 8}) == []
    assert problems_of(policy=policy, worker={"script": "t.py"}) == []


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        {"policy": None},
        {"policy": [1]},
        {"policy": {"overrides": 1, "hang": ["none"], "shm": None, "x": "none"}},
        {"policy": {"hang": "retry_same"}, "worker": 1, "batch": [], "ladder": {}},
    ],
)
def test_what_has_another_shape_is_left_to_the_models(document):
    """They tell it; here it is passed over."""
    assert refused_overrides(document) == []


def test_editors_know_the_flat_spelling():
    """The schema has a property for each kind, with the actions that it takes."""
    policy = config_schema()["$defs"]["PolicySettings"]
    assert policy["additionalProperties"] is False
    kinds = {key: entry for key, entry in policy["properties"].items() if key in set(Kind)}
    assert set(kinds) == set(Kind) - {Kind.HEALTHY}
    assert kinds["disk_full"]["enum"] == ["wait_then_retry", "stop_and_tell"]
    assert "retries" in policy["properties"]
