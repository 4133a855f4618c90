"""Starts a server: the process tree, the memory plan, the loading; then it serves."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from tuner.simulator import memory, startup
from tuner.simulator.arguments import ServerArgs
from tuner.simulator.book import Book
from tuner.simulator.host import HostFacts
from tuner.simulator.loading import OPENING_STAGES, Loader
from tuner.simulator.logs import Log
from tuner.simulator.machine import Machine
from tuner.simulator.processes import Tree, set_title
from tuner.simulator.profile import Profile


def run(host: HostFacts, profile: Profile, args: ServerArgs, argv: tuple[str, ...]) -> NoReturn:
    """Be the server until it ends.

    Args:
        host: that it runs on.
        profile: the model and the hardware.
        args: resolved from ``argv``.
        argv: what followed ``sglang serve``.

    Raises:
        SystemExit: with SGLang's exit status; after a crash the process kills itself instead.
    """
    set_title(("sglang", "serve", *argv))
    book = Book(host.home)
    start = book.count_start()
    log = Log(ranked=args.tp_size > 1, line_end="" if host.faults.no_newline else "\n")
    tree = Tree(ranks=args.tp_size, log=log)
    machine = Machine(host=host, profile=profile, args=args, argv=argv, log=log, tree=tree, book=book, start=start)
    free_bytes = book.free_bytes(
        gpus=range(args.base_gpu_id, args.base_gpu_id + args.tp_size), total_bytes=profile.gpu.memory_bytes
    )
    plan = memory.plan(profile, args, free_bytes)
    steps = startup.script(profile, args, plan, os.getpid())
    # The web framework takes half a second to import: after argument errors had their chance,
    # after the children are forked, and within the time the loading takes anyway.
    from tuner.simulator.service import serve  # noqa: PLC0415

    Loader(machine).load([step for step in steps if step.stage not in OPENING_STAGES], plan.failure)
    opening = {step.stage: step for step in steps if step.stage in OPENING_STAGES}
    sys.exit(serve(machine, plan, opening, os.environ))
