"""How long the runtime waits, and how often it looks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Waits of one host, in seconds.

    Attributes:
        look_s: between two looks at the service and its log; deaths are noticed within this.
        probe_s: between two health probes while loading.
        clean_s: how long a host may take to become clean before it is Faulted; its owner may say otherwise.
        baseline_s: how long GPU memory must stay as it is before it counts as the host's own.
        settle_s: after a failed request or a fatal line, how long a death may take to show.
        drain_s: how long the rest of a dead server's log is waited for.
        traces_s: how long what a death left in the kernel's log and on the GPUs is looked for.
        again_s: between the two looks that a foreign process must be seen in after a death.
        attempts: server starts a trial may take before it is Faulted.
        gpu_slack_bytes: GPU memory above the host's baseline that still counts as clean.
        own_bytes, own_share: GPU memory that nobody holds and that may yet be the host's own, a display
            server's or the driver's: the larger of bytes and share of the card.
        gpu_look_s: between two looks at the GPUs while a leg is measured.
        outage_s: how long the host may be out of reach during a leg before the leg is void.
        hung_grace_s: how long a server that hangs may take to end: it drains nothing.
        cleanup_after_s: how long a host may stay dirty before its owner's cleanup command is run.
    """

    look_s: float = 0.1
    probe_s: float = 0.2
    clean_s: float = 90.0
    baseline_s: float = 30.0
    settle_s: float = 2.0
    drain_s: float = 0.5
    traces_s: float = 1.5
    again_s: float = 0.5
    attempts: int = 3
    gpu_slack_bytes: int = 256 * 1024**2
    own_bytes: int = 2 * 1024**3
    own_share: float = 0.05
    gpu_look_s: float = 2.0
    outage_s: float = 2.0
    cleanup_after_s: float = 10.0
    hung_grace_s: float = 10.0
