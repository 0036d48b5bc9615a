"""How fast logs are read, beside what else finds the same patterns; CPU time, one core each."""

import os
import re
import resource
import subprocess
import time

import corpus

from humigence_supervise.catalogue import load_catalogue
from humigence_supervise.observe.logs import LogReader, OpenLog
from humigence_supervise.observe.scan import Scanner

MB = 1_000_000
GREP_TIMEOUT_S = 120
PLAIN_MIB = 2
"""Of each log so much is given to the slow ones: the plain alternation and `grep -E`."""


def read(path, *, large):
    """Read a log as `diagnose` does, `large` with the compiled library; give what was found."""
    log = OpenLog(path)
    try:
        scanner = Scanner(load_catalogue(), path.name, large=large)
        for block in LogReader(log.descriptor, path.name).blocks():
            scanner.feed(block)
        return scanner.finish()
    finally:
        log.close()


def alternation(path):
    """Search each line for any pattern, the way a quick script would."""
    rows = load_catalogue().rows
    plain = re.compile("|".join(f"(?:{row.pattern.pattern})" for row in rows).encode())
    return sum(plain.search(line) is not None for line in path.read_bytes().split(b"\n"))


def grep(option, patterns, path):
    """Count matching lines with grep."""
    file = path.with_suffix(".patterns")
    file.write_text("\n".join(patterns) + "\n")
    command = ["grep", option, "-c", "-f", str(file), str(path)]
    subprocess.run(
        command,
        stdout=subprocess.PIPE,  # into /dev/null grep would stop at the first match
        env=os.environ | {"LC_ALL": "C"},
        timeout=GREP_TIMEOUT_S,
        check=False,  # 1 is no match
    )


def bracket(found):
    """Give a class of `re` as one of POSIX, which knows no escapes: `]` first, `-` last."""
    inner = re.sub(r"\\d", "0-9", re.sub(r"\\w", "[:alnum:]_", found[2]))
    plain = re.sub(r"\\s", " \t", inner).replace("\\", "")
    named = "[:alnum:]" if "[:alnum:]" in plain else ""
    rest = plain.replace("[:alnum:]", "")
    first, last = "]" * ("]" in rest), "-" * rest.endswith("-")
    return f"[{found[1]}{first}{rest.replace(']', '').removesuffix('-')}{named}{last}]"


def extended(pattern):
    """Give a pattern as `grep -E` reads it; what it cannot say is left out, so it matches more."""
    flat = r"(?:[^()\\]|\\.)"
    pattern = re.sub(rf"\(\?(?:[=!]|<[=!])(?:{flat}|\((?:{flat}|\({flat}*\))*\))*\)", "", pattern)
    parts = re.split(r"(\\.|\[\^?(?:\\.|[^\]\\])(?:\\.|[^\]\\])*\])", pattern)
    for at in range(1, len(parts), 2):
        if parts[at].startswith("["):
            parts[at] = re.sub(r"\[(\^?)(.*)\]$", bracket, parts[at])
        parts[at] = {r"\d": "[0-9]", r"\D": "[^0-9]"}.get(parts[at], parts[at])
        parts[at] = re.sub(r"\\([^\w.*+?()\[\]{}|^$\\])", r"\1", parts[at])
    for at in range(0, len(parts), 2):
        parts[at] = re.sub(r"([?*+}])\?", r"\1", parts[at].replace("(?:", "("))
    return "".join(parts)


def cpu_s():
    """Give the CPU time of this process and of those it waited for."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def speed(path, work, rounds):
    """Give MB per CPU second, of the fastest round; None when it ran out of time."""
    fastest = float("inf")
    for _ in range(rounds):
        began = cpu_s()
        try:
            work(path)
        except subprocess.TimeoutExpired:
            return None
        fastest = min(fastest, cpu_s() - began)
    return path.stat().st_size / MB / fastest


def logs(*, quick):
    """Give each kind of log with its bytes."""
    samples = [line for row in load_catalogue().rows for line in row.match if not row.at_end]
    mib = 64 if quick else 128
    yield "usual", corpus.lines(corpus.usual_line, 1, mib)
    yield "unlike", corpus.lines(corpus.unlike_line, 2, mib)
    yield "failing", corpus.lines(corpus.failing_line, 3, mib // 8, samples)


def measure_reader(room, *, quick):
    """Compare the speeds, log by log, with the full catalogue each time."""
    rows = load_catalogue().rows
    posix = [extended(row.pattern.pattern) for row in rows]
    result = {"reader_patterns": len(rows), "reader_literals": len(load_catalogue().literals)}
    room.mkdir(parents=True, exist_ok=True)
    path, part = room / "reader.log", room / "part.log"
    rounds = 1 if quick else 3
    for name, data in logs(quick=quick):
        path.write_bytes(data)
        part.write_bytes(data[: data.rfind(b"\n", 0, PLAIN_MIB << 20) + 1])
        speeds = {
            "ours": speed(path, lambda p: read(p, large=True), rounds),
            "ours_without_library": speed(path, lambda p: read(p, large=False), rounds),
            "re": speed(part, alternation, 1),
            "grep_E": speed(part, lambda p: grep("-E", posix, p), 1),
            "grep_F": speed(path, lambda p: grep("-F", load_catalogue().literals, p), rounds),
        }
        ours = speeds["ours"]
        result[f"reader_{name}_mb_per_s"] = round(ours, 1)
        told = {"mb": round(len(data) / MB, 1), "lines": data.count(b"\n")}
        told["mb_of_slow"] = round(part.stat().st_size / MB, 1)
        for other, value in speeds.items():
            told[other] = "too slow" if value is None else round(value, 2)
            if value is not None and other != "ours":
                told[f"ours/{other}"] = round(ours / value, 1)
        result[f"reader_{name}"] = told
    return result
