"""`pytest tests/simulation --seed N` (or SIMULATION_SEED=N) plays one history and shows it."""

from __future__ import annotations

import os

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Know `--seed` where this folder is what pytest is started with."""
    parser.addoption("--seed", type=int, default=None, help="play this one history again")


@pytest.fixture
def only_seed(request: pytest.FixtureRequest) -> int | None:
    """Return the one seed that is wanted, None for all of them."""
    given = request.config.getoption("--seed", default=None)
    named = os.environ.get("SIMULATION_SEED")
    return given if given is not None or named is None else int(named)
