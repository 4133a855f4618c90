"""Command lines whose arguments are not the engine's own."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence

_SHELLS = frozenset({"sh", "bash", "dash", "ash", "zsh", "ksh", "mksh", "fish", "csh", "tcsh", "busybox"})
_CONTAINERS = frozenset({"docker", "podman", "nerdctl", "docker-compose", "podman-compose"})
_WHOLE = "put the engine's own command, with all its arguments, into ExecStart="


def wrapper_problem(program: str, arguments: Sequence[str]) -> str | None:
    """Say why the arguments of a command line are not the engine's; None: they may be."""
    rest = list(arguments)
    if posixpath.basename(program) == "env":
        if any(word.startswith(("-S", "--split-string")) for word in rest):
            return f"splits its command from one word (env -S): {_WHOLE}"
        while rest and (rest[0].startswith("-") or "=" in rest[0]):
            rest.pop(0)
        program = rest.pop(0) if rest else program
    name = posixpath.basename(program)
    if name in _SHELLS:
        return (
            f"runs a shell ({program}), whose script tuner cannot change: {_WHOLE}; "
            "variables go into Environment=, a `cd` into WorkingDirectory="
        )
    if name in _CONTAINERS:
        return f"runs a container ({name}), whose processes are not the unit's: {_WHOLE}, without {name}"
    if not any(word.startswith("-") for word in rest):
        return f"runs {program} without any option, so the engine's flags are elsewhere: {_WHOLE}"
    return None
