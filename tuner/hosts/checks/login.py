"""Whether a host is reached, proves to be the one that is known, and takes us."""

from __future__ import annotations

from collections.abc import Iterable

from tuner.errors import HostKeyRefused, LoginRefused, TransportFault
from tuner.hosts.checks.advice import TABLE, Advice
from tuner.hosts.checks.machine import Machine
from tuner.hosts.checks.row import Row, failed, ok, unknown, warning
from tuner.hosts.ssh.login import by_hand
from tuner.model.study import SshLogin

CHECKS = ("reachable", "host key", "login")
_COMPARE = "compare it with the host's own: ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub there"


def login_rows(login: SshLogin | None, machine: Machine, accepted_key: str | None) -> tuple[Row, ...]:
    """Say who we are on a host that was reached.

    Args:
        login: None: this machine.
        machine: the first look at it.
        accepted_key: fingerprint of a host key that was taken just now, because the person asked for it.
    """
    reachable, host_key, who = CHECKS
    here = f"{machine.user} (uid {machine.uid}) on {machine.name or 'a host without a name'}"
    if login is None:
        return (ok(reachable, "this machine"), ok(who, here))
    key = ok(host_key, "known")
    if accepted_key is not None:
        key = warning(
            host_key,
            f"was unknown and has just been taken: {accepted_key}",
            _COMPARE,
        )
    return (ok(reachable, f"{login.host} over SSH"), key, ok(who, here))


def refused_rows(login: SshLogin | None, error: TransportFault, advice: Advice = TABLE) -> tuple[Row, ...]:
    """Say which of the three it failed at; what comes after was not looked at."""
    reachable, host_key, who = CHECKS
    if login is None:
        return (
            failed(reachable, str(error), "this machine cannot run sh: mend that first"),
            *unknown((who,), reachable),
        )
    user = login.user or "the login's user"
    if isinstance(error, HostKeyRefused):
        # Which of the ways a key is refused, and so what to do, only the error knows.
        seen, _, remedy = str(error).rpartition(": ")
        seen, remedy = (seen, remedy) if seen else (remedy, _COMPARE)
        return (
            ok(reachable, f"{login.host} over SSH"),
            failed(host_key, seen, remedy),
            *unknown((who,), f"the {host_key} was refused"),
        )
    if isinstance(error, LoginRefused):
        return (
            ok(reachable, f"{login.host} over SSH"),
            ok(host_key, "known")
            if error.new_key is None
            else warning(host_key, f"is unknown, and was not taken for the login failed: {error.new_key}", _COMPARE),
            failed(
                who,
                str(error),
                f"put your public key into ~/.ssh/authorized_keys of {user} there (ssh-copy-id), load it into the "
                f"agent, or {advice.identity}",
            ),
        )
    return (
        failed(
            reachable,
            str(error),
            f"until `{by_hand(login)} true` works from this machine: check address, port, jump host and firewall",
        ),
        *unknown((host_key, who), f"{login.host} is not reached"),
    )


def lost_rows(error: TransportFault, every: Iterable[str], rows: Iterable[Row]) -> tuple[Row, ...]:
    """Say that the host was lost in the middle, and which of the rows are missing for it."""
    done = {row.check for row in rows}
    return (
        failed("connection", str(error), "the host was lost in the middle: run doctor again"),
        *unknown([check for check in every if check not in done], "the connection was lost"),
    )
