from __future__ import annotations

from dataclasses import replace

from tuner.model.account import Stamps
from tuner.model.selftest import Exactness, SelfTest, SelfTestStep
from tuner.report.selftest_table import selftest_lines

EXACT = Exactness(
    requests=4,
    unlike=0,
    chunks=4000,
    late_p50_s=0.00001,
    late_p99_s=0.00004,
    ttft_error_p50_s=0.0001,
    ttft_error_p99_s=0.0004,
    rate_error_p99=0.0001,
    merged_share=0.0,
)
STEP = SelfTestStep(
    streams=64,
    offered=17_778.0,
    got=17_500.0,
    cpu_s_per_chunk=17e-6,
    cpu_share=0.3,
    exact=EXACT,
    stamps=Stamps.KERNEL,
    bound=None,
)
FAST = replace(STEP, offered=64_000.0, got=48_000.0, cpu_share=0.8, bound="it needed 80% of a core")


def result(*stress: SelfTestStep) -> SelfTest:
    return SelfTest(steps=(STEP,), stress=stress, cores=2)


def test_a_row_has_the_cost_and_the_errors_of_a_load_in_its_units() -> None:
    cells = selftest_lines(result())[1].split()
    assert cells == [
        "64", "17,778", "17,500", "17.0", "30%", "0.010", "0.040", "0.10", "0.40", "0.01%", "0.00%", "kernel",
    ]  # fmt: skip


def test_the_verdict_is_the_highest_speed_that_was_not_too_much() -> None:
    lines = selftest_lines(result(replace(STEP, got=31_900.0), FAST))
    assert lines[-1] == (
        "This machine can measure 31,000 chunks/s: 114 streams at 278 chunks/s each, or 64 streams at 498."
    )
    assert "64 streams at 1,000 chunks/s: too much for the client: it needed 80% of a core" in lines


def test_without_a_limit_found_it_may_be_more() -> None:
    assert "can measure at least 17,000 chunks/s" in selftest_lines(result(STEP))[-1]


def test_a_machine_on_which_every_load_was_too_much_can_measure_nothing() -> None:
    lines = selftest_lines(SelfTest(steps=(FAST,), stress=(FAST,), cores=1))
    assert lines[-1].startswith("This machine cannot measure even one fast stream now")


def test_stamps_of_our_own_are_named_and_what_was_not_measured_is_a_dash() -> None:
    own = replace(STEP, stamps=Stamps.USER, cpu_s_per_chunk=None, exact=replace(EXACT, late_p99_s=None))
    lines = selftest_lines(SelfTest(steps=(own,), stress=(), cores=2))
    assert lines[1].split()[3] == "-"
    assert any(line.startswith("The kernel does not stamp") for line in lines)
