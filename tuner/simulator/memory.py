"""Who gets how much GPU memory when a server starts, and where that fails.

    static = f * free            free: after CUDA contexts, before the weights
    rest   = static - weights - draft
    rest is split so that state pool and KV pool fill together:
    n      = rest / (state + D * intermediate + tokens_per_request * kv)

so KV tokens and requests both fall like 1 / (q + D). A limit on running requests leaves
the rest to the KV pool. Draft graphs, verify graphs and workspace come out of the
``1 - f`` slack: speculation has no reserve of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tuner.simulator.arguments import ServerArgs
from tuner.simulator.failure import traceback_lines
from tuner.simulator.profile import Profile

GIB = 1024**3
MIB = 1024**2
MAX_REQUESTS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadFailure:
    """Why the server does not start.

    Attributes:
        stage: ``baseline``, ``load_weights``, ``load_draft``, ``pool`` or ``capture``.
        lines: traceback of the scheduler that failed, without log prefix.
        exit_status: of that scheduler.
    """

    stage: str
    lines: tuple[str, ...]
    exit_status: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """The memory of one GPU, in bytes, as far as the start gets.

    Attributes:
        pre_bytes: free after the CUDA context, before the weights.
        context_bytes: held by the CUDA context and NCCL.
        weights_bytes: the target.
        draft_bytes: the draft; part of it (``draft_freed_bytes``) is given back after the pools.
        conv_bytes: convolution state pool.
        ssm_bytes: linear-attention state pool.
        intermediate_bytes: state kept per draft token.
        kv_bytes: KV pool.
        graphs_bytes: target graphs; ``draft_graphs_bytes`` are the draft's.
        max_mamba_cache_size: requests the state pool holds; None for a model without.
        max_total_num_tokens: of the KV pool.
        max_running_requests: effective.
        requested_running_requests: before state and KV lowered it.
        available_after_bytes: left once the graphs are captured (``available_gpu_mem``).
        failure: why it does not start; None when it does.
    """

    pre_bytes: int
    context_bytes: int
    weights_bytes: int
    draft_bytes: int
    draft_freed_bytes: int
    conv_bytes: int
    ssm_bytes: int
    intermediate_bytes: int
    kv_bytes: int
    graphs_bytes: int
    draft_graphs_bytes: int
    max_mamba_cache_size: int | None
    max_total_num_tokens: int
    max_running_requests: int
    requested_running_requests: int
    available_after_bytes: int
    failure: LoadFailure | None

    @property
    def held_bytes(self) -> int:
        """What one GPU's process holds once the server is ready and idle."""
        return self.context_bytes + self.pre_bytes - self.available_after_bytes


def plan(profile: Profile, args: ServerArgs, free_bytes: int) -> MemoryPlan:
    """Lay out one GPU's memory.

    Args:
        profile: model and host.
        args: resolved arguments.
        free_bytes: free as nvidia-smi shows it before the start, the least over the GPUs
            used; what a dead process left behind makes it smaller.
    """
    layout = _Layout(profile, args, free_bytes)
    failure = layout.devices() or layout.weights() or layout.pools() or layout.capture()
    return layout.finish(failure)


def graph_batch_sizes(args: ServerArgs, limit: int) -> tuple[int, ...]:
    """Return the captured batch sizes, up to ``limit`` requests (the request pool)."""
    largest = min(args.graph_limit, limit)
    if args.speculative:
        sizes = [*range(1, 9), *range(10, 33, 2), *range(36, 65, 4), *range(72, 257, 8), *range(272, 4097, 16)]
    else:
        sizes = [1, 2, 4, *range(8, 33, 4), *range(40, 257, 8), *range(272, 4097, 16)]
    return tuple(sorted({size for size in sizes if size <= largest} | ({largest} if largest else set())))


def gib(count: float) -> str:
    """Format bytes as SGLang prints memory (``GB`` are GiB there)."""
    return f"{count / GIB:.2f}"


class _Layout:
    """A plan on its way through the start; a stage returns its failure or None."""

    def __init__(self, profile: Profile, args: ServerArgs, free_bytes: int) -> None:
        self.profile, self.args, self.constants = profile, args, profile.memory
        self.scale = profile.gpu.count / args.tp_size
        self.free_bytes = free_bytes
        self.context = min(self.constants.context_bytes, free_bytes)
        self.pre = free_bytes - self.context
        self.slack = self.pre * (1.0 - args.fraction)
        self.left = float(self.pre)
        self.weights_bytes = self.draft_bytes = self.freed = 0
        self.conv = self.ssm = self.intermediate = self.kv = 0.0
        self.graphs = self.draft_graphs = 0.0
        self.slots: int | None = None
        self.tokens = self.requests = 0
        self.requested = args.max_running_requests or MAX_REQUESTS
        self.capacity = 0.0

    def devices(self) -> LoadFailure | None:
        """Refuse more GPUs than the host has."""
        if self.args.base_gpu_id + self.args.tp_size <= self.profile.gpu.count:
            return None
        error = (
            "torch.AcceleratorError: CUDA error: invalid device ordinal\n"
            "GPU device may be out of range, do you have enough GPUs?"
        )
        return LoadFailure(stage="baseline", lines=traceback_lines(error, *SCHEDULER_FRAMES, *DEVICE_FRAMES))

    def weights(self) -> LoadFailure | None:
        """Load the target, then the draft."""
        weights = int(self.constants.weights_bytes * self.scale)
        if weights > self.left:
            return self.out_of_memory("load_weights", weights / self.profile.model.layers, LOAD_FRAMES)
        self.weights_bytes = weights
        self.left -= weights
        if not self.args.speculative:
            return None
        draft = int(self.constants.draft_weights_bytes * self.scale)
        if draft > self.left:
            return self.out_of_memory("load_draft", draft / 4, DRAFT_FRAMES)
        self.draft_bytes = draft
        self.freed = int(self.constants.draft_vocabulary_bytes * self.scale)
        self.left -= draft
        return None

    def pools(self) -> LoadFailure | None:
        """Split what the static part still holds between state and KV."""
        args, constants = self.args, self.constants
        rest = self.left - self.slack
        if rest <= 0:
            minimum = 1.0 - self.left / self.pre
            return self.raised(
                f"ValueError: Loaded weights leave no GPU memory for the KV cache under "
                f"--mem-fraction-static={args.fraction}. Raise --mem-fraction-static above {_above(minimum)} "
                f"(minimum viable = 1 - available/pre = 1 - {gib(self.left)}/{gib(self.pre)} = {minimum:.4f}). "
                "If using speculative decoding, draft weights are now counted."
            )
        rest -= constants.pool_overhead_bytes
        kv_each = kv_bytes_per_token(self.profile, args)
        state_each, intermediate_each = state_bytes(self.profile, args)
        if self.profile.hybrid:
            state = state_each + intermediate_each
            share = constants.kv_tokens_per_request * kv_each * (0.9 / args.mamba_full_memory_ratio)
            self.capacity = max(rest, 0.0) / (state + share)
            failure = self.state_failure(rest, state, state + share)
            if failure is not None:
                return failure
            holds = min(self.capacity, float(args.max_mamba_cache_size or MAX_REQUESTS))
            self.slots = math.floor(holds)
            held = min(holds, float(self.requested))
            self.conv = held * state_each * constants.state_conv_share
            self.ssm = held * state_each - self.conv
            self.intermediate = held * intermediate_each
            rest -= held * state
        tokens = math.floor(rest / kv_each) if rest > 0 else 0
        tokens = min(tokens, args.max_total_tokens or tokens)
        page = args.page_size or 1
        self.tokens = tokens // page * page
        if self.tokens <= 0:
            return self.raised(
                "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. "
                f"Current value: mem_fraction_static={args.fraction}"
            )
        if args.max_running_requests is None:
            context = args.context_length or self.profile.model.context_length
            self.requested = min(max(int(self.tokens / context * 512), 2048), MAX_REQUESTS)
        self.requests = min(self.requested, self.tokens // 2)
        if self.slots is not None:
            self.requests = min(self.requests, self.slots)
        if self.requests < 1:
            return self.raised("AssertionError: max_running_request is zero")
        self.kv = self.tokens * kv_each
        spoiled = constants.allocator_reserve_bytes
        self.left -= self.conv + self.ssm + self.intermediate + constants.pool_overhead_bytes
        if self.left < self.kv + spoiled:
            self.left -= spoiled
            # Keys and values of each layer are tensors of their own.
            return self.out_of_memory("pool", self.kv / self.profile.model.layers / 2, POOL_FRAMES)
        self.left += self.freed - self.kv
        return None

    def state_failure(self, rest: float, state: float, request: float) -> LoadFailure | None:
        """Refuse a rest that cannot hold the state of one request."""
        if rest < state:
            return self.raised(
                "RuntimeError: Not enough GPU memory for hybrid (mamba/linear-attention) state cache. "
                f"Computed max_mamba_cache_size={math.floor((rest - state) / request)} "
                f"(total_rest_memory={gib(rest)} GB, mamba_cache_per_req={state / MIB:.2f} MB). "
                "Try: (1) reduce --max-running-requests, (2) increase --mem-fraction-static, "
                "(3) reduce --speculative-num-draft-tokens, (4) set --mamba-ssm-dtype bfloat16."
            )
        if rest < request:
            return self.raised(
                "RuntimeError: Hybrid (mamba/linear-attention) state cache is too small to serve any requests. "
                f"max_mamba_cache_size=0, mamba_cache_per_req={state / MIB:.2f} MB, "
                f"mem_fraction_static={self.args.fraction}"
            )
        return None

    def capture(self) -> LoadFailure | None:
        """Capture the CUDA graphs: target first, then the draft's."""
        args, constants = self.args, self.constants
        if args.speculative:
            broken = _capture_error(args)
            if broken is not None:
                return self.capture_failed(f"RuntimeError: {broken}", broken)
        if args.graph_limit == 0:
            return None
        # The pool's size before rounding, so that more draft tokens never need less.
        batch = min(float(args.graph_limit), float(self.requests) if self.slots is None else self.capacity)
        batch = min(batch, float(self.requested))
        graphs = self.scale * (constants.graph_bytes + batch * args.draft_tokens * constants.graph_bytes_per_token)
        draft = graphs * constants.draft_graph_share if args.speculative else 0.0
        if self.left < (graphs + draft) * constants.capture_peak:
            self.left = min(self.left, 0.3 * GIB)
            message = self.cuda_message(graphs * 0.4)
            return self.capture_failed(f"torch.OutOfMemoryError: {message}", message)
        self.graphs, self.draft_graphs = graphs, draft
        self.left -= graphs + draft
        return None

    def finish(self, failure: LoadFailure | None) -> MemoryPlan:
        return MemoryPlan(
            pre_bytes=self.pre,
            context_bytes=self.context,
            weights_bytes=self.weights_bytes,
            draft_bytes=self.draft_bytes,
            draft_freed_bytes=self.freed,
            conv_bytes=int(self.conv),
            ssm_bytes=int(self.ssm),
            intermediate_bytes=int(self.intermediate),
            kv_bytes=int(self.kv),
            graphs_bytes=int(self.graphs),
            draft_graphs_bytes=int(self.draft_graphs),
            max_mamba_cache_size=self.slots,
            max_total_num_tokens=self.tokens,
            max_running_requests=self.requests,
            requested_running_requests=self.requested,
            available_after_bytes=max(int(self.left), 0),
            failure=failure,
        )

    def raised(self, error: str) -> LoadFailure:
        return LoadFailure(stage="pool", lines=traceback_lines(error, *SCHEDULER_FRAMES, *POOL_FRAMES))

    def out_of_memory(self, stage: str, wanted: float, frames: tuple[str, ...]) -> LoadFailure:
        error = f"torch.OutOfMemoryError: {self.cuda_message(wanted)}"
        return LoadFailure(stage=stage, lines=traceback_lines(error, *SCHEDULER_FRAMES, *frames))

    def cuda_message(self, wanted: float) -> str:
        used = self.profile.gpu.memory_bytes - self.left
        return cuda_out_of_memory(self.profile, wanted, max(self.left, 0.0), used)

    def capture_failed(self, inner: str, message: str) -> LoadFailure:
        first = traceback_lines(inner, *CAPTURE_FRAMES)
        hints = (
            f"Exception: Capture cuda graph failed: {message}\n"
            "Possible solutions:\n"
            "1. set --mem-fraction-static to a smaller value (e.g., 0.8 or 0.7)\n"
            "2. set --cuda-graph-max-bs-decode to a smaller value (e.g., 16)\n"
            "3. disable decode CUDA graph by --cuda-graph-backend-decode=disabled. "
            "(Not recommended. Huge performance loss)\n"
            "Open an issue on GitHub https://github.com/sgl-project/sglang/issues/new/choose "
        )
        lines = traceback_lines(hints, *SCHEDULER_FRAMES, *CAPTURE_FRAMES[:1])
        between = ("", "During handling of the above exception, another exception occurred:", "")
        return LoadFailure(stage="capture", lines=(*first, *between, *lines))


SCHEDULER_FRAMES = (
    "sglang/srt/managers/scheduler.py:3621:run_scheduler_process",
    "sglang/srt/managers/scheduler.py:674:__init__",
    "sglang/srt/managers/tp_worker.py:262:__init__",
)
DEVICE_FRAMES = ("sglang/srt/model_executor/model_runner.py:871:init_torch_distributed",)
LOAD_FRAMES = (
    "sglang/srt/model_executor/model_runner.py:958:load_model",
    "sglang/srt/model_loader/loader.py:688:load_model",
    "torch/utils/_device.py:104:__torch_function__",
)
DRAFT_FRAMES = ("sglang/srt/speculative/eagle_draft_worker.py:121:__init__", *LOAD_FRAMES)
POOL_FRAMES = (
    "sglang/srt/model_executor/model_runner.py:1417:init_memory_pool",
    "sglang/srt/mem_cache/kv_cache_configurator.py:233:configure",
)
CAPTURE_FRAMES = (
    "sglang/srt/model_executor/runner/base_cuda_graph_runner.py:188:__init__",
    "sglang/srt/model_executor/runner/base_cuda_graph_runner.py:311:capture",
)


def cuda_out_of_memory(profile: Profile, wanted: float, free: float, used: float) -> str:
    """Return PyTorch's message for an allocation that failed on one GPU; bytes."""
    return (
        f"CUDA out of memory. Tried to allocate {_size(wanted)}. GPU 0 has a total capacity of "
        f"{gib(profile.gpu.memory_bytes)} GiB of which {_size(free)} is free. Including non-PyTorch memory, "
        f"this process has {gib(used)} GiB memory in use. Of the allocated memory "
        f"{gib(max(used - profile.memory.context_bytes, 0) * 0.985)} GiB is allocated by PyTorch, and "
        f"{_size(used * 0.012)} is reserved by PyTorch but unallocated. If reserved but unallocated memory is "
        "large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See "
        "documentation for Memory Management  (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
    )


def kv_bytes_per_token(profile: Profile, args: ServerArgs) -> float:
    """Return the KV bytes of one token on one GPU; fp8 takes half of what 16 bits take."""
    halved = 0.5 if args.kv_cache_dtype.startswith("fp8") else 1.0
    return profile.memory.kv_bytes_per_token * profile.gpu.count / args.tp_size * halved


def state_bytes(profile: Profile, args: ServerArgs) -> tuple[float, float]:
    """Return (state, intermediate state of all draft tokens) of one request on one GPU."""
    halved = 0.5 if args.mamba_ssm_dtype in {"bfloat16", "float16"} else 1.0
    scale = profile.gpu.count / args.tp_size * halved
    drafts = args.draft_tokens if args.speculative else 0
    memory = profile.memory
    return memory.state_bytes_per_request * scale, memory.intermediate_bytes_per_draft_token * drafts * scale


def _capture_error(args: ServerArgs) -> str | None:
    """Say how the draft fails in its first run inside the capture, if it does."""
    if args.steps < 1:
        return "torch.cat(): expected a non-empty list of Tensors"
    scores = args.topk + (args.steps - 1) * args.topk * args.topk
    if args.draft_tokens < 1 or args.draft_tokens - 1 > scores:
        return "selected index k out of range"
    return None


def _above(minimum: float) -> float:
    return math.ceil(minimum * 1000) / 1000


def _size(count: float) -> str:
    return f"{gib(count)} GiB" if count >= GIB else f"{count / MIB:.2f} MiB"
