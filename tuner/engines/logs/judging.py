"""Judges a death from its log and its ending; the same for every engine.

The order of the questions is the order of trust: a cause that the log names before anybody
stopped the server; a stop, ours or another's; what the kernel and the service manager say; a
cause that may be another's consequence; a crash loop; nothing.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from dataclasses import dataclass

from tuner.engines.logs.findings import Finding, Seen
from tuner.engines.logs.lines import shorten
from tuner.model.outcome import MEMORY_CAUSES, Cause, Ending, Verdict

_MOST_EVIDENCE = 10
_KILLED = re.compile(r"Killed process \d+ \(([^)]*)\)|oom-kill:.*\btask=([^,]*)")
_XID = "Xid ("
_SHELL = 128
CRASHES = frozenset({signal.SIGSEGV, signal.SIGILL, signal.SIGFPE, signal.SIGBUS})
"""Signals that the processor raises: after them it is the program's own mistake."""
_HOST_OOM_ADVICE = "the host ran out of main memory; look at `dmesg` and at what else runs there"


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """What judging must know of an engine.

    Attributes:
        processes: how the names of its processes begin, as the kernel writes them.
        own_faults: signals by which its process ends itself after a mistake of its own.
        scrub: takes secrets out of a line.
    """

    processes: tuple[str, ...]
    own_faults: frozenset[int]
    scrub: Callable[[str], str]


def judge(seen: Seen, ending: Ending, engine: Engine) -> Verdict:
    """Say why a server died, and whose fault it was."""
    told = _Told(seen, engine)
    if not ending.has_ended and not _is_over(seen):
        return told.verdict(Cause.HEALTHY, False, "nothing here shows a death", *seen.last[-3:])
    finding = None if seen.has_recovered else seen.sure
    if finding is not None and (finding.config_fault is True or seen.stop or not ending.signals_sent):
        return _explained(finding, seen, ending, told)
    return _stopped(seen, ending, told) or _outside(ending, told) or _unexplained(seen, ending, engine, told)


class _Told:
    """Builds verdicts out of lines of a log."""

    def __init__(self, seen: Seen, engine: Engine) -> None:
        self._seen = seen
        self._engine = engine

    def verdict(self, cause: Cause, config_fault: bool | None, advice: str, *lines: str) -> Verdict:
        sure = self._seen.sure
        return Verdict(
            cause=cause,
            config_fault=config_fault,
            stage=self._seen.stage if sure is None else sure.stage,
            evidence=self._evidence(*lines),
            advice=advice,
        )

    def found(self, finding: Finding, *more: str) -> Verdict:
        """Return the verdict that a finding is by itself."""
        return Verdict(
            cause=finding.cause,
            config_fault=finding.config_fault,
            stage=finding.stage,
            direction=finding.direction,
            shortfall_bytes=finding.shortfall_bytes,
            viable_fraction=finding.viable_fraction,
            evidence=self._evidence(finding.line, *more, self._seen.doubt, self._seen.death),
            advice=finding.advice,
        )

    def clues(self) -> tuple[str, ...]:
        """Return what there is to show where nothing explains a death."""
        first = tuple(line for line in (self._seen.exception, self._seen.death) if line)
        return (*first, *self._seen.last[len(first) :])

    def is_ours(self, line: str) -> bool:
        """Whether a line of the kernel's log says that it killed a process of this engine."""
        found = _KILLED.search(line)
        name = "" if found is None else found.group(1) or found.group(2) or ""
        return name.startswith(self._engine.processes)

    def _evidence(self, *lines: str) -> tuple[str, ...]:
        shown = (shorten(self._engine.scrub(line)) for line in dict.fromkeys(lines) if line)
        return tuple(dict.fromkeys(shown))[:_MOST_EVIDENCE]


def _is_over(seen: Seen) -> bool:
    """Whether a log alone shows that its server has ended."""
    if seen.is_lost or seen.stop:
        return True
    return (seen.sure is not None or (bool(seen.exception) and not seen.is_serving)) and not seen.has_recovered


def _explained(finding: Finding, seen: Seen, ending: Ending, told: _Told) -> Verdict:
    """Return a finding's verdict, with what the ending adds to it or takes away."""
    killed = _killed(ending, told)
    if killed is not None and finding.config_fault is None and finding.cause is not Cause.LEFTOVER_MEMORY:
        return killed  # ranks that lost their peer complain of the network
    if finding.cause not in MEMORY_CAUSES:
        return told.found(finding)
    if ending.foreign:
        advice = "other processes held memory on its GPUs: what it lacked says nothing about its settings"
        return told.verdict(Cause.LEFTOVER_MEMORY, False, advice, finding.line, *ending.foreign, seen.death)
    if finding.other_holder:
        advice = "another process held memory on this GPU (the line names it): clean the host and try again"
        return told.verdict(Cause.LEFTOVER_MEMORY, None, advice, finding.line, seen.death)
    if not seen.doubt:
        return told.found(finding)
    verdict = told.found(finding)
    return Verdict(
        cause=verdict.cause,
        config_fault=None,
        stage=verdict.stage,
        direction=verdict.direction,
        evidence=verdict.evidence,
        advice=f"{verdict.advice}; but the GPUs' free memory differed at the start, another process may have held some",
    )


def _stopped(seen: Seen, ending: Ending, told: _Told) -> Verdict | None:
    """Say that somebody stopped the server; None: nobody did."""
    if seen.stop and seen.hint is not None:
        return told.found(seen.hint)  # it was in trouble before
    if ending.signals_sent:
        return told.verdict(Cause.OWN_STOP, False, "we stopped it", *seen.last[-3:])
    if ending.service_result == "timeout" and not seen.stop and not seen.is_serving:
        advice = f"its service manager gave up on it at stage {seen.stage or 'start'}: see TimeoutStartSec of the unit"
        return told.verdict(Cause.START_TIMEOUT, None, advice, *seen.last)
    if seen.stop or ending.stopped_by_others or _asked(ending):
        advice = "someone else stopped it; nobody may touch a server under trial"
        return told.verdict(Cause.OPERATOR_STOP, False, advice, seen.stop, *seen.last[-3:])
    return None


def _asked(ending: Ending) -> bool:
    """Whether it ended by a signal with which people end programs; a shell reports one as 128 and its number."""
    number = ending.exit_signal if ending.exit_status is None else ending.exit_status - _SHELL
    return number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def _outside(ending: Ending, told: _Told) -> Verdict | None:
    """Say what the kernel and the service manager say; None: nothing."""
    killed = _killed(ending, told)
    if killed is not None:
        return killed
    faults = [line for line in ending.kernel if _XID in line]
    if faults:
        advice = "the driver reports a GPU fault (Xid); look its number up in NVIDIA's list"
        return told.verdict(Cause.CUDA_FAULT, None, advice, *faults, *told.clues())
    if ending.service_result == "watchdog":
        return told.verdict(Cause.HANG, None, "systemd's watchdog ended it", *told.clues())
    return None


def _unexplained(seen: Seen, ending: Ending, engine: Engine, told: _Told) -> Verdict:
    """Judge by what is left: a hint, a signal of its own, restarts, or nothing."""
    hint = seen.hint if seen.is_lost or ending.exit_status or ending.exit_signal or not ending.has_ended else None
    # A warning that it survived explains no silent end; only one of silence stays, schedulers decode on for nobody.
    is_over = hint is not None and seen.has_recovered and not seen.is_lost and hint.cause is not Cause.HANG
    if hint is not None and not is_over:
        return _explained(hint, seen, ending, told)
    if ending.exit_signal in engine.own_faults or ending.service_result == "core-dump":
        how = f"with signal {ending.exit_signal}" if ending.exit_signal is not None else "and left a core dump"
        advice = f"it crashed {how}, which it or the processor raised"
        return told.verdict(Cause.ENGINE_BUG, None, advice, *seen.last)
    if ending.restarts > 0:
        advice = f"the service manager started the server anew {ending.restarts} time(s), and no known line says why"
        return told.verdict(Cause.CRASH_LOOP, None, advice, *told.clues())
    how = f"signal {ending.exit_signal}" if ending.exit_signal is not None else f"status {ending.exit_status}"
    how = how if ending.has_ended else "no known exit"
    advice = f"it ended with {how} at stage {seen.stage or 'start'} and no known line says why"
    return told.verdict(Cause.UNKNOWN, None, advice, *told.clues())


def _killed(ending: Ending, told: _Told) -> Verdict | None:
    """Say that the kernel killed a process of the server for want of main memory; None: it did not."""
    lines = [line for line in ending.kernel if told.is_ours(line)]
    if not lines and ending.service_result != "oom-kill":
        return None
    said = lines or ["systemd: Result=oom-kill"]
    return told.verdict(Cause.HOST_OOM, None, _HOST_OOM_ADVICE, *said, *told.clues()[:2])
