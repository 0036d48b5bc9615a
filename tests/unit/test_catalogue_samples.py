"""Every alternative of every pattern is proven by a line that a program printed."""

import re

import pytest

from humigence_supervise.catalogue import Row, load_catalogue, parse_row
from humigence_supervise.literals import _elements, _split_branches

ROWS = load_catalogue().rows

FRAME = 'File "/env/lib/python3.10/site-packages/'
UNDER = {
    "nccl.error_during_init": (
        f'{FRAME}torch/distributed/utils.py", line 275, in _sync_module_states',
        [
            (
                "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1333, "
                "unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.18.6"
            ),
        ],
    ),
    "gloo.peer_socket": (
        f'{FRAME}torch/distributed/distributed_c10d.py", line 3145, in all_gather_object',
        [
            "RuntimeError: Connection reset by peer",
            "RuntimeError: Broken pipe",
            "host1:18553:18612 [0] include/socket.h:371 WARN Connection closed by remote peer",
        ],
    ),
    "rendezvous.reset": (
        f'{FRAME}torch/distributed/rendezvous.py", line 176, in _create_c10d_store',
        [
            "torch.distributed.DistNetworkError: Connection reset by peer",
            "RuntimeError: Broken pipe",
            (
                "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:144] "
                "Socket closed [10.0.0.2]:43210"
            ),
            "RuntimeError: Connection refused",
        ],
    ),
    "rendezvous.no_route": (
        f'{FRAME}torch/distributed/rendezvous.py", line 176, in _create_c10d_store',
        [
            "RuntimeError: No route to host",
            "socket.gaierror: [Errno -2] Name or service not known",
            "socket.gaierror: [Errno -3] Temporary failure in name resolution",
            (
                "torch.distributed.DistNetworkError: The IPv4 network addresses of (node1, 29500) "
                "cannot be retrieved (gai error: -2 - Name or service not known)."
            ),
            "socket.gaierror: [Errno 11001] getaddrinfo failed",
            "OSError: [Errno 101] Network is unreachable",
        ],
    ),
    "dataloader.handover": (
        f'{FRAME}torch/multiprocessing/reductions.py", line 307, in rebuild_storage_fd',
        [
            "ConnectionResetError: [Errno 104] Connection reset by peer",
            "ConnectionRefusedError: [Errno 111] Connection refused",
            (
                "ConnectionAbortedError: [WinError 10053] An established connection was aborted by "
                "the software in your host machine"
            ),
            "BrokenPipeError: [Errno 32] Broken pipe",
            "EOFError",
            "FileNotFoundError: [Errno 2] No such file or directory",
        ],
    ),
    "python.ignored": (
        (
            "Exception ignored in: <function _MultiProcessingDataLoaderIter.__del__ at 0x7f6d>\n"
            "Traceback (most recent call last):\n"
            f'  {FRAME}torch/utils/data/dataloader.py", line 1478, in __del__'
        ),
        ["AssertionError: can only test a child process"],
    ),
    "python.traceback_ignored": (
        "Exception ignored in: <function _MultiProcessingDataLoaderIter.__del__ at 0x7f6d>",
        ["Traceback (most recent call last):"],
    ),
    "python.survived": (
        (
            "WARNING - upload failed, trying to continue\n"
            "Traceback (most recent call last):\n"
            f'  {FRAME}requests/adapters.py", line 519, in send'
        ),
        [
            (
                "requests.exceptions.ConnectionError: ('Connection aborted.', "
                "RemoteDisconnected('Remote end closed connection without response'))"
            ),
            (
                "requests.exceptions.ReadTimeout: HTTPSConnectionPool(host='api.wandb.ai', "
                "port=443): Read timed out. (read timeout=20)"
            ),
        ],
    ),
    "python.spawned_child": (
        'File "/usr/lib/python3.10/multiprocessing/spawn.py", line 126, in _main',
        ["EOFError: Ran out of input"],
    ),
    "shm.errno28": (
        'File "/usr/lib/python3.10/multiprocessing/synchronize.py", line 57, in __init__',
        ["OSError: [Errno 28] No space left on device"],
    ),
    "checkpoint.state_json": (
        f'{FRAME}transformers/trainer_callback.py", line 148, in load_from_json',
        ["json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)"],
    ),
    "checkpoint.reader_refuses": (
        f'{FRAME}torch/serialization.py", line 712, in __init__',
        ["OSError: [Errno 22] Invalid argument"],
    ),
}
"""Rows that count only under a text: that text (a traceback's frame), and lines under it."""


def alternatives(pattern: str) -> list[str]:
    """Return the alternatives of a pattern, also where one group holds them all."""
    branches = _split_branches(pattern)
    group, quantifier = _elements(pattern)[0]
    if group == pattern and group.startswith("(?:") and not quantifier:
        return alternatives(group[3:-1])
    return branches


def unsampled(row: Row, lines: list[str]) -> list[str]:
    """Return the row's alternatives that are in none of the lines."""
    parts = alternatives(row.pattern.pattern)
    return [part for part in parts if not any(re.search(part, line) for line in lines)]


def name(row: Row) -> str:
    """Return the row's id for test names."""
    return row.id


@pytest.mark.parametrize("row", [row for row in ROWS if row.above is None], ids=name)
def test_every_alternative_has_a_sample(row):
    """No alternative of a pattern stands there on belief alone."""
    assert unsampled(row, list(row.match)) == []


@pytest.mark.parametrize("row", [row for row in ROWS if row.above is not None], ids=name)
def test_every_alternative_counts_only_under_its_text(row):
    """The same line is this row's under the text, and not without it."""
    above, lines = UNDER[row.id]
    assert unsampled(row, lines) == []
    for line in lines:
        assert load_catalogue().match(line, lambda: above) is row
        assert load_catalogue().match(line) is not row


def test_an_unsampled_alternative_is_found():
    """A row with an alternative that no sample has fails, also where a group holds them all."""
    entry = {
        "id": "x.y",
        "kind": "shm",
        "role": "root",
        "means": "m",
        "not_proof_of": "n",
        "source": "s",
        "match": ["no room"],
        "near_miss": ["room"],
    }
    for pattern in ("no room|no space|room$", "(?:no room|no space|room$)"):
        row = parse_row(entry | {"pattern": pattern})
        assert unsampled(row, list(row.match)) == ["no space"]
