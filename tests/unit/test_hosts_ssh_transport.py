"""When a host is tried again and when it is given up; without a host and without waiting."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.errors import HostKeyRefused, LoginRefused, TransportFault
from tuner.hosts.ssh.command import Output
from tuner.hosts.ssh.faults import ConnectionLost, Started
from tuner.hosts.ssh.session import Order, Wake
from tuner.hosts.ssh.transport import SshTransport, backoff_s
from tuner.model.host import CommandResult
from tuner.model.study import SshLogin
from tuner.testing.fake_clock import FakeClock

STARTED = Started(boot_id="b", pid=7, start_ticks=8)
LOST = ConnectionLost("me@gpu: gone")


@dataclass
class FakeConnection:
    """A connection whose commands do as they are told: succeed, or lose it."""

    host: FakeHost
    is_alive: bool = True
    heard_at_s: float = 0.0
    accepted_keys: tuple[str, ...] = ()
    stalls: tuple[tuple[float, float], ...] = ()
    stalled_since_s: float | None = None

    def execute(self, order: Order, _wake: Wake) -> Output:
        self.host.ran.append(order.argv)
        loss = next(self.host.losses, None)
        if loss is not None:
            self.is_alive = False
            raise loss
        return Output(status=0, stdout=b"done", stderr=b"")

    def kill(self, started: Started) -> None:
        self.host.killed.append(started)

    def close(self) -> None:
        self.is_alive = False
        self.host.closed += 1


@dataclass
class FakeHost:
    """What happens at each try to connect, and to each command; then all is well."""

    refusals: Iterator[TransportFault | None] = field(default_factory=lambda: iter(()))
    losses: Iterator[ConnectionLost | None] = field(default_factory=lambda: iter(()))
    tries: int = 0
    closed: int = 0
    ran: list[tuple[str, ...]] = field(default_factory=list)
    killed: list[Started] = field(default_factory=list)

    def connect(self) -> Any:  # noqa: ANN401 - it stands for a Connection
        self.tries += 1
        refusal = next(self.refusals, None)
        if refusal is not None:
            raise refusal
        return FakeConnection(self)


def run_on(host: FakeHost, *, repeat: bool = True, times: int = 1) -> tuple[CommandResult, SshTransport, FakeClock]:
    clock = FakeClock()

    async def scenario() -> tuple[CommandResult, SshTransport, FakeClock]:
        transport = SshTransport(SshLogin(host="gpu"), clock=clock, connect=host.connect)
        for _ in range(times):
            result = await transport.run(("true",), repeat=repeat)
        return result, transport, clock

    return asyncio.run(scenario())


def test_a_lost_command_is_ended_and_run_again_over_a_new_connection() -> None:
    loss = ConnectionLost("gone", is_sent=True, started=STARTED)
    host = FakeHost(losses=iter([loss]))
    result, transport, _ = run_on(host)
    assert result.stdout == "done"
    assert host.killed == [STARTED]
    assert (host.tries, host.closed, len(host.ran)) == (2, 1, 2)
    assert len(transport.outages) == 1


def test_a_command_that_was_not_sent_is_sent_again_even_if_it_must_not_run_twice() -> None:
    host = FakeHost(losses=iter([LOST]))
    result, _, _ = run_on(host, repeat=False)
    assert result.stdout == "done"
    assert host.tries == 2


def test_a_command_that_was_sent_and_must_not_run_twice_fails_at_once() -> None:
    host = FakeHost(losses=iter([ConnectionLost("gone", is_sent=True)]))
    with pytest.raises(TransportFault, match="must not run twice"):
        run_on(host, repeat=False)
    assert host.tries == 1


def test_a_host_that_was_there_is_tried_for_a_minute_with_growing_pauses() -> None:
    host = FakeHost(losses=iter([LOST]), refusals=iter([None, *[LOST] * 1000]))
    with pytest.raises(TransportFault, match=r"gone: not back after 60 s"):
        run_on(host)
    assert 12 <= host.tries <= 35


def test_commands_that_wait_for_the_same_dead_host_wait_for_it_together() -> None:
    host = FakeHost(losses=iter([LOST]), refusals=iter([None, *[LOST] * 1000]))
    clock = FakeClock()

    async def scenario() -> None:
        transport = SshTransport(SshLogin(host="gpu"), clock=clock, connect=host.connect)
        running = [asyncio.ensure_future(transport.run(("true",))) for _ in range(8)]
        results = await asyncio.gather(*running, return_exceptions=True)
        assert all("not back after 60 s" in str(result) for result in results)
        with pytest.raises(TransportFault, match="not back after 60 s"):
            await transport.run(("true",))

    asyncio.run(scenario())
    assert clock.monotonic_s() < 61.0


def test_an_outage_that_ended_leaves_the_next_one_its_whole_minute() -> None:
    host = FakeHost(losses=iter([LOST, None, LOST]), refusals=iter([None, *[LOST] * 14, None, *[LOST] * 14]))
    result, transport, clock = run_on(host, times=2)
    assert result.stdout == "done"
    assert len(transport.outages) == 2
    assert clock.monotonic_s() > 50.0


def test_a_host_that_was_silent_for_a_while_was_out_of_reach_meanwhile() -> None:
    host = FakeHost()
    now_s = time.monotonic()

    async def scenario() -> None:
        transport = SshTransport(SshLogin(host="gpu"), connect=host.connect)
        await transport.run(("true",))
        connection: Any = transport._connection
        connection.stalls = ((now_s - 9.0, now_s - 5.0),)
        connection.stalled_since_s = now_s - 3.0
        ((_, ended_s), (began_s, lasting)) = transport.outages
        assert ended_s == pytest.approx(now_s - 5.0, abs=0.1)
        assert lasting is None
        assert began_s == pytest.approx(now_s - 3.0, abs=0.1)
        connection.heard_at_s, connection.is_alive = now_s - 3.0, False
        await transport.run(("true",))
        assert [to_s - from_s for from_s, to_s in transport.outages if to_s] == pytest.approx([4.0, 3.0], abs=0.1)

    asyncio.run(scenario())


def test_a_host_that_comes_back_within_the_minute_is_gone_on_with() -> None:
    host = FakeHost(losses=iter([LOST]), refusals=iter([None, *[LOST] * 5]))
    result, transport, clock = run_on(host)
    assert result.stdout == "done"
    ((began_s, ended_s),) = transport.outages
    assert ended_s == clock.monotonic_s()
    assert ended_s - began_s > 2.0


def test_a_host_that_was_never_there_is_tried_once() -> None:
    host = FakeHost(refusals=iter([LOST] * 5))
    login = SshLogin(host="gpu", user="me", port=2222)
    with pytest.raises(TransportFault, match=r"gone: check name, port and network, or try: ssh -l me -p 2222 gpu"):
        asyncio.run(SshTransport(login, clock=FakeClock(), connect=host.connect).run(("true",)))
    assert host.tries == 1


@pytest.mark.parametrize("refusal", [HostKeyRefused("another key"), TransportFault("no algorithm in common")])
def test_what_time_does_not_mend_is_not_tried_again(refusal: TransportFault) -> None:
    host = FakeHost(losses=iter([LOST]), refusals=iter([None, refusal]))
    with pytest.raises(type(refusal), match=str(refusal)):
        run_on(host)
    assert host.tries == 2


def test_a_refused_login_is_tried_again_only_where_it_was_taken_before() -> None:
    refusal = LoginRefused("no")
    booting = FakeHost(losses=iter([LOST]), refusals=iter([None, refusal, refusal]))
    assert run_on(booting)[0].stdout == "done"
    assert booting.tries == 4
    stranger = FakeHost(refusals=iter([refusal]))
    with pytest.raises(LoginRefused):
        run_on(stranger)
    assert stranger.tries == 1


def test_a_connection_that_breaks_again_and_again_is_given_up() -> None:
    host = FakeHost(losses=iter([LOST] * 100_000))
    with pytest.raises(TransportFault, match=r"again and again for 60 s"):
        run_on(host)
    assert 12 <= host.tries <= 35


@given(st.integers(0, 100), st.floats(0.0, 1.0))
def test_pauses_grow_to_a_limit_and_differ_between_hosts(tries: int, jitter: float) -> None:
    pause_s = backoff_s(tries, jitter)
    assert 0.125 <= pause_s <= 5.0
    assert pause_s <= backoff_s(tries + 1, jitter)
    assert backoff_s(tries, 0.0) * 2 == backoff_s(tries, 1.0)
