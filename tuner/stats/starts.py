"""One value out of several server starts of the same configuration.

Notation, for one objective::

    k        configurations that were started more than once
    n_i      starts of configuration i
    y_ij     value of start j; v_ij its variance within the start, from its own 95 % interval
    m_i      mean of the y_ij over j
    f        sum of (n_i - 1) over the k configurations
    s        sqrt(sum over i, j of (y_ij / m_i - 1)^2 / f): what one start differs from the next, relative
    t(f)     quantile of Student's t at 97.5 % with f degrees of freedom

The combined value is m_i. Its standard error is the larger of

    s m_i / sqrt(n_i)               starts differ: a one-way layout with a common relative spread
    sqrt(sum over j of v_ij) / n_i  what the starts say of their own precision

(Searle, Casella and McCulloch, Variance Components, section 3.2; spread as a share of the level because
throughput scales). Starts are weighed equally: the spread between them, not their own length, decides.
The spread is pooled over configurations, since two or three starts alone say next to nothing of it. One whose
starts differ far more than those of all others is left out: an F test of its variance against theirs at 1 % / k,
the largest first (Cochran's test for unequal n: R. U. E. 't Lam, Analytica Chimica Acta 659 (2010) 68; ISO 5725-2
leaves out outlying variances so). Of such a *discordant* configuration the middle start is taken, of an even number
the worse of the two middle ones, with all its starts as the interval: a mean would be what none of them gave.

The first start, for whose luck a configuration may have been chosen, is one among n: the mean keeps 1/n of that luck.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.special import fdtri

from tuner.model.metric import Estimate
from tuner.stats.intervals import t_quantile

_NORMAL = 1.959964
_MOST_DEGREES = 10_000
_DISCORDANT = 0.01
_FEWEST_GROUPS = 3
"""Of two that differ, nothing says which is the odd one."""
_LEAST_SPREAD = 0.01
"""Relative; starts of the others that agree by chance to a thousandth make nobody discordant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartSpread:
    """How much starts of the same configuration differ.

    Attributes:
        relative: s.
        degrees: f, at least 1.
    """

    relative: float
    degrees: int


def start_spread(groups: Sequence[Sequence[float]]) -> StartSpread | None:
    """Return the spread between starts, pooled over configurations; None where none was started twice.

    Args:
        groups: y_ij, one sequence a configuration; those with a mean of 0 or fewer than two starts are passed over.
    """
    squares, degrees = 0.0, 0
    for group in groups:
        mean = math.fsum(group) / len(group) if group else 0.0
        if len(group) < 2 or mean == 0:
            continue
        squares += math.fsum((value / mean - 1) ** 2 for value in group)
        degrees += len(group) - 1
    return StartSpread(relative=math.sqrt(squares / degrees), degrees=degrees) if degrees else None


def discordant(groups: Sequence[Sequence[float]]) -> frozenset[int]:
    """Return the places of the configurations whose starts differ far more than those of all others."""
    left = {
        place: (alone.relative**2, alone.degrees)
        for place, group in enumerate(groups)
        if (alone := start_spread([group])) is not None
    }
    k, found = len(left), set()
    while len(left) >= _FEWEST_GROUPS:
        worst = max(left, key=lambda place: left[place][0])
        variance, degrees = left[worst]
        rest = [each for place, each in left.items() if place != worst]
        freedom = sum(each for _, each in rest)
        pooled = max(math.fsum(each * f for each, f in rest) / freedom, _LEAST_SPREAD**2)
        if variance / pooled <= float(fdtri(degrees, freedom, 1 - _DISCORDANT / k)):
            break
        found.add(worst)
        del left[worst]
    return frozenset(found)


def standard_error(estimate: Estimate) -> float | None:
    """Return the standard error behind a value's 95 % t-interval; None: it has no interval."""
    if estimate.low is None or estimate.high is None:
        return None
    quantile = t_quantile(min(max(estimate.samples - 1, 1), _MOST_DEGREES))
    return (estimate.high - estimate.low) / 2 / quantile


def combined(starts: Sequence[Estimate], spread: StartSpread | None) -> Estimate:
    """Return the mean of several starts with its 95 % interval; ``samples`` is the number of starts.

    Args:
        starts: of one configuration, at least one. One alone is returned as it is.
        spread: between starts; None: not known, and then there is no interval.
    """
    if len(starts) == 1:
        return starts[0]
    n = len(starts)
    mean = math.fsum(start.value for start in starts) / n
    if spread is None:
        return Estimate(value=mean, low=None, high=None, samples=n)
    between = t_quantile(spread.degrees) * spread.relative * abs(mean) / math.sqrt(n)
    half = max(between, _NORMAL * _own_error(starts))
    return Estimate(value=mean, low=mean - half, high=mean + half, samples=n)


def _own_error(starts: Sequence[Estimate]) -> float:
    """Return sqrt(sum of v_j) / n; a start without an interval adds nothing."""
    errors = [error for start in starts if (error := standard_error(start)) is not None]
    return math.sqrt(math.fsum(error**2 for error in errors)) / len(starts)


def middle(starts: Sequence[Estimate], *, maximize: bool) -> Estimate:
    """Return the middle start of a discordant configuration, the worse of two, with all of them as its interval."""
    values = sorted((start.value for start in starts), reverse=not maximize)
    return Estimate(value=values[(len(values) - 1) // 2], low=min(values), high=max(values), samples=len(values))


def uncertainty(value: Estimate, starts: Sequence[Estimate], spread: StartSpread | None) -> float:
    """Return the standard error of a configuration's value: as :func:`combined`, and for a single start too.

    Args:
        value: of the configuration.
        starts: it was measured on.
        spread: between starts; None: not known.

    Returns:
        0 where nothing at all is known of it.
    """
    between = 0.0 if spread is None else spread.relative * abs(value.value) / math.sqrt(len(starts))
    return max(between, _own_error(starts))
