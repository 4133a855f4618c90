"""What is decided of a unit, its version and the way to it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tuner.engines.versions import judge, release
from tuner.hosts.checks.advice import TABLE, Advice
from tuner.hosts.checks.command import command_row, looks_like, refused_row, run_words, unfit_row
from tuner.hosts.checks.route import (
    RouteReading,
    Server,
    Way,
    needed_chunks_per_s,
    read_reply,
    route_row,
    silent_row,
)
from tuner.hosts.checks.unit import UnitView, effects_row, kind_row, nearest, parse_view, unit_row
from tuner.hosts.systemd.holding import Seen
from tuner.model.finding import RowVerdict
from tuner.model.lease import Holder
from tuner.model.space import Assignment
from tuner.model.trial import Command

OK, WARNING, FAILED = RowVerdict.OK, RowVerdict.WARNING, RowVerdict.FAILED
UNIT = "sglang-qwen.service"
ME = Holder(owner="me@here", study="mtp", directory="/studies/mtp", machine="m1", pid=4711, since_s=1_796_000_000.0)
LOADED = {
    "LoadState": "loaded",
    "ActiveState": "active",
    "SubState": "running",
    "UnitFileState": "enabled",
    "Type": "simple",
    "MainPID": "7",
    "NeedDaemonReload": "no",
    "ExecStart": "{ path=/usr/bin/sglang ; … }",
}


def view(changes: dict[str, str] | None = None, *, starts: int = 1) -> UnitView:
    return UnitView(said=tuple({**LOADED, **(changes or {})}.items()), starts=starts)


def test_properties_are_read_and_start_lines_counted() -> None:
    found = parse_view("LoadState=loaded\nExecStart={ a=b }\nExecStart={ c }\nMainPID=12\nActiveState=active\nnoise\n")
    assert found["LoadState"] == "loaded"
    assert found["OnFailure"] == ""
    assert found.starts == 2
    assert found.main_pid == 12
    assert found.is_running


@pytest.mark.parametrize(
    ("changes", "verdict", "part"),
    [
        ({}, OK, "active (running), enabled"),
        ({"ActiveState": "inactive", "SubState": "dead", "MainPID": "0"}, OK, "inactive"),
        ({"LoadState": "not-found"}, FAILED, "no unit"),
        ({"LoadState": "masked"}, FAILED, "masked"),
        ({"LoadState": "bad-setting", "LoadError": '"Unit has a bad setting"'}, FAILED, "bad setting"),
        ({"UnitFileState": "transient"}, FAILED, "made by systemd-run"),
        ({"NeedDaemonReload": "yes"}, WARNING, "changed"),
        ({"ActiveState": "activating", "SubState": "auto-restart"}, WARNING, "crashes"),
    ],
)
def test_a_unit_is_usable_or_says_what_to_do(changes: dict[str, str], verdict: RowVerdict, part: str) -> None:
    row = unit_row(UNIT, view(changes))
    assert row.verdict is verdict
    assert part in row.detail
    assert bool(row.remedy) == (verdict is not OK)


def test_an_unknown_unit_is_told_the_nearest_names() -> None:
    names = {"sglang-qwen3.service", "sshd.service", "sglang@.service", "cron.service"}
    assert nearest("sglang-qwen.service", names)[0] == "sglang-qwen3.service"
    row = unit_row("sglang-qwen.service", view({"LoadState": "not-found"}), names)
    assert "sglang-qwen3.service" in row.remedy
    assert row.remedy.endswith("correct unit in its [[hosts]] table")
    by_options = unit_row("x.service", view({"LoadState": "not-found"}), names, Advice(by_options=True))
    assert by_options.remedy.endswith("correct --unit")
    assert nearest("SGLANG.service", names) == ("sglang-qwen3.service", "sglang@.service")
    assert nearest("zebra.service", names) == ()


def test_a_template_asks_for_an_instance() -> None:
    row = unit_row("sglang@.service", UnitView(problem="Unit name sglang@.service is neither a valid …"))
    assert row.verdict is FAILED
    assert "sglang@NAME.service" in row.remedy


@pytest.mark.parametrize("kind", ["oneshot", "forking", "dbus"])
def test_a_unit_whose_main_process_is_another_is_refused(kind: str) -> None:
    row = kind_row(UNIT, view({"Type": kind}))
    assert row is not None
    assert row.verdict is FAILED
    assert kind in row.detail
    assert row.remedy


@pytest.mark.parametrize(("starts", "line"), [(2, "{ x }"), (1, ""), (0, "")])
def test_a_unit_has_exactly_one_start_line(starts: int, line: str) -> None:
    row = kind_row(UNIT, view({"ExecStart": line}, starts=starts))
    assert row is not None
    assert row.verdict is FAILED


def test_a_plain_unit_is_of_the_right_kind() -> None:
    assert kind_row(UNIT, view()) is None


@pytest.mark.parametrize(
    ("changes", "verdict", "part"),
    [
        ({}, OK, "nothing depends"),
        ({"OnFailure": "alert.service"}, WARNING, "alert.service"),
        ({"ExecStopPost": "{ path=/bin/page ; }"}, WARNING, "ExecStopPost"),
        ({"BoundBy": "proxy.service multi-user.target"}, WARNING, "proxy.service is stopped"),
        ({"BoundBy": "proxy.service", "running dependants": "proxy.service"}, FAILED, "proxy.service would be stopped"),
        ({"RequiredBy": "multi-user.target"}, OK, "nothing depends"),
        ({"TriggeredBy": "sglang.socket"}, WARNING, "sglang.socket"),
        ({"FailureAction": "reboot", "SuccessAction": "none"}, OK, "FailureAction=reboot"),
    ],
)
def test_what_a_crashing_trial_would_set_off_is_told(changes: dict[str, str], verdict: RowVerdict, part: str) -> None:
    row = effects_row(view(changes))
    assert row.verdict is verdict
    assert part in row.detail


def test_a_refused_command_line_is_split_into_what_and_remedy() -> None:
    row = refused_row("unit x runs a shell (/bin/sh): put the engine's own command into ExecStart=; a: b")
    assert row.detail == "unit x runs a shell (/bin/sh)"
    assert row.remedy == "put the engine's own command into ExecStart=; a: b"
    assert refused_row("no colon").remedy


def test_what_runs_today_is_shown_with_the_drop_ins_that_are_there() -> None:
    command = Command(argv=("/opt/sglang", "serve"))
    row = command_row(command, Assignment.of({"steps": 3}), ("/etc/systemd/system/x.d/override.conf",))
    assert row.verdict is OK
    assert "steps=3" in row.detail
    assert "override.conf" in row.detail


def test_a_trials_drop_in_that_was_left_is_a_warning_with_restore() -> None:
    todo = run_words(None, ME, Advice(restore="python -m tuner restore --study mine"))
    row = command_row(Command(argv=("a",)), Assignment.of({"x": 1}), ("/run/systemd/system/x.d/zzzz-tuner.conf",), todo)
    assert row.verdict is WARNING
    assert row.remedy == "a run was killed here; python -m tuner restore --study mine puts the original back"
    assert "in a trial's drop-in, not what runs without it: x=1" in row.detail
    assert "today" not in row.detail


def test_a_drop_in_of_a_run_that_may_live_is_not_simply_to_be_removed() -> None:
    other = replace(ME, owner="bob@there", study="night", directory="/s/night")
    told = run_words(Seen(text="x", holder=other, left_s=800.0, exists=True), ME, TABLE)
    assert told.startswith("wait for the run of bob@there (study night in /s/night")
    assert "restore --study" not in told
    assert "under way, or was killed" in run_words(Seen(text="x", holder=ME, left_s=800.0, exists=True), ME, TABLE)
    assert run_words(Seen(text="x", holder=other, left_s=-1.0, exists=True), ME, TABLE).startswith("a run was killed")


def test_a_unit_of_another_program_is_told_so_and_not_asked_for_flags() -> None:
    row = unfit_row("dbus.service", "sglang", Command(argv=("/usr/bin/dbus-daemon", "--system")), "pin x", TABLE)
    assert row.detail == "ExecStart of dbus.service is /usr/bin/dbus-daemon, which is not sglang"
    assert row.remedy == "correct unit in its [[hosts]] table"
    ours = Command(argv=("python3", "-m", "sglang.launch_server"))
    assert unfit_row("a.service", "sglang", ours, "pin x", TABLE).detail == "a.service: pin x"
    assert looks_like("llamacpp", Command(argv=("/opt/llama-server",)))


# ------------------------------------------------------------------ versions


@pytest.mark.parametrize(
    ("version", "tested"),
    [
        ("0.5.9", True),
        ("0.5.23", True),
        ("0.5.15.post2", True),
        ("0.5.10rc1+cu128", True),
        ("v0.5.12", True),
        ("0.5.8", False),
        ("0.5.24", False),
        ("0.6", False),
        ("0.4.9.post6", False),
        ("1.0", False),
        ("main", False),
        (None, False),
    ],
)
def test_a_version_is_inside_the_tested_range_or_not(version: str | None, *, tested: bool) -> None:
    found = judge("sglang", version)
    assert found.is_tested is tested
    assert bool(found.remedy) is not tested
    assert "0.5.9 to 0.5.23" in found.text


def test_an_engine_that_is_not_tied_to_releases_is_never_outside() -> None:
    assert judge("llamacpp", None).is_tested
    assert judge("llamacpp", "b4567").is_tested


def test_releases_compare_as_numbers() -> None:
    low, high = release("0.5.9"), release("0.5.10")
    assert low is not None
    assert high is not None
    assert low < high
    assert release("1") == (1, 0, 0)
    assert release("b4567") is None


# ------------------------------------------------------------------ route


def test_the_highest_level_sets_what_the_route_has_to_carry() -> None:
    assert needed_chunks_per_s((1, 4, 64)) == 3200


WIDE, NARROW = 50e6, 0.5e6  # bytes a second; 3200 chunks/s want 1.1 MB/s


@pytest.mark.parametrize(
    ("reading", "verdict", "part"),
    [
        (RouteReading(trip_s=0.002, replies_per_s=5000.0, bytes_per_s=WIDE), OK, "2.0 ms"),
        (RouteReading(trip_s=0.002, replies_per_s=5000.0), OK, "5000 small replies/s"),
        (RouteReading(trip_s=0.002, replies_per_s=1200.0, bytes_per_s=WIDE), OK, "carries 142857 chunks/s"),
        (RouteReading(trip_s=0.002, replies_per_s=1200.0, bytes_per_s=NARROW), WARNING, "carries 1429 chunks/s"),
        (RouteReading(trip_s=0.002, replies_per_s=100.0, bytes_per_s=WIDE), WARNING, "100 small replies/s"),
        (RouteReading(trip_s=0.002, problem="gave up"), WARNING, "gave up"),
        (RouteReading(problem="refused"), WARNING, "refused"),
    ],
)
def test_a_route_that_is_too_narrow_is_told_in_numbers(reading: RouteReading, verdict: RowVerdict, part: str) -> None:
    row = route_row(reading, (1, 64), Way(text="ssh -L"))
    assert row.verdict is verdict
    assert part in row.detail
    assert row.detail.startswith("ssh -L")
    assert bool(row.remedy) == (verdict is WARNING)
    if reading.replies_per_s is not None:
        assert "3200 chunks/s" in row.detail


@pytest.mark.parametrize(("is_cut", "listens"), [(True, True), (True, False), (False, True)])
def test_a_way_that_does_not_lead_to_a_port_that_is_listened_on_forbids_a_run(is_cut: bool, listens: bool) -> None:
    row = route_row(RouteReading(problem="refused", is_cut=is_cut), (1, 64), Way(text="gpu01:30000"), listens=listens)
    assert row.verdict is (FAILED if is_cut and listens else WARNING)
    assert all(word in row.remedy for word in ("firewall", "tunnel = true", "AllowTcpForwarding"))


def test_a_url_that_leads_nowhere_is_named_once_with_the_port_that_is_meant() -> None:
    url = "http://gpu01:31000"
    way = Way(text=url, base_url=url, other_port="base_url names port 31000, the server's command line 30000")
    reading = RouteReading(problem=f"{url} cannot be connected to: connection refused", is_cut=True)
    row = route_row(reading, (1, 64), way, listens=True)
    assert row.verdict is FAILED
    assert row.detail == (
        f"{url} cannot be connected to: connection refused; base_url names port 31000, the server's command line 30000"
    )
    assert row.remedy.startswith("correct base_url in")


def test_who_goes_through_a_tunnel_is_not_told_to_take_one() -> None:
    way = Way(text="ssh -L", is_tunnel=True, advice=Advice(by_options=True))
    remedy = route_row(RouteReading(problem="refused", is_cut=True), (1, 64), way, listens=True).remedy
    assert "AllowTcpForwarding" in remedy
    assert "--tunnel" not in remedy
    assert "firewall" not in remedy


@pytest.mark.parametrize(("bytes_per_s", "verdict"), [(WIDE, OK), (NARROW, WARNING), (None, OK)])
def test_a_route_to_no_server_says_what_was_not_measured(bytes_per_s: float | None, verdict: RowVerdict) -> None:
    row = silent_row(0.012, RouteReading(bytes_per_s=bytes_per_s), (1, 64), "ssh -L")
    assert row.verdict is verdict
    assert "12 ms" in row.detail
    assert "no server runs" in row.detail


def test_a_request_names_its_host_and_carries_the_key() -> None:
    server = Server.of("https://llm.example/prefix/", (("Authorization", "Bearer k"),))
    assert (server.host, server.port, server.tls) == ("llm.example", 443, True)
    assert server.request.startswith(b"GET /prefix/v1/models HTTP/1.1\r\nHost: llm.example\r\n")
    assert b"Authorization: Bearer k\r\n\r\n" in server.request


@pytest.mark.parametrize(
    ("wire", "statuses"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 401 No\r\nContent-Length: 0\r\n\r\n", [200, 401]),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", [200]),
    ],
)
def test_replies_are_counted_whole_one_after_the_other(wire: bytes, statuses: list[int]) -> None:
    async def read() -> list[int]:
        reader = asyncio.StreamReader()
        reader.feed_data(wire)
        reader.feed_eof()
        return [await read_reply(reader) for _ in statuses]

    assert asyncio.run(read()) == statuses
