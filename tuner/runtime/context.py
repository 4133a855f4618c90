"""What every part of a running trial shares."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from tuner.model.trial import TrialRequest
from tuner.ports import ControlClient, EngineAdapter, Target
from tuner.runtime.cleaning import HostSession
from tuner.runtime.progress import Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialContext:
    """One trial's request and the means to run it.

    Attributes:
        stop: set when the run is being stopped; the trial then ends as Interrupted.
    """

    request: TrialRequest
    session: HostSession
    engine: EngineAdapter
    target: Target
    control: ControlClient
    progress: Progress
    stop: asyncio.Event
