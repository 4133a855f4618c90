"""Prometheus' text format: names, labels, and what is no number."""

from __future__ import annotations

import pytest

from tuner.engines.metrics_text import totals, values


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (b"a 1\n", (1.0,)),
        (b"a 1", (1.0,)),
        (b"a\t2.5 1700000000\n", (2.5,)),
        (b'a{x="}"} 3\na{x="2"} 4\n', (3.0, 4.0)),
        (b"# HELP a a 7\n# TYPE a counter\nb 1\na 2\n", (2.0,)),
        (b"ba 1\nab 2\na_total 3\n", ()),
        (b"a\na{}\na x\na 5\r\n", (5.0,)),
        (b'b{x="a"} 1\nb{x="\\na 9"} 1\n', ()),
        (b"", ()),
    ],
    ids=["one", "no-line-end", "time-stamp", "labels", "comments", "alike", "no-number", "in-a-label", "empty"],
)
def test_a_metric_s_values_are_those_of_its_own_lines(body: bytes, found: tuple[float, ...]) -> None:
    assert values(body, "a") == found


def test_totals_sum_over_labels_and_leave_out_what_is_not_there() -> None:
    assert totals(b'a{x="1"} 1\nb 5\na{x="2"} 2\n', ("a", "b", "c")) == {"a": 3.0, "b": 5.0}
