"""The Pareto front and the exact hypervolume in two and three dimensions; every objective is maximised.

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
    """Return the area, or volume, that ``points`` dominate above ``reference``, exactly.

    In three dimensions slice by slice along the last one: between two neighbouring heights the cross-section is
    what the points above dominate in the other two. O(n^2 log n).

    Args:
        points: shape (n, d), d = 2 or 3.
        reference: shape (d,), the worst corner; points that are not better than it in
            every objective add nothing.

    Raises:
        ValueError: d is neither 2 nor 3.
    """
    if len(reference) not in (2, 3):
        raise ValueError(f"the hypervolume is of 2 or 3 objectives, not of {len(reference)}")
    inside = [point for point in points if all(a > b for a, b in zip(point, reference, strict=True))]
    if len(reference) == 2:
        return _area(inside, reference)
    volume, above = 0.0, sorted(inside, key=lambda point: point[2], reverse=True)
    for index, point in enumerate(above):
        floor = above[index + 1][2] if index + 1 < len(above) else reference[2]
        if point[2] > floor:
            volume += _area([each[:2] for each in above[: index + 1]], reference[:2]) * (point[2] - floor)
    return volume


def _area(inside: Sequence[Sequence[float]], reference: Sequence[float]) -> float:
    area = 0.0
    height = reference[1]
    for x, y in sorted(((inside[i][0], inside[i][1]) for i in front(inside)), reverse=True):
        if y > height:
            area += (x - reference[0]) * (y - height)
            height = y
    return area
