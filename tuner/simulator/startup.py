"""What a start prints, in SGLang's order, with the numbers of its memory plan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tuner.simulator.arguments import ServerArgs, as_dict
from tuner.simulator.memory import MemoryPlan, gib, graph_batch_sizes
from tuner.simulator.profile import Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One moment of a start.

    Attributes:
        stage: ``args``, ``baseline``, ``load_weights``, ``load_draft``, ``pool``, ``capture``,
            ``limits``, ``uvicorn`` (the port opens here) or ``ready`` (after the warm-up).
        seconds: how long it takes on a real host; the lines are printed at its end.
        lines: log lines without the time prefix.
        rank: the scheduler that prints; None: the parent (no TP prefix).
        gpu_bytes: held per GPU after the step.
    """

    stage: str
    seconds: float
    lines: tuple[str, ...]
    rank: int | None
    gpu_bytes: int


def script(profile: Profile, args: ServerArgs, plan: MemoryPlan, pid: int) -> tuple[Step, ...]:
    """Return the steps of a start; a failing plan's script ends with its failure's lines.

    Args:
        profile: model and host.
        args: resolved arguments.
        plan: from ``memory.plan``.
        pid: of the parent, which uvicorn prints.
    """
    return tuple(_Writer(profile, args, plan, pid).steps())


def limits_line(args: ServerArgs, plan: MemoryPlan) -> str:
    """Return the line that sums the capacity up."""
    return (
        f"max_total_num_tokens={plan.max_total_num_tokens}, chunked_prefill_size={args.chunked_prefill_size}, "
        f"max_prefill_tokens={args.max_prefill_tokens}, max_running_requests={plan.max_running_requests}, "
        f"context_len={args.context_length}, available_gpu_mem={gib(plan.available_after_bytes)} GB"
    )


class _Writer:
    """Writes the steps while it follows what is free and what is held."""

    def __init__(self, profile: Profile, args: ServerArgs, plan: MemoryPlan, pid: int) -> None:
        self.profile, self.args, self.plan, self.pid = profile, args, plan, pid
        self.ranks = range(args.tp_size)
        self.held = 0
        self.available = plan.context_bytes + plan.pre_bytes

    def take(self, count: int) -> None:
        self.held += count
        self.available -= count

    def say(self, stage: str, seconds: float, *lines: str, rank: int | None = 0) -> Step:
        return Step(stage=stage, seconds=seconds, lines=lines, rank=rank, gpu_bytes=self.held)

    def everyone(self, stage: str, seconds: float, line: str) -> Iterator[Step]:
        """All ranks print the same; the time passes once."""
        for rank in self.ranks:
            yield self.say(stage, seconds if rank == 0 else 0.0, line, rank=rank)

    def steps(self) -> Iterator[Step]:
        args, plan, loading = self.args, self.plan, self.profile.loading
        yield self.say("args", loading.spawn_s * 0.4, *args.warnings, f"server_args={as_dict(args)}", rank=None)
        stages = (self.baseline, self.load_weights, self.load_draft, self.pool, self.capture)
        for stage in stages:
            yield from stage()
            if plan.failure is not None and plan.failure.stage == stage.__name__:
                yield self.say(plan.failure.stage, 0.5, *plan.failure.lines)
                return
        yield self.say("limits", 0.2, *self.limit_lines(), limits_line(args, plan))
        yield self.say(
            "uvicorn",
            0.3,
            f"INFO:     Started server process [{self.pid}]",
            "INFO:     Waiting for application startup.",
            "INFO:     Application startup complete.",
            f"INFO:     Uvicorn running on http://{args.host}:{args.port} (Press CTRL+C to quit)",
            rank=None,
        )
        yield self.say("ready", loading.warmup_s, "The server is fired up and ready to roll!", rank=None)

    def baseline(self) -> Iterator[Step]:
        plan, seconds = self.plan, self.profile.loading.spawn_s * 0.6
        if plan.failure is None or plan.failure.stage != "baseline":
            self.take(plan.context_bytes)
            line = f"Memory baseline taken. mem usage={gib(plan.context_bytes)} GB"
            yield from self.everyone("baseline", seconds, line)

    def load_weights(self) -> Iterator[Step]:
        yield from self.load("load_weights", self.plan.weights_bytes, self.profile.model.architecture)

    def load_draft(self) -> Iterator[Step]:
        if self.args.speculative:
            yield from self.load("load_draft", self.plan.draft_bytes, self.profile.model.draft_architecture)

    def load(self, stage: str, count: int, kind: str) -> Iterator[Step]:
        loading = self.profile.loading
        seconds = loading.weights_s if stage == "load_weights" else loading.draft_s
        yield from self.everyone(stage, 0.1, f"Load weight begin. avail mem={gib(self.available)} GB")
        if count == 0:  # it fails on the way
            self.take(int(self.available * 0.97))
            yield self.say(stage, seconds * 0.8)
            return
        self.take(count)
        for rank in self.ranks:
            elapsed = seconds * (1 - 0.004 * rank)
            yield self.say(
                stage,
                seconds if rank == 0 else 0.0,
                f"Load weight end. elapsed={elapsed:.2f} s, type={kind}, avail mem={gib(self.available)} GB, "
                f"mem usage={gib(count)} GB.",
                rank=rank,
            )

    def pool(self) -> Iterator[Step]:
        plan, args = self.plan, self.args
        if plan.kv_bytes == 0:
            return
        state = plan.conv_bytes + plan.ssm_bytes + plan.intermediate_bytes
        seconds = self.profile.loading.pools_s
        if plan.max_mamba_cache_size is not None:
            line = (
                f"Mamba Cache is allocated. max_mamba_cache_size: {plan.max_mamba_cache_size}, "
                f"conv_state size: {gib(plan.conv_bytes)}GB, ssm_state size: {gib(plan.ssm_bytes)}GB "
            )
            if args.speculative:
                line += f"intermediate_ssm_state_cache size: {gib(plan.intermediate_bytes)}GB "
            self.take(state)
            yield from self.everyone("pool", seconds / 2, line)
        if plan.failure is not None and plan.failure.stage == "pool":
            return
        dtype = "torch.float8_e4m3fn" if args.kv_cache_dtype.startswith("fp8") else "torch.bfloat16"
        self.take(plan.kv_bytes)
        half = gib(plan.kv_bytes / 2)
        yield from self.everyone(
            "pool",
            seconds / 2,
            f"KV Cache is allocated. dtype: {dtype}, #tokens: {plan.max_total_num_tokens}, "
            f"K size: {half} GB, V size: {half} GB",
        )
        self.take(self.profile.memory.pool_overhead_bytes - plan.draft_freed_bytes)
        yield from self.everyone("pool", 0.1, f"Memory pool end. avail mem={gib(self.available)} GB")

    def capture(self) -> Iterator[Step]:
        plan, args, loading = self.plan, self.args, self.profile.loading
        sizes = graph_batch_sizes(args, plan.max_running_requests)
        if not sizes:
            return
        failed = plan.failure is not None
        mode = "target verify" if args.speculative else "target decode"
        seconds = loading.capture_s + loading.capture_per_size_s * len(sizes)
        yield from self.everyone(
            "capture",
            0.1,
            f"Capture {mode} CUDA graph begin. backend=full, num_tokens_per_req={args.draft_tokens}, "
            f"avail mem={gib(self.available)} GB",
        )
        if failed:
            return
        yield from self.captured(mode, sizes, seconds, plan.graphs_bytes)
        if not args.speculative:
            return
        modes = ("draft decode", "draft extend") if args.steps > 1 else ("draft extend",)
        for index, draft in enumerate(modes):
            share = plan.draft_graphs_bytes // len(modes)
            count = plan.draft_graphs_bytes - share * (len(modes) - 1) if index == 0 else share
            yield from self.everyone(
                "capture", 0.1, f"Capture {draft} CUDA graph begin. avail mem={gib(self.available)} GB"
            )
            yield from self.captured(draft, sizes, seconds * 0.2, count)

    def captured(self, mode: str, sizes: tuple[int, ...], seconds: float, count: int) -> Iterator[Step]:
        self.take(count)
        yield from self.everyone(
            "capture",
            seconds,
            f"Capture {mode} CUDA graph end. bs={list(sizes)}, elapsed={seconds:.2f} s, "
            f"mem usage={gib(count)} GB, avail mem={gib(self.available)} GB.",
        )

    def limit_lines(self) -> Iterator[str]:
        """Warnings about what lowered the requested limits."""
        plan, args = self.plan, self.args
        if plan.max_mamba_cache_size is not None and plan.max_mamba_cache_size < plan.requested_running_requests:
            yield (
                f"max_running_requests is capped to {plan.max_running_requests} by the mamba state cache "
                f"(max_mamba_cache_size={plan.max_mamba_cache_size}, 1 state slots per request). "
            )
        elif plan.max_running_requests < plan.requested_running_requests:
            yield (
                f"max_running_requests was reduced from the requested {plan.requested_running_requests} to "
                f"{plan.max_running_requests} (per dp worker) due to the available KV cache capacity."
            )
        if args.context_length is not None and plan.max_total_num_tokens < args.context_length:
            yield (
                f"KV pool holds {plan.max_total_num_tokens} tokens, fewer than --context-length "
                f"{args.context_length}. Longer requests will be refused."
            )
