"""The Prometheus page of a server started with ``--enable-metrics``.

Totals grow when a request finishes, as in SGLang; gauges are read when the page is.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence

from tuner.simulator.request import Request

_TTFT_S = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 200.0)
_GAP_S = (0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.1, 0.2, 0.5, 1.0, 2.0)
_QUEUE_S = (0.0, 0.01, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0)
_E2E_S = (0.1, 0.2, 0.4, 0.8, 1.0, 2.0, 4.0, 8.0, 20.0, 40.0, 80.0, 200.0, 400.0, 800.0)


class _Histogram:
    """Counts of observations by upper bound."""

    def __init__(self, bounds_s: Sequence[float]) -> None:
        self._bounds_s = bounds_s
        self._counts = [0] * (len(bounds_s) + 1)
        self._sum_s = 0.0

    def observe(self, seconds: float, times: int = 1) -> None:
        self._counts[bisect_left(self._bounds_s, seconds)] += times
        self._sum_s += seconds * times

    def lines(self, name: str, labels: str) -> Iterator[str]:
        total = 0
        for bound, count in zip((*map(str, self._bounds_s), "+Inf"), self._counts, strict=True):
            total += count
            yield f'{name}_bucket{{{labels},le="{bound}"}} {total}.0'
        yield f"{name}_sum{{{labels}}} {self._sum_s!r}"
        yield f"{name}_count{{{labels}}} {total}.0"


class Metrics:
    """Counters since the start of the server.

    Args:
        model: as served; a label of every line.
    """

    def __init__(self, model: str) -> None:
        escaped = model.replace("\\", r"\\").replace('"', r"\"")
        self._labels = f'engine_type="unified",model_name="{escaped}"'
        self._rank_labels = f'{self._labels},moe_ep_rank="0",pp_rank="0",tp_rank="0"'
        self._totals = dict.fromkeys(
            (
                "sglang:prompt_tokens_total",
                "sglang:cached_tokens_total",
                "sglang:num_requests_total",
                "sglang:num_aborted_requests_total",
                "sglang:spec_verify_calls_total",
            ),
            0,
        )
        self._generated = {False: 0, True: 0}  # by is_streaming
        self._histograms = {
            "sglang:time_to_first_token_seconds": _Histogram(_TTFT_S),
            "sglang:inter_token_latency_seconds": _Histogram(_GAP_S),
            "sglang:request_time_per_output_token_seconds": _Histogram(_GAP_S),
            "sglang:e2e_request_latency_seconds": _Histogram(_E2E_S),
            "sglang:queue_time_seconds": _Histogram(_QUEUE_S),
        }

    def observe(self, request: Request) -> None:
        """Count a request that ended."""
        totals = self._totals
        totals["sglang:num_requests_total"] += 1
        totals["sglang:prompt_tokens_total"] += len(request.tokens)
        totals["sglang:cached_tokens_total"] += request.cached_tokens
        totals["sglang:spec_verify_calls_total"] += request.verify_steps
        totals["sglang:num_aborted_requests_total"] += request.finish == "abort"
        self._generated[request.streamed] += request.generated
        if request.started_s is not None:  # SGLang counts the wait at its end already
            self._histograms["sglang:queue_time_seconds"].observe(request.started_s - request.arrived_s)
        if request.first_s is None or request.last_s is None:
            return
        self._histograms["sglang:time_to_first_token_seconds"].observe(request.first_s - request.arrived_s)
        self._histograms["sglang:e2e_request_latency_seconds"].observe(request.last_s - request.arrived_s)
        if request.generated > 1:
            gap_s = (request.last_s - request.first_s) / (request.generated - 1)
            self._histograms["sglang:inter_token_latency_seconds"].observe(gap_s, request.generated - 1)
            self._histograms["sglang:request_time_per_output_token_seconds"].observe(gap_s)

    def page(self, *, gauges: Mapping[str, float], totals: Mapping[str, float]) -> str:
        """Return the page.

        Args:
            gauges: readings of now, by name without the ``sglang:`` prefix.
            totals: counters kept elsewhere, likewise.
        """
        return "\n".join(self._lines(gauges, totals)) + "\n"

    def _lines(self, gauges: Mapping[str, float], totals: Mapping[str, float]) -> Iterator[str]:
        for name, value in gauges.items():
            yield from _head(f"sglang:{name}", "gauge")
            yield f"sglang:{name}{{{self._rank_labels}}} {float(value)!r}"
        others = {f"sglang:{name}": value for name, value in totals.items()}
        for name, value in (self._totals | others).items():
            yield from _head(name, "counter")
            yield f"{name}{{{self._labels}}} {float(value)!r}"
        yield from _head("sglang:generation_tokens_total", "counter")
        for streaming, value in self._generated.items():
            label = f'{self._labels},is_streaming="{"true" if streaming else "false"}"'
            yield f"sglang:generation_tokens_total{{{label}}} {float(value)!r}"
        for name, histogram in self._histograms.items():
            yield from _head(name, "histogram")
            yield from histogram.lines(name, self._labels)


def _head(name: str, kind: str) -> Iterator[str]:
    yield f"# HELP {name} {name.removeprefix('sglang:').replace('_', ' ')}."
    yield f"# TYPE {name} {kind}"
