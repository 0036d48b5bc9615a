"""A rule counts only once it has caught a fault: each of these supervisors has one."""

from __future__ import annotations

import pytest
from simulation import (
    faulty_actors,
    faulty_judges,
    faulty_machines,
    rules_of_acting,
    rules_of_deciding,
    rules_of_ending,
    rules_of_waiting,
    setups,
)
from simulation.histories import play
from simulation.planting import FAULTS, Fault, Patch
from simulation.troubles import operator_of, world_of

SEEDS = 600
PLANTED = (faulty_actors, faulty_judges, faulty_machines)
"""Where the faults are; to be imported is to be known."""


@pytest.mark.parametrize(("fault", "rule"), FAULTS, ids=[fault.__name__ for fault, _ in FAULTS])
def test_a_planted_fault_is_caught(fault: Fault, rule: str, monkeypatch: Patch) -> None:
    """Within some hundred histories the rule breaks that was made for the fault."""
    setups.planned_once.cache_clear()
    fault(monkeypatch)
    broken: list[str] = []
    try:
        for seed in range(SEEDS):
            try:
                play(world_of(seed), seed, persisted=seed % 2 == 0, operator=operator_of(seed))
            except AssertionError as error:
                broken.append(getattr(error, "rule", repr(error)))
                if broken[-1] == rule:
                    return
    finally:
        setups.planned_once.cache_clear()
    pytest.fail(f"not caught; what broke instead: {sorted(set(broken))}")


def test_every_rule_has_caught_a_fault() -> None:
    """No rule is there for show."""
    rules = {
        rule.__name__
        for module in (rules_of_acting, rules_of_deciding, rules_of_ending, rules_of_waiting)
        for name, table in vars(module).items()
        if name.startswith("AT_")
        for rule in table
    }
    assert rules <= {rule for _, rule in FAULTS}
