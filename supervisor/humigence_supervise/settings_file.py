"""Reading a configuration file: the shell around `config.parse_settings`."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from humigence_supervise.config import ConfigError, Settings, parse_settings
from humigence_supervise.config_text import MAX_BYTES


def read_settings(path: Path) -> Settings:
    """Return the settings in the file at `path`.

    Paths in it are seen from the folder it lies in, symbolic links of that folder resolved. An
    interpreter given as a bare name is looked up in PATH.

    Raises:
        ConfigError: the file cannot be read, or what it says cannot be used.
    """
    absolute = Path(os.path.realpath(path.parent)) / path.name
    settings = parse_settings(_read(absolute), absolute, own_python=Path(sys.executable))
    found = shutil.which(settings.worker.python)
    if found is None:
        return settings  # preflight says so, with everything else that is missing
    worker = settings.worker.model_copy(update={"python": Path(found)})
    return settings.model_copy(update={"worker": worker})


def with_run_dir(settings: Settings, run_dir: Path | None) -> Settings:
    """Return the settings with another run directory, seen from the working folder.

    What lies in the old one (checkpoints, metrics) moves along; None changes nothing.
    """
    if run_dir is None:
        return settings
    new = run_dir.resolve()

    def moved(path: Path) -> Path:
        old = settings.run_dir
        return new / path.relative_to(old) if path.is_relative_to(old) else path

    checkpoints = settings.checkpoints
    metrics = settings.metrics
    update = {
        "run_dir": new,
        "checkpoints": checkpoints.model_copy(update={"dir": moved(checkpoints.dir)}),
        "metrics": metrics.model_copy(
            update={"textfile": metrics.textfile and moved(metrics.textfile)}
        ),
    }
    return settings.model_copy(update=update)


def _read(path: Path) -> bytes:
    """Return at most one byte more than a configuration may have."""
    try:
        # O_NONBLOCK: a FIFO must not hold us for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            if not path.is_file():
                raise ConfigError((f"{path}: is not a file; name a configuration file",))
            return file.read(MAX_BYTES + 1)
    except FileNotFoundError as error:
        raise ConfigError((f"{path}: does not exist; check the path{_beside(path)}",)) from error
    except IsADirectoryError as error:
        raise ConfigError((f"{path}: is a folder; name a configuration file in it",)) from error
    except PermissionError as error:
        raise ConfigError(
            (f"{path}: may not be read by this user; change its permissions",)
        ) from error
    except OSError as error:
        raise ConfigError((f"{path}: cannot be read: {error.strerror}",)) from error


def _beside(path: Path) -> str:
    """Name what else is there: a wrong name is usually nearly right."""
    try:
        others = sorted(other.name for other in path.parent.glob("*.json"))[:8]
    except OSError:
        return ""
    return f" (beside it: {', '.join(others)})" if others else ""
