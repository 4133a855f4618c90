"""What a check of a host works with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tuner.hosts.checks.advice import TABLE, Advice
from tuner.hosts.checks.row import Row
from tuner.model.http import HttpReply
from tuner.model.lease import Holder
from tuner.model.study import Reach
from tuner.model.trial import Command
from tuner.ports import Clock, ControlClient, EngineAdapter, HostTransport, Route

INFO_S = 10.0
"""A server under load answers late, and one that loads not at all."""

Headers = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """The ports and facts of one check.

    Attributes:
        transport: to the host.
        engine: of the study.
        distribution: the Python package whose version is the engine's; None: it is none.
        judge_version: makes the row of a version; None: unknown.
        control: base URL -> client.
        route: how the load will reach the server.
        way: the same for the reader.
        reach: what the study says of it.
        is_remote: the host is another machine.
        address: where the load looks for the server, without a tunnel.
        ladder: the study's levels.
        asking: who would take the lease.
        base: the study's own command line, for a host without units.
        env: names of the variables that a trial sets on top of a unit's own.
        accepted_key: fingerprint of a host key that was taken on the way; None: none was.
        advice: how remedies are written down.
    """

    transport: HostTransport
    engine: EngineAdapter
    distribution: str | None
    judge_version: Callable[[str | None], Row]
    control: Callable[[str], ControlClient]
    route: Route
    way: str
    reach: Reach
    is_remote: bool
    address: str
    ladder: tuple[int, ...]
    clock: Clock
    asking: Holder
    base: Command | None = None
    env: tuple[str, ...] = ()
    accepted_key: Callable[[], str | None] = lambda: None
    advice: Advice = TABLE

    def headers(self, command: Command) -> Headers:
        """Return what goes with every request to a server of this command line."""
        key = self.engine.api_key(command)
        return () if key is None else (("Authorization", f"Bearer {key}"),)

    async def ask(self, base_url: str, command: Command) -> tuple[HttpReply, ...]:
        """Make the calls that tell what runs; failures are values."""
        client = self.control(base_url)
        try:
            headers = self.headers(command)
            return tuple(
                [
                    await client.call(replace(call, timeout_s=INFO_S, headers=(*call.headers, *headers)))
                    for call in self.engine.info_calls()
                ]
            )
        finally:
            await client.close()
