"""What a study refers to, and the rules between its parts, are held before anything starts."""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tuner.config.resolve import Overrides
from tuner.errors import StudyFileError, UsageError
from tuner.model.study import UnitHostSpec
from tuner.model.trial import Command
from tuner.search.identity import difference, identity_of, kind_difference
from tuner.testing.project import Project
from tuner.wiring.load import base_remark, check_study, hosts_of, load_study

CHECKOUT = Path(__file__).parents[2]
SPACE = Path("search_spaces") / "sglang-mtp.toml"
STUDY = Path("studies") / "tiny.toml"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    place = tmp_path / "checkout"
    shutil.copytree(CHECKOUT / "search_spaces", place / "search_spaces")
    (place / "studies").mkdir()
    Project(place).write(port=30000)
    return place


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def without(path: Path, table: str) -> None:
    before, found, rest = path.read_text().partition(f"\n[{table}]")
    assert found
    _, following, after = rest.partition("\n[")
    path.write_text(before + following + after)


def refusal(root: Path, overrides: Overrides | None = None, kind: type[UsageError] = StudyFileError) -> str:
    with pytest.raises(kind) as caught:
        load_study(root, "tiny", overrides)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("nccl-flak:0.5", "unknown fault 'nccl-flak'; did you mean nccl-flake"),
        ("nccl-flake:2", "is not a share from 0 to 1"),
        ("slow-gpu", "needs a value: a factor of 1 or more"),
    ],
)
def test_a_fault_that_the_simulated_host_does_not_know_is_refused(root: Path, given: str, words: str) -> None:
    change(root / STUDY, "faults = []", f"faults = {json.dumps([given])}")
    line = refusal(root)
    assert line.startswith("studies/tiny.toml: simulated.faults: ")
    assert words in line


def test_faults_that_exist_are_taken(root: Path) -> None:
    change(root / STUDY, "faults = []", 'faults = ["nccl-flake:0.2", "no-newline"]')
    load_study(root, "tiny")


@pytest.mark.parametrize(
    ("port", "words"),
    [
        ("99999", "--port is 99999, but must be from 1 to 65535"),
        ("0", "--port is 0, but must be from 1 to 65535"),
        ("-1", "--port is -1, but must be from 1 to 65535"),
        ("http", "--port needs a whole number, not 'http'"),
    ],
)
def test_a_port_that_no_server_can_have_is_refused(root: Path, port: str, words: str) -> None:
    change(root / STUDY, '"--port", "30000"', f'"--port", "{port}"')
    line = refusal(root)
    assert line.startswith("studies/tiny.toml: server.command: ")
    assert words in line


def chain_only(root: Path) -> None:
    without(root / SPACE, "parameters.speculative_eagle_topk")


def off_and_chain_only(root: Path) -> None:
    chain_only(root)
    for flag in ('"--speculative-algorithm", "NEXTN", ', '"--speculative-num-steps", "3", '):
        change(root / STUDY, flag, "")
    for flag in ('"--speculative-eagle-topk", "1",', '"--speculative-num-draft-tokens", "4", '):
        change(root / STUDY, flag, "")


@pytest.mark.parametrize(
    ("spoil", "place"),
    [
        (chain_only, "parameters: does not fit studies/tiny.toml and the rules of sglang"),
        (off_and_chain_only, "parameters.speculative_num_steps: can never vary"),
    ],
)
def test_a_space_that_lacks_what_the_engine_needs_is_refused_and_named(
    root: Path, spoil: Callable[[Path], None], place: str
) -> None:
    spoil(root)
    line = refusal(root)
    assert line.startswith(f"search_spaces/sglang-mtp.toml: {place}: ")
    assert "speculative_eagle_topk is missing" in line


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="PyTorch is installed: gp works")
def test_a_sampler_that_lacks_its_package_is_refused_where_it_was_named(root: Path) -> None:
    assert refusal(root, Overrides(sampler="gp"), UsageError).startswith("--sampler: sampler gp needs PyTorch")
    change(root / STUDY, "[budget]", '[search]\nsampler = "gp"\n[budget]')
    assert refusal(root).startswith("studies/tiny.toml: search.sampler: sampler gp needs PyTorch")


@pytest.fixture
def with_prompts(root: Path) -> Path:
    change(root / STUDY, "[workload]", '[workload]\nprompts = "studies/mine.jsonl"')
    (root / "studies" / "mine.jsonl").write_text('{"prompt": "one"}\n{"prompt": "two"}\n')
    return root


def test_a_checkout_that_was_moved_is_the_same_study(with_prompts: Path) -> None:
    before = load_study(with_prompts, "tiny")
    moved = with_prompts.rename(with_prompts.with_name("moved"))
    after = load_study(moved, "tiny")
    assert before.workload.prompts != after.workload.prompts
    assert difference(identity_of(before), after) is None


def test_prompts_that_say_something_else_make_another_study(with_prompts: Path) -> None:
    before = load_study(with_prompts, "tiny")
    change(with_prompts / "studies" / "mine.jsonl", "two", "three")
    assert difference(identity_of(before), load_study(with_prompts, "tiny")) == "was begun with another set of prompts"
    builtin = replace(before, prompts_digest=load_study(CHECKOUT, "qwen-mtp").prompts_digest)
    assert difference(identity_of(before), builtin) == "was begun with another set of prompts"


def stored(root: Path) -> dict[str, Any]:
    """Return what the database would give back of a study that is begun now."""
    content: dict[str, Any] = json.loads(json.dumps(identity_of(load_study(root, "tiny"))))
    return content


def test_a_changed_workload_names_the_keys_that_differ(root: Path) -> None:
    before = stored(root)
    assert difference(before, load_study(root, "tiny")) is None
    change(root / STUDY, "soak_s = 0.5", "soak_s = 7")
    assert difference(before, load_study(root, "tiny")) == "was begun with another workload (soak_s 0.5, now 7.0)"
    del before["details"]  # as an older tuner begins a study
    assert difference(before, load_study(root, "tiny")) == "was begun with another workload"


def test_a_changed_command_line_names_its_flags_and_no_values(root: Path) -> None:
    before = stored(root)
    spec = load_study(root, "tiny")
    base = replace(spec.base, argv=(*spec.base.argv, "--tp", "4", "--api-key", "s3cret"))
    told = difference(before, replace(spec, base=base))
    assert told == "was begun with another search space or base command line (--api-key; --tp)"
    assert "s3cret" not in json.dumps(identity_of(replace(spec, base=base)))


def test_a_simulated_study_is_said_to_be_one_before_anything_else(root: Path) -> None:
    before = stored(root)
    spec = load_study(root, "tiny")
    real = replace(spec, base=replace(spec.base, argv=("x",)), hosts=(UnitHostSpec(name="gpu01", unit="a.service"),))
    assert difference(before, real) == "was begun on the simulated host, and this is a real host"
    assert kind_difference(before, simulated=True) is None


@pytest.mark.parametrize("name", ["qwen-mtp", "smollm2-cpu"])
def test_the_shipped_studies_load(name: str) -> None:
    assert load_study(CHECKOUT, name).name == name


UNIT = Overrides(host="ops@gpu01", unit="sglang-qwen")


def test_hosts_are_known_although_the_space_is_not(root: Path) -> None:
    """A host is looked at and restored whatever somebody did to the search space meanwhile."""
    (root / SPACE).write_text("nonsense")
    assert [host.name for host in hosts_of(root, "tiny", UNIT)] == ["gpu01"]
    with pytest.raises(StudyFileError, match=r"^search_spaces/sglang-mtp.toml: is not valid TOML"):
        check_study(root, "tiny", UNIT)


def test_a_unit_is_looked_at_only_for_a_study_that_is_right(root: Path) -> None:
    check_study(root, "tiny", UNIT)
    change(root / STUDY, "faults = []", 'faults = ["nccl-flak:0.5"]')
    with pytest.raises(StudyFileError, match="did you mean nccl-flake"):
        check_study(root, "tiny", UNIT)


def test_a_shipped_study_runs_on_what_a_unit_runs() -> None:
    before = load_study(CHECKOUT, "qwen-mtp")
    spec = load_study(CHECKOUT, "qwen-mtp", UNIT, Command(argv=before.base.argv))
    assert spec.base == before.base  # [server.env] is added to what the unit runs
    assert (spec.simulated, spec.workload.output_tokens) == (False, 512)
    assert base_remark(CHECKOUT, "qwen-mtp", spec.hosts) == (
        "trial 0 is what sglang-qwen.service runs, [server.env] is added to it; "
        "[server] command of studies/qwen-mtp.toml is not used"
    )
    assert base_remark(CHECKOUT, "qwen-mtp", before.hosts) is None
