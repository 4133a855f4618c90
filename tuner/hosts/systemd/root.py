"""What runs as root on the host: few commands, each with exact arguments, so that sudoers can list them all."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from tuner.errors import HostFault, UsageError
from tuner.hosts.systemd.paths import drop_in_path
from tuner.model.host import CommandResult
from tuner.ports import HostTransport

Argv = tuple[str, ...]

RELOAD: Argv = ("systemctl", "daemon-reload")
_SUDO = ("sudo", "-n")
_NEW = ".new"
_MODE = "0600"
_TRIES = 2
_SUDO_REFUSES = re.compile(
    r"^sudo: .*(?:password is required|terminal is required|must have a tty)"
    r"|^Sorry, user .* (?:is not allowed|may not)|is not in the sudoers file",
    re.MULTILINE,
)
_USER = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*\$?")
_SUDOERS_SPECIAL = re.compile(r"[,:=#\s]")
_GLOB = re.compile(r"[*?\[\]!^]")


class Root:
    """Runs commands as root: directly, or through ``sudo -n``.

    Args:
        transport: to the host.
        sudo: its user is not root, and sudo lets it run :func:`commands` without a password.
    """

    def __init__(self, transport: HostTransport, *, sudo: bool) -> None:
        self._transport = transport
        self._prefix: tuple[str, ...] = _SUDO if sudo else ()

    @property
    def prefix(self) -> tuple[str, ...]:
        """What stands before a command that needs root, for scripts that run several; empty: nothing."""
        return self._prefix

    async def run(
        self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 30.0, repeat: bool = True
    ) -> CommandResult:
        """Run one command as root; arguments are those of :meth:`tuner.ports.HostTransport.run`.

        Raises:
            TransportFault: the result is not known.
        """
        return await self._transport.run((*self._prefix, *argv), stdin=stdin, timeout_s=timeout_s, repeat=repeat)

    async def require(
        self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 30.0, repeat: bool = True
    ) -> CommandResult:
        """Run one command as root that has to succeed.

        Raises:
            HostFault: it failed; the message says what it said, and what to do where sudo refused.
            TransportFault: the result is not known.
        """
        result = await self.run(argv, stdin=stdin, timeout_s=timeout_s, repeat=repeat)
        if result.status != 0:
            raise HostFault(failure(argv, result))
        return result

    async def attempt(self, argv: Sequence[str], *, timeout_s: float = 30.0) -> CommandResult:
        """Run one command as root that may fail: its status is a value, but sudo's refusal is none.

        Raises:
            HostFault: sudo refused.
            TransportFault: the result is not known.
        """
        result = await self.run(argv, timeout_s=timeout_s)
        if result.status != 0 and _SUDO_REFUSES.search(result.stderr):
            raise HostFault(failure(argv, result))
        return result

    async def replace_file(self, path: str, content: bytes, *, mode: str = _MODE) -> None:
        """Replace a file atomically, making its folder; see :func:`replace_commands`.

        Raises:
            HostFault: it cannot be written (disk full, no right to); the old content is still there.
            TransportFault: the result is not known.
        """
        make, write, rename = replace_commands(path, mode=mode)
        for _ in range(_TRIES):
            await self.require(make)
            await self.require(write, stdin=content)
            result = await self.run(rename)
            if result.status == 0:
                return
            # Run again after a lost connection, mv finds nothing to move although it did its work:
            # writing it all once more does no harm.
        raise HostFault(failure(rename, result))


def replace_commands(path: str, *, mode: str = _MODE) -> tuple[Argv, Argv, Argv]:
    """Return the commands that replace ``path``; the second reads the content.

    Not ``install /dev/stdin``: under sshd standard input may be a socket, which cannot be opened again.
    """
    new = path + _NEW
    return (
        ("install", "-D", "-m", mode, "/dev/null", new),
        ("tee", new),
        ("mv", "-fT", new, path),
    )


def commands(unit: str) -> tuple[Argv, ...]:
    """List every command that a service manager runs as root for ``unit``, in the order of their use."""
    return (
        *replace_commands(drop_in_path(unit)),
        RELOAD,
        reset_command(unit),
        start_command(unit),
        stop_command(unit),
        kill_command(unit),
    )


def reset_command(unit: str) -> Argv:
    """Return the command that forgets how the unit failed, and how often it was started."""
    return ("systemctl", "reset-failed", unit)


def start_command(unit: str) -> Argv:
    """Return the command that queues a start."""
    return ("systemctl", "start", "--no-block", unit)


def stop_command(unit: str) -> Argv:
    """Return the command that queues a stop."""
    return ("systemctl", "stop", "--no-block", unit)


def kill_command(unit: str) -> Argv:
    """Return the command that kills every process in the unit's cgroup, also when the unit is inactive."""
    return ("systemctl", "kill", "-s", "KILL", unit)


def failure(argv: Sequence[str], result: CommandResult) -> str:
    """Say in one line that a root command failed, why, and what to do."""
    said = (result.stderr.strip() or result.stdout.strip() or "it said nothing").splitlines()[0]
    command = " ".join(argv)
    if _SUDO_REFUSES.search(result.stderr):
        return f"sudo -n {command}: refused ({said}): add the sudoers lines that `tuner doctor` prints"
    if result.status == 127 or "command not found" in said:
        return f"{command}: there is no such program on the host ({said}): install it"
    return f"{command}: status {result.status}: {said}"


def sudoers_lines(user: str, commands: Iterable[Sequence[str]], programs: Mapping[str, str]) -> tuple[str, ...]:
    """Print the lines of a sudoers file that let ``user`` run exactly these commands without a password.

    Args:
        user: who logs in on the host.
        commands: argv tuples, program names without a path.
        programs: where the host has each program, absolute: sudo matches by path.

    Raises:
        UsageError: a user or an argument that sudoers cannot express.
    """
    if not _USER.fullmatch(user):
        msg = f"user {user!r} cannot be written into a sudoers file: use an account with a plain name"
        raise UsageError(msg)
    lines: dict[str, None] = {}  # each once, in order
    for argv in commands:
        name, *arguments = argv
        # Without arguments a sudoers command would allow any.
        words = [_sudoers_word(programs[name]), *(map(_sudoers_word, arguments) if arguments else ('""',))]
        lines[f"{user} ALL=(root) NOPASSWD: {' '.join(words)}"] = None
    return tuple(lines)


def _sudoers_word(word: str) -> str:
    if not word or any(ord(character) < 32 for character in word):
        msg = f"argument {word!r} cannot be written into a sudoers file"
        raise UsageError(msg)
    # Twice for a backslash: once for sudoers, once for fnmatch(3), by which sudo compares arguments.
    word = word.replace("\\", r"\\\\")
    word = _GLOB.sub(lambda match: "\\" + match.group(), word)
    return _SUDOERS_SPECIAL.sub(lambda match: "\\" + match.group(), word)
