"""The Pareto front and the exact two-dimensional hypervolume; every objective is maximised.

A point dominates another when it is at least as good in every objective and better in
one. Equal points do not dominate each other, so all copies of a front point are on the
front; a caller who wants one of them picks it by its own rule.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def dominates(one: Sequence[float], other: Sequence[float]) -> bool:
    """Whether ``one`` is nowhere worse than ``other`` and somewhere better."""
    return all(a >= b for a, b in zip(one, other, strict=True)) and any(a > b for a, b in zip(one, other, strict=True))


def front(points: Sequence[Sequence[float]]) -> tuple[int, ...]:
    """Return the indices of the points that no other dominates, ascending.

    Args:
        points: shape (n, d), all finite, d the same for each.

    Raises:
        ValueError: a coordinate is NaN or infinite: "not measured" is no point.
    """
    for index, point in enumerate(points):
        if not all(math.isfinite(value) for value in point):
            raise ValueError(f"point {index} has a coordinate that is not finite: {tuple(point)}")
    # In descending lexicographic order a later point never dominates an earlier one.
    order = sorted(range(len(points)), key=lambda index: tuple(points[index]), reverse=True)
    kept: list[int] = []
    for index in order:
        if not any(dominates(points[other], points[index]) for other in kept):
            kept.append(index)
    return tuple(sorted(kept))


def hypervolume(points: Sequence[Sequence[float]], reference: Sequence[float]) -> float:
    """Return the area that ``points`` dominate above ``reference``, exactly.

    Args:
        points: shape (n, 2).
        reference: shape (2,), the worst corner; points that are not better than it in
            both objectives add nothing.
    """
    inside = [point for point in points if point[0] > reference[0] and point[1] > reference[1]]
    area = 0.0
    height = reference[1]
    for x, y in sorted(((inside[i][0], inside[i][1]) for i in front(inside)), reverse=True):
        if y > height:
            area += (x - reference[0]) * (y - height)
            height = y
    return area
