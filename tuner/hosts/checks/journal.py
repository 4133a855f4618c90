"""Whether a unit's log can be read by the user we are."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.hosts.checks.row import Row, failed, ok
from tuner.ports import HostTransport

READERS = frozenset({"systemd-journal", "adm", "wheel"})
"""Groups to which journald gives its files (systemd-journald.service(8), access control)."""

LOOK = """
if journalctl --version >/dev/null 2>&1; then printf 'journalctl yes\\n'; fi
if [ -n "$(journalctl --quiet --no-pager -n 1 -o cat _PID=1 2>/dev/null)" ]; then printf 'readable yes\\n'; fi
printf 'said %s\\n' "$(journalctl --no-pager -n 0 _PID=1 2>&1 | head -n 1)"
if [ -d "/var/log/journal/$(cat /etc/machine-id)" ]; then printf 'kept persistent\\n'
elif [ -d "/run/log/journal/$(cat /etc/machine-id)" ]; then printf 'kept volatile\\n'; fi
exit 0
"""
"""POSIX sh. Every boot logs something of process 1, so an empty answer is a refusal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """What journalctl lets us see.

    Attributes:
        kept: ``persistent``, ``volatile``, or empty where no journal is kept.
        said: the first line of its complaint; empty without one.
    """

    installed: bool
    readable: bool
    kept: str
    said: str


async def read_journal(transport: HostTransport) -> Journal:
    """Look at the journal.

    Raises:
        TransportFault: the host is not reached.
    """
    return parse_journal((await transport.run(("sh", "-c", LOOK, "sh"), timeout_s=30.0)).stdout)


def parse_journal(text: str) -> Journal:
    """Read what :data:`LOOK` prints."""
    said = dict(line.partition(" ")[::2] for line in text.splitlines())
    return Journal(
        installed="journalctl" in said,
        readable="readable" in said,
        kept=said.get("kept", ""),
        said=said.get("said", "").strip(),
    )


def journal_row(journal: Journal, user: str, *, through_sudo: bool) -> Row:
    """Decide whether the unit's log can be followed.

    Args:
        journal: what was seen.
        user: who we are on the host.
        through_sudo: journalctl is run by sudo, and the permissions row holds that it may be.
    """
    if not journal.installed:
        return failed("journal", "there is no journalctl", "install systemd's journal on the host")
    if not journal.kept and not journal.readable:
        return failed(
            "journal",
            "journald keeps no log on this host",
            "set Storage=volatile or persistent in /etc/systemd/journald.conf: a crash is explained by its log",
        )
    kept = "" if not journal.kept else f", {journal.kept}"
    if journal.readable:
        return ok("journal", f"readable by {user}{kept}")
    if through_sudo:
        return ok("journal", f"readable through sudo{kept}")
    return failed(
        "journal",
        f"{user} may not read the unit's log{kept}",
        f"on the host, as root: usermod -a -G systemd-journal {user}",
    )
