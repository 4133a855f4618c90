"""The start-up of SGLang, line by line, as each version prints it."""

from __future__ import annotations

from collections.abc import Iterator

from writing.case import Line

# Points of a start-up, in order, and the stage that the log shows once they are reached.
STAGES = {
    "nothing": "",
    "args": "args",
    "baseline": "args",
    "load_weights": "load_weights",
    "weights": "load_weights",
    "load_draft": "load_draft",
    "draft": "load_draft",
    "state": "pool",
    "pool": "pool",
    "capture": "capture",
    "capture_draft": "capture",
    "captured": "capture",
    "bound": "capture",
    "ready": "ready",
    "serving": "ready",
}
_POINTS = tuple(STAGES)
_SETTINGS = {
    "model_path": "Qwen/Qwen3.5-122B-A10B-FP8",
    "host": "0.0.0.0",
    "port": 30000,
    "api_key": "sk-golden",
    "mem_fraction_static": 0.8,
    "tp_size": 4,
    "watchdog_timeout": 300,
    "enable_memory_saver": False,
    "speculative_algorithm": "EAGLE",
    "speculative_num_steps": 10,
    "speculative_eagle_topk": 1,
    "speculative_num_draft_tokens": 11,
}
_SPEED = "cuda graph: True, gen throughput (token/s): 1611.20, #queue-req: 16"


def startup(family: str, until: str, traits: frozenset[str], ranks: tuple[str, ...] = ("TP0",)) -> list[Line]:
    """Return the records up to and including a point; each rank says what it says of itself."""
    last = _POINTS.index(until)
    lines = []
    for point, line in _all(family, traits):
        if _POINTS.index(point) > last:
            break
        lines += [Line(line.text, rank) for rank in ranks] if line.rank == "TP*" else [line]
    return lines


def stage_at(point: str, traits: frozenset[str]) -> str:
    """Return the stage that a log shows which ends at this point."""
    stage = STAGES[point]
    if stage == "load_draft" and "draft" not in traits:
        return "load_weights"
    if point == "state" and "hybrid" not in traits:
        return stage_at("draft", traits)
    return stage


def _all(family: str, traits: frozenset[str]) -> Iterator[tuple[str, Line]]:
    is_old = family != "0.5.23"
    settings = {key: value for key, value in _SETTINGS.items() if "draft" in traits or "speculative" not in key}
    if is_old:
        inside = ", ".join(f"{key}={value!r}" for key, value in settings.items())
        yield "args", Line(f"server_args=ServerArgs({inside})")
    else:
        yield "args", Line(f"server_args={settings}")
    if "draft" in traits:
        yield (
            "args",
            Line(
                "Max running requests is reset to 48 for speculative decoding. You can override this by explicitly "
                "setting --max-running-requests."
            ),
        )
    if is_old:
        yield "baseline", Line("Init torch distributed begin.", "TP*")
        yield "baseline", Line("Init torch distributed ends. mem usage=0.62 GB", "TP*")
    else:
        yield "baseline", Line("Memory baseline taken. mem usage=0.62 GB", "TP*")
    yield "load_weights", Line("Load weight begin. avail mem=138.20 GB", "TP*")
    yield "load_weights", Line("Loading safetensors checkpoint shards:   0% Completed | 0/39 [00:00<?, ?it/s]", None)
    yield "weights", _loaded("Qwen3_5MoeForConditionalGeneration", is_old=is_old)
    if "draft" in traits:
        yield "load_draft", Line("Load weight begin. avail mem=106.90 GB", "TP*")
        yield "draft", _loaded("Qwen3_5ForCausalLMMTP", is_old=is_old)
    if "hybrid" in traits:
        yield (
            "state",
            Line(
                "Mamba Cache is allocated. max_mamba_cache_size: 85, conv_state size: 0.42GB, ssm_state size: 6.10GB "
                "intermediate_ssm_state_cache size: 30.20GB intermediate_conv_window_cache size: 0.51GB",
                "TP*",
            ),
        )
    dtype = "" if is_old else "dtype: torch.bfloat16, "
    yield "pool", Line(f"KV Cache is allocated. {dtype}#tokens: 120312, K size: 11.04 GB, V size: 11.04 GB", "TP*")
    yield "pool", Line("Memory pool end. avail mem=24.91 GB", "TP*")
    yield from _graphs(is_old=is_old, has_draft="draft" in traits)
    yield (
        "captured",
        Line(
            "max_total_num_tokens=120312, chunked_prefill_size=8192, max_prefill_tokens=16384, "
            "max_running_requests=17, context_len=262144, available_gpu_mem=19.60 GB",
            "TP0",
        ),
    )
    yield "bound", Line("INFO:     Started server process [4200]", None)
    yield "bound", Line("INFO:     Waiting for application startup.", None)
    yield "bound", Line("INFO:     Application startup complete.", None)
    yield "bound", Line("INFO:     Uvicorn running on http://0.0.0.0:30000 (Press CTRL+C to quit)", None)
    yield "bound", Line('INFO:     127.0.0.1:51234 - "GET /model_info HTTP/1.1" 200 OK', None)
    yield "ready", Line('INFO:     127.0.0.1:51240 - "POST /generate HTTP/1.1" 200 OK', None)
    yield "ready", Line("The server is fired up and ready to roll!")
    for running in (1, 4, 16):
        yield "serving", decoding(running, is_hybrid="hybrid" in traits)


def decoding(running: int, *, is_hybrid: bool = True) -> Line:
    """Return the line that a serving scheduler prints every 40 iterations."""
    tokens = running * 5000
    used = (
        f"#full token: {tokens}, full token usage: 0.66, mamba num: {running}, mamba usage: 0.19"
        if is_hybrid
        else f"#token: {tokens}, token usage: 0.66"
    )
    return Line(f"Decode batch, #running-req: {running}, {used}, accept len: 2.87, accept rate: 0.62, {_SPEED}", "TP0")


def _loaded(kind: str, *, is_old: bool) -> Line:
    dtype = "dtype=torch.bfloat16, " if is_old else ""
    return Line(
        f"Load weight end. elapsed=12.91 s, type={kind}, {dtype}avail mem=106.90 GB, mem usage=31.30 GB.", "TP*"
    )


def _graphs(*, is_old: bool, has_draft: bool) -> Iterator[tuple[str, Line]]:
    if is_old:
        slow = "This can take up to several minutes. avail mem"
        yield "capture", Line(f"Capture cuda graph begin. {slow}=22.40 GB", "TP*")
        yield "capture", Line("Capture cuda graph bs [1, 2, 4, 8]", "TP0")
    else:
        mode = "verify" if has_draft else "decode"
        text = f"Capture target {mode} CUDA graph"
        yield "capture", Line(f"{text} begin. backend=full, num_tokens_per_req=11, avail mem=22.40 GB", "TP*")
    yield (
        "capture",
        Line("\rCapturing batches (bs=8 avail_mem=21.88 GB):  25%|██▌       | 1/4 [00:01<00:04,  1.51s/it]", None),
    )
    if is_old:
        yield "capture_draft", Line("Capture cuda graph end. Time elapsed: 8.20 s. mem usage=1.90 GB.", "TP*")
    else:
        yield (
            "capture_draft",
            Line(f"{text} end. bs=[1, 2, 4, 8], elapsed=8.20 s, mem usage=1.90 GB, avail mem=20.50 GB.", "TP*"),
        )
    if has_draft and is_old:
        yield "capture_draft", Line(f"Capture draft cuda graph begin. {slow}=20.50 GB", "TP*")
        yield "captured", Line("Capture draft cuda graph end. Time elapsed: 2.10 s. mem usage=0.40 GB.", "TP*")
    elif has_draft:
        text = "Capture draft decode CUDA graph"
        yield "capture_draft", Line(f"{text} begin. backend=full, num_tokens_per_req=1, avail mem=20.50 GB", "TP*")
        yield "captured", Line(f"{text} end. elapsed=2.10 s, mem usage=0.40 GB, avail mem=20.10 GB.", "TP*")
