"""Whole incidents, as real runs left them: cause, line, rank and what to do, each exact."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from humigence_supervise.diagnose import diagnose
from humigence_supervise.domain import Confidence, Kind, Remedy
from humigence_supervise.reading import diagnosis_document, read_input

CORPUS = Path(__file__).resolve().parent.parent / "corpus"
INCIDENTS = sorted(path.parent for path in CORPUS.glob("*/expected.json"))
KEYS = {"input", "kind", "root", "symptoms", "action", "reason", "remedy", "confidence"}
KEYS |= {"gpu", "context", "unread"}
SYMPTOM_KEYS = {"kind", "rank", "line", "signature"}
MOST_BYTES = 60_000


def name(incident):
    """Return an incident's name for test names."""
    return incident.name


def expected(incident):
    """Return what is right for an incident; single values of rank and action become lists."""
    found = json.loads((incident / "expected.json").read_text())
    for key in ("rank", "action"):
        found[key] = found[key] if isinstance(found[key], list) else [found[key]]
    return found


def place_of(root, incident):
    """Return "file:line" of a root, the file relative to its incident."""
    file = Path(root["file"])
    return f"{file.relative_to(incident) if file.is_absolute() else file}:{root['line']}"


def wrong(document, right, incident):
    """Return what of a document is not right, one text each.

    An incident without a proof is read from exit codes: then its rank stands in the sentence.
    """
    found = []
    if document["kind"] != right["kind"]:
        found.append(f"kind {document['kind']}, right is {right['kind']}: {right['why']}")
    if document["kind"] in right["not_kinds"]:
        found.append(f"kind {document['kind']} is a consequence here, or only looks like it")
    if document["action"] not in right["action"]:
        found.append(f"action {document['action']}, right is {right['action']}")
    root = document["root"]
    if not right["proof"]:
        if root is not None and right["kind"] == "healthy":
            found.append(f"a root in a healthy run: {place_of(root, incident)}")
    elif root is None:
        found.append(f"no root, the proof is {right['proof']}")
    else:
        if place_of(root, incident) not in right["proof"]:
            found.append(f"root {place_of(root, incident)}, the proof is {right['proof']}")
        if root["rank"] not in right["rank"]:
            found.append(f"rank {root['rank']}, right is {right['rank']}")
    return found


@pytest.mark.parametrize("incident", INCIDENTS, ids=name)
def test_incident_is_read_right(incident):
    """Kind, action, rank, file and line of the root are what the facts say."""
    right = expected(incident)
    found = diagnose(read_input(str(incident), right["exit_code"]))
    assert wrong(diagnosis_document(str(incident), found), right, incident) == []
    if not right["proof"] and None not in right["rank"]:
        assert found.rank in right["rank"]


@pytest.mark.parametrize("incident", INCIDENTS, ids=name)
def test_order_of_the_files_does_not_matter(incident, tmp_path):
    """The same files under names in the opposite order give the same kind and text of the root."""
    logs = [path for path in incident.iterdir() if path.is_file() and path.suffix != ".json"]
    if len(logs) < 2 or any(path.is_dir() for path in incident.iterdir()):
        logs = []
    for index, path in enumerate(sorted(logs, reverse=True)):
        (tmp_path / f"{index}-{path.name}").write_bytes(path.read_bytes())
    if logs:
        right = expected(incident)
        first = diagnose(read_input(str(incident), right["exit_code"]))
        second = diagnose(read_input(str(tmp_path), right["exit_code"]))
        assert (second.kind, second.root and second.root.text) == (
            first.kind,
            first.root and first.root.text,
        )


@pytest.fixture(scope="module")
def by_command():
    """Return what the real command prints for all incidents, by incident."""
    found = {}
    for code in {expected(incident)["exit_code"] for incident in INCIDENTS}:
        group = [i for i in INCIDENTS if expected(i)["exit_code"] == code]
        option = [] if code is None else ["--exit-code", str(code)]
        start = "from humigence_supervise.cli import main; main()"
        ended = subprocess.run(
            [sys.executable, "-c", start, "diagnose", *map(str, group), *option, "--json"],
            capture_output=True,
            check=True,
            timeout=120,
        )
        lines = ended.stdout.decode().splitlines()
        found |= dict(zip(group, map(json.loads, lines), strict=True))
    return found


@pytest.mark.parametrize("incident", INCIDENTS, ids=name)
def test_command_prints_the_contract(incident, by_command):
    """`humigence-supervise diagnose DIR --json` prints the same, in the promised shape."""
    document = by_command[incident]
    right = expected(incident)
    found = diagnose(read_input(str(incident), right["exit_code"]))
    assert document == diagnosis_document(str(incident), found)
    assert set(document) == KEYS
    assert document["input"] == str(incident)
    assert document["kind"] in set(Kind)
    assert document["action"] in set(Remedy)
    assert document["confidence"] in set(Confidence)
    assert document["reason"]
    assert document["remedy"]
    assert all(set(symptom) == SYMPTOM_KEYS for symptom in document["symptoms"])


def test_corpus_holds_what_it_promises():
    """Enough of each: incidents, recorded ones, clean runs, layouts; none large, none of a host."""
    rights = [expected(incident) for incident in INCIDENTS]
    recorded = [right for right in rights if str(right["source"]).startswith("recorded")]
    stopped = [right for right in rights if right["kind"] == "preempted"]
    assert len(rights) >= 30
    assert len(recorded) >= 15
    assert sum(right["kind"] == "healthy" for right in rights) >= 5
    assert len(stopped) >= 3
    assert sum("independent" in right["why"] for right in rights) >= 3
    assert sum("first in the file" in r["why"] or "before" in r["why"] for r in rights) >= 4
    for incident in INCIDENTS:
        files = [path for path in incident.rglob("*") if path.is_file()]
        assert sum(path.stat().st_size for path in files) <= MOST_BYTES
        assert not any(b"/tmp/" in path.read_bytes() for path in files)
