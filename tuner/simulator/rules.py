"""What SGLang 0.5.23 does to its arguments after argparse, in its order.

Memory settings come first, so the default fraction knows nothing of the request limit
that speculation implies; then the attention backend; then speculation; then checks.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tuner.simulator.failure import ArgumentFailure, traceback_lines
from tuner.simulator.profile import Profile

if TYPE_CHECKING:
    from tuner.simulator.arguments import ServerArgs

MIB = 1024**2
EAGLE_FAMILY = ("EAGLE", "EAGLE3", "STANDALONE")
ALGORITHMS = (*EAGLE_FAMILY, "NGRAM")
TREE_PAGE_BACKENDS = ("flashinfer", "fa3", "triton")
DRAFT_BACKENDS = frozenset(
    {
        "flashinfer",
        "triton",
        "intel_amx",
        "intel_xpu",
        "aiter",
        "fa3",
        "hybrid_linear_attn",
        "flashmla",
        "trtllm_mha",
        "trtllm_mla",
        "cutedsl_mla",
        "dsa",
        "nsa",
        "ascend",
        "fa4",
        "dsv4",
    }
)
SPECULATIVE_REQUESTS = 48
LARGE_GPU_BYTES = 60 * 1024 * MIB
HOPPER, BLACKWELL = 90, 100


def default_graph_limit(tp_size: int, gpu_bytes: int) -> int:
    """Return the largest captured batch by default, by the class of the GPU."""
    if gpu_bytes < LARGE_GPU_BYTES:
        return 32 if tp_size < 4 else 64
    return 256 if tp_size < 4 else 512


def default_fraction(args: ServerArgs, profile: Profile | None, graph_limit: int) -> float:
    """Return the default of ``--mem-fraction-static``.

    SGLang reserves, in MiB, 512 + 1.5 x chunked prefill (at least 2048) + 1024 per eight
    GPUs + the graphs; at least 10 GiB on a GPU of more than 60 GiB. A multimodal model
    gets 5 % less. Nothing is reserved for speculation.
    """
    if profile is None:
        return 0.95
    gpu_mib = profile.gpu.memory_bytes / MIB
    reserved = 512 + 1.5 * max(args.chunked_prefill_size or 0, 2048)
    reserved += args.tp_size * args.pp_size / 8 * 1024 + 2 * graph_limit
    if profile.gpu.memory_bytes > LARGE_GPU_BYTES:
        reserved = max(reserved, 10 * 1024)
    fraction = round((gpu_mib - reserved) / gpu_mib, 3)
    cut = 0.95 if profile.model.multimodal and not args.language_only else 1.0
    return round(fraction * cut, 3)


def resolve(args: ServerArgs, profile: Profile | None) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the values SGLang changes, and the warnings it logs.

    Raises:
        ArgumentFailure: exit status 1, the combination is refused.
    """
    resolution = _Resolution(args, profile)
    resolution.memory()
    resolution.attention()
    resolution.speculation()
    resolution.checks()
    return resolution.changes, tuple(resolution.warnings)


def _refuse(error: str, file: str, line: int, function: str) -> ArgumentFailure:
    lines = traceback_lines(
        error,
        "sglang/cli/serve.py:118:serve",
        "sglang/srt/server_args.py:402:__post_init__",
        f"sglang/srt/arg_groups/{file}.py:{line}:{function}",
    )
    return ArgumentFailure(1, "\n".join(lines) + "\n")


class _Resolution:
    """The arguments on their way through SGLang's hooks."""

    def __init__(self, args: ServerArgs, profile: Profile | None) -> None:
        self.args = args
        self.profile = profile
        self.changes: dict[str, Any] = {}
        self.warnings: list[str] = []

    def set(self, **values: object) -> None:
        changed: dict[str, Any] = dict(values)
        self.changes.update(changed)
        self.args = replace(self.args, **changed)

    def memory(self) -> None:
        args, profile = self.args, self.profile
        if args.served_model_name is None:
            self.set(served_model_name=args.model_path)
        if args.tokenizer_path is None:
            self.set(tokenizer_path=args.model_path)
        gpu_bytes = profile.gpu.memory_bytes if profile else LARGE_GPU_BYTES
        if args.chunked_prefill_size is None:
            self.set(chunked_prefill_size=4096 if gpu_bytes < LARGE_GPU_BYTES else 8192)
        if args.context_length is None and profile is not None:
            self.set(context_length=profile.model.context_length)
        if args.cuda_graph_max_bs_decode is None:
            limit = default_graph_limit(args.tp_size, gpu_bytes)
            self.set(cuda_graph_max_bs_decode=min(limit, args.max_running_requests or limit))
        if args.mem_fraction_static is None:
            self.set(mem_fraction_static=default_fraction(self.args, profile, self.args.cuda_graph_max_bs_decode or 0))

    def attention(self) -> None:
        args = self.args
        capability = self.profile.gpu.compute_capability if self.profile else HOPPER
        if args.attention_backend is None:
            alone = not args.speculative or args.speculative_eagle_topk == 1
            if capability >= BLACKWELL:
                backend = "trtllm_mha" if alone else "flashinfer"
            else:
                backend = "fa3" if capability >= HOPPER and alone else "flashinfer"
            self.set(attention_backend=backend)
        if args.page_size is None:
            self.set(page_size=64 if self.args.attention_backend == "trtllm_mha" else 1)

    def speculation(self) -> None:
        if self.args.speculative_algorithm is None:
            return
        name = self.args.speculative_algorithm.upper()
        name = "EAGLE" if name == "NEXTN" else name
        if name not in ALGORITHMS:
            raise _refuse(
                f"ValueError: Unknown speculative algorithm name: {name}", "speculative_hook", 96, "handle_speculative"
            )
        self.set(speculative_algorithm=name)
        if self.args.max_running_requests is None:
            self.set(max_running_requests=SPECULATIVE_REQUESTS)
            self.warnings.append(
                "Max running requests is reset to 48 for speculative decoding. You can override this by "
                "explicitly setting --max-running-requests."
            )
        if self.args.enable_mixed_chunk and name not in {"EAGLE", "EAGLE3"}:
            self.set(enable_mixed_chunk=False)
            self.warnings.append("Mixed chunked prefill is disabled because of using speculative decoding.")
        if self.args.disable_overlap_schedule and name in EAGLE_FAMILY:
            self.warnings.append(
                "Non-overlap (synchronous) spec v2 is used for eagle/eagle3/standalone speculative decoding."
            )
        if self.args.speculative_adaptive:
            self.set(speculative_adaptive=False)
            self.warnings.append(
                "speculative_adaptive disabled: not part of the simulation. Falling back to static speculative params."
            )
        if name == "NGRAM":
            breadth = self.args.speculative_ngram_max_bfs_breadth
            tokens = self.args.speculative_num_draft_tokens or 12
            self.set(
                speculative_eagle_topk=breadth,
                speculative_num_draft_tokens=tokens,
                speculative_num_steps=max(tokens // breadth, 1),
            )
            return
        self.triple()

    def triple(self) -> None:
        """Resolve steps, topk and draft tokens of the EAGLE family."""
        args = self.args
        place = ("speculative_hook", 211, "_handle_eagle_family")
        steps, topk, tokens = (
            args.speculative_num_steps,
            args.speculative_eagle_topk,
            args.speculative_num_draft_tokens,
        )
        if steps is None:
            if topk is not None or tokens is not None:
                raise _refuse("AssertionError", *place)
            given = self.profile.model.default_triple if self.profile else (3, 1, 4)
            steps, topk, tokens = (3, 1, 4) if args.speculative_algorithm == "STANDALONE" else given
        if topk is None:
            raise _refuse("TypeError: '>' not supported between instances of 'NoneType' and 'int'", *place)
        if topk == 1 and tokens != steps + 1:
            self.warnings.append(
                "speculative_num_draft_tokens is adjusted to speculative_num_steps + 1 when speculative_eagle_topk == 1"
            )
            tokens = steps + 1
        if tokens is None:
            raise _refuse("TypeError: unsupported operand type(s) for -: 'NoneType' and 'int'", *place)
        self.set(speculative_num_steps=steps, speculative_eagle_topk=topk, speculative_num_draft_tokens=tokens)
        if args.enable_multi_layer_eagle and tokens != steps + 1:
            raise _refuse(
                "ValueError: multi-layer EAGLE requires speculative_num_draft_tokens == speculative_num_steps + 1, "
                f"got {tokens}",
                *place,
            )

    def checks(self) -> None:
        args = self.args
        if args.chunked_prefill_size and args.chunked_prefill_size > 0 and args.chunked_prefill_size % self.page:
            self.refuse("AssertionError: chunked_prefill_size must be divisible by page_size", "validation_hook", 74)
        for flag, value in (("dp_size", args.dp_size), ("pp_size", args.pp_size), ("nnodes", args.nnodes)):
            if value != 1:
                self.refuse(f"ValueError: {flag}={value} is not part of the simulation", "validation_hook", 31)
        if args.tokenizer_worker_num > 1 and args.api_key is not None:
            self.refuse("AssertionError: api_key is not supported in multi-tokenizer mode", "validation_hook", 58)
        if args.speculative:
            self.check_backends()
            self.check_rejection_sampling()
        if self.profile is not None and self.profile.hybrid:
            self.check_hybrid()

    @property
    def page(self) -> int:
        return self.args.page_size or 1

    def refuse(self, error: str, file: str, line: int) -> None:
        raise _refuse(error, file, line, f"handle_{file.removesuffix('_hook')}")

    def check_backends(self) -> None:
        args = self.args
        roles = (args.attention_backend, args.prefill_attention_backend, args.decode_attention_backend)
        if args.topk > 1 and "trtllm_mha" in roles:
            self.refuse(
                "ValueError: trtllm_mha backend only supports topk = 1 for speculative decoding.",
                "speculative_hook",
                301,
            )
        if args.topk > 1 and self.page > 1 and args.attention_backend not in TREE_PAGE_BACKENDS:
            self.refuse(
                "ValueError: speculative_eagle_topk > 1 with page_size > 1 is only supported on "
                f"{TREE_PAGE_BACKENDS}; got attention_backend='{args.attention_backend}'. "
                "Use page_size == 1 or one of those backends.",
                "speculative_hook",
                318,
            )
        backend = args.speculative_draft_attention_backend or args.decode_attention_backend or args.attention_backend
        if backend not in DRAFT_BACKENDS:
            self.refuse(f"ValueError: EAGLE is not supported in attention backend {backend}", "attention_hook", 142)

    def check_rejection_sampling(self) -> None:
        args = self.args
        if not args.speculative_use_rejection_sampling:
            return
        if args.topk != 1:
            self.refuse(
                "ValueError: --speculative-use-rejection-sampling requires --speculative-eagle-topk=1.",
                "speculative_hook",
                344,
            )
        for flag in ("single", "acc"):
            if getattr(args, f"speculative_accept_threshold_{flag}") != 1.0:
                self.refuse(
                    "ValueError: --speculative-use-rejection-sampling is incompatible with "
                    f"--speculative-accept-threshold-{flag}",
                    "speculative_hook",
                    351,
                )

    def check_hybrid(self) -> None:
        args = self.args
        strategy = args.mamba_radix_cache_strategy
        if strategy == "auto":
            strategy = "no_buffer" if args.disable_overlap_schedule and self.page == 1 else "extra_buffer"
            self.set(mamba_radix_cache_strategy=strategy)
        if strategy == "no_buffer":
            if self.page != 1:
                self.refuse("ValueError: no_buffer only supports page_size=1.", "mamba_hook", 66)
            if not args.disable_overlap_schedule:
                self.refuse(
                    "ValueError: no_buffer do not support overlap schedule. "
                    "Please use --disable-overlap-schedule or extra_buffer.",
                    "mamba_hook",
                    71,
                )
            if args.attention_backend == "trtllm_mha":
                self.refuse("ValueError: no_buffer do not support trtllm_mha attention backend.", "mamba_hook", 77)
            return
        if args.mamba_track_interval % self.page or args.mamba_track_interval < args.draft_tokens:
            self.refuse("AssertionError", "mamba_hook", 92)
