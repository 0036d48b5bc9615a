"""The text of a configuration file to Settings, or to every problem it has.

Pure: reading the file is `settings_file.read_settings`.
"""

from __future__ import annotations

import posixpath
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError
from pydantic.json_schema import GenerateJsonSchema

from humigence_supervise.config_models import RungSettings, Settings, WorkerSettings
from humigence_supervise.config_overrides import Refused, refused_overrides
from humigence_supervise.config_problems import Problem, describe, readable_path
from humigence_supervise.config_text import (
    Document,
    Duplicate,
    Place,
    TextError,
    decode,
    parse,
)
from humigence_supervise.domain import Launcher
from humigence_supervise.presets import Preset

__all__ = ["ConfigError", "Settings", "config_schema", "parse_settings"]

MAX_PROBLEMS: Final = 10
DEFAULT_MODULE: Final = "humigence_worker.train"
FALLBACK_ARG: Final = "--fallback_single_gpu"


class ConfigError(ValueError):
    """A configuration that cannot be used: one sentence a problem, each ready for people."""

    def __init__(self, problems: tuple[str, ...]) -> None:
        """Keep the problems; the message is one a line."""
        super().__init__("\n".join(problems))
        self.problems = problems


def parse_settings(data: bytes, path: Path, *, own_python: Path = Path("python3")) -> Settings:
    """Return the settings in `data`, the content of the file at `path` (absolute).

    Relative paths become absolute, seen from the file's folder (`checkpoints.dir` and
    `metrics.textfile` from the run directory), and the default ladder and worker are filled in.
    `own_python` is the interpreter of a worker that names none.

    Raises:
        ConfigError: everything that is wrong, at most `MAX_PROBLEMS` of them.
    """
    try:
        document = parse(decode(data))
    except TextError as error:
        raise ConfigError((_sentence(path, error.place, "", error.what),)) from error
    if not isinstance(document.value, dict):
        what = 'the configuration must be an object: {"name": "demo"}'
        raise ConfigError((_sentence(path, document.place_of_value(()), "", what),))
    found = [_duplicate(duplicate) for duplicate in document.duplicates]
    found += [_override(document, refused) for refused in refused_overrides(document.value)]
    try:
        settings = Settings.model_validate_json(document.text)
    except ValidationError as error:
        found += _invalid(document, error)
        raise _config_error(path, found) from error
    if found:
        raise _config_error(path, found)
    return _completed(settings, path.parent, own_python)


def config_schema() -> dict[str, Any]:
    """Return the JSON Schema of the configuration (draft 2020-12)."""
    schema = Settings.model_json_schema(schema_generator=_PlainSchema)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


class _PlainSchema(GenerateJsonSchema):
    """A schema without invented titles; the keys and their descriptions say all."""

    def field_title_should_be_set(self, schema: object) -> bool:  # noqa: ARG002 - theirs
        return False


def _duplicate(duplicate: Duplicate) -> Problem:
    what = f"stands twice: in line {duplicate.first.line} and again here; keep one"
    return duplicate.second, readable_path(duplicate.path), what


def _override(document: Document, refused: Refused) -> Problem:
    place = document.place_of_key if refused.is_key else document.place_of_value
    return place(refused.path), readable_path(refused.path), refused.what


def _invalid(document: Document, error: ValidationError) -> list[Problem]:
    details = error.errors(include_url=False)
    return [describe(document, detail) for detail in details]


def _config_error(path: Path, found: list[Problem]) -> ConfigError:
    found = sorted(found)
    problems = [_sentence(path, *problem) for problem in found[:MAX_PROBLEMS]]
    if len(found) > MAX_PROBLEMS:
        problems.append(f"{path}: and {len(found) - MAX_PROBLEMS} more problems")
    return ConfigError(tuple(problems))


def _sentence(path: Path, place: Place | None, where: str, what: str) -> str:
    head = str(path) if place is None else f"{path}:{place.line}:{place.column}"
    return f"{head}: {where}: {what}" if where else f"{head}: {what}"


def _completed(settings: Settings, base: Path, own_python: Path) -> Settings:
    given = "run_dir" in settings.model_fields_set
    run_dir = _under(base, settings.run_dir if given else Path("runs") / settings.name)
    checkpoints = settings.checkpoints
    metrics = settings.metrics
    return settings.model_copy(
        update={
            "run_dir": run_dir,
            "worker": _completed_worker(settings.worker, base, own_python),
            "ladder": settings.ladder or _default_ladder(settings.worker.preset),
            "checkpoints": checkpoints.model_copy(update={"dir": _under(run_dir, checkpoints.dir)}),
            "metrics": metrics.model_copy(
                update={"textfile": metrics.textfile and _under(run_dir, metrics.textfile)}
            ),
        }
    )


def _completed_worker(worker: WorkerSettings, base: Path, own_python: Path) -> WorkerSettings:
    python = worker.python if "python" in worker.model_fields_set else own_python
    # A bare name ("python3") is looked up in PATH by whoever reads the file.
    if len(python.parts) > 1:
        python = _under(base, python)
    module = worker.module
    if worker.script is None and module is None:
        module = DEFAULT_MODULE
    return worker.model_copy(
        update={
            "script": worker.script and _under(base, worker.script),
            "module": module,
            "cwd": _under(base, worker.cwd),
            "python": python,
        }
    )


def _default_ladder(preset: Preset) -> tuple[RungSettings, ...]:
    # A foreign program's argument parser refuses an option it does not know.
    args = (FALLBACK_ARG,) if preset is Preset.HUMIGENCE else ()
    return (
        RungSettings(name="multi_gpu", gpus="all", launcher=Launcher.TORCHRUN),
        RungSettings(name="single_gpu", gpus=1, launcher=Launcher.PYTHON, args=args),
    )


def _under(base: Path, path: Path) -> Path:
    return Path(posixpath.normpath(base / path))
