"""Fixtures of tests that start real processes."""

import pytest
from support import open_run


@pytest.fixture
def run(tmp_path):
    """A run directory with its own id, in which nothing may be alive at the end."""
    with open_run(tmp_path) as opened:
        yield opened
