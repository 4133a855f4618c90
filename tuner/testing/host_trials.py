"""Single trials on a test host, in this process: without Ray, a command line or a database.

The host is held to be afterwards what it was before, whatever the trials and the test did to it.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from tuner.engines import engine
from tuner.hosts.gpu import NvidiaSmiProbe
from tuner.hosts.systemd.paths import drop_in_path
from tuner.model.lease import Holder
from tuner.model.outcome import TrialState
from tuner.model.space import Assignment, Value
from tuner.model.study import HostCare, UnitHostSpec
from tuner.model.trial import (
    Command,
    LogText,
    Remark,
    StateEntered,
    TrialEvent,
    TrialFinished,
    TrialRequest,
    TrialResult,
)
from tuner.model.workload import Workload
from tuner.ports import HostPorts, HostTransport
from tuner.runtime.cleaning import HostSession
from tuner.runtime.limits import Limits
from tuner.runtime.stay import Proof
from tuner.runtime.trial import events_of
from tuner.testing.rig import CHECKOUT, HOME, PORT, UNIT, Rig
from tuner.wiring.host import build_host
from tuner.wiring.units import read_base

SGLANG = engine("sglang")
WORKLOAD = Workload(
    output_tokens=24,
    ladder=(1, 4),
    level_min_s=0.5,
    level_max_s=0.5,
    interval=0.2,
    soak_s=0.3,
    warmup_requests=2,
    request_timeout_s=20,
    load_timeout_s=60,
)
PROGRAM = f"{HOME}/bin/sglang"

_ANSWER_S = 60.0
# Inside, because the book tells the living from the dead by their PIDs there. argv: home, PID, bytes (0: release).
_BOOK = """
import sys
from pathlib import Path
from tuner.simulator.book import Book
home, pid, held = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
if held:
    Book(home).foreign(pid, name="python train.py", bytes_per_gpu={0: held})
else:
    Book(home).release(pid)
"""
# Not /run/tuner itself: it carries the lock of all leases of the host, and goes with a reboot.
_TRACES = """
ls -A /run/tuner 2>/dev/null
ls -d "$1" "${1%/*}" 2>/dev/null
systemctl list-units --all --no-legend --plain "tuner-*" | cut -d " " -f 1
ls /run/systemd/transient 2>/dev/null | grep tuner
true
"""
_EXEC_START = ("org.freedesktop.systemd1.Service", "ExecStartEx")

Deed = Callable[[], object]
"""Something done to the host from outside, blocking."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A unit as its owner sees it, and what is there of us; two of them are compared.

    Attributes:
        text: what ``systemctl cat`` prints.
        shown: properties that must not change.
        argv: of the main process; empty: none runs.
        traces: folders, units and drop-ins of ours.
    """

    text: str
    shown: Mapping[str, str]
    argv: tuple[str, ...]
    traces: str

    def differences(self, before: Standing) -> list[str]:
        """Say what is not as it was."""
        was = {"text": before.text, "argv": before.argv, "traces": before.traces, **before.shown}
        now = {"text": self.text, "argv": self.argv, "traces": self.traces, **self.shown}
        return [f"{name} was {was[name]!r}, is {now[name]!r}" for name in was if was[name] != now[name]]


class UnitOnHost:
    """A unit on a host of the rig, looked at without the network in between.

    Args:
        rig: the host.
        unit: full name; of a template, an instance.
    """

    def __init__(self, rig: Rig, unit: str = UNIT) -> None:
        self.rig = rig
        self.unit = unit

    def standing(self) -> Standing:
        """Return how it stands now."""
        names = ("ActiveState", "SubState", "UnitFileState", "DropInPaths", "NeedDaemonReload", "Restart", "Type")
        shown = self.rig.show(*names, "TimeoutStopUSec", unit=self.unit)
        # Without the times and PIDs that the text form of ExecStart ends with.
        path = self.sh(
            "busctl call --json=short org.freedesktop.systemd1 /org/freedesktop/systemd1 "
            'org.freedesktop.systemd1.Manager LoadUnit s "$1"',
            self.unit,
        )
        told = self.sh(
            'busctl --json=short get-property org.freedesktop.systemd1 "$@"', json.loads(path)["data"][0], *_EXEC_START
        )
        shown["ExecStart"] = json.dumps([line[:3] for line in json.loads(told)["data"]])
        return Standing(
            text=self.sh('systemctl cat -- "$1"', self.unit),
            shown=shown,
            argv=self.argv(),
            traces=self.sh(_TRACES, drop_in_path(self.unit)),
        )

    def argv(self) -> tuple[str, ...]:
        """Return the main process's command line."""
        pid = self.shows("MainPID")
        said = self.rig.run("cat", f"/proc/{pid}/cmdline").stdout if pid != "0" else ""
        # A server that writes its title over its arguments leaves zeros behind them.
        return tuple(said.rstrip("\0").split("\0")) if said else ()

    def shows(self, name: str) -> str:
        """Return a property as systemd shows it."""
        return self.rig.show(name, unit=self.unit)[name]

    def sh(self, script: str, *arguments: str) -> str:
        """Run a script as root; it has to succeed."""
        done = self.rig.run("sh", "-c", script, "test", *arguments)
        assert done.returncode == 0, f"{script}: {done.stderr}"
        return done.stdout.strip()

    def is_there(self, path: str) -> bool:
        """Whether a path is there."""
        return self.rig.run("test", "-e", path).returncode == 0

    def invocations(self) -> frozenset[str]:
        """Return the ids of all starts of the unit that the journal knows of."""
        fields = "INVOCATION_ID,_SYSTEMD_INVOCATION_ID"
        argv = ("journalctl", "-q", "-o", "json", f"--output-fields={fields}", "-u", self.unit)
        entries = [json.loads(line) for line in self.rig.run(*argv).stdout.splitlines()]
        found = {entry.get("INVOCATION_ID", entry.get("_SYSTEMD_INVOCATION_ID")) for entry in entries}
        return frozenset(found - {None, self.rig.show("InvocationID", unit="init.scope")["InvocationID"]})

    def hold_gpu(self, pid: int, held_bytes: int) -> None:
        """Let a process hold memory of GPU 0; 0 gives it back."""
        argv = ("env", f"PYTHONPATH={CHECKOUT}", sys.executable, "-c", _BOOK, str(HOME), str(pid), str(held_bytes))
        self.rig.run(*argv, check=True)

    def wait_until_it_answers(self) -> None:
        """Return when the server is healthy."""
        deadline_s = time.monotonic() + _ANSWER_S
        while True:
            try:
                with urllib.request.urlopen(f"http://{self.rig.address}:{PORT}/health", timeout=2) as reply:
                    if reply.status == 200:
                        return
            except (urllib.error.URLError, OSError):
                pass
            assert time.monotonic() < deadline_s, self.rig.run("journalctl", "-u", self.unit, "-n", "20").stdout
            time.sleep(0.1)


class HostTrials:
    """Trials on one unit of a host that is taken; made by :func:`play`.

    Attributes:
        base: the command line that the unit runs.
        session: what they run in.
        events: of the last trial.
        workload: of the next one.
    """

    def __init__(self, host: UnitOnHost, base: Command, session: HostSession) -> None:
        self.host = host
        self.base = base
        self.session = session
        self.workload = WORKLOAD
        self.events: list[TrialEvent] = []
        self._number = 0

    async def run(
        self,
        settings: Mapping[str, Value] | None = None,
        *,
        more: Sequence[str] = (),
        when: Mapping[TrialState, Deed] | None = None,
        again: bool = False,
    ) -> TrialResult:
        """Run one trial.

        Args:
            settings: what differs from the unit's own.
            more: arguments after all others.
            when: what happens to the host as the trial first enters a state, each in a thread of its own.
            again: with every start of the server anew.
        """
        deeds = dict(when or {})
        waiting = dict(deeds)
        happening: list[asyncio.Task[object]] = []
        self.events = []
        async for event in events_of(self._request(settings or {}, more), self.session, SGLANG, asyncio.Event()):
            self.events.append(event)
            if not isinstance(event, StateEntered):
                continue
            if again and event.state is TrialState.CLEANING:
                waiting = dict(deeds)
            if event.state in waiting:
                deed = waiting.pop(event.state)
                happening.append(asyncio.create_task(asyncio.to_thread(deed)))
        await asyncio.gather(*happening)
        assert not waiting, f"the trial never came to {waiting}: {self.states}"
        return self.result

    def _request(self, settings: Mapping[str, Value], more: Sequence[str]) -> TrialRequest:
        self._number += 1
        assignment = SGLANG.canonical(Assignment.of({**SGLANG.settings_of(self.base), **settings}))
        command = SGLANG.command(self.base, assignment)
        return TrialRequest(
            study="s",
            number=self._number,
            assignment=assignment,
            command=replace(command, argv=(*command.argv, *more)),
            engine="sglang",
            workload=self.workload,
            seed=1,
        )

    @property
    def transport(self) -> HostTransport:
        """The connection to the host."""
        return _transport(self.session.ports)

    @property
    def result(self) -> TrialResult:
        """How the last trial ended."""
        last = self.events[-1]
        assert isinstance(last, TrialFinished)
        return last.result

    @property
    def states(self) -> tuple[TrialState, ...]:
        """Where the last trial was, in order."""
        return tuple(event.state for event in self.events if isinstance(event, StateEntered))

    @property
    def log(self) -> str:
        """What the last trial's servers logged."""
        return "".join(event.text for event in self.events if isinstance(event, LogText))

    @property
    def remarks(self) -> tuple[str, ...]:
        """What the last trial remarked."""
        return tuple(event.text for event in self.events if isinstance(event, Remark))


Scenario = Callable[[HostTrials], Awaitable[None]]
Change = Callable[[HostPorts], HostPorts]


def play(
    host: UnitOnHost,
    scenario: Scenario,
    *,
    care: HostCare | None = None,
    limits: Limits | None = None,
    change: Change = lambda ports: ports,
) -> None:
    """Take a host, let a scenario run its trials, give the host back, and hold that it is as it was.

    Args:
        host: on which a unit is installed.
        scenario: what happens meanwhile.
        care: what the host's owner wants.
        limits: of the runtime.
        change: of the ports, before they are used.
    """
    if host.shows("ActiveState") == "active":
        host.wait_until_it_answers()
    before = host.standing()
    assert before.traces == "", before.traces
    spec = UnitHostSpec(name=host.rig.name, unit=host.unit, login=host.rig.login(), care=care or HostCare())
    base = read_base((spec,), lambda _text: None)

    async def whole() -> None:
        holder = Holder(owner="ops@box", study="s", directory="/studies/s", machine="m1", pid=4711, since_s=0.0)
        ports = change(build_host(spec, holder))
        session = HostSession(ports, limits or Limits())
        try:
            await session.stay.enter(lambda _text: None)
            await scenario(HostTrials(host, base, session))
        finally:
            try:
                await session.stay.leave(Proof(engine=SGLANG, workload=WORKLOAD), lambda _text: None)
            finally:
                await _transport(ports).close()

    asyncio.run(whole())
    differences = host.standing().differences(before)
    assert not differences, "; ".join(differences)


def _transport(ports: HostPorts) -> HostTransport:
    """Return what the ports share; nobody else gets at it, for a worker's connection ends with its process."""
    assert isinstance(ports.gpu, NvidiaSmiProbe)
    return ports.gpu._transport  # noqa: SLF001
