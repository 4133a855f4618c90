"""SGLang's command line: every flag we know, parsed by argparse and resolved by its rules.

The flags are the fields of ``ServerArgs`` themselves, so that a flag, its default and
its place in ``/server_info`` are written once. The rules SGLang applies afterwards are
in ``rules``.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import typing
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar

from tuner.simulator import rules
from tuner.simulator.failure import ArgumentFailure
from tuner.simulator.profile import Profile

__all__ = ["ArgumentFailure", "ServerArgs", "as_dict", "parse"]

PROG = "sglang serve"

T = TypeVar("T")


def _flag(default: T, *names: str, choices: tuple[str, ...] | None = None) -> T:
    """Declare a flag; without ``names`` it is the field's own name with dashes."""
    return field(default=default, metadata={"names": names, "choices": choices})


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerArgs:
    """The resolved arguments of one server.

    Attributes:
        mem_fraction_static: resolved; never None after ``parse``.
        context_length: resolved to the model's own when the profile is known.
        max_running_requests: None only without speculation and without the flag.
        speculative_num_draft_tokens: D, None when speculation is off.
        warnings: what SGLang logs while it resolves the arguments, in order.
    """

    model_path: str = _flag("", "--model-path", "--model")
    tokenizer_path: str | None = _flag(None)
    tokenizer_mode: str = _flag("auto", choices=("auto", "slow"))
    tokenizer_worker_num: int = _flag(1)
    load_format: str = _flag("auto")
    trust_remote_code: bool = _flag(False)
    context_length: int | None = _flag(None)
    language_only: bool = _flag(False, "--language-only", "--language-model-only")
    revision: str | None = _flag(None)
    host: str = _flag("127.0.0.1")
    port: int = _flag(30000)
    dtype: str = _flag("auto", choices=("auto", "half", "float16", "bfloat16", "float", "float32"))
    quantization: str | None = _flag(None)
    kv_cache_dtype: str = _flag("auto", choices=("auto", "fp8_e5m2", "fp8_e4m3", "bf16", "bfloat16"))
    mem_fraction_static: float | None = _flag(None)
    max_running_requests: int | None = _flag(None)
    max_queued_requests: int | None = _flag(None)
    max_total_tokens: int | None = _flag(None)
    chunked_prefill_size: int | None = _flag(None)
    max_prefill_tokens: int = _flag(16384)
    enable_mixed_chunk: bool = _flag(False)
    schedule_policy: str = _flag("fcfs", choices=("lpm", "random", "fcfs", "dfs-weight", "lof", "priority"))
    schedule_conservativeness: float = _flag(1.0)
    page_size: int | None = _flag(None)
    device: str | None = _flag(None)
    tp_size: int = _flag(1, "--tensor-parallel-size", "--tp-size", "--tp")
    pp_size: int = _flag(1, "--pipeline-parallel-size", "--pp-size")
    dp_size: int = _flag(1, "--data-parallel-size", "--dp-size")
    ep_size: int = _flag(1, "--expert-parallel-size", "--ep-size", "--ep")
    nnodes: int = _flag(1)
    node_rank: int = _flag(0)
    dist_init_addr: str | None = _flag(None)
    base_gpu_id: int = _flag(0)
    stream_interval: int = _flag(1)
    random_seed: int | None = _flag(None)
    watchdog_timeout: float = _flag(300.0)
    soft_watchdog_timeout: float | None = _flag(None)
    dist_timeout: int | None = _flag(None)
    download_dir: str | None = _flag(None)
    skip_server_warmup: bool = _flag(False)
    log_level: str = _flag("info")
    log_level_http: str | None = _flag(None)
    log_requests: bool = _flag(False)
    log_requests_level: int = _flag(2)
    show_time_cost: bool = _flag(False)
    enable_metrics: bool = _flag(False)
    decode_log_interval: int = _flag(40)
    enable_cache_report: bool = _flag(False)
    stream_response_default_include_usage: bool = _flag(False)
    api_key: str | None = _flag(None)
    admin_api_key: str | None = _flag(None)
    served_model_name: str | None = _flag(None)
    chat_template: str | None = _flag(None)
    reasoning_parser: str | None = _flag(None)
    tool_call_parser: str | None = _flag(None)
    attention_backend: str | None = _flag(None)
    prefill_attention_backend: str | None = _flag(None)
    decode_attention_backend: str | None = _flag(None)
    mm_attention_backend: str | None = _flag(None)
    linear_attn_backend: str | None = _flag(None)
    sampling_backend: str | None = _flag(None, choices=("flashinfer", "pytorch"))
    grammar_backend: str | None = _flag(None)
    moe_runner_backend: str = _flag("auto")
    moe_a2a_backend: str = _flag("none")
    fp8_gemm_backend: str = _flag("auto")
    speculative_algorithm: str | None = _flag(None)
    speculative_draft_model_path: str | None = _flag(
        None, "--speculative-draft-model-path", "--speculative-draft-model"
    )
    speculative_draft_model_revision: str | None = _flag(None)
    speculative_num_steps: int | None = _flag(None)
    speculative_eagle_topk: int | None = _flag(None)
    speculative_num_draft_tokens: int | None = _flag(None)
    speculative_accept_threshold_single: float = _flag(1.0)
    speculative_accept_threshold_acc: float = _flag(1.0)
    speculative_use_rejection_sampling: bool = _flag(False)
    speculative_attention_mode: str = _flag("prefill", choices=("prefill", "decode"))
    speculative_draft_attention_backend: str | None = _flag(None)
    speculative_draft_model_quantization: str | None = _flag(None)
    speculative_token_map: str | None = _flag(None)
    speculative_adaptive: bool = _flag(False)
    speculative_ngram_max_bfs_breadth: int = _flag(10)
    enable_multi_layer_eagle: bool = _flag(False)
    max_mamba_cache_size: int | None = _flag(None)
    mamba_full_memory_ratio: float = _flag(0.9)
    mamba_ssm_dtype: str | None = _flag(None, choices=("float32", "bfloat16", "float16"))
    mamba_radix_cache_strategy: str = _flag("auto", choices=("auto", "no_buffer", "extra_buffer", "lazy"))
    mamba_track_interval: int = _flag(256)
    disable_radix_cache: bool = _flag(False)
    disable_cuda_graph: bool = _flag(False)
    cuda_graph_backend_decode: str | None = _flag(None)
    cuda_graph_backend_prefill: str | None = _flag(None)
    cuda_graph_max_bs_decode: int | None = _flag(None)
    cuda_graph_max_bs_prefill: int | None = _flag(None)
    disable_overlap_schedule: bool = _flag(False)
    disable_custom_all_reduce: bool = _flag(False)
    enable_flashinfer_allreduce_fusion: bool = _flag(False)
    enable_symm_mem: bool = _flag(False)
    enable_torch_compile: bool = _flag(False)
    warnings: tuple[str, ...] = ()

    @property
    def speculative(self) -> bool:
        """Whether speculation is on."""
        return self.speculative_algorithm is not None

    @property
    def steps(self) -> int:
        """Draft steps; 0 without speculation."""
        return self.speculative_num_steps or 0

    @property
    def topk(self) -> int:
        """Branches per step; 1 without speculation."""
        return self.speculative_eagle_topk or 1

    @property
    def draft_tokens(self) -> int:
        """D, the tokens one step verifies per request; 1 without speculation."""
        return self.speculative_num_draft_tokens or 1

    @property
    def fraction(self) -> float:
        """The resolved memory fraction."""
        if self.mem_fraction_static is None:
            raise ValueError("arguments were not resolved: use parse()")
        return self.mem_fraction_static

    @property
    def graph_limit(self) -> int:
        """Largest batch that runs inside a CUDA graph; 0 without graphs."""
        if self.disable_cuda_graph or self.cuda_graph_backend_decode == "disabled":
            return 0
        if self.cuda_graph_max_bs_decode is None:
            raise ValueError("arguments were not resolved: use parse()")
        return self.cuda_graph_max_bs_decode


class _Parser(argparse.ArgumentParser):
    """argparse that raises instead of leaving the process."""

    def error(self, message: str) -> NoReturn:
        raise ArgumentFailure(2, f"{self.format_usage()}{self.prog}: error: {message}\n")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        raise ArgumentFailure(status, message or "")


def parse(argv: Sequence[str], profile: Profile | None = None) -> ServerArgs:
    """Parse what follows ``sglang serve`` and resolve it as SGLang does.

    Args:
        argv: the arguments; the model is positional or ``--model-path``.
        profile: the host and model, for the defaults that depend on them (memory
            fraction, context length, attention backend, rules of hybrid models). None
            means an unknown GPU and a model without linear attention.

    Raises:
        ArgumentFailure: exit status 2 from argparse, 1 from SGLang's own rules.
    """
    values = vars(_parser().parse_args(list(argv)))
    positional = values.pop("model", None)
    if positional is not None:
        values["model_path"] = positional
    if not values["model_path"]:
        _parser().error("the following arguments are required: --model-path/--model")
    changes, warnings = rules.resolve(ServerArgs(**values), profile)
    return ServerArgs(**{**values, **changes, "warnings": warnings})


def as_dict(args: ServerArgs) -> dict[str, Any]:
    """Return the arguments as ``/server_info`` shows them: API keys in clear, as the real one."""
    values = {item.name: getattr(args, item.name) for item in dataclasses.fields(args)}
    del values["warnings"]
    return values


@functools.cache
def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog=PROG)
    parser.add_argument("model", nargs="?", metavar="model")
    types = typing.get_type_hints(ServerArgs)
    for item in dataclasses.fields(ServerArgs):
        if not item.metadata:
            continue
        flags = item.metadata["names"] or (f"--{item.name.replace('_', '-')}",)
        if types[item.name] is bool:
            parser.add_argument(*flags, dest=item.name, action="store_true")
            continue
        kind = next(
            option for option in (int, float, str) if option in {types[item.name], *typing.get_args(types[item.name])}
        )
        parser.add_argument(*flags, dest=item.name, type=kind, default=item.default, choices=item.metadata["choices"])
    return parser
