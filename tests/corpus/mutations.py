"""Inputs for the fuzzers of the reader: corpus and catalogue samples, changed by chance."""

import json
import random
from collections.abc import Callable
from pathlib import Path

from humigence_supervise.catalogue import load_catalogue

CORPUS = Path(__file__).resolve().parent
LINES = [line.encode() for row in load_catalogue().rows for line in (*row.match, *row.near_miss)]
INCIDENTS = sorted(path.parent for path in CORPUS.glob("*/expected.json"))
LOGS = [
    path.read_bytes()
    for incident in INCIDENTS
    for path in sorted(incident.rglob("*"))
    if path.suffix in (".log", ".out", ".err", ".txt")
]
ORDINARY = (
    b"step 412/1000 loss 2.1183 lr 3.0e-04 1266.5 samples/s\n",
    b"{'loss': 1.9021, 'grad_norm': 0.71, 'learning_rate': 4.1e-05, 'epoch': 0.31}\n",
    b"\rEpoch 3:  41%|####      | 41/100 [00:04<00:05, 10.1it/s, v_num=3]\n",
    b"node1:4242:4242 [0] NCCL INFO Using network Socket\n",
    b"2026-01-05 10:11:12,131 - train - INFO - saved step 400\n",
    b"\n",
)


PREFIXES = (
    b"[rank0]: ",
    b"[default1]:",
    b"[trainer0|0]:",
    b"[1,2]<stdout>:",
    b"host:0]: ",
    b"(Worker pid=12, ip=10.0.0.1) ",
    b"stderr: ",
    b"2026-02-18T13:28:25.497Z ",
    b"2026-02-18 13:28:25,496 - root - ERROR - ",
    b"[rank7]:[E218 13:48:25.033625188 ProcessGroupNCCL.cpp:632] ",
    b"3: ",
    b"node2: ",
    b"[  123.456789] ",
    b"\x1b[31m",
    b"[0m",
)
INSERTS = (
    b"\r", b"\x00", b"\x1b[31m", b"\x1b", b"\xff", b"\xc3", b"\xe2\x80\xa8", b"\n", b"\r\n", b"\\n",
    b"\\u0000", b"\xed\xa0\x80", b'"', b"9" * 400, b"[" * 300, b"\x1b]0;" + b"a" * 300,
)  # fmt: skip


def flip_bits(rng: random.Random, data: bytes) -> bytes:
    """Flip up to eight bits."""
    flipped = bytearray(data)
    for _ in range(rng.randint(1, 8) if data else 0):
        flipped[rng.randrange(len(flipped))] ^= 1 << rng.randrange(8)
    return bytes(flipped)


def truncate(rng: random.Random, data: bytes) -> bytes:
    """Cut off the end, or the beginning."""
    at = rng.randint(0, len(data))
    return data[:at] if rng.random() < 0.5 else data[at:]


def splice(rng: random.Random, data: bytes) -> bytes:
    """Go on in the middle of another case."""
    other = rng.choice(LINES)
    return data[: rng.randint(0, len(data))] + other[rng.randint(0, len(other)) :]


def shuffle_lines(rng: random.Random, data: bytes) -> bytes:
    """Mix the lines."""
    lines = data.split(b"\n")
    rng.shuffle(lines)
    return b"\n".join(lines)


def repeat_line(rng: random.Random, data: bytes) -> bytes:
    """Say one line again and again."""
    line = rng.choice(data.split(b"\n"))[:2_000]
    return data + b"\n" + (line + b"\n") * rng.randint(1, 20)


def insert(rng: random.Random, data: bytes) -> bytes:
    """Put something unprintable, or much of something, into a line."""
    at = rng.randint(0, len(data))
    return data[:at] + rng.choice(INSERTS) * rng.randint(1, 3) + data[at:]


def stack_prefixes(rng: random.Random, data: bytes) -> bytes:
    """Put launchers' and loggers' prefixes before every line."""
    prefix = b"".join(rng.choice(PREFIXES) for _ in range(rng.randint(1, 9)))
    return prefix + data.replace(b"\n", b"\n" + prefix)


def wrap(rng: random.Random, data: bytes) -> bytes:
    """Break lines hard at a width, in the middle of a token."""
    width = rng.randint(1, 80)
    return b"\n".join(data[at : at + width] for at in range(0, min(len(data), 4_000), width))


def escape(_: random.Random, data: bytes) -> bytes:
    """Put everything into one JSON string."""
    return json.dumps({"log": data.decode(errors="replace")}).encode()


def interleave(rng: random.Random, data: bytes) -> bytes:
    """Let another case write into the words of this one."""
    other, pieces = rng.choice(LINES), []
    for at in range(0, len(data), 17):
        pieces += [data[at : at + 17], other[at % 97 : at % 97 + rng.randint(0, 5)]]
    return b"".join(pieces)


MUTATIONS: tuple[Callable[[random.Random, bytes], bytes], ...] = (
    flip_bits, truncate, splice, shuffle_lines, repeat_line, insert, stack_prefixes, wrap, escape,
    interleave,
)  # fmt: skip


def mutated(rng: random.Random) -> bytes:
    """Return one input: some catalogue lines, sometimes a whole log, one to four times changed."""
    chance = rng.random()
    if chance < 0.1:
        data = rng.choice(LOGS)[:8_000]
    elif chance < 0.102:
        data = rng.choice(LINES) * rng.randint(1, 4_000)
        return data[:1_000_000] if rng.random() < 0.5 else data[:1_000_000] + b"\n" + data
    else:
        data = b"\n".join(rng.choice(LINES) for _ in range(rng.randint(1, 5)))
    for _ in range(rng.randint(1, 4)):
        data = rng.choice(MUTATIONS)(rng, data)
    return data
