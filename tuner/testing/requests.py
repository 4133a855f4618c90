"""Records of requests, made up: the few fields a test cares about, the rest plausible."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tuner.model.record import RequestRecord, RequestStatus

_OK = RequestRecord(
    concurrency=1,
    slot=0,
    prompt_id="p",
    sent_s=0.0,
    first_s=0.1,
    last_s=1.1,
    ended_s=1.1,
    tokens=101,
    first_chunk_tokens=1,
    prompt_tokens=20,
    chunk_s=(0.1, 1.1),
    chunk_tokens=(1, 100),
    status=RequestStatus.OK,
    in_window=True,
)


def request(status: RequestStatus = RequestStatus.OK, **fields: Any) -> RequestRecord:  # noqa: ANN401 - whatever a record has
    """Return a request that took a second for a hundred tokens after its first, with other ``fields``."""
    return replace(_OK, status=status, **fields)
