"""The text of a `plan` document, for people."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any, Final

from humigence_supervise.printable import for_people

MAX_WIDTH: Final = 48


def plan_text(document: dict[str, Any]) -> str:
    """Return the document of `plan_view.plan_document` as text, safe to print."""
    lines = [*_head(document)]
    rungs = document["rungs"]
    shown: list[dict[str, str]] = []
    for number, rung in enumerate(rungs, start=1):
        lines += ["", f"Rung {number} of {len(rungs)}: {rung['rung']}", *_rung(rung, shown)]
        shown = shown or rung.get("env", [])
    return "\n".join(for_people(line) for line in lines)


def _head(document: dict[str, Any]) -> Iterator[str]:
    host = document["host"]
    checkpoint = document["checkpoint"]
    yield f'Plan of the run "{document["name"]}"; nothing was started.'
    yield f"  configuration  {document['config']}"
    yield f"  run directory  {document['run_dir']}"
    yield f"  accelerator    {document['accelerator_why']}"
    yield f"  machine        {_machine(host)}"
    for note in host["unread"]:
        yield f"                 not known: {note}"
    for gpu in document["excluded_gpus"]:
        yield f"                 not used after a fault: GPU {gpu} (start --readmit-gpu allows it)"
    for problem in document["problems"]:
        yield f"  problem        {problem}"
    if checkpoint is None:
        yield f"  checkpoint     {document['checkpoint_note']}"
    else:
        yield f"  checkpoint     step {checkpoint['step']}: {checkpoint['path']}"
    yield "  The run id and the port are chosen at the start; RUN-ID and 0 stand for them here."


def _machine(host: dict[str, Any]) -> str:
    gpus = ", ".join(_gpu(gpu) for gpu in host["gpus"]) or "no NVIDIA GPU"
    driver = f", driver {host['driver']}" if host["driver"] else ""
    return f"{host['cpu_count']} cores, torch {host['torch'] or 'unknown'}, {gpus}{driver}"


def _gpu(gpu: dict[str, Any]) -> str:
    return f"GPU {gpu['index']} {gpu['name']} ({gpu['uuid']})"


def _rung(rung: dict[str, Any], shown: list[dict[str, str]]) -> Iterator[str]:
    """Tell of one rung; of its variables only those that are not `shown` yet with this value."""
    if rung["problem"]:
        yield f"  cannot run here: {rung['problem']}"
        if not rung["placeholder_gpus"]:
            return
        yield "  shown with placeholders for the missing GPUs:"
    yield f"  launcher     {rung['launcher']}, {rung['world_size']} rank(s)"
    yield f"  batch        {rung['sums'] or 'not said in the configuration'}"
    if rung["gpus"]:
        yield f"  GPUs         {', '.join(_gpu(gpu) for gpu in rung['gpus'])}"
    if rung["resume_from"]:
        yield f"  resumes at   step {rung['resume_from']['step']}"
    yield f"  working in   {rung['cwd']}"
    yield f"  command      {shlex.join(rung['argv'])}"
    new = [change for change in rung["env"] if change not in shown]
    same = len(rung["env"]) - len(new)
    yield "  environment" + (f"  {same} variables as above, and:" if same else "")
    width = min(max((len(_assignment(change)) for change in new), default=0), MAX_WIDTH)
    for change in new:
        source = f" [{change['source']}]" if change["source"] else ""
        yield (f"    {change['setter']:<9} {_assignment(change):<{width}}  {change['why']}{source}")
    for name in rung["unset_env"]:
        yield f"    removed   {name}"


def _assignment(change: dict[str, str]) -> str:
    return f"{change['name']}={shlex.quote(change['value']) if change['value'] else ''}"
