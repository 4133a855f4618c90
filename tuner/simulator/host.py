"""The simulated GPU host: what its processes know of it, and the commands found on its PATH."""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tuner.simulator.faults import Faults, FaultSyntaxError
from tuner.simulator.faults import parse as parse_faults

HOME = "TUNER_SIM_HOME"
PROFILE = "TUNER_SIM_PROFILE"
SPEED = "TUNER_SIM_SPEED"
ADDRESS = "TUNER_SIM_ADDRESS"
FAULTS = "TUNER_SIM_FAULTS"

DEFAULT_PROFILE = "qwen3.5-122b-a10b-4gpu"
DEFAULT_ADDRESS = "127.0.0.1"


class HostError(ValueError):
    """The environment does not describe a simulated host; the message says what is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """A simulated host, as its environment describes it.

    Attributes:
        home: folder of the host: the GPU memory book.
        profile: name of the model and hardware simulated.
        speed: loading, start-up and shutdown waits are divided by it; decoding never is.
        address: the host's own loopback address.
        faults: what is wrong with it.
    """

    home: Path
    profile: str
    speed: float
    address: str
    faults: Faults

    def scaled(self, seconds: float) -> float:
        """Divide a wait by the host's speed."""
        return seconds / self.speed


def read_facts(environ: Mapping[str, str]) -> HostFacts:
    """Read the host from its environment.

    Raises:
        HostError: a variable is missing or cannot be read.
    """
    if not environ.get(HOME):
        raise HostError(f"{HOME} is not set: it names the folder of the simulated host")
    text = environ.get(SPEED) or "1"
    try:
        speed = float(text)
    except ValueError:
        raise HostError(f"{SPEED}: {text!r} is not a number") from None
    if not 0 < speed < math.inf:
        raise HostError(f"{SPEED}: {text!r} is not a positive number")
    try:
        faults = parse_faults(environ.get(FAULTS, ""))
    except FaultSyntaxError as error:
        raise HostError(f"{FAULTS}: {error}") from error
    return HostFacts(
        home=Path(environ[HOME]),
        profile=environ.get(PROFILE) or DEFAULT_PROFILE,
        speed=speed,
        address=environ.get(ADDRESS) or DEFAULT_ADDRESS,
        faults=faults,
    )


def environment(
    home: Path,
    profile: str = DEFAULT_PROFILE,
    speed: float = 1.0,
    address: str = DEFAULT_ADDRESS,
    faults: Sequence[str] = (),
) -> dict[str, str]:
    """Return the variables that tell a process on which simulated host it runs."""
    return {
        HOME: str(home),
        PROFILE: profile,
        SPEED: repr(speed),
        ADDRESS: address,
        FAULTS: ",".join(faults),
    }


def prepare(home: Path, python: str = sys.executable, facts: Mapping[str, str] | None = None) -> Path:
    """Make ``home/bin`` with ``sglang``, ``nvidia-smi`` and ``python3``; return that folder.

    With it first on PATH, SGLang's own command line starts the simulated server, and
    ``python3`` is the real interpreter for everything but ``-m sglang.launch_server``.

    Args:
        home: folder of the simulated host; made if it is not there.
        python: interpreter that can import this package's dependencies.
        facts: variables of :func:`environment`; where the caller's environment lacks one, the
            commands take it from here (a service manager may start them with an empty one).
    """
    bin_folder = home / "bin"
    bin_folder.mkdir(parents=True, exist_ok=True)
    defaults = {HOME: str(home), **(facts or {})}
    exports = "".join(f"{name}=${{{name}-{shlex.quote(value)}}}\nexport {name}\n" for name, value in defaults.items())
    package_root = shlex.quote(str(Path(__file__).parents[2]))
    interpreter = shlex.quote(python)
    head = f"#!/bin/sh\n{exports}"
    # The package need not be installed where the interpreter looks; the interpreter's own
    # caller may use PYTHONPATH for other things, so it is set for the simulated programs only.
    module = f"PYTHONPATH={package_root}${{PYTHONPATH:+:$PYTHONPATH}} exec {interpreter} -m"
    _write(
        bin_folder / "sglang",
        f"""{head}if [ "$1" = serve ]; then
  shift
  {module} tuner.simulator "$@"
fi
echo "sglang: error: argument subcommand: invalid choice: '$1' (choose from serve)" >&2
exit 2
""",
    )
    _write(bin_folder / "nvidia-smi", f'{head}{module} tuner.simulator.nvidia_smi "$@"\n')
    for name in ("python", "python3"):
        _write(
            bin_folder / name,
            f"""{head}if [ "$1" = -u ] && [ "$2" = -m ] && [ "$3" = sglang.launch_server ]; then shift; fi
if [ "$1" = -m ] && [ "$2" = sglang.launch_server ]; then
  shift 2
  {module} tuner.simulator "$@"
fi
exec {interpreter} "$@"
""",
        )
    return bin_folder


def _write(path: Path, text: str) -> None:
    """Replace a program atomically: a server may be starting from the old one."""
    new = path.with_name(f".{path.name}.new")
    new.write_text(text)
    new.chmod(0o755)
    new.replace(path)
