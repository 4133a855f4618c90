"""Measures a running server: warm-up, the ladder, and on wish its highest level held. Starts and stops nothing."""

from __future__ import annotations

import asyncio
import signal
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Protocol, Self

from tuner.errors import MeasurementFault
from tuner.load.client import HttpLoadGenerator
from tuner.load.health import STRICT_LIMITS, TOLERANT_LIMITS
from tuner.load.http import HttpControlClient
from tuner.load.prompts import load_prompts
from tuner.model.measurement import LegKind, Level, Measurement, ServerFacts
from tuner.model.record import LegResult, RequestRecord, RequestStatus
from tuner.ports import ControlClient, Leg, LoadProgress, Target
from tuner.runtime.authorised import AuthorisedControl, bearer
from tuner.stats.limit import limit
from tuner.wiring.visit import Wish, visit

_NO_FAILURE = frozenset({RequestStatus.OK, RequestStatus.CANCELLED})
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class MeasureObserver(Protocol):
    """Is told how a measurement comes along."""

    def found(self, facts: ServerFacts) -> None:
        """Take what the server is."""

    def warming_up(self, requests: int) -> None:
        """Take that the warm-up begins."""

    def level_begins(self, concurrency: int, kind: LegKind, longest_s: float) -> None:
        """Take that a leg begins, and how long its window is at most."""

    def progress(self, progress: LoadProgress) -> None:
        """Take how it comes along."""

    def level_ended(self, level: Level) -> None:
        """Take what became of it."""

    def remark(self, text: str) -> None:
        """Take a line about the whole."""


Save = Callable[[Measurement], None]


def measure(wish: Wish, observer: MeasureObserver, save: Save = lambda _: None) -> Measurement:
    """Measure a server; Ctrl-C or SIGTERM ends it with what there is until then.

    Args:
        wish: what is to be measured.
        observer: is told what happens.
        save: is given what there is after each level, and at the end.

    Raises:
        UsageError: an option or the prompts do not fit.
        PreflightError: the server is not there, or cannot be measured.
        KeyboardInterrupt: it was ended before the first leg began.
    """
    load_prompts(wish.workload.prompts)  # a bad line is refused before the server is asked
    return asyncio.run(_measure(wish, observer, save))


async def _measure(wish: Wish, observer: MeasureObserver, save: Save) -> Measurement:
    headers = bearer(wish.api_key)
    control = AuthorisedControl(HttpControlClient(wish.base_url), headers)
    with _Signals() as signals:
        try:
            with signals.as_interrupt():
                visited = await visit(wish, control, observer.remark)
                observer.found(visited.facts)
            target = Target(
                base_url=wish.base_url, engine=visited.api, workload=visited.workload, seed=wish.seed, headers=headers
            )
            ladder = _Ladder(wish, visited.facts, target, control, observer, save)
            with signals.as_interrupt():
                await ladder.warm_up()
            return await ladder.climb(signals)
        finally:
            await control.close()


class _Ladder:
    """The legs on one server, and what came of them."""

    def __init__(
        self,
        wish: Wish,
        facts: ServerFacts,
        target: Target,
        control: ControlClient,
        observer: MeasureObserver,
        save: Save,
    ) -> None:
        self._wish = wish
        self._facts = facts
        self._target = target
        self._control = control
        self._observer = observer
        self._save = save
        self._generator = HttpLoadGenerator(limits=TOLERANT_LIMITS if wish.tolerates_client else STRICT_LIMITS)
        self._levels: list[Level] = []
        self._gone: str | None = None
        self._is_interrupted = False
        self._began_unix_s = time.time()
        self._began_s = time.perf_counter()
        self._run = uuid.uuid4().hex  # no leg finds another measurement's prompts in the prefix cache

    async def warm_up(self) -> None:
        """Send what makes the server compile and fill, at the concurrency it will see."""
        workload = self._target.workload
        if workload.warmup_requests < 1:
            return
        self._observer.warming_up(workload.warmup_requests)
        records = await self._generator.warm_up(
            self._target, workload.warmup_requests, max(workload.ladder), self._observer.progress
        )
        failed = [record for record in records if record.status not in _NO_FAILURE]
        if failed:
            said = self._said(failed) or failed[0].status.value
            self._observer.remark(f"{len(failed)} of {len(records)} warm-up requests failed ({said})")

    async def climb(self, signals: _Signals) -> Measurement:
        """Run the legs until the ladder is done, the server is gone, or somebody ends it."""
        workload = self._target.workload
        legs = [self._leg(level) for level in workload.ladder]
        if self._wish.soaks:
            legs.append(self._soak(workload.ladder[-1]))
        try:
            for kind, leg in legs:
                await self._run_leg(kind, leg)
                self._save(self.measurement())
                if self._gone is not None:
                    break
        except asyncio.CancelledError:
            if not signals.came:
                raise
            self._is_interrupted = True
            signals.answered()
        measurement = self.measurement()
        self._save(measurement)
        return measurement

    def measurement(self) -> Measurement:
        """Return what there is."""
        return Measurement(
            server=self._facts,
            workload=self._target.workload,
            seed=self._wish.seed,
            began_unix_s=self._began_unix_s,
            duration_s=time.perf_counter() - self._began_s,
            levels=tuple(self._levels),
            is_interrupted=self._is_interrupted,
            gone=self._gone,
        )

    def _leg(self, level: int) -> tuple[LegKind, Leg]:
        workload = self._target.workload
        return LegKind.LADDER, Leg(
            concurrency=level,
            min_s=workload.level_min_s,
            max_s=workload.level_max_s,
            interval=workload.interval,
            salt=f"{self._run}-{level}",
        )

    def _soak(self, level: int) -> tuple[LegKind, Leg]:
        workload = self._target.workload
        return LegKind.SOAK, Leg(
            concurrency=level,
            min_s=workload.soak_s,
            max_s=workload.soak_max_s,
            interval=workload.interval,
            salt=f"{self._run}-soak",
            until_steady=True,
        )

    async def _run_leg(self, kind: LegKind, leg: Leg) -> None:
        await self._flush()
        self._observer.level_begins(leg.concurrency, kind, leg.max_s)
        began_s = time.perf_counter()
        try:
            result, records = await self._generator.measure(self._target, leg, self._control, self._observer.progress)
        except MeasurementFault as fault:
            level = Level(concurrency=leg.concurrency, kind=kind, why=str(fault))
        except asyncio.CancelledError:
            why = f"interrupted after {time.perf_counter() - began_s:.0f} s"
            self._ended(Level(concurrency=leg.concurrency, kind=kind, why=why))
            raise
        else:
            failed = [record for record in records if record.status not in _NO_FAILURE]
            counts = Counter(record.status for record in failed)
            level = Level(
                concurrency=leg.concurrency,
                kind=kind,
                result=replace(result, limit=limit(result, self._below(), self._cap)),
                failures=tuple(counts.most_common()),
                error=self._said(failed),
            )
            if result.completed == 0 and result.failed > 0:
                self._gone = await self._why_gone()
        self._ended(level)

    def _below(self) -> LegResult | None:
        """Return the last level that has a result; None: this is the first."""
        return next((level.result for level in reversed(self._levels) if level.result is not None), None)

    @property
    def _cap(self) -> int | None:
        """Requests that the server says it runs at once."""
        capacity = self._facts.capacity
        return None if capacity is None else capacity.max_running_requests

    def _ended(self, level: Level) -> None:
        self._levels.append(level)
        self._observer.level_ended(level)

    def _said(self, failed: Sequence[RequestRecord]) -> str | None:
        """Return what the server said in the first failed request that has words."""
        text = next((record.error for record in failed if record.error), None)
        return None if text is None else self._wish.masked(self._target.engine.scrub(text))

    async def _why_gone(self) -> str | None:
        """Say why a server of which no request came back is given up; None: it lives."""
        call = self._target.engine.health_call()
        reply = await self._control.call(call)
        if reply.status == 200:
            return None
        return f"{call.path} answered {reply.status or self._wish.masked(reply.detail or reply.error or 'nothing')}"

    async def _flush(self) -> None:
        call = self._target.engine.flush_call()
        if call is None:
            return
        reply = await self._control.call(call)
        if reply.status != 200:
            self._observer.remark(
                f"{call.path} answered {reply.status or reply.error}; the prompts of levels differ all the same"
            )


class _Signals:
    """While inside: the first Ctrl-C or SIGTERM cancels the task, the second ends the process as it always does."""

    def __init__(self) -> None:
        self.came = False
        self._task: asyncio.Task[object] | None = None

    def __enter__(self) -> Self:
        self._task = asyncio.current_task()
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup: nobody wants to hear of a closed terminal
                loop.add_signal_handler(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        self._let_go()

    @contextmanager
    def as_interrupt(self) -> Iterator[None]:
        """Where nothing is measured yet, a signal is an interrupt and no result."""
        try:
            yield
        except asyncio.CancelledError:
            if not self.came:
                raise
            raise KeyboardInterrupt from None

    def answered(self) -> None:
        """Go on after a signal, to what is left to do."""
        if self._task is not None:
            self._task.uncancel()

    def _on_signal(self) -> None:
        self.came = True
        self._let_go()
        if self._task is not None:
            self._task.cancel()

    def _let_go(self) -> None:
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
