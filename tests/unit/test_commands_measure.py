"""What ``tuner measure`` accepts, refuses and answers with, before any server is asked."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from tuner.cli import main
from tuner.commands.json_file import JsonFile
from tuner.commands.measure import address_of, exit_code, levels_of
from tuner.errors import UsageError
from tuner.model.measurement import LegKind, Level, Measurement, ServerFacts
from tuner.model.metric import Estimate
from tuner.model.record import LegResult
from tuner.model.workload import Workload

SERVER = ServerFacts(base_url="http://s", engine="openai", is_recognised=False, model="m")
VALUE = Estimate(value=100.0, low=99.0, high=101.0, samples=9)


def level(*, failed: int = 0, aggregate: Estimate | None = VALUE) -> Level:
    result = LegResult(
        concurrency=4,
        single_request_throughput=aggregate,
        aggregate_throughput=aggregate,
        window_s=1.0,
        offered=9 + failed,
        completed=9,
        failed=failed,
        converged=True,
    )
    return Level(concurrency=4, result=result)


def measured(*levels: Level, is_interrupted: bool = False, gone: str | None = None) -> Measurement:
    return Measurement(
        server=SERVER,
        workload=Workload(ladder=(4,)),
        seed=0,
        began_unix_s=0.0,
        duration_s=1.0,
        levels=levels,
        is_interrupted=is_interrupted,
        gone=gone,
    )


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return the one line with which ``measure`` refuses its options."""
    assert main(["measure", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("tuner: error: ")
    assert err.count("\n") == 1
    return err


# ------------------------------------------------------------------ levels


def test_levels_ascend_and_may_have_spaces() -> None:
    assert levels_of("1, 4,16") == (1, 4, 16)
    assert levels_of("8") == (8,)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no whole number"),
        ("1,,4", "no whole number"),
        ("1,four", "'four' is no whole number"),
        ("-1", "no whole number"),
        ("1.5", "no whole number"),
        ("0,4", "from 1 to 4096"),
        ("1,5000", "from 1 to 4096"),
        ("4,1", "must ascend, each once: 1,4"),
        ("1,4,4", "must ascend, each once: 1,4"),
        (",".join(str(n) for n in range(1, 40)), "at most 32"),
    ],
)
def test_levels_that_are_none_are_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        levels_of(text)


def test_a_level_with_more_connections_than_files_is_refused_before_the_server_is_asked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        assert "ulimit -n 564" in refused(capsys, "--base-url", "http://s", "--levels", "1,500")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# ------------------------------------------------------------------ address and key


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ("http://gpu01:30000", "http://gpu01:30000"),
        ("http://gpu01:30000/", "http://gpu01:30000"),
        ("http://gpu01:30000/v1", "http://gpu01:30000"),
        ("https://gw/models/qwen/v1/", "https://gw/models/qwen"),
        ("http://[::1]:8000/v1", "http://[::1]:8000"),
    ],
)
def test_an_address_is_taken_with_or_without_v1(given: str, address: str) -> None:
    assert address_of(given) == address


@pytest.mark.parametrize(
    "given", ["gpu01:30000", "ftp://gpu01", "http://", "http://s:0", "http://s:99999", "http://s/v1?a=b", "http://[::1"]
)
def test_an_address_that_is_none_is_refused(given: str) -> None:
    with pytest.raises(UsageError, match="http://host:port"):
        address_of(given)


def test_a_password_in_an_address_is_refused_and_not_repeated() -> None:
    with pytest.raises(UsageError) as caught:
        address_of("http://me:hunter2@gpu01:8000")
    assert "hunter2" not in str(caught.value)
    assert "--api-key-env" in str(caught.value)


@pytest.mark.parametrize(
    ("value", "said"),
    [(None, "no such variable"), ("", "it is empty"), ("a\nb", "no header can carry"), ("schlüssel", "no header")],
    ids=["unset", "empty", "two-lines", "not-ascii"],
)
def test_a_key_that_cannot_be_sent_is_refused_and_not_shown(
    value: str | None, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("GPU_KEY", raising=False)
    if value is not None:
        monkeypatch.setenv("GPU_KEY", value)
    err = refused(capsys, "--base-url", "http://s", "--api-key-env", "GPU_KEY")
    assert "--api-key-env GPU_KEY" in err
    assert said in err
    assert not value or value not in err


# ------------------------------------------------------------------ other options


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "--base-url is missing"),
        (("--base-url", "http://s", "--min-seconds", "9", "--max-seconds", "3"), "--min-seconds 9 is more than"),
        (("--base-url", "http://s", "--interval", "nan"), "--interval"),
        (("--base-url", "http://s", "--soak", "inf"), "nan or inf"),
        (("--base-url", "http://s", "--output-tokens", "1"), "--output-tokens"),
        (("--base-url", "http://s", "--engine", "vllm"), "--engine"),
        (("--base-url", "http://s", "--prompts", "no/such.jsonl"), "no/such.jsonl"),
        (("--base-url", "http://s", "--json", "no/such/folder/out.json"), "--json no/such/folder/out.json"),
        (("--base-url", "http://s", "--json", "/"), "it is a folder"),
    ],
)
def test_a_wrong_option_is_one_line_that_names_it(
    arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in refused(capsys, *arguments)


# ------------------------------------------------------------------ the file


def test_a_file_is_replaced_as_a_whole_and_nothing_is_written_before(tmp_path: Path) -> None:
    place = tmp_path / "out.json"
    report = JsonFile(str(place))
    assert list(tmp_path.iterdir()) == []
    report.write("one")
    report.write("two")
    assert place.read_text() == "two\n"
    assert list(tmp_path.iterdir()) == [place]
    assert (report.is_standard_output, report.standard_output) == (False, None)


def test_a_dash_keeps_the_last_document_for_standard_output() -> None:
    report = JsonFile("-")
    report.write("one")
    report.write("two")
    assert (report.is_standard_output, report.standard_output) == (True, "two")


def test_a_device_is_written_to_and_not_replaced() -> None:
    JsonFile(os.devnull).write("gone")
    assert not Path(os.devnull).is_file()


# ------------------------------------------------------------------ exit codes


@pytest.mark.parametrize(
    ("measurement", "code"),
    [
        pytest.param(measured(level()), 0, id="all-sound"),
        pytest.param(measured(level(), level(failed=1)), 6, id="a-failed-request"),
        pytest.param(measured(level(aggregate=None)), 6, id="no-window"),
        pytest.param(measured(Level(concurrency=4, kind=LegKind.SOAK, why="void")), 6, id="void"),
        pytest.param(measured(level(failed=1), gone="/health answered 503"), 3, id="gone"),
        pytest.param(measured(level(), is_interrupted=True), 130, id="interrupted"),
    ],
)
def test_the_exit_code_says_how_far_the_numbers_are_to_be_trusted(measurement: Measurement, code: int) -> None:
    assert exit_code(measurement) == code


def test_a_test_of_the_client_measures_no_server(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--selftest measures this machine's client" in refused(capsys, "--selftest", "--base-url", "http://s")
