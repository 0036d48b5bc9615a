"""What real failures print, for the faults that must look real to whoever reads the log.

Each text has the form that PyTorch and NCCL give it; hosts, ports and sizes are made up. Seen in
public reports: NVIDIA/nccl #2076, #1928 and #1514, vllm #10453 (NCCL errors), BasicSR #737 and
LlamaFactory #7396 (watchdog), Wan2.1 #465 (out of memory on an RTX 5090).
"""

from __future__ import annotations

import time
from typing import Final

NCCL_REMOTE: Final = """\
NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:3690, remote process exited \
or there was a network error, NCCL version 2.27.5
ncclRemoteError: A call failed possibly due to a network error or a remote process exiting \
prematurely.
Last error:
socketProgress: Connection closed by remote peer localhost<51234>"""

NCCL_INTERNAL: Final = """\
NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:3690, internal error - please \
report this issue to the NCCL developers, NCCL version 2.27.5
ncclInternalError: Internal check failed.
Last error:
Attribute busid of node nic not found"""

CUDA_OOM: Final = """\
CUDA out of memory. Tried to allocate 512.00 MiB. GPU 0 has a total capacity of 31.37 GiB of \
which 215.88 MiB is free. Including non-PyTorch memory, this process has 31.14 GiB memory in \
use. Of the allocated memory 30.42 GiB is allocated by PyTorch, and 151.41 MiB is reserved by \
PyTorch but unallocated. If reserved but unallocated memory is large try setting \
PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for \
Memory Management  (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"""

USER_CODE: Final = "could not broadcast input array from shape (255,) into shape (256,)"

_WATCHDOG: Final = """\
{prefix}:616] {timeout}
{prefix}:1785] {group} Exception (either an error or timeout) detected by watchdog at work: 808, \
last enqueued NCCL work: 811, last completed NCCL work: 807.
{prefix}:681] [Rank {rank}] Some NCCL operations have failed or timed out. Due to the \
asynchronous nature of CUDA kernels, subsequent GPU operations might run on corrupted/incomplete \
data.
{prefix}:695] [Rank {rank}] To avoid data inconsistency, we are taking the entire process down.
{prefix}:1613] {group} Process group watchdog thread terminated with exception: {timeout}
terminate called after throwing an instance of 'c10::DistBackendError'
  what():  {group} Process group watchdog thread terminated with exception: {timeout}
"""


def nccl_timeout(rank: int, now_s: float) -> str:
    """Return what the watchdog of `rank` prints at Unix time `now_s` before it aborts."""
    stamp = time.strftime("%m%d %H:%M:%S", time.gmtime(now_s)) + f".{int(now_s % 1 * 1e9):09d}"
    return _WATCHDOG.format(
        prefix=f"[rank{rank}]:[E{stamp} ProcessGroupNCCL.cpp",
        rank=rank,
        group=f"[PG ID 0 PG GUID 0(default_pg) Rank {rank}]",
        timeout=(
            f"[Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=808, "
            "OpType=ALLREDUCE, NumelIn=9801523, NumelOut=9801523, Timeout(ms)=600000) ran for "
            "600020 milliseconds before timing out."
        ),
    )
