"""What validate prints, what a run ends with, and what status shows."""

from __future__ import annotations

import io
import shlex
from dataclasses import replace

from rich.console import Console

from tuner.model.lease import LeaseTerms
from tuner.model.metric import OBJECTIVES
from tuner.model.metric_text import constraint_of, metric_of, objective_of
from tuner.model.outcome import Faulted, TrialState
from tuner.model.repeat import RepeatTerms
from tuner.model.study import HostCare, ProcessHostSpec, Reach, SimulatedHostSpec, SshLogin, UnitHostSpec
from tuner.model.trial import Command
from tuner.screen.plan import command_lines, ending_lines, host_words, plan_lines, time_words
from tuner.screen.status import status_line, status_table
from tuner.testing.fake_run import infeasible, measured, mtp, row, spec_of

AWKWARD = Command(
    argv=("sglang", "serve", "--model-path", "a model's path", "--json", '{"a": 1}', "--empty", "", "-x", "--flag"),
    env=(("SGLANG_LOG_MS", "1"), ("PLACE", "/a b")),
)


def test_a_command_is_written_one_flag_a_line_and_reads_back_as_the_same_argv() -> None:
    lines = command_lines(AWKWARD)
    assert lines[0] == "SGLANG_LOG_MS=1 \\"
    assert lines[2] == "  sglang serve \\"
    assert lines[-1] == "  --flag"
    joined = " ".join(line.removesuffix("\\") for line in lines)  # as a shell joins continued lines
    assert shlex.split(joined) == ["SGLANG_LOG_MS=1", "PLACE=/a b", *AWKWARD.argv]


def test_secrets_of_the_environment_are_not_shown() -> None:
    command = Command(argv=("serve",), env=(("HF_TOKEN", "s3cret"), ("HOME", "/h")))
    assert command_lines(command) == ["HF_TOKEN=*** \\", "  HOME=/h \\", "  serve"]


def test_secrets_of_the_command_line_are_not_shown() -> None:
    command = Command(argv=("serve", "--api-key", "it's s3cret", "--hf-token=t0ken", "--max-total-tokens", "9"))
    lines = command_lines(command)
    assert lines[1:] == ["  --api-key *** \\", "  --hf-token=*** \\", "  --max-total-tokens 9"]


def test_a_bare_command_is_one_line() -> None:
    assert command_lines(Command(argv=("serve",))) == ["serve"]


def test_the_plan_names_objectives_and_limits_where_a_study_has_its_own() -> None:
    wait = objective_of(metric_of("p95(ttft_s)@16"))
    own = replace(spec_of(), objectives=(*OBJECTIVES, wait), constraints=(constraint_of("p95(ttft_s)@64 <= 2"),))
    lines = plan_lines(own)
    first = lines.index("objectives single_request_throughput (maximize, tok/s)")
    assert lines[first + 1 : first + 4] == [
        "           aggregate_throughput (maximize, tok/s)",
        "           p95(ttft_s)@16 (minimize, s)",
        "limits     p95(ttft_s)@64 <= 2",
    ]
    assert not any(line.startswith(("objectives", "limits")) for line in plan_lines(spec_of()))


def test_the_plan_says_what_would_run_where_and_for_how_long() -> None:
    text = "\n".join(plan_lines(spec_of()))
    for words in (
        "study      qwen-mtp (SIMULATED)",
        "space      sglang-mtp: 154,224 combinations before the engine's rules",
        "           speculative_num_steps: 0 to 16",
        "           mem_fraction_static: 0.6 to 0.95 in steps of 0.01",
        "trial 0    steps 3 · topk 1 · draft 4 · fraction 0.8 (the command above as it stands)",
        "trials     24, sampler auto, seed 1",
        "workload   builtin prompts, 512 output tokens exactly, temperature 0 (shortened for the simulated host)",
        "1 4 16 32 64 requests at once, 10 to 60 s each until the 95 % interval is within ±2 %; then 20 to 60 s more",
        "hosts      sim0: simulated GPU host at 127.0.0.1, profile small, loads 1 times faster than real",
        "results    /studies/qwen-mtp",
    ):
        assert words in text


def test_a_real_host_is_planned_without_the_badge() -> None:
    text = "\n".join(plan_lines(spec_of(simulated=False)))
    assert "SIMULATED" not in text
    assert "simulated" not in text
    assert "hosts      host0: this machine" in text


def test_more_hosts_take_less_time() -> None:
    assert time_words(spec_of(hosts=1)).startswith("28 min to 2 h 24 min of measuring in 24 rounds")
    assert "24 rounds, less for configurations that fail; and 24 server starts" in time_words(spec_of())
    assert "in 1 round, less for configurations that fail; and 1 server start" in time_words(spec_of(trials=1))
    assert time_words(spec_of(hosts=5)).startswith("5 min 50 s to 30 min of measuring in 5 rounds")


def test_fault_switches_are_shown() -> None:
    host = SimulatedHostSpec(name="s", address="127.0.0.1", state_dir="/s", profile="p", faults=("hang", "nccl:0.2"))
    assert host_words(host).endswith(", faults hang nccl:0.2")
    assert host_words(ProcessHostSpec(name="h", state_dir="/h")) == "h: this machine"


def test_a_host_of_somebody_is_shown_with_what_is_his() -> None:
    login = SshLogin(host="gpu01", user="ops", port=2222)
    unit = UnitHostSpec(name="g", unit="sglang.service", login=login, sudo=True)
    assert host_words(unit) == (
        "g: sglang.service of ops@gpu01:2222 over SSH, with sudo, load straight to its port, "
        "restores itself 15 min after tuner is gone"
    )
    care = HostCare(gpu_indices=(0, 1), lease=LeaseTerms(lasts_s=45.0))
    tunnel = UnitHostSpec(name="g", unit="a.service", login=SshLogin(host="::1"), reach=Reach(tunnel=True), care=care)
    assert host_words(tunnel) == (
        "g: a.service of ::1 over SSH, GPU 0 1, load through an SSH tunnel, restores itself 45 s after tuner is gone"
    )
    here = UnitHostSpec(name="here", unit="a.service", reach=Reach(base_url="http://h:1"))
    assert host_words(here).startswith("here: a.service of this machine, load to http://h:1, restores itself ")
    process = ProcessHostSpec(name="p", state_dir="/tmp/t", login=SshLogin(host="::1", port=22))
    assert host_words(process).startswith("p: [::1]:22 over SSH, load straight to its port, restores itself ")


def test_a_run_ends_with_gains_places_and_how_to_look() -> None:
    spec = replace(spec_of(), directory="/my studies/qwen-mtp")
    lines = ending_lines(spec, ["best single: +21 %"], again=None, viewer="/v/optuna-dashboard")
    assert lines == [
        "study qwen-mtp is complete (SIMULATED: these are numbers of the simulated GPU host)",
        "best single: +21 %",
        "written to /my studies/qwen-mtp: front.csv, trials.csv, front.png, study.db, and the evidence of every trial",
        "look at it with: /v/optuna-dashboard 'sqlite:////my studies/qwen-mtp/study.db'",
    ]


def test_an_interrupted_run_says_how_to_go_on() -> None:
    lines = ending_lines(spec_of(simulated=False), [], again="scripts/run qwen-mtp", viewer="v")
    assert lines[:2] == ["study qwen-mtp was interrupted", "go on with: scripts/run qwen-mtp"]


def test_a_terminal_breaks_the_ending_at_words_but_no_path_and_no_command() -> None:
    folder = "/home/somebody/with a rather long home/my studies/qwen-mtp"
    again = "python -m tuner run --study qwen-mtp --trials 2 --speed 20 --root '/home/somebody/my studies'"
    gain = "best single-request throughput: 282.2 tok/s in trial 12, +20.6 % against today's 234.0"
    spec = replace(spec_of(), directory=folder)
    lines = ending_lines(spec, [gain], again=again, viewer="/v/optuna-dashboard", width=80)
    assert lines == [
        "study qwen-mtp was interrupted (SIMULATED: these are numbers of the simulated",
        "  GPU host)",
        "best single-request throughput: 282.2 tok/s in trial 12, +20.6 % against today's",
        "  234.0",
        "go on with:",
        f"  {again}",
        f"written to {folder}:",
        "  front.csv, trials.csv, front.png, study.db, and the evidence of every trial",
        "look at it with:",
        f"  /v/optuna-dashboard 'sqlite:///{folder}/study.db'",
    ]


def test_status_counts_what_counts() -> None:
    rows = (
        row(0, mtp(3), measured(234, 1979)),
        row(1, mtp(9), infeasible()),
        row(2, mtp(4), Faulted(error="NCCL", state=TrialState.LOADING)),
    )
    line = status_line("qwen-mtp", rows, trials=24, simulated=True, driver="process 7 since noon")
    assert line == (
        "qwen-mtp (SIMULATED): 2 of 24 trials done, 1 measured, 1 infeasible, 1 fault; run by process 7 since noon"
    )
    assert status_line("s", rows, trials=None, simulated=False, driver=None).startswith("s: 2 trials done, 1 measured")
    assert status_line("s", rows[:1], trials=None, simulated=False, driver=None).startswith("s: 1 trial done, 1 meas")
    assert status_line("s", (), trials=4, simulated=False, driver=None) == (
        "s: 0 of 4 trials done, 0 measured, 0 infeasible; not running"
    )


def drawn(*, running: bool, width: int) -> list[str]:
    rows = (
        row(0, mtp(3), measured(234, 1979)),
        row(1, mtp(9), None, duration_s=None),
        replace(row(2, mtp(4), None, duration_s=None), host=None),
    )
    names = ("speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens", "mem_fraction_static")
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(status_table(rows, names, running=running))
    return console.export_text().splitlines()


def test_status_lists_every_trial_with_what_became_of_it() -> None:
    lines = drawn(running=True, width=200)
    assert "single request 234 tok/s, aggregate 1,979 tok/s at 32" in lines[1]
    assert lines[2].rstrip().endswith("running")
    assert lines[3].rstrip().endswith("waiting")


def test_a_trial_under_way_without_a_driver_was_cut_off() -> None:
    assert drawn(running=False, width=200)[2].rstrip().endswith("cut off, will run again")


def test_status_fits_a_narrow_terminal() -> None:
    assert max(map(len, drawn(running=True, width=80))) <= 80


def test_the_plan_says_what_is_measured_again_where_anything_is() -> None:
    terms = RepeatTerms(confirmations=2, baseline_every=8)
    (line,) = (line for line in plan_lines(replace(spec_of(), repeats=terms)) if line.startswith("repeats"))
    assert "the baseline after every 8 trials of a host, winners and near misses 2 times each at the end" in line
    assert line.endswith("; at most 24 in all")
    assert not any(line.startswith("repeats") for line in plan_lines(spec_of()))
