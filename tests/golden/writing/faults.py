"""Deaths of SGLang that are neither memory nor arguments: CUDA, NCCL, its own mistakes, hangs, ports."""

# ruff: noqa: E501 - texts stand here as the engine prints them

from __future__ import annotations

from tuner.model.outcome import Cause, Ending, TrialState
from writing.case import Death, Expected, Line, scheduler, traceback
from writing.memory import capture_failed

_LOAD = TrialState.MEASURING


def _fault(name: str, error: str, evidence: str, at: str = "serving") -> Death:
    return Death(
        name=name,
        at=at,
        lines=(scheduler("model_executor/model_runner.py:1822:forward", error=error),),
        expected=Expected(cause=Cause.CUDA_FAULT, evidence=evidence),
        ending=Ending(exit_signal=9, state=_LOAD),
        decisive=(error.split("\n", maxsplit=1)[0],),
    )


_ILLEGAL = (
    "torch.AcceleratorError: CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be "
    "asynchronously reported at some other API call, so the stacktrace below might be incorrect.\nFor debugging "
    "consider passing CUDA_LAUNCH_BLOCKING=1\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side assertions."
)
_GATHER = (
    "../aten/src/ATen/native/cuda/IndexKernelUtils.cu:16: vectorized_gather_kernel: block: [23,0,0], thread: [0,0,0] "
    'Assertion `ind >=0 && ind < ind_dim_size && "vectorized gather kernel index out of bounds"` failed.\n'
    "torch.AcceleratorError: CUDA error: device-side assert triggered"
)
_CUDA = (
    _fault("illegal_access", _ILLEGAL, "illegal memory access"),
    _fault("illegal_access_warming_up", _ILLEGAL, "illegal memory access", "bound"),
    _fault(
        "illegal_instruction",
        "torch.AcceleratorError: CUDA error: an illegal instruction was encountered",
        "illegal instruction was encountered",
    ),
    _fault(
        "device_assert",
        "torch.AcceleratorError: CUDA error: device-side assert triggered",
        "device-side assert triggered",
    ),
    _fault("illegal_address_by_name", "RuntimeError: cudaErrorIllegalAddress", "cudaErrorIllegalAddress"),
    Death(  # a log pasted by someone who does not say how the server ended
        name="illegal_access_last_word",
        at="serving",
        lines=(Line(f"[rank1]: {_ILLEGAL}", None),),
        told="parent",
        expected=Expected(cause=Cause.CUDA_FAULT, evidence="illegal memory access"),
        ending=Ending(has_ended=False),
        without=frozenset({Cause.HEALTHY}),  # then nothing in it shows a death
    ),
    _fault("gather_out_of_bounds", _GATHER, "device-side assert triggered").but(
        decisive=("vectorized_gather_kernel", "device-side assert")
    ),
    _fault("illegal_address", _ILLEGAL, "illegal memory access").but(
        name="illegal_address_in_capture",
        at="capture",
        lines=(capture_failed(_ILLEGAL),),
        decisive=("illegal memory access",),
        ending=Ending(exit_signal=9, state=TrialState.LOADING),
    ),
    Death(
        name="xid",
        at="serving",
        lines=(),
        told="parent",
        expected=Expected(cause=Cause.CUDA_FAULT, evidence="Xid"),
        ending=Ending(
            exit_signal=9,
            state=_LOAD,
            kernel=(
                (
                    "NVRM: Xid (PCI:0000:17:00): 31, pid=4241, name=sglang::schedul, Ch 00000008, intr 00000000. MMU Fault: "
                    "ENGINE GRAPHICS GPCCLIENT_T1_0 faulted @ 0x7f32_10000000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ"
                ),
            ),
        ),
        silent=True,
    ),
)

_NCCL = "distributed/device_communicators/pynccl_wrapper.py:330:NCCL_CHECK"


def _collective(name: str, at: str, lines: tuple[Line, ...], evidence: str, told: str = "child") -> Death:
    return Death(
        name=name,
        at=at,
        lines=lines,
        told=told,
        expected=Expected(cause=Cause.COLLECTIVE, evidence=evidence),
        ending=Ending(exit_signal=9),
        decisive=("NCCL", "collective operation", "DistBackendError"),
    )


_SYSTEM_ERROR = "RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)"
_TIMED_OUT = (
    "[rank1]:[E1014 02:21:48.113 ProcessGroupNCCL.cpp:685] [Rank 1] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=9121, OpType=ALLREDUCE, NumelIn=40960, NumelOut=40960, Timeout(ms)=600000) ran for 600041 "
    "milliseconds before timing out."
)
_ABORTED = (
    "terminate called after throwing an instance of 'c10::DistBackendError'\n  what():  [PG ID 2 PG GUID 3 Rank 1] "
    "Process group watchdog thread terminated with exception: [Rank 1] Watchdog caught collective operation timeout"
)
_COLLECTIVES = (
    _collective("nccl_at_start", "args", (scheduler(_NCCL, error=_SYSTEM_ERROR),), "unhandled system error"),
    _collective(
        "nccl_at_start_waiter_first", "args", (scheduler(_NCCL, error=_SYSTEM_ERROR),), "unhandled system error", "race"
    ).but(ending=Ending(exit_status=1)),
    _collective(
        "dist_backend",
        "baseline",
        (
            scheduler(
                error="torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:77,"
                " unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.27.3"
            ),
        ),
        "DistBackendError",
    ),
    _collective(
        "cudart", "args", (scheduler(_NCCL, error="RuntimeError: CUDART error: initialization error"),), "CUDART error"
    ).but(decisive=("CUDART error",)),
    _collective(
        "collective_timeout",
        "serving",
        (Line(_TIMED_OUT, None), Line(_ABORTED, None)),
        "Watchdog caught collective operation timeout",
        "poll:-6",
    ),
)


def _bug(name: str, at: str, error: str, *frames: str) -> Death:
    return Death(
        name=name,
        at=at,
        lines=(scheduler(*frames, error=error),),
        expected=Expected(cause=Cause.ENGINE_BUG, evidence=error.split(": ", 1)[1][:40]),
        ending=Ending(exit_signal=9),
        decisive=(error, *(frame.split(":")[2] for frame in frames)),
    )


_LEAK = "pool_stats={'available': 120301, 'protected': 0, 'max_total_num_tokens': 120312}"
_BUGS = (
    _bug(
        "mamba_none",
        "serving",
        "TypeError: 'NoneType' object cannot be interpreted as an integer",
        "speculative/eagle_info.py:77:set_mamba_track_indices_from_reqs",
    ),
    _bug(
        "tensor_sizes",
        "serving",
        "RuntimeError: The size of tensor a (44) must match the size of tensor b (40) at non-singleton dimension 0",
        "model_executor/mrope.py:61:forward_mrope",
    ),
    _bug("over_allocation", "serving", "AssertionError: spec v2 page>1 topk>1 draft over-allocation").but(
        families=("0.5.23",)
    ),
    _bug("idle_leak", "serving", f"ValueError: pool memory leak detected! {_LEAK}").but(families=("0.5.15", "0.5.23")),
    _bug("idle_leak_tokens", "serving", f"ValueError: token_to_kv_pool_allocator memory leak detected! {_LEAK}"),
    _bug("idle_leak_requests", "serving", f"ValueError: req_to_token_pool memory leak detected! {_LEAK}"),
    _bug(
        "warm_up",
        "bound",
        "RuntimeError: shape '[11, -1]' is invalid for input of size 16",
        "speculative/eagle_worker_v2.py:601:verify",
    ),
    Death(
        name="capture_kernel",
        at="capture",
        lines=(capture_failed("RuntimeError: Unsupported head_dim 320"),),
        expected=Expected(cause=Cause.ENGINE_BUG, evidence="Unsupported head_dim 320"),
    ),
)

_DUMP = (
    Line("Scheduler debug info: running batch: [...], waiting queue: 0", "TP0"),
    Line("Pyspy dump for PID 4241:\nProcess 4241: sglang::scheduler_TP0\nThread 4241 (active): 'MainThread'", "TP0"),
)


def _hang(name: str, text: str, at: str = "serving", families: tuple[str, ...] = ("0.5.15", "0.5.23")) -> Death:
    return Death(
        name=name,
        at=at,
        lines=(*_DUMP, Line(text, "TP0")),
        expected=Expected(cause=Cause.HANG, evidence=text),
        families=families,
    )


_DETOKENIZER = "Health check failed. Server couldn't get a response from detokenizer for last 20 seconds."
_HANGS = (
    _hang("watchdog", "Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)"),
    _hang("watchdog_first_verify", "Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)", "bound"),
    _hang("watchdog_old", "Watchdog timeout (self.watchdog_timeout=300)", families=("0.5.9",)),
    _hang("watchdog_old_first_verify", "Watchdog timeout (self.watchdog_timeout=300)", "bound", ("0.5.9",)),
    Death(
        name="warm_up_unanswered",
        at="bound",
        lines=(
            Line(
                "Initialization failed. warmup error: Traceback (most recent call last):\n"
                "requests.exceptions.ReadTimeout: HTTPConnectionPool(host='127.0.0.1', port=30000): Read timed out. "
                "(read timeout=600)"
            ),
        ),
        told="parent",
        expected=Expected(cause=Cause.HANG, evidence="Read timed out"),
        decisive=("Read timed out", "Initialization failed"),
    ),
    Death(
        name="detokenizer",
        at="serving",
        lines=(
            Line(f"{_DETOKENIZER} tic start time: 02:31:02. last_heartbeat time: 02:30:41"),
            Line('INFO:     127.0.0.1:51311 - "GET /health HTTP/1.1" 503 Service Unavailable', None),
            Line("Signal SIGTERM received while health check failed. Force exiting."),
        ),
        told="parent",
        expected=Expected(cause=Cause.HANG, evidence="couldn't get a response from detokenizer"),
        ending=Ending(exit_signal=9, state=_LOAD, signals_sent=(15,)),
        without=frozenset({Cause.UNKNOWN, Cause.OWN_STOP, Cause.HANG}),
        decisive=("detokenizer",),
    ),
)


def _port(name: str, at: str, line: Line, evidence: str, told: str) -> Death:
    return Death(
        name=name,
        at=at,
        lines=(line,),
        told=told,
        expected=Expected(cause=Cause.PORT_IN_USE, config_fault=False, evidence=evidence),
        ending=Ending(exit_status=1) if told == "parent" else Ending(exit_signal=9),
    )


_BIND = "[Errno 98] error while attempting to bind on address ('0.0.0.0', 30000): address already in use"
_PORTS = (
    _port("port_taken", "captured", Line(f"ERROR:    {_BIND}", None), "address already in use", "parent"),
    _port(
        "dist_port",
        "args",
        Line(traceback("server_args.py:90:init_new", error="ValueError: Port is already in use. dist_init_port=30233")),
        "Port is already in use.",
        "parent",
    ),
    _port(
        "zmq_port",
        "args",
        Line(
            traceback(
                "utils/network.py:55:wait",
                error="ValueError: scheduler_input at 30234 is not available in 30 "
                "seconds. Something else listens there.",
            )
        ),
        "is not available in 30 seconds",
        "parent",
    ),
    _port(
        "store_port",
        "args",
        scheduler(
            error="torch.distributed.DistNetworkError: The server socket has failed to listen on any local network "
            "address. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"
        ),
        "EADDRINUSE",
        "child",
    ),
)

DEATHS = (*_CUDA, *_COLLECTIVES, *_BUGS, *_HANGS, *_PORTS)
