"""How far a host's clock is from ours: its log is laid beside our records."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.hosts.checks.row import Row, ok, warning
from tuner.ports import Clock, HostTransport

LARGEST_S = 2.0
_GOOD_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockOffset:
    """The host's clock minus ours, and half the round trip in which it was read; seconds."""

    ahead_s: float
    error_s: float


async def read_offset(transport: HostTransport, clock: Clock, looks: int = 3) -> ClockOffset | None:
    """Read the host's clock until it is known well enough, a few times at most; the shortest round trip counts.

    None: ``date`` there does not say Unix time.

    Raises:
        TransportFault: the host is not reached.
    """
    best: ClockOffset | None = None
    for _ in range(looks):
        before_s, started_s = clock.now_s(), clock.monotonic_s()
        result = await transport.run(("date", "+%s.%N"), timeout_s=20.0)
        trip_s = clock.monotonic_s() - started_s
        found = offset(result.stdout, before_s, trip_s)
        if found is not None and (best is None or found.error_s < best.error_s):
            best = found
        if best is not None and best.error_s < _GOOD_S:
            break
    return best


def offset(text: str, before_s: float, trip_s: float) -> ClockOffset | None:
    """Compare ``date +%s.%N`` with our clock at the middle of the round trip; None: it is no time.

    A date(1) without nanoseconds (busybox) prints ``.N`` or nothing: half a second is the best guess.
    """
    whole, _, fraction = text.strip().partition(".")
    if not whole.isdigit():
        return None
    exact = fraction.isdigit()
    host_s = float(f"{whole}.{fraction}") if exact else int(whole) + 0.5
    return ClockOffset(ahead_s=host_s - (before_s + trip_s / 2), error_s=trip_s / 2 + (0.0 if exact else 0.5))


def clock_row(found: ClockOffset | None) -> Row:
    """Decide whether the host's log can be laid beside our records."""
    if found is None:
        return warning(
            "clock",
            "date +%s.%N does not say the time",
            "install coreutils, so that the log can be laid beside records",
        )
    detail = (
        f"{abs(found.ahead_s):.1f} s {'ahead of' if found.ahead_s > 0 else 'behind'} ours (± {found.error_s:.2f} s)"
    )
    if abs(found.ahead_s) - found.error_s > LARGEST_S:
        return warning("clock", detail, "set the clocks by NTP (timedatectl set-ntp true): log and records do not meet")
    return ok("clock", detail)
