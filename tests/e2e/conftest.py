"""A job for each test; nothing of it may be alive at the end."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from main_job import Job


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    """A tiny real job; at the end nothing that carries its run id may be alive."""
    made = Job(tmp_path, f"e2e-{uuid.uuid4().hex[:8]}")
    yield made
    if made.supervisor is not None and made.supervisor.poll() is None:
        made.supervisor.kill()
        made.supervisor.wait()
    left = [one for one in psutil.process_iter() if made.run_dir.as_posix() in _environment(one)]
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    assert not left, f"left alive: {left}"


def _environment(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        if process.status() != psutil.STATUS_ZOMBIE:
            return process.environ().get("HUMIGENCE_RUN_DIR", "")
    return ""
