"""The fault list is read strictly."""

from __future__ import annotations

import pytest

from tuner.simulator.faults import Faults, FaultSyntaxError, parse, start_flakes


def test_no_faults_is_a_healthy_host() -> None:
    assert parse("") == Faults()
    assert parse(" , ") == Faults()


def test_every_fault_is_understood() -> None:
    text = (
        "nccl-flake:0.2, hang-loading, hang-serving:3, slow-gpu:2.5, no-newline, log-flood:1.5, "
        "die-serving:0, exit-at:pool, frightening-log, foreign-gpu:1.5, throttle:2, linger:4"
    )
    assert parse(text) == Faults(
        nccl_flake=0.2,
        hang_loading=True,
        hang_serving_after_s=3.0,
        slow_gpu=2.5,
        no_newline=True,
        log_flood_bytes=1_500_000,
        die_serving_after_s=0.0,
        exit_at="pool",
        frightening_log=True,
        foreign_gpu_after_s=1.5,
        throttle_after_s=2.0,
        linger_s=4.0,
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nccl-flak:0.2", "did you mean nccl-flake"),
        ("meteor", "unknown fault 'meteor'"),
        ("hang-loading:3", "takes no value"),
        ("slow-gpu", "needs a value: a factor of 1 or more"),
        ("slow-gpu:0.5", "is not a factor of 1 or more"),
        ("slow-gpu:nan", "is not a factor"),
        ("nccl-flake:1.1", "is not a share from 0 to 1"),
        ("log-flood:inf", "is not megabytes"),
        ("die-serving:soon", "is not seconds"),
        ("exit-at:lunch", "is not one of args, load_weights"),
        ("hang-loading,hang-loading", "given twice"),
    ],
)
def test_anything_else_is_refused_with_the_reason(text: str, said: str) -> None:
    with pytest.raises(FaultSyntaxError, match=said):
        parse(text)


@pytest.mark.parametrize(("share", "failing"), [(0.2, [5, 10, 15, 20]), (0.5, [2, 4, 6]), (0.0, []), (1.0, [1, 2, 3])])
def test_failing_starts_are_spread_evenly(share: float, failing: list[int]) -> None:
    last = failing[-1] if failing else 10
    assert [start for start in range(1, last + 1) if start_flakes(share, start)] == failing
