"""The replies' tokens against the server's counters."""

from __future__ import annotations

import pytest

from tuner.model.account import TokenCheck
from tuner.model.record import Counters, RequestStatus
from tuner.stats.tokens import disagreement, ended_tokens, is_countable, token_check
from tuner.testing.requests import request


def counters(generated: float | None) -> Counters:
    return Counters(generated_tokens=generated)


@pytest.mark.parametrize(
    ("grown", "replies"),
    [(1000, 1000), (1128, 1128), (1256, 1256), (999, 1000), (1300, 1256)],
    ids=["as-before", "one-of-two-was-on-its-way", "both-were", "one-is-missing", "too-many"],
)
def test_what_was_on_its_way_while_the_counters_were_read_is_taken_for_what_fits(grown: int, replies: int) -> None:
    check = token_check(counters(500), counters(500 + grown), least=1000, most=1256)
    assert check == TokenCheck(replies=replies, counters=grown)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, counters(5)),
        (counters(5), None),
        (counters(None), counters(5)),
        (counters(5), counters(None)),
        (counters(50), counters(5)),
    ],
    ids=["no-first", "no-last", "first-counts-none", "last-counts-none", "another-server"],
)
def test_without_two_totals_of_one_server_nothing_is_checked(before: Counters | None, after: Counters | None) -> None:
    assert token_check(before, after, least=0, most=9) is None


@pytest.mark.parametrize(
    ("check", "says"),
    [
        (None, None),
        (TokenCheck(replies=1000, counters=1000), None),
        (TokenCheck(replies=1000, counters=1010), None),
        (TokenCheck(replies=0, counters=0), None),
        (TokenCheck(replies=1000, counters=1100), "1000 tokens and the server's own counters 1100 (-9.1 %): another"),
        (TokenCheck(replies=1000, counters=900), "counters 900 (+11.1 %): another server answers"),
        (TokenCheck(replies=1000, counters=0), "counters 0 (+100.0 %): another server answers"),
    ],
    ids=["unchecked", "equal", "within-a-percent", "none-at-all", "too-few", "too-many", "counters-stand-still"],
)
def test_more_than_a_percent_is_a_disagreement_with_both_numbers_and_a_reason(
    check: TokenCheck | None, says: str | None
) -> None:
    text = disagreement(check)
    assert text is None if says is None else says in (text or "")


def test_only_requests_that_ended_by_themselves_are_in_the_totals() -> None:
    records = [request(RequestStatus.OK, tokens=10), request(RequestStatus.CANCELLED, tokens=4)]
    assert ended_tokens(records) == 10


@pytest.mark.parametrize(
    ("status", "countable"),
    [
        (RequestStatus.OK, True),
        (RequestStatus.SHORT, True),
        (RequestStatus.CUT, False),
        (RequestStatus.UNCOUNTED, False),
    ],
    ids=lambda value: value.value if isinstance(value, RequestStatus) else str(value),
)
def test_of_requests_that_failed_nobody_knows_what_the_server_made(status: RequestStatus, countable: bool) -> None:
    assert is_countable([request(RequestStatus.OK, tokens=3), request(status, tokens=2)]) is countable


@pytest.mark.parametrize(
    ("replies", "counters", "agree"),
    [(96, 98, True), (96, 100, True), (96, 101, False), (98, 96, False)],
    ids=["two-strays", "one-a-slot", "more-than-slots", "fewer-than-the-replies"],
)
def test_a_token_of_each_request_that_was_cut_while_it_waited_is_no_disagreement(
    replies: int, counters: int, agree: bool
) -> None:
    assert (disagreement(TokenCheck(replies=replies, counters=counters), stray=4) is None) is agree
