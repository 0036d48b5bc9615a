"""Where the collective probe lies: a file of the worker's package, which is not imported."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path


def probe_script() -> Path | None:
    """Return the probe's file; None where the worker's package is not installed beside this one.

    None means that no probe can run, which says nothing about the GPUs.
    """
    spec = find_spec("humigence_worker")  # finds a top-level package without importing it
    if spec is None or spec.origin is None:
        return None
    script = Path(spec.origin).with_name("collective_probe.py")
    return script if script.is_file() else None
