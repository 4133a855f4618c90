"""Whether what needs root may be run as root: asked of sudo, without running anything."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from tuner.hosts.checks.advice import TABLE, Advice
from tuner.hosts.checks.machine import Machine
from tuner.hosts.checks.row import Row, failed, ok
from tuner.model.host import CommandResult
from tuner.ports import HostTransport

SUDOERS_FILE = "/etc/sudoers.d/tuner"
_AT_ONCE = 6
"""sshd allows ten channels a connection (MaxSessions)."""
_NOT_FOUND_STATUS = 127
_TAGS = re.compile(r"^\s*\((?P<as>[^)]*)\)\s*(?P<rest>.*)$")

Argv = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rights:
    """What sudo allows without a password.

    Attributes:
        missing: the commands it does not.
        problem: what sudo says when it says nothing of commands; empty otherwise.
        without_sudo: there is no sudo on the host.
    """

    missing: tuple[Argv, ...] = ()
    problem: str = ""
    without_sudo: bool = False


async def read_rights(transport: HostTransport, commands: Sequence[Argv]) -> Rights:
    """Ask sudo of each command; ``-l`` runs none of them, ``-n`` never asks for a password.

    Raises:
        TransportFault: the host is not reached.
    """
    listing = await transport.run(("sudo", "-n", "-l"))
    if listing.status == _NOT_FOUND_STATUS:
        return Rights(missing=tuple(commands), without_sudo=True)
    turns = asyncio.Semaphore(_AT_ONCE)

    async def ask(command: Argv) -> CommandResult:
        async with turns:
            return await transport.run(("sudo", "-n", "-l", *command))

    asked = [asyncio.ensure_future(ask(command)) for command in commands]
    try:
        answers = await asyncio.gather(*asked)
    finally:
        for question in asked:
            question.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
    return decide(commands, answers, listing)


def decide(commands: Sequence[Argv], answers: Sequence[CommandResult], listing: CommandResult) -> Rights:
    """Say which commands sudo would refuse.

    ``sudo -n -l COMMAND`` says yes to a command that wants a password as soon as any other command
    wants none (seen with sudo 1.9.13; sudoers(5), listpw), so the list of rules decides between the two.
    """
    if listing.status != 0 and all(answer.status != 0 for answer in answers):
        said = (listing.stderr + listing.stdout).strip()
        # The last line is the reason; sudo warns before it (of a host name that nobody resolves, say).
        return Rights(missing=tuple(commands), problem=said.splitlines()[-1] if said else "")
    rules = parse_rules(listing.stdout)
    asks = any(not rule.free for rule in rules)
    missing = [
        command
        for command, answer in zip(commands, answers, strict=True)
        if answer.status != 0 or (asks and not _is_free(answer.stdout.strip(), rules))
    ]
    return Rights(missing=tuple(missing))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A command that sudoers allows; ``free``: without a password."""

    command: str
    free: bool


def parse_rules(text: str) -> tuple[Rule, ...]:
    """Read the rules of ``sudo -l``, in sudoers' order; those for another user than root are left out."""
    rules = []
    for line in text.splitlines():
        found = _TAGS.match(line)
        if found is None or found["as"].split(":")[0].strip() not in {"root", "ALL"}:
            continue
        free = False
        for part in re.split(r"(?<!\\),\s+", found["rest"]):
            command = part
            while tag := re.match(r"(!?[A-Z_]+):\s*", command):  # a tag holds until another takes it back
                free = {"NOPASSWD": True, "PASSWD": False}.get(tag[1], free)
                command = command[tag.end() :]
            rules.append(Rule(command=_unescaped(command), free=free))
    return tuple(rules)


def _is_free(command: str, rules: Sequence[Rule]) -> bool:
    """Whether the last rule that matches, which is the one that counts, wants no password."""
    said = _unescaped(command)
    return next((rule.free for rule in reversed(rules) if _matches(said, rule.command)), False)


def _matches(command: str, rule: str) -> bool:
    path, _, arguments = rule.partition(" ")
    if rule in ("ALL", command) or fnmatchcase(command, rule):
        return True
    return not arguments and command.partition(" ")[0] == path  # a rule without arguments allows any


def _unescaped(text: str) -> str:
    return text.replace("\\", "")  # sudoers doubles them; no command that we need has one of its own kind


def rights_row(
    machine: Machine, rights: Rights | None, *, sudo: bool, lines: Sequence[str], advice: Advice = TABLE
) -> Row:
    """Decide whether a trial can be deployed and taken back.

    Args:
        machine: who we are there.
        rights: what sudo allows; None: not asked, because nothing goes through it.
        sudo: the study says that what needs root goes through it.
        lines: for sudoers, one for each missing command.
        advice: how remedies are written down.
    """
    check = "permissions"
    if machine.is_root:
        return ok(check, "root")
    if rights is None or not sudo:
        return failed(
            check,
            f"{machine.user} is not root, and nothing goes through sudo",
            f"{advice.sudo}, add these lines to {SUDOERS_FILE} on the host, mode 0440, "
            f"and hold them with visudo -cf {SUDOERS_FILE}",
            lines,
        )
    if rights.without_sudo:
        return failed(
            check,
            f"{machine.user} is not root, and there is no sudo",
            f"log in as root, or install sudo and write these lines into {SUDOERS_FILE}",
            lines,
        )
    if rights.missing:
        reason = f" ({rights.problem})" if rights.problem else ""
        return failed(
            check,
            f"sudo -n refuses {machine.user} {len(rights.missing)} of the commands that are needed{reason}",
            f"add these lines to {SUDOERS_FILE} on the host, mode 0440, and hold them with visudo -cf {SUDOERS_FILE}",
            lines,
        )
    return ok(check, f"{machine.user}, through sudo -n")
