"""Finds out why a server died, or hangs: from its log, its ending, its host's kernel and the GPUs."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from tuner.errors import HostFault
from tuner.model.host import Activity, ServiceState
from tuner.model.outcome import Cause, Ending, Verdict
from tuner.ports import LogReader
from tuner.runtime.context import TrialContext
from tuner.runtime.guard import Guard
from tuner.runtime.racing import end
from tuner.runtime.watch import Ended, Watch

_MARGIN_S = 2.0  # the identity is known a moment after the process was started
_NO_CAUSE = frozenset({Cause.UNKNOWN, Cause.HEALTHY, Cause.OWN_STOP, Cause.OPERATOR_STOP})
"""What the log of a server that lives may be read as, and that explains nothing."""
_MOST_EVIDENCE = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Traces:
    """What a death left outside the server's own log; empty: nothing, or not to be had in time."""

    kernel: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()


class Autopsy:
    """Judges one server.

    Args:
        context: of the trial.
        reader: of the server's log; what it says of the cause is the verdict.
        watch: that reads the log.
        guard: that looks at the GPUs.
        note_loading: takes from the log how far the start came.
    """

    def __init__(
        self,
        context: TrialContext,
        *,
        reader: LogReader,
        watch: Watch,
        guard: Guard,
        note_loading: Callable[[], None],
    ) -> None:
        self._host = context.session.ports
        self._limits = context.session.limits
        self._progress = context.progress
        self._reader = reader
        self._watch = watch
        self._guard = guard
        self._note_loading = note_loading
        self._since_s = self._host.clock.now_s() - _MARGIN_S

    async def of_dead(self, ended: Ended) -> Verdict:
        """Say why a server ended; what shows elsewhere is looked for while the rest of its log is read."""
        # It may have died between two looks; the grade must not depend on when we looked. Before the
        # rest of the log is read and after it: in a loop that rest is the next life's beginning.
        self._note_loading()
        looking = asyncio.ensure_future(self._traces())
        try:
            await self._watch.drain(is_endless=ended.looped or ended.fatal_line)
            traces = await looking
        finally:
            await end(looking)
        self._note_loading()
        state = ended.state
        verdict = self._reader.diagnose(self._ending(state, traces))
        if verdict.cause is not Cause.UNKNOWN or not (ended.looped or state.stopped_by_others):
            return verdict
        return _of_manager(state, verdict)

    async def of_living(self, symptom: Verdict) -> Verdict:
        """Say why a server that lives is of no use: the cause that its log shows, else the symptom."""
        traces = await self._traces()
        found = self._reader.diagnose(
            Ending(state=self._progress.state, kernel=traces.kernel, foreign=traces.foreign, has_ended=False)
        )
        if found.cause in _NO_CAUSE:
            return symptom
        room = _MOST_EVIDENCE - len(symptom.evidence)
        return replace(found, evidence=(*found.evidence[:room], *symptom.evidence))

    def _ending(self, state: ServiceState, traces: Traces) -> Ending:
        return Ending(
            exit_status=state.exit_status,
            exit_signal=state.exit_signal,
            state=self._progress.state,
            # A stop of ours is recorded before its first signal; it kills what does not end in time.
            signals_sent=(signal.SIGTERM, signal.SIGKILL) if state.stop_requested else (),
            service_result=state.result,
            restarts=state.restarts,
            stopped_by_others=state.stopped_by_others,
            kernel=traces.kernel,
            foreign=traces.foreign,
        )

    async def _traces(self) -> Traces:
        """Look at the kernel's log and at the GPUs, at once; what takes too long is left out."""
        kernel = asyncio.ensure_future(self._kernel())
        foreign = asyncio.ensure_future(self._or_nothing(self._guard.foreigners, "the GPUs"))
        both = asyncio.ensure_future(asyncio.wait({kernel, foreign}))
        too_long = asyncio.ensure_future(self._host.clock.sleep(self._limits.traces_s))
        try:
            await asyncio.wait((both, too_long), return_when=asyncio.FIRST_COMPLETED)
            return Traces(
                kernel=kernel.result() if kernel.done() else (),
                foreign=foreign.result() if foreign.done() else (),
            )
        finally:
            for task in (both, too_long, kernel, foreign):
                await end(task)

    async def _kernel(self) -> tuple[str, ...]:
        log = self._host.kernel
        if log is None:
            return ()
        lines = await self._or_nothing(lambda: log.since(self._since_s), "the kernel's log")
        remark = log.remark()
        if remark is not None:
            self._progress.remark(remark)
        return tuple(self._progress.scrub(line) for line in lines)

    async def _or_nothing(self, look: Callable[[], Awaitable[tuple[str, ...]]], what: str) -> tuple[str, ...]:
        try:
            return await look()
        except HostFault as fault:
            # The death was seen, whatever became of the host since.
            self._progress.remark(f"{what} could not be looked at after the server's death: {fault}")
            return ()


def _of_manager(state: ServiceState, verdict: Verdict) -> Verdict:
    """Judge a server that its manager stopped or started anew, and whose log says nothing of a cause."""
    if state.stopped_by_others or (state.restarts == 0 and state.activity is not Activity.RESTARTING):
        deed = "stopped the server" if state.stopped_by_others else "started the server anew"
        return Verdict(
            cause=Cause.OPERATOR_STOP,
            config_fault=False,
            evidence=verdict.evidence,
            advice=f"somebody else {deed}; nobody may touch it during a trial",
        )
    return Verdict(
        cause=Cause.CRASH_LOOP,
        config_fault=None,
        evidence=verdict.evidence,
        advice=f"the service manager started the server anew {max(state.restarts, 1)} time(s)",
    )
