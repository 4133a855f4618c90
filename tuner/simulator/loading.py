"""The start-up: minutes of log lines and growing memory, with the port closed.

Nothing runs beside it, so a SIGTERM here has its default effect, as in SGLang.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

from tuner.simulator import crash, faults
from tuner.simulator.machine import Machine
from tuner.simulator.memory import LoadFailure
from tuner.simulator.processes import Death
from tuner.simulator.startup import Step

OPENING_STAGES = ("uvicorn", "ready")
"""Stages of the script that belong to the open port; the rest is loading."""

_FLOOD_LINE = (
    "autotuning fused_moe kernel: tactic {number} of many, best so far 0.412 ms, skipping unsupported tile shapes"
)
_FLOOD_LINES_AT_ONCE = 400


class Loader:
    """Plays the loading part of a start-up script.

    A crash can end in two ways, as in SGLang, where two threads race: the waiter for the
    schedulers raises first and the parent exits with 1, or the SIGQUIT of the child comes
    first and the parent kills the tree and itself. Starts of a host take turns.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._due_s = machine.began_s
        self._waiter_first = machine.start % 2 == 1
        self._crashing: int | None = None
        self._held_bytes = -1

    def load(self, steps: Sequence[Step], failure: LoadFailure | None) -> None:
        """Play the steps; returns when the server is loaded.

        Raises:
            SystemExit: the start failed.
        """
        machine, host = self._machine, self._machine.host
        signal.signal(signal.SIGQUIT, self._on_sigquit)
        flaky = faults.start_flakes(host.faults.nccl_flake, machine.start)
        for step in steps:
            if step.stage == host.faults.exit_at:
                self._exit_silently(step)
            if step.stage == "load_weights" and flaky:
                self._sleep(step.seconds)
                self._crash(0, crash.nccl_failure())
            if step.stage == "load_weights" and host.faults.hang_loading:
                self._hang()
            if step.stage == "limits":
                self._flood(host.faults.log_flood_bytes)
            self._sleep(step.seconds)
            if step.gpu_bytes != self._held_bytes:
                self._held_bytes = step.gpu_bytes
                machine.hold(step.gpu_bytes)
            if failure is not None and step.lines == failure.lines:
                self._crash(step.rank or 0, failure.lines)
            for line in step.lines:
                machine.log.record(line, step.rank)

    def _sleep(self, seconds: float) -> None:
        """Wait on an absolute schedule: what this process computes meanwhile costs no time."""
        self._due_s += self._machine.host.scaled(seconds)
        deaths = self._machine.tree.sleep(max(0.0, self._due_s - time.monotonic()))
        if deaths:
            self._fail(deaths[0])

    def _crash(self, rank: int, lines: Sequence[str]) -> NoReturn:
        self._crashing = rank
        self._machine.tree.crash(rank, crash.exception(lines))
        deaths: tuple[Death, ...] = ()
        while not deaths:
            deaths = self._machine.tree.sleep(1.0)
        self._fail(deaths[0])

    def _fail(self, death: Death) -> NoReturn:
        """End as the waiter for the schedulers does."""
        machine = self._machine
        machine.sibling_noise(death.child.rank)
        for line in crash.launch_failure(death.child.rank or 0, death.exit_code):
            machine.log.raw(line)
        machine.tree.kill()
        sys.exit(1)

    def _on_sigquit(self, _signum: int, _frame: FrameType | None) -> None:
        if self._crashing is not None and self._waiter_first:
            return
        self._machine.log.record(crash.LAUNCH_SIGQUIT)
        self._machine.sibling_noise(self._crashing)
        self._machine.tree.kill_with_parent()

    def _exit_silently(self, step: Step) -> NoReturn:
        self._sleep(step.seconds)
        self._machine.tree.kill()
        sys.exit(1)

    def _hang(self) -> NoReturn:
        while True:
            self._sleep(3600.0 * self._machine.host.speed)

    def _flood(self, wanted_bytes: int) -> None:
        number, written = 0, 0
        while written < wanted_bytes:
            lines = [_FLOOD_LINE.format(number=number + index) for index in range(_FLOOD_LINES_AT_ONCE)]
            number += len(lines)
            text = "\n".join(lines)
            written += len(text) + 1
            self._machine.log.record(text, 0)
