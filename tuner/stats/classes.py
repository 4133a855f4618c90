"""What each class of prompts got: a setting that wins on one may lose on another."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.model.account import ClassResult
from tuner.model.record import RequestRecord
from tuner.stats.latency import decode_throughput
from tuner.stats.speculation import speculation


def class_results(records: Sequence[RequestRecord]) -> tuple[ClassResult, ...]:
    """Return one result a class of prompts, by name; none of prompts without a class.

    Args:
        records: complete requests inside the window.
    """
    by_class: dict[str, list[RequestRecord]] = {}
    for record in records:
        if record.prompt_class:
            by_class.setdefault(record.prompt_class, []).append(record)
    return tuple(_result(name, by_class[name]) for name in sorted(by_class))


def _result(name: str, records: Sequence[RequestRecord]) -> ClassResult:
    single = decode_throughput(records)
    return ClassResult(
        name=name,
        requests=len(records),
        single_request_throughput=single,
        speculation=speculation(records, single),
    )
