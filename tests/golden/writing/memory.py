"""Deaths of SGLang for want of memory or of slots."""

from __future__ import annotations

from dataclasses import replace

from tuner.model.outcome import Cause, Ending, MemoryDirection, TrialState
from writing.case import Death, Expected, Line, missing, out_of_memory, scheduler

HIGH = MemoryDirection.FRACTION_TOO_HIGH
LOW = MemoryDirection.FRACTION_TOO_LOW
DRAFTS = MemoryDirection.TOO_MANY_DRAFT_TOKENS
DENSE = frozenset[str]()
_HINTS = (
    "Possible solutions:\n1. set --mem-fraction-static to a smaller value (e.g., 0.8 or 0.7)\n"
    "2. set --cuda-graph-max-bs-decode to a smaller value (e.g., 16)\n"
    "3. disable decode CUDA graph by --cuda-graph-backend-decode=disabled.\n"
    "Open an issue on GitHub https://github.com/sgl-project/sglang/issues/new/choose"
)
_LOADED = "model_loader/loader.py:688:load_model"
_CONFIGURED = "mem_cache/kv_cache_configurator.py:233:configure"
_CAPTURED = "model_executor/runner/base_cuda_graph_runner.py:311:capture"
_FORWARD = "model_executor/model_runner.py:1822:forward_extend"
_PEERS = (
    "TP rank 1 could finish the model loading, but there are other ranks that didn't finish loading. It is likely due "
    "to unexpected failures (e.g., OOM) or a slow node."
)


def _ran_out(cause: Cause, tried: float, free: float, direction: MemoryDirection | None) -> Expected:
    return Expected(
        cause=cause,
        config_fault=True,
        direction=direction,
        shortfall_bytes=missing(tried, free),
        evidence="CUDA out of memory. Tried to allocate",
    )


def capture_failed(inner: str, *frames: str, hints: str = _HINTS, rank: str = "TP0") -> Line:
    """Return what a scheduler prints when a capture fails: the inner error, then the wrapper with its hints."""
    message = inner.split(": ", 1)[1] if ": " in inner else inner
    wrapped = f"Exception: Capture cuda graph failed: {message}\n{hints}"
    chained = "\n\nDuring handling of the above exception, another exception occurred:\n\n"
    first = scheduler(_CAPTURED, *frames, error=inner, rank=rank).text
    second = scheduler("model_executor/model_runner.py:2101:init_device_graphs", error=wrapped).text
    return Line(first + chained + second.removeprefix("Scheduler hit an exception: "), rank)


_NO_ROOM = Expected(
    cause=Cause.KV_POOL_TOO_SMALL,
    config_fault=True,
    direction=LOW,
    evidence="Please try to increase --mem-fraction-static",
)
_WEIGHTS = Death(
    name="oom_weights",
    at="load_weights",
    lines=(scheduler(_LOADED, error=out_of_memory(0.75, 0.5)), Line(_PEERS, "TP1")),
    expected=_ran_out(Cause.OOM_WEIGHTS, 0.75, 0.5, None),
)
_POOL = Death(
    name="oom_kv_pool",
    at="state",
    lines=(scheduler(_CONFIGURED, error=out_of_memory(2.5, 1.25)),),
    expected=_ran_out(Cause.OOM_KV_POOL, 2.5, 1.25, HIGH),
)
_TOO_SMALL = Death(
    name="pool_too_small",
    at="draft",
    lines=(
        scheduler(
            _CONFIGURED,
            error="RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. "
            "Current value: mem_fraction_static=0.62",
        ),
    ),
    expected=_NO_ROOM,
)
_STATE = Death(
    name="state_too_big",
    at="draft",
    lines=(
        scheduler(
            _CONFIGURED,
            error="RuntimeError: Not enough GPU memory for hybrid (mamba/linear-attention) state cache. Computed "
            "max_mamba_cache_size=-3 (total_rest_memory=6.21 GB, mamba_cache_per_req=72.30 MB). Try: (1) reduce "
            "--max-running-requests, (2) increase --mem-fraction-static, (3) reduce --speculative-num-draft-tokens, "
            "(4) set --mamba-ssm-dtype bfloat16.",
        ),
    ),
    expected=Expected(
        cause=Cause.OOM_STATE_POOL, config_fault=True, direction=DRAFTS, evidence="Not enough GPU memory for hybrid"
    ),
)
_CAPTURE = Death(
    name="oom_capture",
    at="capture",
    lines=(capture_failed(out_of_memory(1, 0.25)),),
    expected=_ran_out(Cause.OOM_GRAPH_CAPTURE, 1, 0.25, HIGH),
    decisive=("out of memory",),
)
_LOAD = TrialState.MEASURING
_VERIFY = Death(
    name="oom_verify",
    at="serving",
    lines=(scheduler("speculative/eagle_worker_v2.py:601:verify", error=out_of_memory(2.75, 1.15), rank="TP0"),),
    expected=_ran_out(Cause.OOM_VERIFY_WORKSPACE, 2.75, 1.15, DRAFTS),
    ending=Ending(exit_signal=9, state=_LOAD, service_result="signal"),
)
_SERVING = Death(
    name="oom_serving",
    at="serving",
    lines=(scheduler(_FORWARD, error=out_of_memory(1.5, 1.12)),),
    expected=_ran_out(Cause.OOM_SERVING, 1.5, 1.12, HIGH),
    ending=Ending(exit_signal=9, state=_LOAD),
)


def _too_small(name: str, error: str) -> Death:
    return Death(
        name=name,
        at="draft",
        lines=(scheduler(_CONFIGURED, error=error),),
        expected=replace(_NO_ROOM, evidence=error.split(": ", 1)[1]),
    )


def _slots(name: str, text: str, frame: str, direction: MemoryDirection | None = LOW) -> Death:
    return Death(
        name=name,
        at="serving",
        lines=(Line(text, "TP0"), scheduler(frame, error=f"RuntimeError: {text}")),
        expected=Expected(
            cause=Cause.KV_SLOTS_EXHAUSTED,
            config_fault=True,
            direction=direction,
            evidence=text.split(".", maxsplit=1)[0],
        ),
        ending=Ending(exit_signal=9, state=_LOAD),
        decisive=("out of memory", "Out of memory"),
    )


_BATCH = "Try to lower your batch size."
_ALLOCATED = "mem_cache/common.py:151:alloc_paged_token_slots_extend"

DEATHS = (
    _WEIGHTS,
    _WEIGHTS.but(name="oom_draft_weights", at="load_draft"),
    _WEIGHTS.but(
        name="oom_draft_weights_after_graphs",  # the old order: the target was ready before the draft was loaded
        at="capture_draft",
        traits=frozenset({"hybrid"}),
        families=("0.5.9",),
        expected=replace(_WEIGHTS.expected, stage=None),
        lines=(
            Line("Load weight begin. avail mem=20.50 GB", "TP0"),
            scheduler(_LOADED, error=out_of_memory(0.75, 0.5)),
        ),
    ),
    _WEIGHTS.but(
        name="oom_weights_waiter_first",
        told="race",
        ending=Ending(exit_status=1),
        lines=(scheduler(_LOADED, error=out_of_memory(0.75, 0.5)),),
    ),
    _WEIGHTS.but(name="oom_weights_dense", traits=DENSE, lines=(scheduler(_LOADED, error=out_of_memory(0.75, 0.5)),)),
    Death(
        name="weights_leave_nothing",
        at="draft",
        lines=(
            scheduler(
                _CONFIGURED,
                error="ValueError: Loaded weights leave no GPU memory for the KV cache under "
                "--mem-fraction-static=0.6. Raise --mem-fraction-static above 0.673 (minimum viable = 1 - "
                "available/pre = 1 - 45.20/138.20). If using speculative decoding, draft weights are now counted.",
            ),
        ),
        expected=Expected(
            cause=Cause.KV_POOL_TOO_SMALL,
            config_fault=True,
            direction=LOW,
            viable_fraction=0.673,
            evidence="Raise --mem-fraction-static above 0.673",
        ),
        families=("0.5.15", "0.5.23"),
    ),
    _TOO_SMALL,
    _TOO_SMALL.but(name="pool_too_small_dense", traits=DENSE, at="weights"),
    _too_small("pool_too_small_assert", "AssertionError: Memory pool size is too small"),
    _too_small("no_request_fits", "AssertionError: max_running_request is zero"),
    _too_small("no_room_for_full_pool", "RuntimeError: The state pool leaves no room for the full KV pool."),
    _STATE,
    _STATE.but(
        name="state_serves_nobody",
        lines=(
            scheduler(
                _CONFIGURED,
                error="RuntimeError: Hybrid (mamba/linear-attention) state cache is too small to serve any requests. "
                "max_mamba_cache_size=3, 5 state slots per request.",
            ),
        ),
        expected=Expected(
            cause=Cause.OOM_STATE_POOL,
            config_fault=True,
            direction=DRAFTS,
            evidence="state cache is too small to serve any requests",
        ),
    ),
    _POOL,
    _POOL.but(name="oom_kv_pool_before_states", at="draft"),
    _POOL.but(name="oom_kv_pool_dense", traits=DENSE, at="weights"),
    _CAPTURE,
    _CAPTURE.but(
        name="oom_capture_hipless",
        lines=(capture_failed("RuntimeError: CUDA error: out of memory"),),
        expected=Expected(
            cause=Cause.OOM_GRAPH_CAPTURE, config_fault=True, direction=HIGH, evidence="CUDA error: out of memory"
        ),
    ),
    _CAPTURE.but(
        name="oom_capture_draft",
        at="capture_draft",
        lines=(capture_failed(out_of_memory(0.5, 0.125), rank="TP1"),),
        expected=_ran_out(Cause.OOM_GRAPH_CAPTURE, 0.5, 0.125, HIGH),
    ),
    _CAPTURE.but(
        name="oom_capture_prefill",
        lines=(
            scheduler(
                _CAPTURED,
                error=f"{out_of_memory(1, 0.25)}\n\nDuring handling of the above exception, another exception "
                "occurred:\n\nTraceback (most recent call last):\nException: Fail when using backend: full for prefill "
                "runner. CUDA out of memory. Tried to allocate 1.00 GiB.",
            ),
        ),
        families=("0.5.23",),
    ),
    _VERIFY,
    _VERIFY.but(
        name="oom_draft",
        lines=(scheduler("speculative/eagle_worker.py:412:draft_forward", error=out_of_memory(3.25, 2.83)),),
        expected=_ran_out(Cause.OOM_VERIFY_WORKSPACE, 3.25, 2.83, DRAFTS),
        ending=Ending(exit_signal=9, state=TrialState.SOAKING),
    ),
    _VERIFY.but(
        name="oom_verify_warming_up",
        at="bound",
        ending=Ending(exit_signal=9, state=TrialState.LOADING),
        lines=(
            scheduler("speculative/eagle_worker_v2.py:601:verify", error=out_of_memory(2.75, 1.15)),
            Line(
                "Initialization failed. warmup error: Traceback (most recent call last):\n"
                '  File "/usr/local/lib/python3.12/dist-packages/sglang/srt/entrypoints/http_server.py", line 1402, in '
                "_execute_server_warmup\nrequests.exceptions.ConnectionError: ('Connection aborted.', "
                "RemoteDisconnected('Remote end closed connection without response'))"
            ),
        ),
    ),
    _SERVING,
    _SERVING.but(name="oom_serving_dense", traits=DENSE),
    _SERVING.but(
        name="oom_serving_without_numbers",
        lines=(scheduler(_FORWARD, error="torch.AcceleratorError: CUDA error: out of memory"),),
        expected=Expected(
            cause=Cause.OOM_SERVING, config_fault=True, direction=HIGH, evidence="CUDA error: out of memory"
        ),
    ),
    _SERVING.but(
        name="oom_serving_old_class",
        lines=(scheduler(_FORWARD, error=out_of_memory(1.5, 1.12).replace("torch.", "torch.cuda.", 1)),),
    ),
    _SERVING.but(name="oom_serving_exit_0", ending=Ending(exit_status=0, state=_LOAD)),
    _SERVING.but(
        name="oom_serving_then_our_stop",
        ending=Ending(exit_signal=9, state=_LOAD, signals_sent=(15, 9)),
        without=frozenset({Cause.UNKNOWN, Cause.OWN_STOP}),
    ),
    _SERVING.but(
        name="oom_serving_then_an_operator",
        ending=Ending(exit_signal=9, state=_LOAD, stopped_by_others=True),
        without=frozenset({Cause.UNKNOWN, Cause.OPERATOR_STOP}),
    ),
    _slots("prefill_slots", f"Prefill out of memory. {_BATCH}\nTry to allocate 4096 tokens.", _ALLOCATED),
    _slots("decode_slots", f"Decode out of memory. {_BATCH}\nTry to allocate 64 tokens.", _ALLOCATED),
    _slots("verify_slots", f"Prefill out of memory. {_BATCH}", "speculative/eagle_info.py:140:prepare_for_verify"),
    _slots("slots", f"Out of memory. {_BATCH}", _ALLOCATED).but(families=("0.5.9",)),
    _slots(
        "request_slots",
        "alloc_req_slots runs out of memory. Please set a smaller number for `--max-running-requests`. "
        "req_to_token_pool.available_size()=0, num_reqs=1",
        "mem_cache/common.py:210:alloc_req_slots",
        None,
    ),
)
