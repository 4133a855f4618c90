"""The version of an engine that does not run: asked of its package, without importing it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePosixPath

from tuner.errors import TransportFault
from tuner.ports import HostTransport

ASK = """
import importlib.metadata, sys
try:
    print(importlib.metadata.version(sys.argv[1]))
except importlib.metadata.PackageNotFoundError:
    sys.exit(3)
"""

HEAD = """
place=$(command -v "$1") || exit 3
head -c 1024 "$place" | head -n 2 | tr -d '\\000'
"""
"""POSIX sh; argument: the program. A script says in its first line what runs it."""


async def read_installed(transport: HostTransport, argv: Sequence[str], distribution: str) -> str | None:
    """Return the version of the package ``distribution`` as the server's own interpreter has it.

    Args:
        transport: runs on the host.
        argv: the server's command line.
        distribution: name of the Python package.

    None: the command line leads to no Python interpreter, or that has no such package.
    """
    interpreter = await _interpreter(transport, argv)
    if interpreter is None:
        return None
    try:
        # -B: nothing is written, not even a cache of byte code.
        result = await transport.run((*interpreter, "-B", "-c", ASK, distribution), timeout_s=20.0)
    except TransportFault:
        return None
    found = result.stdout.strip()
    return found if result.status == 0 and re.fullmatch(r"\S+", found) else None


async def _interpreter(transport: HostTransport, argv: Sequence[str]) -> tuple[str, ...] | None:
    """Find the Python that runs ``argv``: the first word that is one, or the one a script names."""
    for word in argv:
        if word.startswith("-"):
            return None
        if is_python(word):
            return (word,)
        if "=" in word or PurePosixPath(word).name in _PREFIXES:
            continue  # env NAME=value, numactl, …
        return shebang((await transport.run(("sh", "-c", HEAD, "sh", word), timeout_s=20.0)).stdout)
    return None


_PREFIXES = frozenset({"env", "nice", "ionice", "numactl", "taskset", "chrt", "stdbuf", "setsid"})


def is_python(word: str) -> bool:
    """Whether a word of a command line names a Python interpreter."""
    return re.fullmatch(r"python(\d+(\.\d+)*)?", PurePosixPath(word).name) is not None


def shebang(text: str) -> tuple[str, ...] | None:
    """Return the interpreter that a script's first lines name; None: it is no Python script.

    pip writes ``#!/bin/sh`` and, in the second line, ``'''exec' /long/path/python "$0" "$@"`` where
    the path is too long for the kernel or has spaces.
    """
    first, _, rest = text.partition("\n")
    if not first.startswith("#!"):
        return None
    words = first[2:].split()
    if words and PurePosixPath(words[0]).name == "env":
        words = [word for word in words[1:] if not word.startswith("-")]
    if words and is_python(words[0]):
        return (words[0],)
    found = re.match(r"""'''exec' (?:"([^"]+)"|(\S+)) """, rest)
    path = (found[1] or found[2]) if found else ""
    return (path,) if path and is_python(path) else None
