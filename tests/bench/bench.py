"""Measure what the README promises; print a table and write ``build/bench.json``.

    make bench                  all of it, about twenty minutes
    make bench ARGS=--quick     one small round of everything, about four
    make bench ARGS="reader help footprint steps recovery"    only what is named

Figures of a busy machine are figures of a busy machine: run it alone.
"""
# ruff: noqa: T201 - a benchmark prints

import argparse
import fcntl
import functools
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

import psutil
from jobs import PROGRAM, WARM_UP_STEPS, BenchError, ByHand, Supervised, first_bytes_at
from reader import measure_reader

ROOT = Path(__file__).parents[2]
ROOM = ROOT / "build" / "bench"
LOCK = ROOT / "build" / "bench.lock"
RESULT = ROOT / "build" / "bench.json"
MIB = 1024 * 1024
RECOVERY_TIMEOUT_S = 90  # torchrun's own restarts can hang for longer than anyone waits
FAULT_STEP = 26  # checkpoint at 20: six steps in, as far from a save as not


def median(values):
    """Give the median, rounded to what the clock can tell."""
    return round(statistics.median(values), 4)


def measure_help(*, quick):
    """Measure the wall time of ``--help``."""
    times_s = []
    for _ in range(5 if quick else 20):
        began = time.perf_counter()
        subprocess.run([PROGRAM, "--help"], stdout=subprocess.DEVNULL, check=True)
        times_s.append(time.perf_counter() - began)
    return {"help_s": median(times_s)}


def memory_mib(pid):
    """Give RSS and PSS."""
    info = psutil.Process(pid).memory_full_info()
    return info.rss / MIB, info.pss / MIB


def cpu_s(pid):
    """Give the CPU time used so far."""
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def measure_footprint(*, quick):
    """Measure what supervisor and keeper cost while two ranks train."""
    watch_s = 15 if quick else 60
    with Supervised(ROOM / "footprint", {}) as job:
        job.wait_for_steps(WARM_UP_STEPS)
        keeper = json.loads((job.attempt(1) / "keeper.json").read_text())["pid"]
        result = {}
        before, began = [cpu_s(pid) for pid in (job.process.pid, keeper)], time.monotonic()
        peaks = [(0.0, 0.0), (0.0, 0.0)]
        while time.monotonic() < began + watch_s:
            time.sleep(1)
            seen = [memory_mib(pid) for pid in (job.process.pid, keeper)]
            peaks = [(max(a, c), max(b, d)) for (a, b), (c, d) in zip(peaks, seen, strict=True)]
        took_s = time.monotonic() - began
        for name, pid, was_s, peak in zip(
            ("supervisor", "keeper"), (job.process.pid, keeper), before, peaks, strict=True
        ):
            result[f"{name}_rss_mib"], result[f"{name}_pss_mib"] = (round(v, 1) for v in peak)
            result[f"{name}_cpu_percent"] = round(100 * (cpu_s(pid) - was_s) / took_s, 3)
        return result | {"watched_s": round(took_s, 1)}


def step_time_s(lines):
    """Give the median, over blocks of ten steps, of the time a step takes; saves included."""
    ends = [line["ts"] for line in lines[WARM_UP_STEPS::10]]
    return statistics.median((b - a) / 10 for a, b in itertools.pairwise(ends))


def measure_steps(*, quick):
    """Compare step times under the supervisor and by hand, in alternating runs.

    A ratio means something only where the runs by hand spread less than it says; what disturbs a
    run only ever makes it slower, so the fastest runs are compared too.
    """
    rounds, steps = (1, 60) if quick else (5, 150)
    times_s = {Supervised: [], ByHand: []}
    for number in range(rounds):
        kinds = (Supervised, ByHand) if number % 2 == 0 else (ByHand, Supervised)
        for kind in kinds:
            with kind(ROOM / "steps", {}) as job:
                lines = job.wait_for_steps(WARM_UP_STEPS + steps)
            times_s[kind].append(step_time_s(lines))
    supervised, by_hand = (median(times_s[kind]) for kind in (Supervised, ByHand))
    return {
        "step_supervised_s": supervised,
        "step_by_hand_s": by_hand,
        "step_ratio": round(supervised / by_hand, 4),
        "step_ratio_of_fastest": round(min(times_s[Supervised]) / min(times_s[ByHand]), 4),
        "step_spread_by_hand": round(max(times_s[ByHand]) / min(times_s[ByHand]) - 1, 4),
        "step_runs": {kind.__name__: [round(v, 5) for v in times_s[kind]] for kind in times_s},
    }


def split(names, marks):
    """Give the time between each two marks under its name, and their sum."""
    between = (b - a for a, b in itertools.pairwise(marks))
    return dict(zip(names, between, strict=True)) | {"total": marks[-1] - marks[0]}


def supervised_recovery(worker):
    """Split the time from a fault to the first new step on the single rung."""
    with Supervised(ROOM / "recovery", worker) as job:
        fault = job.fault_at()
        said = first_bytes_at(job.attempt(2) / "ranks" / "0" / "stdout.log", RECOVERY_TIMEOUT_S)
        job.wait_for(lambda: job.trained_steps(2), "a step after the fault", RECOVERY_TIMEOUT_S)
        loaded, stepped = job.steps(2)[0], job.trained_steps(2)[0]
        detected = job.event_at("attempt.exited", 1)
        cleared = job.event_at("tree.cleared", 1)
        entered = (job.attempt(2) / "ranks" / "0" / "process.json").stat().st_mtime
        redone = job.trained_steps(1)[-1]["step"] - loaded["step"]
    names = ("detect", "clear", "start", "import", "load", "step")
    marks = (fault, detected, cleared, entered, said, loaded["ts"], stepped["ts"])
    return split(names, marks) | {"relaunches": 1, "redone_steps": redone}


def torchrun_recovery(worker):
    """Split the same for torchrun's own restarts, of which the first ones may fail."""
    said = {}

    def new_step():
        for attempt, log in job.logs().items():
            if attempt not in said and log.stat().st_size:
                said[attempt] = time.time()
        lines = job.steps()
        begins = [index for index, line in enumerate(lines) if line["section"] == "init"]
        steps = [index for index, line in enumerate(lines) if line["section"] == "train"]
        new = [index for index in steps if len(begins) > 1 and index > begins[1]]
        if not new:
            return None
        began = max(index for index in begins if index < new[0])
        last = max(index for index in steps if index < begins[1])
        return lines[last], lines[began], lines[new[0]]

    with ByHand(ROOM / "recovery", worker, max_restarts=3) as job:
        fault = job.fault_at()
        last, loaded, stepped = job.wait_for(new_step, "a step after the fault", RECOVERY_TIMEOUT_S)
        starts = [job.logs()[attempt].parents[1].stat().st_mtime for attempt in (2, max(said))]
    names = ("detect+clear+start", "failed relaunches", "import", "load", "step")
    marks = (fault, *starts, said[max(said)], loaded["ts"], stepped["ts"])
    counts = {"relaunches": max(said) - 1, "redone_steps": last["step"] - loaded["step"]}
    return split(names, marks) | counts


def measure_recovery(*, quick):
    """Compare the time from a fault to the first new step, fault by fault."""
    result = {}
    for fault in ("nccl_error",) if quick else ("nccl_error", "sigkill"):
        worker = {"faults": [{"name": fault, "step": FAULT_STEP, "rank": 1}]}
        for name, recover in (("supervised", supervised_recovery), ("torchrun", torchrun_recovery)):
            runs, wanted = [], 1 if quick else 3
            for _ in range(wanted):
                try:
                    runs.append(recover(worker))
                except BenchError as error:
                    print(f"  {name} after {fault}: {error}", file=sys.stderr)
            figures = {"recovered": len(runs), "of": wanted}
            for part in runs[0] if runs else ():
                figures[part] = median([run[part] for run in runs])
            result[f"recovery_{fault}_{name}_s"] = figures
    return result


MEASURES = {
    "help": measure_help,
    "footprint": measure_footprint,
    "steps": measure_steps,
    "recovery": measure_recovery,
    "reader": functools.partial(measure_reader, ROOM / "reader"),
}
LIMITS = {  # what is promised at most
    "help_s": 0.35,
    "supervisor_rss_mib": 45,
    "supervisor_cpu_percent": 0.5,
    "step_ratio": 1.01,
}
LEAST = {"reader_usual_mb_per_s": 100, "reader_unlike_mb_per_s": 100}  # what is promised at least


def show(result):
    """Print one line a figure, and whether it keeps what is promised."""
    for name, value in result.items():
        verdict = ""
        if name in LIMITS:
            verdict = f"at most {LIMITS[name]}: {'ok' if value <= LIMITS[name] else 'MISSED'}"
        if name in LEAST:
            verdict = f"at least {LEAST[name]}: {'ok' if value >= LEAST[name] else 'MISSED'}"
        text = str(value)
        if isinstance(value, dict):
            text = "  ".join(f"{part} {figure}" for part, figure in value.items())
        print(f"{name:34} {text:14} {verdict}".rstrip())


def measure(arguments):
    """Run the measures that were asked for, show and write what they found."""
    result = {"cores": os.cpu_count(), "load_before": round(os.getloadavg()[0], 2)}
    for name in arguments.measures:
        print(f"measuring {name} ...", file=sys.stderr)
        result |= MEASURES[name](quick=arguments.quick)
    show(result)
    shutil.rmtree(ROOM, ignore_errors=True)
    RESULT.write_text(json.dumps(result, indent=2) + "\n")


def main():
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("measures", nargs="*", default=list(MEASURES), metavar="MEASURE")
    parser.add_argument("--quick", action="store_true", help="one small round of everything")
    arguments = parser.parse_args()
    unknown = set(arguments.measures) - set(MEASURES)
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; known are {', '.join(MEASURES)}")
    RESULT.parent.mkdir(exist_ok=True)
    with LOCK.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            parser.error("another bench runs in this tree; both would measure each other")
        measure(arguments)


if __name__ == "__main__":
    main()
