"""Holds the server's two accounts of its tokens against each other: the replies' counts and its totals.

The counters are read while the leg's last requests still run, so which of them a reading covers is known
only within a bracket: those that had ended (with live totals: had arrived) before it was asked for are in it,
those that did so after its reply are not. Everything between is taken for what fits best, which is a request
or two of a whole leg.
"""

from __future__ import annotations

from collections.abc import Sequence

from tuner.model.account import TokenCheck
from tuner.model.record import Counters, RequestRecord, RequestStatus

LARGEST_DIFFERENCE = 0.01
"""Beyond it a leg is void: its tokens are not all its own, or not all of them came."""

_COUNTED = frozenset({RequestStatus.OK, RequestStatus.SHORT, RequestStatus.CANCELLED})


def is_countable(records: Sequence[RequestRecord]) -> bool:
    """Whether the replies can be added up: of one that failed nobody knows how much the server made."""
    return all(record.status in _COUNTED for record in records)


def ended_tokens(records: Sequence[RequestRecord]) -> int:
    """Return the tokens of the requests that ended by themselves."""
    return sum(record.tokens or 0 for record in records if record.status is not RequestStatus.CANCELLED)


def token_check(before: Counters | None, after: Counters | None, *, least: int, most: int) -> TokenCheck | None:
    """Return both accounts of a leg; None: the server keeps no total, or is another one since.

    Args:
        before: totals at rest, before the leg's first request.
        after: totals near its end.
        least: tokens of the replies that ``after`` must have in it.
        most: those that it can have in it.
    """
    if before is None or after is None or before.generated_tokens is None or after.generated_tokens is None:
        return None
    grown = round(after.generated_tokens - before.generated_tokens)
    if grown < 0:
        return None
    return TokenCheck(replies=min(max(grown, least), most), counters=grown)


def disagreement(check: TokenCheck | None, *, stray: int = 0) -> str | None:
    """Say that the two accounts differ, and why that may be; None: they agree, or there is only one.

    Args:
        check: both accounts.
        stray: tokens that the counters may have too many: of requests of the leg before that were cut while
            they waited, of which a slow server makes one each before it notices.
    """
    if check is None or abs(check.difference) <= LARGEST_DIFFERENCE or 0 < check.counters - check.replies <= stray:
        return None
    numbers = f"the replies count {check.replies} tokens and the server's own counters {check.counters}"
    if check.replies < check.counters:
        reason = "another client uses this server, or a proxy drops events: keep everybody else off it"
    else:
        reason = "another server answers than the one that is asked for its counters: correct the base URL"
    return f"{numbers} ({100 * check.difference:+.1f} %): {reason}"
