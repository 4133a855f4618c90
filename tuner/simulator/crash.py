"""What SGLang's processes print when one of them dies."""

from __future__ import annotations

import os
from collections.abc import Sequence

from tuner.simulator.failure import traceback_lines
from tuner.simulator.memory import cuda_out_of_memory
from tuner.simulator.profile import Profile

LAUNCH_SIGQUIT = "Received sigquit from a child process. It usually means the child failed."
SERVING_SIGQUIT = "SIGQUIT received. signum=3, frame=None. It usually means one child failed."

_LOOP = (
    "sglang/srt/managers/scheduler.py:3911:run_scheduler_process",
    "sglang/srt/managers/scheduler.py:1312:event_loop_overlap",
    "sglang/srt/managers/scheduler.py:2517:run_batch",
)
_VERIFY = "sglang/srt/speculative/eagle_worker_v2.py:734:verify"
_FORWARD = "sglang/srt/managers/tp_worker.py:512:forward_batch_generation"


def exception(lines: Sequence[str]) -> str:
    """Return a scheduler's record of the exception that ends it."""
    return "Scheduler hit an exception: " + "\n".join(lines) + "\n"


def serving_oom(
    profile: Profile, *, rank: int, speculative: bool, needed_bytes: int, free_bytes: int
) -> tuple[str, ...]:
    """Return the traceback of a step that found no memory.

    Args:
        profile: the GPU.
        rank: of the scheduler, which is the index of its GPU.
        speculative: whether it was a verify step.
        needed_bytes: of the step, more than ``free_bytes``.
        free_bytes: left on the GPU before the step.
    """
    message = cuda_out_of_memory(profile, needed_bytes, free_bytes, profile.gpu.memory_bytes - free_bytes)
    error = "torch.OutOfMemoryError: " + message.replace("GPU 0 ", f"GPU {rank} ")
    return traceback_lines(error, *_LOOP, _VERIFY if speculative else _FORWARD)


def nccl_failure() -> tuple[str, ...]:
    """Return the traceback of a rank whose first collective failed."""
    return traceback_lines(
        "RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)",
        "sglang/srt/managers/scheduler.py:3897:run_scheduler_process",
        "sglang/srt/model_executor/model_runner.py:871:init_torch_distributed",
        "sglang/srt/distributed/device_communicators/pynccl.py:128:__init__",
        "sglang/srt/distributed/device_communicators/pynccl_wrapper.py:371:NCCL_CHECK",
    )


def illegal_access() -> tuple[str, ...]:
    """Return the traceback of a kernel that read where it must not."""
    return traceback_lines(
        "torch.AcceleratorError: CUDA error: an illegal memory access was encountered\n"
        "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below "
        "might be incorrect.\n"
        "For debugging consider passing CUDA_LAUNCH_BLOCKING=1",
        *_LOOP,
        _FORWARD,
    )


def sibling_noise(rank: int) -> str:
    """Return what another rank prints because the first one is gone: a consequence, not a cause."""
    return exception(
        traceback_lines(
            "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2312, remote process exited or "
            f"there was a network error, NCCL version 2.27.3\n[rank{rank}]: ncclRemoteError: A call failed possibly "
            "due to a network error or a remote process exiting prematurely.",
            *_LOOP[:2],
        )
    )


def launch_failure(rank: int, exit_code: int) -> tuple[str, ...]:
    """Return the parent's last words when a scheduler ends before it is ready."""
    return traceback_lines(
        f"RuntimeError: Rank {rank} scheduler died during initialization (exit code: {exit_code}). If exit code is -9 "
        "(SIGKILL), a common cause is the OS OOM killer. Run `dmesg -T | grep -i oom` to check.",
        "sglang/launch_server.py:51:run_server",
        "sglang/srt/entrypoints/http_server.py:2204:launch_server",
        "sglang/srt/entrypoints/engine.py:1093:_wait_for_scheduler_ready",
    )


def hard_death(name: str, pid: int, exit_code: int) -> str:
    """Return the watchdog's record of a child that died without a word."""
    return f"Subprocess {name} (pid={pid}) crashed with exit code {exit_code}. Triggering SIGQUIT for cleanup..."


def port_taken(host: str, port: int, error: OSError) -> str:
    """Return uvicorn's record of an address it cannot bind."""
    reason = os.strerror(error.errno or 0).lower()
    return f"ERROR:    [Errno {error.errno}] error while attempting to bind on address ('{host}', {port}): {reason}"
