"""The command line: the only place that prints. Everything heavy is imported when it is needed."""

# ruff: noqa: PLC0415 - imports inside the verbs keep `--help` fast

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from humigence_supervise import __version__, contract

if TYPE_CHECKING:
    from humigence_supervise.log_files import LogLine

FOLLOW_S = 0.5
"""How often a followed file is looked at."""

TYPER_USAGE_ERROR = 2
"""What typer exits with after it explained a wrong command line; no verb of ours uses it."""

app = typer.Typer(
    help="Babysit one torchrun job until it is done.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

ConfigArgument = Annotated[Path, typer.Argument(metavar="CONFIG", help="Configuration file.")]
RunArgument = Annotated[
    str, typer.Argument(metavar="RUN", help="Config path, run directory, or name under runs/.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
FollowOption = Annotated[bool, typer.Option("-f", "--follow", help="Go on as it grows.")]


class Format(StrEnum):
    """How `start` prints its events; auto is pretty on a terminal, else JSON."""

    AUTO = "auto"
    JSON = "json"
    PRETTY = "pretty"


class Schema(StrEnum):
    """What has a JSON Schema."""

    CONFIG = "config"
    EVENT = "event"


def main() -> None:
    """Run the command line; every expected problem is one sentence and an exit code."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # started with it closed
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115 - for good
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a locale without our symbols must end nothing
            stream.reconfigure(errors="backslashreplace")
    with _problems_told():
        app()


@app.callback(invoke_without_command=True)
def _root(
    *, version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False
) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit


@app.command()
def start(
    config: ConfigArgument,
    *,
    run_dir: Annotated[
        Path | None, typer.Option(help="Run directory, in place of the config's.")
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Return once it runs.")] = False,
    log_format: Annotated[Format, typer.Option(help="How events are printed.")] = Format.AUTO,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Archive the old journal and checkpoints first.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Blocking launches and full NCCL logs.")
    ] = False,
    readmit_gpu: Annotated[
        list[str] | None,
        typer.Option(help="Use this GPU again, which the run excluded; or all."),
    ] = None,
) -> None:
    """Supervise a run until it ends; a second start resumes it."""
    from humigence_supervise.console import Console
    from humigence_supervise.settings_file import read_settings, with_run_dir
    from humigence_supervise.start import start as start_run

    settings = with_run_dir(read_settings(config), run_dir)
    if detach:
        from humigence_supervise.detach import start_detached

        typer.echo(start_detached(settings, sys.argv[1:]))
        return
    pretty = log_format is Format.PRETTY or (log_format is Format.AUTO and sys.stdout.isatty())
    console = Console(pretty=pretty)
    code = start_run(
        settings,
        config.absolute(),
        console.tell,
        fresh=fresh,
        debug=debug,
        readmit=tuple(readmit_gpu or ()),
    )
    console.flush()
    raise typer.Exit(code)


@app.command()
def stop(
    run: RunArgument,
    *,
    now: Annotated[bool, typer.Option("--now", help="Kill without saving.")] = False,
    timeout: Annotated[
        float | None, typer.Option(help="Seconds to wait for the end.", min=0.0)
    ] = None,
) -> None:
    """Save and end a run; return when nothing of it is alive."""
    from humigence_supervise.stop import stop as stop_run

    typer.echo(stop_run(_run_dir(run), now=now, timeout_s=timeout))


@app.command()
def status(
    run: RunArgument,
    *,
    as_json: JsonOption = False,
    watch: Annotated[bool, typer.Option("--watch", help="Repeat until the run ends.")] = False,
) -> None:
    """Show where a run stands."""
    from humigence_supervise.status import LIVE_STATES, status_document, status_text

    while True:
        document = status_document(_run_dir(run))
        typer.echo(json.dumps(document) if as_json else status_text(document))
        if not watch or document["state"] not in LIVE_STATES:
            return
        _pause(2.0)


@app.command()
def events(
    run: RunArgument,
    *,
    follow: FollowOption = False,
    as_json: JsonOption = False,
    since: Annotated[
        str | None, typer.Option(help="Only events from this UTC time on (ISO 8601).")
    ] = None,
) -> None:
    """Print the journal."""
    from humigence_supervise.console import Console
    from humigence_supervise.events import JournalTail, parse_since

    console = Console(pretty=not as_json, patient=True)
    tail = JournalTail(_run_dir(run) / contract.JOURNAL_FILE, parse_since(since))
    while True:
        for entry in tail.poll():
            console.tell(entry)
        if not follow or tail.ended:
            return
        _pause(FOLLOW_S)


@app.command()
def logs(
    run: RunArgument,
    *,
    follow: FollowOption = False,
    rank: Annotated[int | None, typer.Option(help="Only this rank.", min=0)] = None,
    attempt: Annotated[
        int | None, typer.Option(help="This attempt, not the newest.", min=1)
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Print what the workers wrote."""
    from humigence_supervise.logs_view import LogFollower, read_logs

    run_dir = _run_dir(run)
    render = _log_json if as_json else _log_text
    if not follow:
        for line in read_logs(run_dir, rank=rank, attempt=attempt):
            typer.echo(render(line))
        return
    follower = LogFollower(run_dir, rank=rank, attempt=attempt)
    while True:
        lines = follower.poll()
        for line in lines:
            typer.echo(render(line))
        if not lines:
            _pause(FOLLOW_S)


@app.command()
def plan(config: ConfigArgument, *, as_json: JsonOption = False) -> None:
    """Show exactly what each rung would run; start nothing."""
    from humigence_supervise.plan_view import plan_document, plan_text
    from humigence_supervise.settings_file import read_settings

    document = plan_document(read_settings(config), config.absolute())
    typer.echo(json.dumps(document, indent=2) if as_json else plan_text(document))


@app.command()
def diagnose(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="Logs; - is stdin.")],
    *,
    exit_code: Annotated[int | None, typer.Option(help="Exit code of the crashed job.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Find the root cause in any log, without a run."""
    from humigence_supervise.diagnose import diagnose as diagnose_evidence
    from humigence_supervise.reading import (
        UnreadableError,
        diagnosis_document,
        diagnosis_text,
        read_input,
    )

    unreadable: list[UnreadableError] = []
    for file in files:
        try:
            found = diagnose_evidence(read_input(file, exit_code))
        except UnreadableError as error:
            unreadable.append(error)
            continue
        if as_json:
            typer.echo(json.dumps(diagnosis_document(file, found)))
        else:
            typer.echo(diagnosis_text(file, found))
    if unreadable:
        raise UnreadableError(" ".join(map(str, unreadable)))


@app.command()
def explain(
    run: RunArgument,
    *,
    incident: Annotated[
        int | None, typer.Option(help="Which incident, from 1; default: the newest.", min=1)
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Say why an attempt failed, what was decided, what was lost, what to do."""
    from humigence_supervise.explain import explain_document, explain_text

    document = explain_document(_run_dir(run), incident)
    typer.echo(json.dumps(document) if as_json else explain_text(document))


@app.command()
def replay(
    source: Annotated[
        str, typer.Argument(metavar="JOURNAL|LOG", help="Journal, run, log, attempt folder, or -.")
    ],
    *,
    config: Annotated[
        Path | None, typer.Option(metavar="CONFIG", help="Judge with the policy of this config.")
    ] = None,
    rediagnose: Annotated[
        bool, typer.Option("--rediagnose", help="Read the evidence of the attempts again.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show what the present policy decides about an old run or log; start nothing."""
    from humigence_supervise.replay.document import replay_document
    from humigence_supervise.replay.text import replay_text

    document = replay_document(source, Path.cwd(), config, rediagnose=rediagnose)
    typer.echo(json.dumps(document) if as_json else replay_text(document))


@app.command()
def report(
    run: RunArgument,
    *,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="HTML file; default: in the run.")
    ] = None,
) -> None:
    """Write the whole story of a run as one HTML file."""
    from humigence_supervise.report import write_report

    run_dir = _run_dir(run)
    target = (output or run_dir / contract.REPORT_FILE).absolute()
    write_report(run_dir, target)
    typer.echo(str(target))


@app.command()
def checkpoints(
    run: RunArgument,
    *,
    verify: Annotated[bool, typer.Option("--verify", help="Read every byte.")] = False,
    as_json: JsonOption = False,
) -> None:
    """List every checkpoint with its verdict."""
    from humigence_supervise.checkpoints.listing import checkpoint_rows, rows_text
    from humigence_supervise.status import checkpoint_dir

    rows = checkpoint_rows(checkpoint_dir(_run_dir(run)), digests=verify)
    typer.echo(json.dumps(rows) if as_json else rows_text(rows))


@app.command()
def schema(what: Annotated[Schema, typer.Argument(help="config or event")]) -> None:
    """Print a JSON Schema."""
    from humigence_supervise.config import config_schema
    from humigence_supervise.events import event_schema

    typer.echo(json.dumps(config_schema() if what is Schema.CONFIG else event_schema(), indent=2))


def _run_dir(run: str) -> Path:
    from humigence_supervise.run_ref import resolve

    return resolve(run, Path.cwd())


def _log_json(line: LogLine) -> str:
    columns = {"attempt": line.attempt, "rank": line.rank, "stream": line.stream, "text": line.text}
    return json.dumps(columns)


def _log_text(line: LogLine) -> str:
    from humigence_supervise.printable import for_people

    who = "launcher" if line.rank is None else f"rank {line.rank}"
    return f"[{who}] {for_people(line.text)}"


def _pause(seconds: float) -> None:
    """Wait between two looks at a followed file; Ctrl-C ends it."""
    import select

    select.select([], [], [], seconds)


@contextmanager
def _problems_told() -> Iterator[None]:
    try:
        yield
    except SystemExit as done:
        sys.exit(contract.EXIT_USAGE if done.code == TYPER_USAGE_ERROR else done.code)
    except KeyboardInterrupt:
        sys.exit(contract.EXIT_SIGINT)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(contract.EXIT_COMPLETED)
    except (ValueError, OSError, RuntimeError) as problem:
        _explain_and_exit(problem)


def _explain_and_exit(problem: Exception) -> NoReturn:
    """Say an expected problem in its own words; anything else is ours and keeps its traceback."""
    from humigence_supervise.config import ConfigError
    from humigence_supervise.detach import DetachError
    from humigence_supervise.events import SinceError
    from humigence_supervise.explain import NoIncidentError
    from humigence_supervise.journal import JournalError
    from humigence_supervise.reading import UnreadableError
    from humigence_supervise.run_lock import RunHeldError
    from humigence_supervise.run_ref import RunNotFoundError
    from humigence_supervise.start import GpusUnknownError
    from humigence_supervise.state import StateError
    from humigence_supervise.stop import StopTimeoutError

    codes: dict[type[Exception], int] = {
        ConfigError: contract.EXIT_CONFIG,
        RunHeldError: contract.EXIT_RUN_HELD,
        RunNotFoundError: contract.EXIT_USAGE,
        SinceError: contract.EXIT_USAGE,
        NoIncidentError: contract.EXIT_USAGE,
        UnreadableError: contract.EXIT_USAGE,
        JournalError: contract.EXIT_INTERNAL,
        StateError: contract.EXIT_INTERNAL,
        StopTimeoutError: contract.EXIT_GAVE_UP,
        GpusUnknownError: contract.EXIT_GAVE_UP,
        OSError: contract.EXIT_INTERNAL,
    }
    if isinstance(problem, DetachError):
        sys.stderr.write(f"{problem}\n")
        sys.exit(problem.exit_code)
    for kind, code in codes.items():
        if isinstance(problem, kind):
            sys.stderr.write(f"humigence-supervise: {problem}\n")
            sys.exit(code)
    raise problem


if __name__ == "__main__":
    main()
