"""A host is proven clean, made so, or said to be dirty; what is somebody else's is left alone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from tuner.errors import DirtyHost, HostFault, TransportFault
from tuner.model.host import CommandResult, GpuLook, GpuProcess, GpuReading, ProcessEntry
from tuner.model.http import HttpCall, HttpReply
from tuner.model.trial import Command
from tuner.runtime.cleaning import HostSession, make_clean
from tuner.runtime.limits import Limits
from tuner.runtime.memory import Dirt, Memory
from tuner.testing.fake_engine import FakeEngine
from tuner.testing.fake_gpu import FakeGpu
from tuner.testing.fake_host import GIB, FakeControl, FakeHost, Guest, OldServer, Start

ENGINE = FakeEngine()
COMMAND = Command(argv=("serve",))
LIMITS = Limits()


def clean(host: FakeHost, session: HostSession | None = None) -> list[str]:
    """Clean a host; return what was remarked."""
    remarks: list[str] = []
    asyncio.run(make_clean(session or HostSession(host.ports()), FakeControl(host), remarks.append))
    return remarks


def dirty(host: FakeHost, session: HostSession | None = None) -> tuple[str, list[str]]:
    """Clean a host that stays dirty; return what is said in the end, and what was remarked."""
    remarks: list[str] = []
    with pytest.raises(DirtyHost) as caught:
        asyncio.run(make_clean(session or HostSession(host.ports()), FakeControl(host), remarks.append))
    return str(caught.value), remarks


class Cleanup:
    """The owner's cleanup command: notes when it ran, and ends as it is told."""

    def __init__(self, host: FakeHost, end: CommandResult | HostFault) -> None:
        self.ran_s: list[float] = []
        self._host = host
        self._end = end
        host.cleanup = self

    async def __call__(self) -> CommandResult:
        self.ran_s.append(self._host.clock.monotonic_s())
        if isinstance(self._end, HostFault):
            raise self._end
        return self._end


OK = CommandResult(status=0, stdout="freed\n", stderr="")


def abandoned(to_s: float = 1e9) -> FakeHost:
    """A host on which a process was killed whose memory does not come back."""
    host = FakeHost(ENGINE)
    host.gpu.guests = (Guest(pid=31, name="", to_s=to_s),)
    return host


def known(host: FakeHost) -> HostSession:
    """A session that knows how much GPU memory is the host's own."""
    return HostSession(host.ports(), gpu_baseline={0: GIB // 2})


# ---------------------------------------------------------------------------- somebody else on the GPU


def test_a_foreign_process_on_the_gpu_is_named_and_waited_for() -> None:
    host = FakeHost(ENGINE)
    host.gpu.guests = (Guest(pid=4711, name="python train.py", to_s=60.0),)
    remarks = clean(host)
    (told,) = [text for text in remarks if "foreign" in text]
    assert told.startswith("waiting for a clean host: GPU 0 has 10.5 GiB in use; foreign processes hold GPU memory: ")
    assert told.endswith("4711 python train.py (10.0 GiB on GPU 0)")
    assert host.clock.monotonic_s() >= 60.0


def test_a_foreign_process_that_stays_makes_the_host_dirty_and_is_never_taken_for_its_own() -> None:
    host = FakeHost(ENGINE)
    host.gpu.guests = (Guest(pid=4711),)
    text, _ = dirty(host)
    assert text.startswith("host gpu01 is not clean after 90 s: GPU 0 has 10.5 GiB in use")
    assert "4711 python train.py" in text


def test_the_owner_says_how_long_the_host_is_waited_for() -> None:
    host = FakeHost(ENGINE)
    host.gpu.guests = (Guest(to_s=500.0),)
    host.wait_s = 600.0
    clean(host)
    host.gpu.guests = (Guest(),)
    host.wait_s = 5.0
    assert "after 5 s" in dirty(host)[0]


def test_a_wait_is_told_again_only_when_somebody_else_is_there() -> None:
    host = FakeHost(ENGINE)
    host.gpu.guests = (
        Guest(pid=1, memory_bytes=GIB, to_s=10.0),
        Guest(pid=1, memory_bytes=2 * GIB, from_s=10.0, to_s=20.0),
        Guest(pid=2, from_s=20.0, to_s=30.0),
    )
    waits = [text for text in clean(host) if "foreign" in text]
    assert [text.partition("memory: ")[2].split()[0] for text in waits] == ["1", "2"]


def test_what_is_on_the_gpus_of_a_clean_host_is_remembered() -> None:
    host = FakeHost(ENGINE)
    host.gpu.guests = (Guest(pid=5, memory_bytes=GIB // 8),)
    session = HostSession(host.ports(), our_pids={17})
    clean(host, session)
    assert session.gpu_at_clean == {5: GIB // 8}
    assert session.our_pids == set()


# ---------------------------------------------------------------------------- escalation


def test_a_host_that_stays_dirty_is_given_to_its_owners_cleanup_command_once() -> None:
    host = abandoned()
    cleanup = Cleanup(host, OK)
    text, remarks = dirty(host, known(host))
    assert "31 (gone) (10.0 GiB on GPU 0)" in text
    assert len(cleanup.ran_s) == 1
    assert 10.0 <= cleanup.ran_s[0] <= 12.0
    assert "the cleanup_command ended with status 0" in remarks


def test_a_cleanup_command_that_helps_ends_the_wait() -> None:
    host = abandoned()

    async def free() -> CommandResult:
        host.gpu.guests = ()
        return OK

    host.cleanup = free
    clean(host, known(host))
    assert host.clock.monotonic_s() < 15.0


@pytest.mark.parametrize(
    ("end", "said"),
    [
        (CommandResult(status=3, stdout="", stderr="no such host\n"), "ended with status 3: no such host"),
        (TransportFault("cannot be run: permission denied"), "failed: cannot be run: permission denied"),
    ],
)
def test_a_cleanup_command_that_fails_is_told_and_the_wait_goes_on(end: CommandResult | HostFault, said: str) -> None:
    host = abandoned(to_s=40.0)
    Cleanup(host, end)
    assert any(said in text for text in clean(host, known(host)))
    assert host.clock.monotonic_s() >= 40.0


@pytest.mark.parametrize("problem", ["process", "engine", "port"])
def test_the_cleanup_command_is_not_run_against_what_is_somebody_elses(problem: str) -> None:
    mine = ProcessEntry(pid=66, command="another server", ours=False)
    if problem == "port":
        host = FakeHost(ENGINE, old_server=OldServer(settings={}, process=mine))
    else:
        host = FakeHost(ENGINE, leftovers=(mine,) if problem == "engine" else ())
    host.gpu.guests = (Guest(),) if problem == "process" else ()
    cleanup = Cleanup(host, OK)
    dirty(host)
    assert cleanup.ran_s == []


def test_ours_is_stopped_then_killed_and_only_then_cleaned_up() -> None:
    left = ProcessEntry(pid=77, command="scheduler", ours=True)
    host = FakeHost(ENGINE, Start(leaves=(left,), gpu_returns_s=30.0))
    asyncio.run(host.service.start(COMMAND))
    cleanup = Cleanup(host, OK)
    remarks = clean(host, known(host))
    assert [text.partition(":")[0] for text in remarks] == [
        "a server still runs",
        "killing what is left of our servers",
        "waiting for a clean host",
        "the host stays dirty",
        "the cleanup_command ended with status 0",
    ]
    assert len(cleanup.ran_s) == 1


def test_something_that_answers_on_the_port_is_named() -> None:
    class Squatted(FakeHost):
        def answering_old_server(self) -> OldServer:
            return OldServer(settings={})

    text, _ = dirty(Squatted(ENGINE, gpus=0))
    assert "something else answers on the server's port at 127.0.0.1 (200)" in text


def test_a_host_in_use_is_looked_at_ever_more_rarely() -> None:
    class Counted(FakeGpu):
        async def look(self) -> GpuLook:
            times.append(host.clock.monotonic_s())
            return await super().look()

    times: list[float] = []
    host = FakeHost(ENGINE)
    host.gpu = Counted(host.service, host.clock, gpus=1, baseline_bytes=0, total_bytes=80 * GIB)
    host.gpu.guests = (Guest(),)
    dirty(host)
    assert 45 <= len(times) <= 60
    assert times[1] - times[0] == pytest.approx(0.2)


# ---------------------------------------------------------------------------- memory


def look(used: Sequence[int], *processes: GpuProcess) -> GpuLook:
    return GpuLook(
        readings=tuple(
            GpuReading(index=index, memory_used_bytes=held, memory_total_bytes=80 * GIB)
            for index, held in enumerate(used)
        ),
        processes=processes,
    )


def test_free_gpus_are_not_waited_for() -> None:
    memory = Memory(baseline={}, at_clean={}, limits=LIMITS)
    assert memory.judge(look([5, 7]), ours=(), now_s=0.0) is None
    assert memory.baseline == {0: 5, 1: 7}


def test_memory_that_nobody_holds_is_the_hosts_own_once_it_has_not_changed_for_long() -> None:
    memory = Memory(baseline={}, at_clean={}, limits=LIMITS)
    assert memory.judge(look([3 * GIB]), ours=(), now_s=0.0) is not None
    assert memory.judge(look([2 * GIB]), ours=(), now_s=29.0) is not None
    assert memory.judge(look([2 * GIB]), ours=(), now_s=58.0) is not None
    assert memory.judge(look([2 * GIB]), ours=(), now_s=59.0) is None
    assert memory.baseline == {0: 2 * GIB}
    assert memory.judge(look([GIB]), ours=(), now_s=60.0) is None
    assert memory.baseline == {0: GIB}


@pytest.mark.parametrize(
    ("used", "total", "is_own"), [(1.9, 24, True), (2.1, 24, False), (3.9, 80, True), (4.1, 80, False), (60, 80, False)]
)
def test_more_than_a_host_has_of_its_own_is_never_taken_for_that(used: float, total: int, is_own: bool) -> None:
    memory = Memory(baseline={}, at_clean={}, limits=LIMITS)
    reading = GpuReading(index=0, memory_used_bytes=int(used * GIB), memory_total_bytes=total * GIB)
    for now_s in (0.0, 31.0, 1000.0):
        dirt = memory.judge(GpuLook(readings=(reading,)), ours=(), now_s=now_s)
    assert (dirt is None) is is_own


def test_memory_that_nobody_holds_goes_to_the_cleanup_command_and_then_to_a_person() -> None:
    host = abandoned()
    cleanup = Cleanup(host, OK)
    text, _ = dirty(host)
    assert len(cleanup.ran_s) == 1
    assert "GPU 0 has 10.5 GiB in use, and no process that nvidia-smi names holds it: look for it with fuser" in text


@pytest.mark.parametrize(
    ("process", "is_foreign"),
    [
        (GpuProcess(pid=5, name="train", memory_used_bytes=4 * GIB, gpus=(0,)), True),
        (GpuProcess(pid=5, name="train", memory_used_bytes=0, gpus=(0,)), True),  # not told
        (GpuProcess(pid=5, name="train", memory_used_bytes=4 * GIB), True),  # on a GPU that is not told
        (GpuProcess(pid=5, name="train", memory_used_bytes=4 * GIB, gpus=(1,)), False),
        (GpuProcess(pid=5, name="monitor", memory_used_bytes=2**20, gpus=(0,)), False),
        (GpuProcess(pid=5, name="", memory_used_bytes=4 * GIB, gpus=(0,)), False),  # gone
        (GpuProcess(pid=9, name="ours", memory_used_bytes=4 * GIB, gpus=(0,)), False),
    ],
)
def test_memory_is_somebody_elses_when_he_lives_and_holds_it(process: GpuProcess, is_foreign: bool) -> None:
    memory = Memory(baseline={0: 0, 1: 0}, at_clean={}, limits=LIMITS)
    dirt = memory.judge(look([4 * GIB, 0], process), ours={9}, now_s=0.0)
    assert isinstance(dirt, Dirt)
    assert dirt.is_foreign is is_foreign
    assert str(process.pid) in dirt.text


# ---------------------------------------------------------------------------- a proxy before the server


@pytest.mark.parametrize("status", [502, 503, 504])
@pytest.mark.parametrize("is_through_proxy", [True, False])
def test_a_proxy_that_says_that_the_server_is_down_is_nobody_on_its_port(status: int, is_through_proxy: bool) -> None:
    host = FakeHost(ENGINE)
    host.wait_s = 60.0
    host.route.is_through_proxy = is_through_proxy

    class Proxied(FakeControl):
        async def call(self, _call: HttpCall) -> HttpReply:
            return HttpReply(status=status, body=b"Bad Gateway")

    cleaning = make_clean(HostSession(host.ports()), Proxied(host), lambda _text: None)
    if is_through_proxy:
        asyncio.run(cleaning)
    else:
        with pytest.raises(DirtyHost, match=rf"something else answers on the server's port at 127.0.0.1 \({status}\)"):
            asyncio.run(cleaning)
