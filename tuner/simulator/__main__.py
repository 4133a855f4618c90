"""``python -m tuner.simulator``: what follows ``sglang serve`` on the simulated host."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from tuner.simulator import arguments, profile, server
from tuner.simulator.host import PROFILE, HostError, read_facts


def main() -> NoReturn:
    """Start a server from the command line and the environment.

    Exit status 2 with one line when the environment does not describe a simulated host;
    everything else ends as SGLang does.
    """
    argv = tuple(sys.argv[1:])
    try:
        host = read_facts(os.environ)
        shape = profile.load(host.profile)
    except (HostError, profile.ProfileError) as error:
        place = f"{PROFILE}: " if isinstance(error, profile.ProfileError) else ""
        sys.stderr.write(f"tuner.simulator: error: {place}{error}\n")
        sys.exit(2)
    try:
        args = arguments.parse(argv, shape)
    except arguments.ArgumentFailure as failure:
        sys.stderr.write(failure.stderr)
        sys.exit(failure.exit_status)
    server.run(host, shape, args, argv)


if __name__ == "__main__":
    main()
