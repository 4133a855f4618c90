"""The load of a scripted host: legs and warm-ups whose numbers its script gives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tuner.errors import MeasurementFault
from tuner.model.account import ClientHealth, Speculation
from tuner.model.metric import Estimate
from tuner.model.record import LegResult, RequestRecord, RequestStatus
from tuner.ports import ControlClient, Leg, LoadProgress, ProgressSink, Target
from tuner.testing.fake_service import Start

if TYPE_CHECKING:
    from tuner.testing.fake_host import FakeHost

_TICKS = 5  # progress calls a leg


class FakeLoad:
    """``ports.LoadGenerator``: legs of exactly their shortest time with the script's speed."""

    def __init__(self, host: FakeHost) -> None:
        self._host = host

    async def warm_up(
        self, target: Target, requests: int, concurrency: int, progress: ProgressSink
    ) -> tuple[RequestRecord, ...]:
        """Take one second, or as long as requests are waited for by a server that hangs."""
        self._host.service.warming_up()
        began_s = self._host.clock.monotonic_s()
        await self._host.clock.sleep(1.0)
        await self._wait_in_vain(target, concurrency, began_s, progress)
        failed = 0 if self._serves() else requests
        return self._records(target, concurrency, began_s, completed=requests - failed, failed=failed)

    async def measure(
        self,
        target: Target,
        leg: Leg,
        control: ControlClient,  # noqa: ARG002 - the fake knows its own counters
        progress: ProgressSink,
    ) -> tuple[LegResult, tuple[RequestRecord, ...]]:
        """Run one leg; a server that dies in it fails every request."""
        service, clock = self._host.service, self._host.clock
        service.leg_begins(leg.concurrency)
        began_s = clock.monotonic_s()
        identity = (await service.state()).identity if service.is_reachable else None
        start = service.current or Start()
        serves = self._serves()
        for _ in range(_TICKS):
            await clock.sleep(leg.min_s / _TICKS)
            if serves:
                await self._wait_in_vain(target, leg.concurrency, began_s, progress)
            serves = serves and self._serves()
            progress(
                LoadProgress(
                    elapsed_s=clock.monotonic_s() - began_s,
                    throughput=start.speed(leg.concurrency)[1] if serves else None,
                    in_flight=leg.concurrency,
                    silent_s=0.0,
                )
            )
        if not serves or (await service.state()).identity != identity:
            await clock.sleep(max(0.0, leg.max_s - leg.min_s))
            return self._failed(target, leg, began_s)
        service.leg_ends(leg.concurrency)
        if leg.concurrency in start.client_bound:
            msg = f"the client was the bottleneck at concurrency {leg.concurrency}: measure with fewer requests"
            raise MeasurementFault(msg)
        failed = start.failed_requests.get(leg.concurrency, 0)
        single, aggregate = start.speed(leg.concurrency)
        self._host.count(aggregate * leg.min_s)
        result = LegResult(
            concurrency=leg.concurrency,
            single_request_throughput=_estimate(single, leg),
            aggregate_throughput=_estimate(aggregate, leg),
            window_s=leg.min_s,
            offered=leg.concurrency + failed,
            completed=leg.concurrency,
            failed=failed,
            converged=not (leg.until_steady and start.drifts),
            client=ClientHealth(cpu_share=0.1, lag_p99_s=0.001),
            speculation=Speculation(acceptance_length=2.0, step_time_s=2.0 / single),
        )
        return result, self._records(target, leg.concurrency, began_s, completed=leg.concurrency, failed=failed)

    def _serves(self) -> bool:
        service = self._host.service
        start = service.current
        if self._host.route.is_dead:
            return False
        return service.is_listening and not service.is_hanging and start is not None and start.generates

    async def _wait_in_vain(self, target: Target, concurrency: int, began_s: float, progress: ProgressSink) -> None:
        """Wait for the requests of a server that hangs, until it is gone or they have timed out."""
        service, clock = self._host.service, self._host.clock
        since_s = clock.monotonic_s()
        while service.is_hanging and clock.monotonic_s() - since_s < target.workload.request_timeout_s:
            await clock.sleep(0.2)
            progress(
                LoadProgress(
                    elapsed_s=clock.monotonic_s() - began_s,
                    throughput=None,
                    in_flight=concurrency,
                    silent_s=clock.monotonic_s() - since_s,
                )
            )

    def _failed(self, target: Target, leg: Leg, began_s: float) -> tuple[LegResult, tuple[RequestRecord, ...]]:
        result = LegResult(
            concurrency=leg.concurrency,
            single_request_throughput=None,
            aggregate_throughput=None,
            window_s=leg.max_s,
            offered=leg.concurrency,
            completed=0,
            failed=leg.concurrency,
            converged=False,
            client=ClientHealth(cpu_share=0.1, lag_p99_s=0.001),
        )
        return result, self._records(target, leg.concurrency, began_s, completed=0, failed=leg.concurrency)

    def _records(
        self, target: Target, concurrency: int, began_s: float, *, completed: int, failed: int
    ) -> tuple[RequestRecord, ...]:
        ended_s = self._host.clock.monotonic_s()
        tokens = target.workload.output_tokens

        def record(slot: int, status: RequestStatus) -> RequestRecord:
            ok = status is RequestStatus.OK
            return RequestRecord(
                concurrency=concurrency,
                slot=slot,
                prompt_id=f"fake-{slot}",
                sent_s=began_s,
                first_s=began_s if ok else None,
                last_s=ended_s if ok else None,
                ended_s=ended_s,
                tokens=tokens if ok else None,
                first_chunk_tokens=1 if ok else None,
                prompt_tokens=4 if ok else None,
                chunk_s=(began_s, ended_s) if ok else (),
                chunk_tokens=(1, tokens) if ok else (),
                status=status,
                in_window=ok,
                error=None if ok else "the connection was closed",
            )

        return tuple(record(slot, RequestStatus.OK) for slot in range(completed)) + tuple(
            record(slot % concurrency, RequestStatus.CUT) for slot in range(failed)
        )


def _estimate(value: float, leg: Leg) -> Estimate:
    return Estimate(value=value, low=value * 0.99, high=value * 1.01, samples=leg.concurrency)
