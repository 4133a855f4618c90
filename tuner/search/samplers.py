"""The samplers a study may name, and how each is asked for a canonical, unused assignment."""

from __future__ import annotations

import importlib.util
import random
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final, Protocol

from optuna.exceptions import ExperimentalWarning
from optuna.samplers import BaseSampler, GPSampler, NSGAIISampler, RandomSampler, TPESampler

from tuner.errors import UsageError
from tuner.model.metric import Objective
from tuner.model.space import Assignment, Parameter, Value
from tuner.search.domain import Domain
from tuner.search.history import History
from tuner.search.opening import opening
from tuner.search.safety import is_ruled_out
from tuner.search.shadow import POPULATION, Shadow, View

ATTEMPTS: Final = 20
"""How often a sampler is asked again before unused assignments are listed instead."""

TPE_STARTUP: Final = 10
"""Optuna's own number of random trials before TPE models anything."""

SEEDS: Final = 2**32
"""The seeds that NumPy's generators take are below this."""

AUTO_STARTUP: Final = 7
"""The baseline and the opening: after them TPE has something to model."""


class Strategy(Protocol):
    """Chooses the next assignment; deterministic in its seed and the history."""

    def next(self, history: History) -> Assignment | None:
        """Return a canonical assignment that is not taken; None when there is none left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What every strategy works with."""

    domain: Domain
    objectives: tuple[Objective, ...]
    seed: int


class Sampled:
    """An Optuna sampler, asked through a shadow of the study.

    The seed of a proposal is the study's seed plus the number of assignments that are spoken
    for: a resumed study needs no remembered generator, and goes on as it would have.
    """

    def __init__(
        self, setting: Setting, *, make: Callable[[int], BaseSampler], view: View, heeds_deaths: bool = False
    ) -> None:
        self._setting = setting
        self._make = make
        self._view = view
        self._heeds_deaths = heeds_deaths

    def next(self, history: History) -> Assignment | None:
        """Ask the sampler up to ``ATTEMPTS`` times, then take any unused assignment."""
        domain = self._setting.domain
        seed = (self._setting.seed + len(history.taken)) % SEEDS
        shadow = Shadow(
            domain,
            history,
            sampler=self._make(seed),
            view=self._view,
            objectives=self._setting.objectives,
        )
        for _ in range(ATTEMPTS):
            trial, values = shadow.ask()
            assignment = domain.accepts(values)
            if assignment is None or self._is_ruled_out(assignment, history):
                shadow.teach_infeasible(trial)
            elif assignment not in history.taken:
                return assignment
        return self._unused(history, seed)

    def _is_ruled_out(self, assignment: Assignment, history: History) -> bool:
        return self._heeds_deaths and is_ruled_out(assignment, history.counted, self._setting.domain.space)

    def _unused(self, history: History, seed: int) -> Assignment | None:
        last_resort: Assignment | None = None
        for assignment in self._setting.domain.assignments(start=seed):
            if assignment in history.taken:
                continue
            if not self._is_ruled_out(assignment, history):
                return assignment
            last_resort = last_resort or assignment
        return last_resort


class Opened:
    """A fixed opening, then another strategy."""

    def __init__(self, setting: Setting, then: Strategy) -> None:
        self._moves = opening(setting.domain)
        self._space = setting.domain.space
        self._then = then

    def next(self, history: History) -> Assignment | None:
        """Take the first move that is neither taken nor shown to die; after the last, go on."""
        for assignment in self._moves:
            if assignment not in history.taken and not is_ruled_out(assignment, history.counted, self._space):
                return assignment
        return self._then.next(history)


class Grid:
    """A grid that refines itself: ends and middle of every axis, then quarters, and so on.

    Within a round the order is shuffled, so that a study that ends early has not only seen
    one corner.
    """

    def __init__(self, setting: Setting) -> None:
        self._setting = setting

    def next(self, history: History) -> Assignment | None:
        """Return the first point of the coarsest round that is not taken."""
        for assignment in self._points():
            if assignment not in history.taken:
                return assignment
        return None

    def _points(self) -> Iterator[Assignment]:
        parameters = self._setting.domain.space.parameters
        longest = max((len(parameter.values()) for parameter in parameters), default=1)
        pieces = 2
        while True:
            combinations = list(product(*(_spread(parameter, pieces) for parameter in parameters)))
            if len(combinations) > LISTED or pieces >= 2 * longest:
                break
            random.Random(self._setting.seed + pieces).shuffle(combinations)  # noqa: S311 (an order, not a secret)
            for values in combinations:
                names = (parameter.name for parameter in parameters)
                assignment = self._setting.domain.accepts(dict(zip(names, values, strict=True)))
                if assignment is not None:
                    yield assignment
            pieces *= 2
        yield from self._setting.domain.assignments(start=self._setting.seed)


LISTED: Final = 20_000
"""The largest grid that is held at once; finer ones are walked lazily."""


def _spread(parameter: Parameter, pieces: int) -> Sequence[Value]:
    values = parameter.values()
    last = len(values) - 1
    return [values[position] for position in sorted({round(last * i / pieces) for i in range(pieces + 1)})]


def _tpe(startup: int) -> Callable[[int], BaseSampler]:
    def make(seed: int) -> BaseSampler:
        with warnings.catch_warnings():
            # Settings Optuna calls experimental; the version is locked and a test runs them.
            warnings.simplefilter("ignore", ExperimentalWarning)
            return TPESampler(seed=seed, multivariate=True, constant_liar=True, n_startup_trials=startup)

    return make


def _gp(seed: int) -> BaseSampler:
    return GPSampler(seed=seed)


def _nsga2(seed: int) -> BaseSampler:
    return NSGAIISampler(seed=seed, population_size=POPULATION)


def _random(seed: int) -> BaseSampler:
    return RandomSampler(seed=seed)


def _auto(setting: Setting) -> Strategy:
    then = Sampled(setting, make=_tpe(AUTO_STARTUP), view=View.PRUNED, heeds_deaths=True)
    return Opened(setting, then)


def _gaussian_process(setting: Setting) -> Strategy:
    if importlib.util.find_spec("torch") is None:
        raise UsageError("sampler gp needs PyTorch, which is not installed: pip install torch, or use sampler auto")
    return Sampled(setting, make=_gp, view=View.IMPUTED)


SAMPLERS: Final[Mapping[str, Callable[[Setting], Strategy]]] = {
    "auto": _auto,
    "tpe": lambda setting: Sampled(setting, make=_tpe(TPE_STARTUP), view=View.PRUNED),
    "gp": _gaussian_process,
    "nsga2": lambda setting: Sampled(setting, make=_nsga2, view=View.IMPUTED),
    "random": lambda setting: Sampled(setting, make=_random, view=View.PRUNED),
    "grid": Grid,
}
"""Samplers by the name a study file gives; a new one is a line here."""


def make_strategy(name: str, setting: Setting) -> Strategy:
    """Return the sampler called ``name``.

    Raises:
        UsageError: there is none of that name, or it needs a package that is not installed.
    """
    if name not in SAMPLERS:
        raise UsageError(f"sampler {name!r} does not exist; use one of: {', '.join(SAMPLERS)}")
    return SAMPLERS[name](setting)
