"""Reads metrics and constraints as people write them.

::

    metric     = statistic "(" spread ")" [ "@" level ]        p95(ttft_s)@64
               | quantity [ "@" level ]                        single_request_throughput
               | counted "(" bounds ")" [ "@" level ]          goodput(ttft_s <= 1, tpot_s <= 0.02)
    bounds     = latency "<=" number { "," latency "<=" number }
    constraint = metric ( "<=" | ">=" ) number                 p95(ttft_s)@64 <= 2
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable
from typing import Final

from tuner.model.metric import BOUNDED, QUANTITIES, STATISTICS, Bound, Constraint, Direction, Metric, Objective

_TOKEN: Final = re.compile(
    r"\s*(?:(?P<number>\d+\.?\d*(?:[eE][+-]?\d+)?)|(?P<name>[A-Za-z_]\w*)|(?P<sign><=|>=|[(),@]))", re.ASCII
)
_SHOWN: Final = 40
"""Characters of a wrong text that a message repeats."""


class MetricTextError(ValueError):
    """A text is no metric or no constraint; the message says where, what was found, and what to write."""


def metric_of(text: str) -> Metric:
    """Read a metric.

    Raises:
        MetricTextError: it is none.
    """
    words = _Words(text)
    metric = _metric(words)
    words.end("a metric; conditions on it go to [[constraints]]")
    return metric


def constraint_of(text: str) -> Constraint:
    """Read a constraint.

    Raises:
        MetricTextError: it is none.
    """
    words = _Words(text)
    metric = _metric(words)
    sign = words.take("sign", ("<=", ">="), "<= or >= and a limit")
    limit = _number(words)
    words.end("one constraint; give each a [[constraints]] of its own")
    return Constraint(metric=metric, at_most=sign == "<=", limit=limit)


def objective_of(metric: Metric, direction: Direction | None = None) -> Objective:
    """Return the objective that a metric is, in the registry's direction unless another is given."""
    return Objective(name=metric.text, direction=direction or metric.kind.direction, unit=metric.kind.unit)


class _Words:
    """The words of a text, one after the other."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def peek(self) -> tuple[str, str]:
        """Return kind and text of the next word; an empty text at the end."""
        if not self._text[self._at :].strip():
            return "end", ""
        found = _TOKEN.match(self._text, self._at)
        if found is None:
            rest = self._text[self._at :].lstrip()
            return "other", rest[0]
        return str(found.lastgroup), found.group().strip()

    def take(self, kind: str, allowed: tuple[str, ...], wanted: str) -> str:
        """Take the next word.

        Raises:
            MetricTextError: it is of another kind, or none of ``allowed`` where there are any.
        """
        found, word = self.peek()
        if found != kind or (allowed and word not in allowed):
            raise self.wrong(f"needs {wanted}" + (f", not {word!r}" if word else " at its end"))
        self._skip()
        return word

    def take_if(self, sign: str) -> bool:
        """Take a sign if it comes next."""
        if self.peek() != ("sign", sign):
            return False
        self._skip()
        return True

    def end(self, what: str) -> None:
        """Hold that nothing follows.

        Raises:
            MetricTextError: something does.
        """
        _, word = self.peek()
        if word:
            raise self.wrong(f"goes on with {word!r}, but must be {what}")

    def wrong(self, what: str) -> MetricTextError:
        """Build the error for the place that has been reached."""
        line = "".join(letter if letter.isprintable() else " " for letter in self._text)
        shown = line if len(line) <= _SHOWN else line[: _SHOWN - 1] + "…"
        return MetricTextError(f'"{shown}", character {min(self._at, len(self._text)) + 1}: {what}')

    def _skip(self) -> None:
        found = _TOKEN.match(self._text, self._at)
        assert found is not None
        self._at = found.end()


def _metric(words: _Words) -> Metric:
    known = (*QUANTITIES, *STATISTICS)
    kind, name = words.peek()
    if kind == "name" and name not in known:
        raise words.wrong(_unknown("metric", name, known))
    words.take("name", (), f"a metric ({', '.join(QUANTITIES)})")
    statistic: str | None = None
    bounds: tuple[Bound, ...] = ()
    if name in STATISTICS:
        statistic = name
        spreads = tuple(each for each, quantity in QUANTITIES.items() if quantity.is_spread)
        words.take("sign", ("(",), f"( and one of {', '.join(spreads)}")
        kind, name = words.peek()
        if kind == "name" and name not in spreads:
            raise words.wrong(_unknown(f"quantity of {statistic}", name, spreads))
        words.take("name", (), f"one of {', '.join(spreads)}")
        words.take("sign", (")",), ")")
    elif QUANTITIES[name].is_spread:
        raise words.wrong(f"each request has its own {name}; write which you mean, such as p95({name})")
    elif QUANTITIES[name].has_bounds:
        bounds = _bounds(words, name)
    at = _level(words) if words.take_if("@") else None
    return Metric(quantity=name, statistic=statistic, bounds=bounds, at=at)


def _bounds(words: _Words, name: str) -> tuple[Bound, ...]:
    words.take("sign", ("(",), f"bounds, such as {name}(ttft_s <= 1, tpot_s <= 0.02)")
    found: dict[str, float] = {}
    while True:
        kind, quantity = words.peek()
        if kind == "name" and quantity not in BOUNDED:
            raise words.wrong(_unknown(f"bound of {name}", quantity, BOUNDED))
        if quantity in found:
            raise words.wrong(f"bounds {quantity} twice; keep the stricter")
        words.take("name", (), f"one of {', '.join(BOUNDED)}")
        words.take("sign", ("<=",), "<= and a time in seconds")
        found[quantity] = _number(words)
        if words.take("sign", (",", ")"), ", or )") == ")":
            # In one order, so that equal bounds have one name.
            return tuple(Bound(quantity=each, most=found[each]) for each in BOUNDED if each in found)


def _level(words: _Words) -> int:
    kind, word = words.peek()
    if kind != "number" or not word.isdecimal() or int(word) < 1:
        raise words.wrong("needs a concurrency after @, a whole number such as @16")
    words.take("number", (), "a concurrency")
    return int(word)


def _number(words: _Words) -> float:
    value = float(words.take("number", (), "a number, 0 or more"))
    if not math.isfinite(value):
        raise words.wrong("needs a finite number")
    return value


def _unknown(what: str, word: str, known: Iterable[str]) -> str:
    names = list(known)
    near = difflib.get_close_matches(word, names, n=1)
    meant = f"; did you mean {near[0]}?" if near else ""
    return f"unknown {what} {word!r}{meant} (known: {', '.join(names)})"
