"""How full a server was during a leg."""

from __future__ import annotations

import pytest

from tuner.model.account import ServerLoad
from tuner.model.record import Counters, LegResult
from tuner.stats.doubts import doubts
from tuner.stats.server import cached_share, server_load
from tuner.stats.window import Window
from tuner.testing.requests import request

WINDOW = Window(start_s=10.0, end_s=20.0)


def look(at_s: float, running: float, queued: float, kv: float | None) -> tuple[float, Counters]:
    return at_s, Counters(running=running, queued=queued, kv_usage=kv)


def test_gauges_count_inside_the_window_and_totals_over_the_leg() -> None:
    before = Counters(retractions=3, queue_time_s=10.0, queue_waits=100)
    after = Counters(retractions=5, queue_time_s=40.0, queue_waits=160)
    looks = [look(5.0, 1, 0, 0.99), look(12.0, 16, 4, 0.6), look(18.0, 14, 6, 0.8)]
    assert server_load(before, after, looks, [], WINDOW) == ServerLoad(
        running=15.0, queued=5.0, queue_time_s=0.5, kv_usage=0.8, retractions=2.0
    )


def test_a_leg_too_short_for_a_look_inside_its_window_takes_those_it_has() -> None:
    load = server_load(None, None, [look(5.0, 3, 1, None)], [], WINDOW)
    assert load == ServerLoad(running=3.0, queued=1.0)


def test_a_server_that_tells_nothing_has_no_load() -> None:
    assert server_load(None, None, [], [], WINDOW) is None
    assert server_load(Counters(), Counters(), [(12.0, Counters())], [request()], WINDOW) is None


def test_totals_that_fell_are_those_of_another_server() -> None:
    assert server_load(Counters(retractions=5), Counters(retractions=1), [], [], WINDOW) is None


def test_the_replies_word_on_the_prefix_cache_counts_before_the_counters() -> None:
    before, after = Counters(cached_tokens=0, prompt_tokens=0), Counters(cached_tokens=50, prompt_tokens=100)
    assert cached_share(before, after, [request(cached_tokens=5), request(cached_tokens=0)]) == pytest.approx(5 / 40)
    assert cached_share(before, after, [request()]) == 0.5
    assert cached_share(None, None, [request()]) is None


@pytest.mark.parametrize(
    ("share", "count"), [(None, 0), (0.0, 0), (0.05, 0), (0.23, 1)], ids=["not-known", "none", "just-so", "a-quarter"]
)
def test_a_prefix_cache_that_serves_unique_prompts_is_worth_a_word(share: float | None, count: int) -> None:
    leg = LegResult(
        concurrency=16,
        single_request_throughput=None,
        aggregate_throughput=None,
        window_s=10.0,
        offered=10,
        completed=10,
        failed=0,
        converged=True,
        server=ServerLoad(cached_share=share),
    )
    said = doubts(leg)
    assert len(said) == count
    assert all(text.startswith("23 % of the prompt tokens came from the prefix cache") for text in said)
