"""The command line that is tuned in tests: a simulated SGLang as people start the real one."""

from __future__ import annotations

import socket

from tuner.model.trial import Command

NO_DUMPS = (("SGLANG_CUDA_COREDUMP_BEFORE_CRASH", "0"), ("SGLANG_PYSPY_DUMP_BEFORE_CRASH", "0"))
"""Variables with which a crash is over at once, instead of after SGLang's dumps."""


def sglang_arguments(
    port: object, *, steps: int = 3, fraction: float = 0.8, host: str | None = None
) -> tuple[str, ...]:
    """Return the arguments of ``sglang``.

    Args:
        port: where it listens; a number or what stands for one.
        steps: of the speculation, with one more draft token, as topk 1 has it.
        fraction: ``--mem-fraction-static``.
        host: the address where it listens; None: none is given.
    """
    return (
        *("serve", "--model-path", "Qwen/Qwen3.5-122B-A10B-FP8", *(("--host", host) if host else ())),
        *("--port", str(port), "--tp-size", "4", "--attention-backend", "flashinfer", "--page-size", "1"),
        *("--max-running-requests", "48", "--speculative-algorithm", "NEXTN"),
        *("--speculative-num-steps", str(steps), "--speculative-eagle-topk", "1"),
        *("--speculative-num-draft-tokens", str(steps + 1), "--mem-fraction-static", str(fraction)),
        "--enable-metrics",
    )


def sglang_at(address: str, *more: str, steps: int = 3, fraction: float = 0.8) -> Command:
    """Return a command line for a port that nobody listens on at ``address``; ``more`` arguments go last."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        port = probe.getsockname()[1]
    arguments = sglang_arguments(port, steps=steps, fraction=fraction)
    return Command(argv=("sglang", *arguments, *more), env=NO_DUMPS)
