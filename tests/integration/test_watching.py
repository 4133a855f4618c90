"""Real deaths and real silence: the kernel's, systemd's word for it, and a server that only looks healthy."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tuner.engines import engine
from tuner.hosts.checks.kernel import kernel_row, read_kernel
from tuner.hosts.clock import SystemClock
from tuner.hosts.kernel import HostKernelLog
from tuner.hosts.listening import listening_on
from tuner.hosts.local import LocalTransport
from tuner.hosts.ssh.transport import SshTransport
from tuner.hosts.systemd.root import Root
from tuner.hosts.systemd.service import SystemdServiceManager
from tuner.model.finding import RowVerdict
from tuner.model.host import Activity, ServiceState
from tuner.model.outcome import Cause, Ending, Infeasible, TrialState
from tuner.model.study import SimulatedHostSpec
from tuner.model.trial import Command, StateEntered, TrialEvent, TrialRequest
from tuner.model.workload import Workload
from tuner.runtime.cleaning import HostSession
from tuner.runtime.trial import Trial
from tuner.simulator.host import DEFAULT_PROFILE
from tuner.testing.base_command import sglang_at
from tuner.testing.inside import InsideTransport
from tuner.testing.rig import OPERATOR, Rig
from tuner.testing.simulated_host import wait_until
from tuner.wiring.holder import holder_of
from tuner.wiring.host import build_host

LIMIT_BYTES = 60 * 1024**2
EATS = "import time\nwhile True:\n    time.sleep(0.002)\n    held = globals().get('held', b'') + bytes(1 << 20)\n"
SLEEPS = "import time\ntime.sleep(300)\n"
PYTHON = "/usr/bin/python3"
ADDRESS = "127.0.0.37"
SGLANG = engine("sglang")
V1 = Path("/sys/fs/cgroup/memory")


@contextlib.contextmanager
def limited(token: str) -> Iterator[None]:
    """Let the kernel kill the process whose command line has ``token`` once it holds more than the limit.

    MemoryMax= does that where systemd in the container has the memory controller. With cgroup v1 it has
    none, so its process is put into a group that is made outside; the kernel that kills it is the same.
    """
    if not V1.is_dir():
        yield
        return
    group = V1 / f"tuner-test-{token}"
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(LIMIT_BYTES))
        with contextlib.suppress(OSError):  # a kernel that does not account for swap
            (group / "memory.memsw.limit_in_bytes").write_text(str(LIMIT_BYTES))
        (pid,) = [
            path.parent.name
            for path in Path("/proc").glob("[0-9]*/cmdline")
            if path.read_bytes().split(b"\0")[-2:-1] == [token.encode()]
        ]
        (group / "cgroup.procs").write_text(pid)
        yield
    finally:
        for left in (group / "cgroup.procs").read_text().split():
            (V1 / "cgroup.procs").write_text(left)
        wait_until(lambda: _is_removed(group), what=f"{group} can be removed")


def _is_removed(group: Path) -> bool:
    try:
        group.rmdir()
    except OSError:
        return False
    return True


class Case:
    """A unit, and a manager over it that starts Python programs in its place."""

    def __init__(self, rig: Rig, *, extra: str = "") -> None:
        self.token = uuid.uuid4().hex[:8]
        self.unit = f"case-{self.token}.service"
        rig.install_unit(self.unit, f"[Service]\nExecStart=/bin/sleep 3600\n{extra}", start=False)
        self.clock = SystemClock()
        transport = InsideTransport(rig)
        self.manager = SystemdServiceManager(transport, Root(transport, sudo=False), self.unit, self.clock)

    async def start(self, program: str) -> None:
        await self.manager.start(Command(argv=(PYTHON, "-S", "-c", program, self.token)))

    async def dead(self) -> ServiceState:
        deadline_s = self.clock.monotonic_s() + 30.0
        while (state := await self.manager.state()).activity is Activity.RUNNING:
            assert self.clock.monotonic_s() < deadline_s, "it lives"
            await self.clock.sleep(0.05)
        return state


def test_a_server_that_the_kernel_kills_for_its_memory_died_of_the_hosts_memory(rig: Rig) -> None:
    async def scenario() -> None:
        case = Case(rig, extra=f"MemoryMax={LIMIT_BYTES}\nMemorySwapMax=0\n")
        began_s = case.clock.now_s()
        log = HostKernelLog(InsideTransport(rig), case.clock, "gpu01")
        await case.start(f"import time\ntime.sleep(1)\n{EATS}")
        with limited(case.token):
            state = await case.dead()
        asked_s = time.monotonic()
        kernel = await log.since(began_s)
        assert time.monotonic() - asked_s < 2.0
        assert log.remark() is None
        # Not every systemd sees the kernel's kill: with cgroup v1 it is a signal like any other.
        assert state.result in ("oom-kill", "signal")
        assert state.exit_signal == 9
        assert any("Killed process" in line for line in kernel)
        verdict = SGLANG.log_reader().diagnose(
            Ending(
                exit_signal=state.exit_signal,
                state=TrialState.LOADING,
                service_result=state.result,
                kernel=kernel,
            )
        )
        assert verdict.cause is Cause.HOST_OOM, verdict
        assert await log.since(case.clock.now_s() + 5.0) == ()
        await case.manager.stop(grace_s=0.0)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("program", "result"),
    [
        ("raise SystemExit(3)", "exit-code"),
        ("import os\nos.kill(os.getpid(), 9)", "signal"),
        ("import os, resource\nresource.setrlimit(resource.RLIMIT_CORE, (-1, -1))\nos.abort()", None),
        ("pass", None),
    ],
)
def test_systemds_word_for_how_a_server_ended_is_told(rig: Rig, program: str, result: str | None) -> None:
    async def scenario() -> None:
        case = Case(rig)
        await case.start(f"import time\ntime.sleep(0.3)\n{program}")
        state = await case.dead()
        if "abort" in program:  # whether a core is written depends on the machine
            assert state.result in ("core-dump", "signal")
        else:
            assert state.result == result
        await case.manager.stop(grace_s=0.0)

    asyncio.run(scenario())


def test_a_server_that_runs_and_one_that_we_stop_failed_in_no_way(rig: Rig) -> None:
    async def scenario() -> None:
        case = Case(rig)
        await case.start(SLEEPS)
        assert (await case.manager.state()).result is None
        await case.manager.stop(grace_s=5.0)
        stopped = await case.manager.state()
        assert stopped.stop_requested
        assert stopped.result is None

    asyncio.run(scenario())


def test_a_login_that_may_not_read_the_kernels_log_is_told_once_and_by_the_doctor(rig: Rig) -> None:
    async def scenario() -> None:
        transport = SshTransport(rig.login(OPERATOR))
        try:
            log = HostKernelLog(transport, SystemClock(), "gpu01")
            began_s = time.monotonic()
            assert await log.since(time.time() - 60.0) == ()
            assert time.monotonic() - began_s < 10.0
            remark = log.remark()
            assert remark is not None
            assert f"{OPERATOR} may not read the kernel's log" in remark
            await log.since(time.time() - 60.0)
            assert log.remark() is None
            row = kernel_row(await read_kernel(transport))
            assert row.verdict is RowVerdict.WARNING
            assert f"usermod -a -G systemd-journal {OPERATOR}" in row.remedy
        finally:
            await transport.close()

    asyncio.run(scenario())


def test_who_listens_is_seen_from_the_host_itself() -> None:
    with socket.socket() as server:
        server.bind((ADDRESS, 0))
        server.listen()
        port = server.getsockname()[1]
        assert asyncio.run(listening_on(LocalTransport(), port)) == (ADDRESS,)
    assert asyncio.run(listening_on(LocalTransport(), port)) == ()


@pytest.mark.parametrize(
    ("fault", "state", "where"),
    [
        ("hang-serving:0", TrialState.LOADING, "a lone short generation"),
        ("hang-serving:2", TrialState.MEASURING, "leg at concurrency 1"),
    ],
)
def test_a_real_server_that_is_healthy_and_generates_nothing_hangs(
    tmp_path: Path, fault: str, state: TrialState, where: str
) -> None:
    spec = SimulatedHostSpec(
        name="sim0",
        address=ADDRESS,
        state_dir=str(tmp_path / "host"),
        profile=DEFAULT_PROFILE,
        speed=500.0,
        faults=(fault,),
    )
    workload = Workload(
        output_tokens=48,
        ladder=(1,),
        level_min_s=60.0,
        level_max_s=60.0,
        soak_s=0.0,
        warmup_requests=1,
        silence_s=1.5,
        request_timeout_s=60.0,
        load_timeout_s=60.0,
    )
    command = sglang_at(ADDRESS, steps=3, fraction=0.8)
    request = TrialRequest(
        study="s",
        number=1,
        assignment=SGLANG.settings_of(command),
        command=command,
        engine="sglang",
        workload=workload,
        seed=1,
    )
    events: list[TrialEvent] = []
    session = HostSession(build_host(spec, holder_of("watching", spec.state_dir)))
    outcome = asyncio.run(Trial(request, session, SGLANG, events.append, asyncio.Event()).run()).outcome
    assert isinstance(outcome, Infeasible), outcome
    assert (outcome.verdict.cause, outcome.state) == (Cause.HANG, state)
    assert any(where in line for line in outcome.verdict.evidence), outcome.verdict
    entered = [event for event in events if isinstance(event, StateEntered)]
    first = next(place for place, event in enumerate(entered) if event.state is state)
    assert entered[first + 1].at_s - entered[first].at_s < 30.0  # a level lasts 60 s
