"""``ports.KernelLog`` by one command: journalctl's JSON, or dmesg where the journal has no kernel lines for us."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from tuner.ports import Clock, HostTransport

MOST_LINES = 40
LONGEST_LINE = 500

_PATTERN = "out of memory|oom-kill|oom_reaper|killed process|nvrm:|xid|segfault|general protection"
"""What the kernel says of killed processes (mm/oom_kill.c, arch/x86/mm/fault.c) and NVIDIA's driver of its GPUs."""

# Ages and not times: the host's clock may be another than ours. /proc/uptime is what dmesg counts by.
LOOK = """
export LC_ALL=C SYSTEMD_PAGER= SYSTEMD_COLORS=0
pick() { grep -E -i -e "$1" | head -n 400 | head -c 65536; }
id -un
if [ -n "$(journalctl -k -q --no-pager -n 1 -o cat 2>/dev/null)" ]; then
    echo journal
    since=$(( $(date +%s) - $1 ))
    journalctl -k -q --no-pager -o json --output-fields=MESSAGE --since="@$since" 2>/dev/null | pick "$2"
elif dmesg >/dev/null 2>&1; then
    echo "dmesg $(cut -d ' ' -f 1 /proc/uptime)"
    dmesg 2>/dev/null | pick "$2"
else
    echo "hidden $(dmesg 2>&1 | head -n 1)"
fi
exit 0
"""
"""POSIX sh; arguments: age in whole seconds, pattern. The journal of every boot begins with lines of the
kernel, so one without any is hidden from us, or keeps none (a container's)."""

_UPTIME = re.compile(r"^\d+\.\d+$")
_DMESG_LINE = re.compile(r"^(?:<\d+>)?\[\s*(\d+\.\d+)\]\s*(.*)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelLook:
    """What a look at a kernel's log showed.

    Attributes:
        user: who looked.
        source: ``journal`` or ``dmesg``; empty: neither may be read.
        said: the complaint then.
        lines: oldest first.
    """

    user: str
    source: str = ""
    said: str = ""
    lines: tuple[str, ...] = ()


async def look_at_kernel(transport: HostTransport, *, age_s: float) -> KernelLook:
    """Look at what the kernel said in the last ``age_s`` seconds.

    Raises:
        TransportFault: the host is not reached.
    """
    age = max(0, int(age_s) + 1)
    result = await transport.run(("sh", "-c", LOOK, "sh", str(age), _PATTERN), timeout_s=20.0)
    return parse_look(result.stdout, age_s=age)


def parse_look(text: str, *, age_s: float) -> KernelLook:
    """Read what :data:`LOOK` prints; where that is something else, the log is hidden from us."""
    user, _, rest = text.partition("\n")
    head, _, body = rest.partition("\n")
    source, _, detail = head.partition(" ")
    if source == "journal":
        lines = tuple(_messages(body))
    elif source == "dmesg" and _UPTIME.match(detail):
        lines = tuple(_younger(body, float(detail) - age_s))
    else:
        said = detail.strip() if source == "hidden" else f"the host said {text[:80]!r}"
        return KernelLook(user=user or "its login", said=said or "there is no dmesg")
    return KernelLook(user=user, source=source, lines=bounded(lines))


def bounded(lines: tuple[str, ...]) -> tuple[str, ...]:
    """Return the first lines and the last, :data:`MOST_LINES` in all, each cut to :data:`LONGEST_LINE`."""
    half = MOST_LINES // 2
    kept = lines if len(lines) <= MOST_LINES else (*lines[:half], *lines[-half:])
    return tuple(line[:LONGEST_LINE] for line in kept)


def _messages(text: str) -> list[str]:
    """Return the messages of JSON entries; a last one that was cut is left out."""
    found = []
    for line in text.splitlines():
        try:
            message = json.loads(line)["MESSAGE"]
        except (ValueError, KeyError, TypeError):
            continue
        found.append(message if isinstance(message, str) else bytes(message or ()).decode(errors="replace"))
    return found


def _younger(text: str, since_s: float) -> list[str]:
    """Return dmesg's lines from ``since_s`` of uptime on; one without a time cannot be placed."""
    matches = map(_DMESG_LINE.match, text.splitlines())
    return [match[2] for match in matches if match is not None and float(match[1]) >= since_s]


class HostKernelLog:
    """``ports.KernelLog`` over a transport.

    Args:
        transport: to the host.
        clock: by which the times are that it is asked with.
        host: its name, for the reader.
    """

    def __init__(self, transport: HostTransport, clock: Clock, host: str) -> None:
        self._transport = transport
        self._clock = clock
        self._host = host
        self._untold: str | None = None
        self._is_told = False

    async def since(self, unix_s: float) -> tuple[str, ...]:
        """Return the lines about killed processes and GPU faults since then."""
        look = await look_at_kernel(self._transport, age_s=self._clock.now_s() - unix_s)
        if not look.source and not self._is_told:
            self._is_told = True
            self._untold = f"host {self._host}: {hidden_text(look)}: {remedy(look)}"
        return look.lines

    def remark(self) -> str | None:
        """Say once that the log is hidden from us."""
        untold, self._untold = self._untold, None
        return untold


def hidden_text(look: KernelLook) -> str:
    """Say that the log is hidden, and what follows."""
    return (
        f"{look.user} may not read the kernel's log ({look.said}): "
        "a kill for want of host memory cannot be told from another"
    )


def remedy(look: KernelLook) -> str:
    """Say what makes it readable."""
    return (
        f"on the host, as root: usermod -a -G systemd-journal {look.user}; "
        "where there is no journal: sysctl kernel.dmesg_restrict=0"
    )
