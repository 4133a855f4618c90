"""A command in lines of printable ASCII, as a shell's ``printf %b`` reads them back; pure."""

from __future__ import annotations

import posixpath

from tuner.errors import HostFault
from tuner.model.trial import Command

_PLAIN = frozenset(range(0x20, 0x7F)) - {ord("\\")}


def encode_order(command: Command) -> bytes:
    """Return the lines of an order: ``E`` an environment variable, ``A`` a word, ``.`` the end.

    On standard input and not in a command line, which everybody on the host may read.

    Raises:
        HostFault: no process can be given this command line or environment, by anybody.
    """
    if not command.argv or not command.argv[0] or command.argv[0].startswith("-"):
        msg = f"command line {command.argv!r} does not begin with a program: correct the command"
        raise HostFault(msg)
    for name, _ in command.env:
        if not (name.isidentifier() and name.isascii()):
            msg = f"environment variable {name!r}: a host without systemd takes letters, digits and _ only: rename it"
            raise HostFault(msg)
    lines = [f"E{_encode(f'{name}={value}')}" for name, value in command.env]
    lines += [f"A{_encode(word)}" for word in command.argv]
    return "".join(f"{line}\n" for line in (*lines, ".")).encode("ascii")


def _encode(word: str) -> str:
    if "\0" in word:
        msg = f"{word!r}: a zero byte cannot be in a command line or an environment: correct the command"
        raise HostFault(msg)
    content = word.encode(errors="surrogateescape")
    return "".join(chr(byte) if byte in _PLAIN else f"\\0{byte:03o}" for byte in content)


def checked_directory(directory: str) -> str:
    """Return ``directory`` in one form only, because processes are known by it.

    Raises:
        HostFault: it is not absolute.
    """
    if not posixpath.isabs(directory):
        msg = f"{directory!r}: the folder of a host must be absolute"
        raise HostFault(msg)
    return "/" + posixpath.normpath(directory).lstrip("/")
