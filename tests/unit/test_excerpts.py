"""Excerpts of public logs: how many are read right, those that rows were written for and others."""

import json
from pathlib import Path

import pytest

from humigence_supervise.diagnose import diagnose
from humigence_supervise.domain import Kind, Remedy
from humigence_supervise.reading import read_input

FOLDER = Path(__file__).resolve().parent.parent / "corpus" / "excerpts"
EITHER = {Remedy.REDUCE_MICROBATCH, Remedy.FALLBACK_SINGLE_GPU}
"""Both are right against an out-of-memory error of the workload."""


def load(name):
    """Return the excerpts of a file."""
    return [json.loads(line) for line in (FOLDER / name).read_text().splitlines()]


def read(case, folder):
    """Return what the reader says of an excerpt."""
    log = folder / f"{case['id']}.log"
    log.write_text(case["excerpt"], encoding="utf-8")
    return diagnose(read_input(str(log), case["exit_code"]))


def right_actions(case):
    """Return the actions that are right for an excerpt."""
    action = Remedy(case["expected_action"])
    return EITHER if case["kind"] == Kind.CUDA_OOM and action in EITHER else {action}


@pytest.mark.parametrize(
    ("name", "kinds", "actions"), [("read.jsonl", 0.93, 0.90), ("aside.jsonl", 0.86, 0.85)]
)
def test_share_that_is_read_right(name, kinds, actions, tmp_path):
    """The share of right kinds and actions does not fall; a fall says what is wrong."""
    cases = load(name)
    found = [(case, read(case, tmp_path)) for case in cases]
    wrong_kinds = [
        f"{case['id']}: {one.kind}, right is {case['kind']}: {case['why']}"
        for case, one in found
        if one.kind != case["kind"]
    ]
    wrong_actions = [
        f"{case['id']}: {one.remedy}, right is {case['expected_action']}: {case['why']}"
        for case, one in found
        if one.remedy not in right_actions(case)
    ]
    assert len(wrong_kinds) <= (1 - kinds) * len(cases), "\n".join(wrong_kinds)
    assert len(wrong_actions) <= (1 - actions) * len(cases), "\n".join(wrong_actions)


@pytest.mark.parametrize("name", ["read.jsonl", "aside.jsonl"])
def test_excerpts_are_complete(name):
    """Every excerpt has its labels, in the words of the contract, and an own id."""
    cases = load(name)
    assert len({case["id"] for case in cases}) == len(cases)
    for case in cases:
        assert Kind(case["kind"])
        assert Remedy(case["expected_action"])
        assert case["excerpt"].strip()
        assert case["why"]
        assert case["source"]


def test_a_cause_comes_with_the_line_that_shows_it(tmp_path):
    """Where an excerpt is read right, its root names a line that is there."""
    for case in load("read.jsonl"):
        found = read(case, tmp_path)
        if found.kind != case["kind"] or found.root is None:
            continue
        assert 1 <= found.root.line <= case["excerpt"].count("\n") + 1
