"""``[[objectives]]`` and ``[[constraints]]`` of a study file."""

from __future__ import annotations

from typing import Any

import pytest

from tuner.config.aims import Aims, off_the_ladder, without_gpus
from tuner.config.study_file import parse_study
from tuner.errors import StudyFileError
from tuner.model.metric import OBJECTIVES, Direction
from tuner.model.study import HostCare, ProcessHostSpec
from tuner.model.workload import Workload


def aims_of(*objectives: dict[str, Any], require: tuple[str, ...] = ()) -> Aims:
    content: dict[str, Any] = {
        "engine": "sglang",
        "space": "sglang-mtp",
        "server": {"command": ["sglang", "serve"]},
        "budget": {"trials": 3},
        "objectives": list(objectives),
        "constraints": [{"require": each} for each in require],
    }
    return parse_study(content, name="s", shown="studies/s.toml").aims


def test_a_study_that_names_none_is_about_the_two_throughputs_without_a_limit() -> None:
    assert aims_of() == Aims(objectives=OBJECTIVES, constraints=())


def test_objectives_take_their_direction_from_the_registry_unless_the_study_says_otherwise() -> None:
    aims = aims_of(
        {"metric": "single_request_throughput"},
        {"metric": "p95(ttft_s)@16"},
        {"metric": "requests_per_s", "direction": "minimize"},
    )
    assert [each.name for each in aims.objectives] == ["single_request_throughput", "p95(ttft_s)@16", "requests_per_s"]
    assert [each.direction for each in aims.objectives] == [Direction.MAXIMIZE, Direction.MINIMIZE, Direction.MINIMIZE]


def test_limits_are_read_without_objectives_being_named() -> None:
    aims = aims_of(require=("p95(ttft_s)@64 <= 2", "goodput(ttft_s <= 1) >= 3"))
    assert [each.text for each in aims.constraints] == ["p95(ttft_s)@64 <= 2", "goodput(ttft_s <= 1) >= 3"]
    assert aims.objectives == OBJECTIVES


@pytest.mark.parametrize(
    ("objectives", "require", "said"),
    [
        (["p59(ttft_s)", "requests_per_s"], [], 'objectives[0].metric: "p59(ttft_s)", character 1: unknown metric'),
        (["requests_per_s"], [], "objectives: are 1, but must be 2 or 3"),
        (["requests_per_s"] * 2, [], "objectives[1].metric: requests_per_s is an objective already"),
        ([], ["p95(ttft_s) < 2"], "constraints[0].require"),
        ([], ["e2e_s <= 2"], "write which you mean, such as p95(e2e_s)"),
        ([], ["p95(e2e_s) <= 2", "p95(e2e_s) <= 3"], "constraints[1].require: limits p95(e2e_s) twice"),
    ],
    ids=["unknown", "one", "the same", "less", "no statistic", "two limits"],
)
def test_what_is_wrong_is_named_with_its_place_and_a_remedy(
    objectives: list[str], require: list[str], said: str
) -> None:
    with pytest.raises(StudyFileError) as refused:
        aims_of(*({"metric": each} for each in objectives), require=tuple(require))
    assert said in str(refused.value)
    assert "studies/s.toml" in str(refused.value)


def test_a_level_that_is_not_measured_is_refused_with_those_that_are() -> None:
    aims = aims_of({"metric": "requests_per_s@32"}, {"metric": "p50(e2e_s)@4"}, require=("p95(ttft_s)@128 <= 2",))
    found = off_the_ladder(aims, Workload(ladder=(1, 4, 16)))
    assert [problem.key for problem in found] == ["objectives[0].metric", "constraints[0].require"]
    assert found[0].text.endswith("choose one of the ladder: 1 4 16")


def test_energy_is_refused_where_the_server_uses_no_gpu() -> None:
    aims = aims_of({"metric": "requests_per_s"}, {"metric": "joules_per_token@4"})
    with_gpus = ProcessHostSpec(name="gpu01", state_dir="/state")
    without = ProcessHostSpec(name="cpu01", state_dir="/state", care=HostCare(uses_gpus=False))
    assert without_gpus(aims, [with_gpus]) == []
    (problem,) = without_gpus(aims, [with_gpus, without])
    assert problem.key == "objectives[1].metric"
    assert "the server of host cpu01 uses none" in problem.text
    assert without_gpus(aims_of(), [without]) == []
