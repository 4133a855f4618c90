"""Servers of SGLang that are alive, and the frightening lines in their logs."""

# ruff: noqa: E501 - texts stand here as the engine prints them

from __future__ import annotations

from tuner.model.outcome import Cause, Ending
from writing.case import Death, Expected, Line
from writing.startup import decoding

_QUOTED = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
    "[2026-10-14 02:11:50] SIGTERM received. signum=15 frame=None. Draining requests and shutting down...",
    "RuntimeError: NCCL error: unhandled system error",
    "[2026-10-14 02:11:01] server_args={'model_path': 'x'}\\nLoad weight begin. avail mem=1.00 GB",
    "Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)",
    "Scheduler hit an exception: Traceback (most recent call last):\\nValueError: pool memory leak detected!",
    "SIGQUIT received. signum=3, frame=<frame at 0x7f>. It usually means one child failed.",
)
PROMPTS = tuple(
    Line(text)
    for prompt in _QUOTED
    for text in (
        f'Receive: obj=GenerateReqInput(rid="7c1d", text="What does this mean? {prompt}", stream=False)',
        f"Finish: obj=GenerateReqInput(rid=\"7c1d\"), out={{'text': 'It says: {prompt}', 'meta_info': {{'id': '7c1d'}}}}",
    )
)
FRIGHTENING = (
    Line(
        "KV cache pool is full. Retract requests. #retracted_reqs: 3, #new_tokens_gained: 4096, #mamba_num_gained: 3, "
        "#new_token_ratio: 0.3012 -> 0.7211",
        "TP0",
    ),
    Line(
        "Out of memory even after retracting all other requests in the decode batch. Aborting the last request.", "TP0"
    ),
    Line(
        "max_running_requests is capped to 17 by the mamba state cache (max_mamba_cache_size=85, 5 state slots per "
        "request). Raise it",
        "TP0",
    ),
    Line("KV pool holds 120312 tokens, fewer than --context-length 262144. Long prompts will be refused.", "TP0"),
    Line("Scheduler watchdog timeout (self.watchdog_timeout=30, self.soft=True)", "TP0"),
    Line("Cache not flushed because there are pending requests. #queue-req: 0, #running-req: 3", "TP0"),
    Line('INFO:     127.0.0.1:51400 - "GET /flush_cache HTTP/1.1" 400 Bad Request', None),
    Line('INFO:     127.0.0.1:51401 - "POST /generate HTTP/1.1" 500 Internal Server Error', None),
    decoding(16),
)
UNBALANCED = Line(
    "The memory capacity is unbalanced. Some GPUs may be occupied by other processes. pre_model_load_memory=62.10, "
    "local_gpu_memory=138.20",
    "TP0",
)
SURVIVED = (
    Line("pool memory leak detected! available=3", "TP0"),  # where the strict check is off
    Line("speculative_adaptive disabled: topk > 1. Falling back to static speculative params."),
    Line("max_total_tokens=999999 is larger than the profiled value 120312. Use the profiled value instead.", "TP0"),
    Line(
        "max_running_requests was reduced from the requested 64 to 17 (per dp worker) due to the available KV cache capacity.",
        "TP0",
    ),
    Line("Autotuner: skipping a tactic: CUDA out of memory. Tried to allocate 2.00 GiB.", "TP0"),
    decoding(4),
    decoding(16),
)


def _healthy(name: str, *lines: Line, at: str = "serving") -> Death:
    return Death(
        name=name,
        at=at,
        lines=lines,
        told="parent",
        expected=Expected(cause=Cause.HEALTHY, config_fault=False),
        ending=Ending(has_ended=False),
        silent=True,
    )


DEATHS = (
    _healthy("alive"),
    _healthy("alive_under_pressure", *FRIGHTENING),
    _healthy("alive_with_prompts", *PROMPTS),
    _healthy("alive_loading", at="load_draft"),
    _healthy(
        "alive_with_lost_client",
        Line(
            "ERROR:    Exception in ASGI application\nTraceback (most recent call last):\n"
            '  File "/usr/local/lib/python3.12/dist-packages/starlette/routing.py", line 73, in app\n'
            "starlette.requests.ClientDisconnect",
            None,
        ),
        Line('INFO:     127.0.0.1:51402 - "POST /v1/chat/completions HTTP/1.1" 400 Bad Request', None),
        decoding(16),
    ),
    _healthy("alive_with_warnings", UNBALANCED, *SURVIVED),
)
