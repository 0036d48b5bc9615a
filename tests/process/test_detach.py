"""`start --detach`: what it leaves in the file system."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path

import pytest

from humigence_supervise.config import parse_settings
from humigence_supervise.detach import DetachError, start_detached


def test_the_run_directory_is_closed_to_others_from_the_start(tmp_path):
    """It is made before the supervisor that ends at once (no such configuration) looks at it."""
    document = {"name": "x", "worker": {"script": "train.py"}}
    settings = parse_settings(
        json.dumps(document).encode(), tmp_path / "c.json", own_python=Path(sys.executable)
    )
    with pytest.raises(DetachError, match=r"gone\.json"):
        start_detached(settings, ["start", str(tmp_path / "gone.json"), "--detach"])
    assert stat.S_IMODE(settings.run_dir.stat().st_mode) == 0o700
