"""The bars that tuner's client is held to, each with the figure that it is judged by."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from bench_peers.loads import FLOOD, IN_STEP, KNEE, SPECULATIVE
from bench_peers.run import Run

RATIOS = {
    "httpx-lines": 5.0,
    "SGLang bench_serving": 2.0,
    "vLLM bench serve": 2.0,
    "genai-bench": 2.0,
    "inference-perf": 2.0,
    "AIPerf": 3.0,
    "GuideLLM": 5.0,
    "SGLang Rust client": 1.0,
}
"""CPU a chunk of each client / tuner's, in the same round, at least."""

Rounds = Sequence[Mapping[tuple[str, str], Run]]
"""(scenario, client) -> run, of each round."""


def ratio(found: Mapping[tuple[str, str], Run], scenario: str, client: str) -> float | None:
    """Return a client's CPU a chunk / tuner's in the same round; None where one of them is missing."""
    ours, theirs = found.get((scenario, "tuner")), found.get((scenario, client))
    if ours is None or theirs is None or not ours.cpu_s_per_chunk or theirs.cpu_s_per_chunk is None:
        return None
    return theirs.cpu_s_per_chunk / ours.cpu_s_per_chunk


def _figures(rounds: Rounds, scenario: str, client: str, read: Callable[[Run], float | None]) -> list[float]:
    runs = [found[scenario, client] for found in rounds if (scenario, client) in found]
    return [figure for run in runs if (figure := read(run)) is not None]


def _least(values: Sequence[float]) -> float | None:
    return min(values, default=None)


def _line(title: str, figure: float | None, limit: float, unit: str, *, is_most: bool) -> str:
    wanted = f"{'at most' if is_most else 'at least'} {limit:g}{unit}"
    if figure is None:
        return f"not run  {title}: {wanted}"
    is_met = figure <= limit if is_most else figure >= limit
    return f"{'met     ' if is_met else 'NOT MET '} {title}: {figure:.3g}{unit} ({wanted})"


def bar_lines(rounds: Rounds) -> list[str]:
    """Return a line for each bar, judged by the better round."""
    lines = []
    for client, wanted in RATIOS.items():
        for scenario in (IN_STEP, SPECULATIVE):
            ratios = [found for each in rounds if (found := ratio(each, scenario, client)) is not None]
            title = f"CPU a chunk of {client} / tuner's, {scenario}"
            lines.append(_line(title, max(ratios, default=None), wanted, "x", is_most=False))

    def exact(scenario: str, client: str, name: str, scale: float) -> float | None:
        return _least(
            _figures(
                rounds,
                scenario,
                client,
                lambda run: (
                    None if run.exact is None or getattr(run.exact, name) is None else getattr(run.exact, name) * scale
                ),
            )
        )

    def speed(scenario: str) -> float | None:
        return max(_figures(rounds, scenario, "tuner", lambda run: run.chunks_per_s), default=None)

    most: tuple[tuple[str, float | None, float, str], ...] = (
        (f"lateness p99, kernel stamps, {IN_STEP}", exact(IN_STEP, "tuner", "late_p99_s", 1e3), 0.1, " ms"),
        (f"lateness p99, own stamps, {IN_STEP}", exact(IN_STEP, "tuner-user-stamps", "late_p99_s", 1e3), 2.0, " ms"),
        (f"merged events, {IN_STEP}", exact(IN_STEP, "tuner", "merged_share", 1e2), 1.0, " %"),
        (f"TTFT error p99, {IN_STEP}", exact(IN_STEP, "tuner", "ttft_error_p99_s", 1e3), 1.0, " ms"),
        (f"rate error of a request p99, {IN_STEP}", exact(IN_STEP, "tuner", "rate_error_p99", 1e2), 0.5, " %"),
        (f"lateness p99, {KNEE}", exact(KNEE, "tuner", "late_p99_s", 1e3), 5.0, " ms"),
    )
    lines += [_line(*bar, is_most=True) for bar in most]
    lines.append(_line(f"chunks/s, {KNEE}", speed(KNEE), 40_000.0, "", is_most=False))
    lines.append(_line(f"chunks/s, {FLOOD}", speed(FLOOD), 100_000.0, "", is_most=False))
    return lines
