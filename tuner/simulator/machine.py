"""What the parts of one running server share."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from tuner.simulator import crash
from tuner.simulator.arguments import ServerArgs
from tuner.simulator.book import Book, Claim, linger_s
from tuner.simulator.host import HostFacts
from tuner.simulator.logs import Log
from tuner.simulator.processes import Tree
from tuner.simulator.profile import Profile

VERSION = "0.5.23"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One server on its host.

    Attributes:
        start: which start of this host it is, from 1.
        argv: what followed ``sglang serve``.
    """

    host: HostFacts
    profile: Profile
    args: ServerArgs
    argv: tuple[str, ...]
    log: Log
    tree: Tree
    book: Book
    start: int
    began_s: float = field(default_factory=time.monotonic)

    def hold(self, held_bytes: int) -> None:
        """Let every scheduler hold this much on its GPU."""
        self.book.hold(
            [
                Claim(
                    pid=child.pid,
                    name=child.title,
                    gpu=self.args.base_gpu_id + (child.rank or 0),
                    held_bytes=held_bytes,
                )
                for child in self.tree.schedulers
            ],
            linger_s=linger_s(self.host.speed) if self.host.faults.linger_s is None else self.host.faults.linger_s,
        )

    def sibling_noise(self, first: int | None) -> None:
        """Log what the other ranks print after one of them failed."""
        for child in self.tree.schedulers:
            if child.rank is not None and child.rank != first:
                self.log.record(crash.sibling_noise(child.rank), child.rank)
