"""The document of `replay` in lines for people. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from humigence_supervise.printable import for_people
from humigence_supervise.records import Json

Document = dict[str, Json]
Row = tuple[str, str]

_UNKNOWN = {
    "diagnosis": "the diagnosis itself (only its kind)",
    "holder": "who held the GPU memory (taken for the run itself)",
    "gpu": "which GPU failed",
    "gpus_left": "how many healthy GPUs were left (taken for enough)",
    "action": "whose shared memory it was (taken for NCCL's)",
    "free_mib": "how much of the disk was free (taken for enough)",
    "micro_batch": "the micro-batch (so it cannot shrink)",
}


def replay_text(document: Document) -> str:
    """Return the document in lines; foreign text is escaped."""
    rows = _log_rows(document) if document["what"] == "log" else _journal_rows(document)
    return "\n".join(f"{name:<14}{for_people(said)}".rstrip() for name, said in rows)


def _journal_rows(document: Document) -> Iterator[Row]:
    run = f" of run {document['run']}" if document["run"] else ""
    yield "journal", f"{document['journal']}{run}"
    yield "policy", _policy(document)
    if document["of"]:
        yield "history", str(document["history"])
    if document["of"] and not document["ladder_known"]:
        yield "not known", "the ladder (taken from the attempts)"
    for one in _objects(document["decisions"]):
        yield "", ""
        yield from _incident_rows(one)
    unprompted = _objects(document["not_judged"])
    if unprompted:
        yield "", ""
    for one in unprompted:
        yield "not judged", f"attempt {one['attempt']}: {one['decision']}, no failure led to it"
    if document["of"]:
        yield "", ""
    yield "summary", str(document["summary"])


def _incident_rows(one: Document) -> Iterator[Row]:
    kind = str(one["kind"])
    if one["new_kind"]:
        kind += f", diagnosed anew: {one['new_kind']}"
    where = f"attempt {one['attempt']} on {one['rung']}, step {one['step']}"
    yield f"incident {one['incident']}", f"{where}: {kind}"
    if one["not_rediagnosed"]:
        yield "  not read", str(one["not_rediagnosed"])
    happened, now = one["happened"], one["now"]
    assert isinstance(happened, dict)
    assert isinstance(now, dict)
    yield "  happened", _course(happened)
    yield "  now", "the same" if one["same"] else f"DIFFERENT: {_course(now)}"
    if not one["same"]:
        yield from _grounds(now)
    unknown = one["unknown"] if isinstance(one["unknown"], list) else []
    for name in unknown:
        yield "  not known", _UNKNOWN.get(str(name), str(name))


def _grounds(course: Document) -> Iterator[Row]:
    if course["why_not"]:
        yield "", str(course["why_not"])
    if course["unless"]:
        yield "  unless", str(course["unless"])


def _log_rows(document: Document) -> Iterator[Row]:
    found = document["diagnosis"]
    assert isinstance(found, dict)
    yield "log", f"{document['input']}: {found['kind']} ({found['confidence']})"
    yield "cause", str(found["reason"])
    root = found["root"]
    if isinstance(root, dict):
        yield "evidence", f"{root['file']}:{root['line']}: {str(root['text'])[:200]}"
    yield "policy", _policy(document)
    assumed = document["assumed"] if isinstance(document["assumed"], list) else []
    for name, one in zip(("assumed", *[""] * len(assumed)), assumed, strict=False):
        yield name, str(one)
    for sequence in _objects(document["sequences"]):
        yield "", ""
        if sequence["if"]:
            yield "if", f"{sequence['if']}:"
        yield from _sequence_rows(_objects(sequence["decisions"]))
        yield "end", str(sequence["summary"])


def _sequence_rows(decisions: list[Document]) -> Iterator[Row]:
    for _, group in groupby(decisions, key=_course):
        first, *more = group
        last = more[-1] if more else first
        numbers = f"{first['number']}-{last['number']}." if more else f"{first['number']}."
        yield numbers, _course(first)


def _course(course: Document) -> str:
    """Return a decision with where it leads and its reason."""
    target = ""
    match course["decision"]:
        case "StepDown" | "StepUp":
            target = f" to {course['rung']}"
        case "ShrinkMicroBatch":
            target = f" to {course['micro_samples']}"
        case "Stop" if course["exit_code"] is not None:
            target = f" ({course['exit_code']})"
        case _:
            pass
    return f"{course['decision']}{target}: {course['reason']}"


def _policy(document: Document) -> str:
    policy = document["policy"]
    assert isinstance(policy, dict)
    return f"{policy['config'] or 'the default one'} ({policy['why']})"


def _objects(value: Json) -> list[Document]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
