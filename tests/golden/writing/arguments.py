"""Starts of SGLang that end before any weight is loaded: arguments, models, packages."""

# ruff: noqa: E501 - texts stand here as the engine prints them

from __future__ import annotations

from tuner.model.outcome import Cause, Ending
from writing.case import SGLANG, Death, Expected, Line, scheduler, traceback
from writing.memory import DENSE, capture_failed

_HOOK = "arg_groups/speculative_hook.py:88:_handle_eagle_family"
_CHECK = "arg_groups/validation_hook.py:210:_check_backend"
_OLD_HOOK = "server_args.py:1633:_handle_speculative_decoding"
_USAGE = "usage: sglang serve [-h] --model-path MODEL_PATH [--host HOST] [--port PORT]"


def _usage(name: str, message: str, families: tuple[str, ...] = SGLANG, *, program: str = "sglang serve") -> Death:
    return Death(
        name=name,
        at="nothing",
        lines=(Line(_USAGE.replace("sglang serve", program), None), Line(f"{program}: error: {message}", None)),
        told="parent",
        expected=Expected(cause=Cause.REJECTED_ARGUMENTS, config_fault=True, evidence=message),
        ending=Ending(exit_status=2, service_result="exit-code"),
        families=families,
        decisive=("error: ",),
    )


def _rule(name: str, error: str, frame: str = _CHECK, families: tuple[str, ...] = ("0.5.15", "0.5.23")) -> Death:
    return Death(
        name=name,
        at="nothing",
        lines=(Line(traceback(frame, error=error).replace("managers/scheduler.py", "launch_server.py"), None),),
        told="parent",
        expected=Expected(cause=Cause.REJECTED_ARGUMENTS, config_fault=True, evidence=error.split(" (", maxsplit=1)[0]),
        ending=Ending(exit_status=1, service_result="exit-code"),
        families=families,
        decisive=(error, frame.split(":", maxsplit=1)[0]),
        without=frozenset({Cause.UNKNOWN}),
    )


_OLD = ("0.5.9",)
_NEW = ("0.5.23",)
_RULES = (
    _rule("topk_backend", "ValueError: trtllm_mha backend only supports topk = 1 for speculative decoding."),
    _rule(
        "topk_pages",
        "ValueError: speculative_eagle_topk > 1 with page_size > 1 is only supported on ('flashinfer', 'fa3', 'triton');"
        " got attention_backend='trtllm_mha'. Use page_size == 1 or one of those backends.",
    ),
    _rule(
        "topk_pages_old",
        "ValueError: speculative_eagle_topk(4) > 1 with page_size(64) > 1 is unstable and produces incorrect results "
        "for paged attention backends. This combination is only supported for the 'flashinfer' backend.",
        _OLD_HOOK,
        _OLD,
    ),
    _rule(
        "spec_v2_topk",
        "ValueError: Spec v2 currently only supports topk = 1 for speculative decoding.",
        _OLD_HOOK,
        _OLD,
    ),
    _rule("steps_absent_old", "AssertionError", _OLD_HOOK, _OLD).but(decisive=("AssertionError", "server_args.py")),
    _rule("steps_absent", "AssertionError", _HOOK),
    _rule("topk_absent", "TypeError: '>' not supported between instances of 'NoneType' and 'int'", _HOOK),
    _rule("unknown_algorithm", "ValueError: Unknown speculative algorithm name: MTP", _HOOK),
    _rule("draft_backend", "ValueError: EAGLE is not supported in decode attention backend flex_attention", _CHECK),
    _rule(
        "standalone_dp", "ValueError: Currently standalone speculative decoding does not support dp attention.", _HOOK
    ),
    _rule(
        "sampling_topk",
        "ValueError: --speculative-use-rejection-sampling requires --speculative-eagle-topk=1.",
        families=_NEW,
    ),
    _rule(
        "pipeline", "AssertionError: Pipeline parallelism is not compatible with overlap schedule", families=("0.5.15",)
    ),
    _rule(
        "multi_layer",
        "ValueError: multi-layer EAGLE requires speculative_num_draft_tokens == speculative_num_steps + 1, got 8",
        _HOOK,
    ),
    _rule(
        "adaptive",
        "ValueError: --speculative-num-steps=4 is not in the adaptive config candidate_steps [1, 3, 5, 7]",
        _HOOK,
        _NEW,
    ),
    _rule(
        "track_interval",
        "AssertionError: mamba_track_interval >= speculative_num_draft_tokens",
        "arg_groups/mamba_hook.py:144:_handle_extra_buffer",
        _NEW,
    ),
    _rule(
        "no_buffer_page", "ValueError: no_buffer only supports page_size=1.", "arg_groups/mamba_hook.py:97:_no_buffer"
    ),
    _rule("chunk_pages", "ValueError: chunked_prefill_size must be divisible by page_size"),
    _rule(
        "gemma_draft",
        "ValueError: Gemma4AssistantForCausalLM draft requires --speculative-algorithm NEXTN or EAGLE; got EAGLE3",
        _HOOK,
        _NEW,
    ),
)

_WORKER = "speculative/draft_utils.py:70:create_decode_backend"
_MORE_RULES = (
    _rule(
        "standalone_vocabulary",
        "ValueError: STANDALONE speculative decoding requires the draft model to share the same vocabulary as the target model, but got 151936 and 32000",
        _HOOK,
    ),
    _rule("ngram_device", "ValueError: Ngram speculative decoding only supports CUDA, CPU, or XPU devices.", _HOOK),
    _rule(
        "no_buffer_overlap",
        "ValueError: no_buffer do not support overlap schedule. Please set --disable-overlap-schedule.",
        "arg_groups/mamba_hook.py:99:_no_buffer",
    ),
    _rule("bare_mamba", "AssertionError", "arg_groups/mamba_hook.py:150:_handle_extra_buffer", _NEW),
    _rule(
        "pipeline_old", "AssertionError: Pipeline parallelism is not compatible with overlap schedule", _OLD_HOOK, _OLD
    ),
    _rule(
        "sampling_threshold",
        "ValueError: --speculative-use-rejection-sampling is incompatible with --speculative-accept-threshold-single / --speculative-accept-threshold-acc below 1.0",
        _HOOK,
        _NEW,
    ),
    _rule(  # asked only when the draft's worker is made
        "draft_backend_in_worker",
        "ValueError: EAGLE is not supported in attention backend torch_native",
        _WORKER,
        SGLANG,
    ).but(
        at="draft",
        told="child",
        ending=Ending(exit_signal=9),
        lines=(scheduler(_WORKER, error="ValueError: EAGLE is not supported in attention backend torch_native"),),
    ),
    _usage("no_model", "the following arguments are required: --model-path/--model"),
    _usage("no_value", "argument --mem-fraction-static: expected one argument"),
)


def _missing(name: str, error: str, evidence: str, at: str) -> Death:
    return Death(
        name=name,
        at=at,
        lines=(
            Line("Scheduler hit an exception: " + traceback("utils/hf_utils.py:301:get_config", error=error), "TP0"),
        )
        if at != "nothing"
        else (Line(traceback("utils/hf_utils.py:301:get_config", error=error), None),),
        told="child" if at != "nothing" else "parent",
        expected=Expected(cause=Cause.MODEL_MISSING, config_fault=False, evidence=evidence),
        ending=Ending(exit_signal=9) if at != "nothing" else Ending(exit_status=1),
        decisive=(evidence, *error.split("\n")),
    )


_PACKAGE = "{0} is installed with version {1}, which is less than the minimum required version {2}. "
_REINSTALL = "Please reinstall the latest version with"


def _package(name: str, installed: str, wanted: str, families: tuple[str, ...] = SGLANG) -> Death:
    text = f"{_PACKAGE.format(name, installed, wanted)}{_REINSTALL}: pip install {name} --force-reinstall"
    return Death(
        name=f"old_{name}",
        at="nothing",
        lines=(Line(traceback("utils/common.py:1201:assert_pkg_version", error=f"Exception: {text}"), None),),
        told="parent",
        expected=Expected(cause=Cause.DEPENDENCY_MISMATCH, config_fault=False, evidence=_REINSTALL),
        ending=Ending(exit_status=1),
        families=families,
        decisive=(_REINSTALL, "assert_pkg_version"),
    )


DEATHS = (
    _usage(
        "ambiguous_option",
        "ambiguous option: --cuda-graph-max-bs could match --cuda-graph-max-bs-decode, --cuda-graph-max-bs-prefill",
        _NEW,
    ),
    _usage("removed_option", "unrecognized arguments: --mamba-scheduler-strategy extra_buffer", _NEW),
    _usage("unrecognized", "unrecognized arguments: --speculative-nums-steps 3"),
    _usage(
        "not_a_number",
        "argument --speculative-num-steps: invalid int value: '3.5'",
        program="launch_server.py",
    ),
    _usage(
        "not_a_choice",
        "argument --speculative-attention-mode: invalid choice: 'both' (choose from 'prefill', 'decode')",
    ),
    *_RULES,
    *_MORE_RULES,
    _rule(
        "context_too_long",
        "ValueError: User-specified context_length (999999) is greater than the derived context_length (262144).",
        "configs/model_config.py:310:__init__",
        SGLANG,
    ).but(
        at="args",
        expected=Expected(
            cause=Cause.REJECTED_ARGUMENTS, config_fault=None, evidence="greater than the derived context_length"
        ),
    ),
    Death(
        name="draft_tokens_beyond_tree",
        at="capture",
        lines=(capture_failed("RuntimeError: selected index k out of range"),),
        expected=Expected(cause=Cause.REJECTED_ARGUMENTS, config_fault=True, evidence="selected index k out of range"),
    ),
    _missing(
        "weights_missing",
        "RuntimeError: Cannot find any model weights with `Qwen/Qwen3.5-122B-A10B-FP8`",
        "Cannot find any model weights",
        "load_weights",
    ),
    _missing(
        "not_a_repository",
        "OSError: /models/qwen-122b is not a local folder and is not a valid model identifier listed on "
        "'https://huggingface.co/models'",
        "is not a local folder and is not a valid model identifier",
        "nothing",
    ),
    _missing(
        "gated",
        "huggingface_hub.errors.GatedRepoError: 403 Client Error. (Request ID: Root=1-68ee)\n\nCannot access gated repo "
        "for url https://huggingface.co/Qwen/Qwen3.5-122B-A10B-FP8/resolve/main/config.json.",
        "GatedRepoError",
        "nothing",
    ),
    _missing(
        "offline",
        "huggingface_hub.errors.OfflineModeIsEnabled: Cannot reach https://huggingface.co/api/models/Qwen: offline mode "
        "is enabled. To disable it, please unset the `HF_HUB_OFFLINE` environment variable.",
        "OfflineModeIsEnabled",
        "args",
    ),
    _package("flashinfer_python", "0.6.9", "0.7.2"),
    _package("sglang-kernel", "0.4.1", "0.4.9").but(traits=DENSE),
)
