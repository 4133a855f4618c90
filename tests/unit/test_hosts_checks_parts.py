"""What each part of a check reads and decides."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tuner.errors import HostFault, HostKeyRefused, LoginRefused, TransportFault
from tuner.hosts.checks.address import address_row, listen_address
from tuner.hosts.checks.advice import Advice
from tuner.hosts.checks.clock import ClockOffset, clock_row, offset
from tuner.hosts.checks.disk import Space, disk_row, parse_space, run_row
from tuner.hosts.checks.installed import is_python, shebang
from tuner.hosts.checks.journal import Journal, journal_row, parse_journal
from tuner.hosts.checks.lease import lease_row
from tuner.hosts.checks.login import login_rows, refused_rows
from tuner.hosts.checks.machine import Machine, parse_machine, systemd_row, tools_row
from tuner.hosts.checks.process_host import program_row, state_row
from tuner.hosts.checks.row import gib, one_line
from tuner.hosts.systemd.holding import Seen, write_holder
from tuner.model.finding import RowVerdict
from tuner.model.lease import Holder
from tuner.model.study import Reach, SshLogin

OK, WARNING, FAILED, UNKNOWN = RowVerdict.OK, RowVerdict.WARNING, RowVerdict.FAILED, RowVerdict.UNKNOWN
MIB, GIB = 1 << 20, 1 << 30


def machine(**changes: object) -> Machine:
    values: dict[str, object] = {
        "user": "ops",
        "uid": 1001,
        "groups": frozenset({"ops"}),
        "name": "gpu01",
        "booted_with_systemd": True,
        "systemd": "systemd 252 (252.39-1~deb12u1)",
        "init": "systemd",
        "tools": (),
        **changes,
    }
    return Machine(**values)  # type: ignore[arg-type]


def space(folder: str = "/run", free: int | None = GIB, **changes: object) -> Space:
    values: dict[str, object] = {"folder": folder, "free_bytes": free, "inodes": None, "read_only": False, **changes}
    return Space(**values)  # type: ignore[arg-type]


# ------------------------------------------------------------------ machine


def test_a_first_look_is_read_whole() -> None:
    text = (
        "user ops\nuid 1001\ngroups ops adm\nname gpu01\nbooted yes\nsystemd systemd 252 (252.39)\n"
        "init systemd\ntool tee /usr/bin/tee\ntool mv /bin/mv\n"
    )
    found = parse_machine(text)
    assert (found.user, found.uid, found.is_root) == ("ops", 1001, False)
    assert found.groups == {"ops", "adm"}
    assert found.booted_with_systemd
    assert found.tools == (("tee", "/usr/bin/tee"), ("mv", "/bin/mv"))


def test_a_first_look_that_says_nothing_is_nobody_and_not_root() -> None:
    found = parse_machine("")
    assert (found.user, found.uid, found.is_root, found.booted_with_systemd) == ("", -1, False, False)


def test_a_systemd_that_is_new_enough_is_fine() -> None:
    assert systemd_row(machine()).verdict is OK


@pytest.mark.parametrize(
    ("said", "part"),
    [
        ({"booted_with_systemd": False, "init": "runit"}, "process 1 is runit"),
        ({"systemd": ""}, "not booted with systemd"),
        ({"systemd": "systemd 237"}, "237"),
        ({"systemd": "hello"}, "hello"),
    ],
)
def test_a_host_without_a_systemd_to_work_with_fails_and_says_what_to_do(said: dict[str, object], part: str) -> None:
    row = systemd_row(machine(**said))
    assert row.verdict is FAILED
    assert part in row.detail
    assert row.remedy


def test_a_host_without_systemd_is_told_of_process_hosts() -> None:
    assert 'kind = "process"' in systemd_row(machine(booted_with_systemd=False)).remedy


def test_missing_tools_are_named() -> None:
    row = tools_row(machine(tools=(("sh", "/bin/sh"),)), ("sh", "setsid"))
    assert row.verdict is FAILED
    assert "setsid" in row.detail
    assert tools_row(machine(tools=(("sh", "/bin/sh"),)), ("sh",)).verdict is OK


# ------------------------------------------------------------------ login

LOGIN = SshLogin(host="gpu01", user="ops")


def verdicts(rows: tuple[object, ...]) -> dict[str, RowVerdict]:
    return {row.check: row.verdict for row in rows}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (TransportFault("gpu01: no answer"), (FAILED, UNKNOWN, UNKNOWN)),
        (HostKeyRefused("gpu01: unknown key: ask ssh-keygen"), (OK, FAILED, UNKNOWN)),
        (LoginRefused("gpu01: refused"), (OK, OK, FAILED)),
    ],
)
def test_the_row_that_fails_is_the_one_that_is_at_fault(
    error: TransportFault, expected: tuple[RowVerdict, RowVerdict, RowVerdict]
) -> None:
    rows = refused_rows(LOGIN, error)
    assert verdicts(rows) == dict(zip(("reachable", "host key", "login"), expected, strict=True))
    failed = next(row for row in rows if row.verdict is FAILED)
    assert failed.detail == str(error).removesuffix(": ask ssh-keygen")
    assert failed.remedy


def test_a_refused_key_says_what_to_do_about_it_and_about_no_other() -> None:
    error = HostKeyRefused("gpu01: host key SHA256:a is not the one that is known: run ssh-keygen -R '[gpu01]:22'")
    row = refused_rows(LOGIN, error)[1]
    assert row.detail == "gpu01: host key SHA256:a is not the one that is known"
    assert row.remedy == "run ssh-keygen -R '[gpu01]:22'"


def test_a_new_key_that_was_not_taken_for_the_login_failed_is_shown() -> None:
    row = refused_rows(LOGIN, LoginRefused("gpu01: refused", new_key="gpu01 SHA256:abc"))[1]
    assert row.verdict is WARNING
    assert "SHA256:abc" in row.detail
    assert "not taken" in row.detail


def test_a_login_of_the_command_line_is_mended_there() -> None:
    row = refused_rows(LOGIN, LoginRefused("gpu01: refused"), Advice(by_options=True))[2]
    assert "--host" in row.remedy
    assert "[[hosts]]" not in row.remedy


def test_a_host_key_that_was_just_taken_is_shown_to_be_compared() -> None:
    row = login_rows(LOGIN, machine(), "gpu01 SHA256:abc")[1]
    assert row.verdict is WARNING
    assert "SHA256:abc" in row.detail


def test_this_machine_has_no_host_key() -> None:
    assert verdicts(login_rows(None, machine(), None)) == {"reachable": OK, "login": OK}


# ------------------------------------------------------------------ clock


def test_the_offset_is_taken_at_the_middle_of_the_round_trip() -> None:
    found = offset("1000.750000000\n", before_s=1000.0, trip_s=0.5)
    assert found == ClockOffset(ahead_s=0.5, error_s=0.25)


def test_a_date_without_nanoseconds_is_half_a_second_uncertain() -> None:
    for text in ("1000.N", "1000.", "1000"):
        found = offset(text, before_s=1000.5, trip_s=0.0)
        assert found == ClockOffset(ahead_s=0.0, error_s=0.5)


def test_no_time_is_no_offset() -> None:
    assert offset("date: invalid option", 0.0, 0.0) is None
    assert clock_row(None).verdict is WARNING


@pytest.mark.parametrize(
    ("ahead_s", "error_s", "verdict"),
    [(1.9, 0.0, OK), (-1.9, 0.0, OK), (2.5, 0.1, WARNING), (-90.0, 0.5, WARNING), (2.2, 0.5, OK)],
)
def test_more_than_two_seconds_beyond_doubt_is_a_warning(ahead_s: float, error_s: float, verdict: RowVerdict) -> None:
    row = clock_row(ClockOffset(ahead_s=ahead_s, error_s=error_s))
    assert row.verdict is verdict
    assert ("behind" if ahead_s < 0 else "ahead") in row.detail


# ------------------------------------------------------------------ disk


def test_free_space_is_read_with_its_mount_options() -> None:
    text = (
        "folder /run\nkib 1024\ninodes 77\noptions rw,nosuid\nfolder /\nkib -\ninodes 0\noptions ro,errors=continue\n"
    )
    assert parse_space(text) == (
        Space(folder="/run", free_bytes=MIB, inodes=77, read_only=False),
        Space(folder="/", free_bytes=None, inodes=None, read_only=True),
    )


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (space(free=GIB), OK),
        (space(free=4 * MIB), WARNING),
        (space(free=0), FAILED),
        (space(free=100 << 10), FAILED),
        (space(inodes=3), FAILED),
        (space(inodes=3000), OK),
        (space(read_only=True), FAILED),
        (space(free=None), WARNING),
        (space(folder="/tmp"), FAILED),
    ],
)
def test_run_takes_a_drop_in_or_says_why_not(found: Space, verdict: RowVerdict) -> None:
    row = run_row((found,))
    assert row.verdict is verdict
    assert bool(row.remedy) == (verdict is not OK)


@pytest.mark.parametrize(("free", "verdict"), [(2 * GIB, OK), (300 * MIB, WARNING), (MIB, FAILED)])
def test_the_engine_needs_room_to_start(free: int, verdict: RowVerdict) -> None:
    assert disk_row((space("/"), space("/dev/shm", free))).verdict is verdict


def test_a_system_image_that_is_full_and_read_only_is_fine() -> None:
    assert disk_row((space("/", 0, read_only=True), space("/tmp"))).verdict is OK


def test_disks_that_say_nothing_are_a_warning() -> None:
    assert disk_row(()).verdict is WARNING


def test_bytes_are_written_for_a_reader() -> None:
    assert [gib(2048), gib(3 * MIB), gib(1.5 * GIB)] == ["2 KiB", "3 MiB", "1.5 GiB"]


def test_a_detail_stays_one_line_of_a_table() -> None:
    assert one_line("a\n  b") == "a b"
    assert len(one_line("x" * 5000)) == 400


# ------------------------------------------------------------------ journal


@pytest.mark.parametrize(
    ("text", "through_sudo", "verdict"),
    [
        ("journalctl yes\nreadable yes\nsaid \nkept persistent\n", False, OK),
        ("journalctl yes\nsaid Hint\nkept volatile\n", False, FAILED),
        ("journalctl yes\nsaid Hint\nkept volatile\n", True, OK),
        ("said sh: journalctl: not found\n", False, FAILED),
        ("journalctl yes\nsaid No journal files were found.\n", False, FAILED),
    ],
)
def test_a_journal_is_readable_or_says_what_to_do(text: str, verdict: RowVerdict, *, through_sudo: bool) -> None:
    row = journal_row(parse_journal(text), "ops", through_sudo=through_sudo)
    assert row.verdict is verdict
    assert bool(row.remedy) == (verdict is not OK)


def test_the_group_that_reads_the_journal_is_named() -> None:
    row = journal_row(Journal(installed=True, readable=False, kept="volatile", said=""), "ops", through_sudo=False)
    assert "usermod -a -G systemd-journal ops" in row.remedy


# ------------------------------------------------------------------ address


@pytest.mark.parametrize(
    ("argv", "listen"),
    [
        (("sglang", "serve"), "127.0.0.1"),
        (("sglang", "--host", "0.0.0.0", "--port", "1"), "0.0.0.0"),
        (("sglang", "--host=::"), "::"),
        (("sglang", "--host", "[::1]"), "::1"),
        (("sglang", "--host", "a", "--host", "b"), "b"),
        (("sglang", "--host"), "127.0.0.1"),
    ],
)
def test_the_address_a_server_listens_on_is_read_from_its_command(argv: tuple[str, ...], listen: str) -> None:
    assert listen_address(argv) == listen


@pytest.mark.parametrize(
    ("listen", "reach", "host", "verdict"),
    [
        ("0.0.0.0", Reach(), "gpu01", OK),
        ("::", Reach(), "gpu01", OK),
        ("127.0.0.1", Reach(), "gpu01", FAILED),
        ("localhost", Reach(), "10.0.0.7", FAILED),
        ("127.0.0.1", Reach(tunnel=True), "gpu01", OK),
        ("localhost", Reach(tunnel=True), "gpu01", OK),
        ("127.0.0.1", Reach(base_url="https://llm.example"), "gpu01", OK),
        ("10.0.0.7", Reach(tunnel=True), "gpu01", FAILED),
        ("10.0.0.7", Reach(), "gpu01", OK),
        ("10.0.0.7", Reach(), "127.0.0.1", FAILED),
        ("127.0.0.1", Reach(), "127.0.0.1", OK),
        ("127.0.0.1", Reach(), "127.0.0.2", FAILED),
        ("127.0.0.2", Reach(), "127.0.0.2", OK),
    ],
)
def test_a_server_that_the_load_cannot_reach_is_found_out(
    listen: str, reach: Reach, host: str, verdict: RowVerdict
) -> None:
    row = address_row(listen, reach, host, 30000)
    assert row.verdict is verdict
    assert bool(row.remedy) == (verdict is not OK)


def test_a_server_on_loopback_is_to_be_reached_by_a_tunnel() -> None:
    assert "tunnel = true" in address_row("127.0.0.1", Reach(), "gpu01", 30000).remedy
    assert "give --tunnel" in address_row("127.0.0.1", Reach(), "gpu01", 30000, Advice(by_options=True)).remedy


@pytest.mark.parametrize(
    ("base_url", "said"),
    [
        ("http://gpu01:30000", ""),
        ("http://gpu01:31000", "base_url names port 31000, the server's command line 30000"),
        ("https://llm.example", "base_url names port 443, the server's command line 30000"),
    ],
)
def test_a_url_with_another_port_than_the_servers_is_told(base_url: str, said: str) -> None:
    row = address_row("0.0.0.0", Reach(base_url=base_url), "gpu01", 30000)
    assert row.verdict is OK
    assert row.detail.endswith(said or base_url)
    assert "to be reached at" in row.detail  # it was not tried here


# ------------------------------------------------------------------ installed version


@pytest.mark.parametrize(
    ("text", "interpreter"),
    [
        ("#!/opt/sglang/bin/python\nimport sys\n", ("/opt/sglang/bin/python",)),
        ("#!/opt/sglang/bin/python3.11 -I\n", ("/opt/sglang/bin/python3.11",)),
        ("#!/usr/bin/env python3\n", ("python3",)),
        ("#!/usr/bin/env -S python3 -u\n", ("python3",)),
        ('#!/bin/sh\n\'\'\'exec\' "/a b/bin/python3" "$0" "$@"\n', ("/a b/bin/python3",)),
        ("#!/bin/sh\n'''exec' /long/bin/python3 \"$0\" \"$@\"\n", ("/long/bin/python3",)),
        ("#!/bin/sh\nexec sglang\n", None),
        ("\x7fELF", None),
        ("", None),
    ],
)
def test_a_script_names_its_interpreter(text: str, interpreter: tuple[str, ...] | None) -> None:
    assert shebang(text) == interpreter


def test_only_pythons_are_pythons() -> None:
    assert is_python("/usr/bin/python3.12")
    assert is_python("python")
    assert not is_python("/usr/bin/pythonic")
    assert not is_python("sglang")


# ------------------------------------------------------------------ lease

ME = Holder(owner="me@here", study="qwen", directory="/s/qwen", machine="m1", pid=1, since_s=1000.0)
OTHER = Holder(owner="bob@there", study="night", directory="/s/night", machine="m2", pid=9, since_s=1000.0)


def seen(holder: Holder, left_s: float) -> Seen:
    return Seen(text=write_holder(holder, "t"), holder=holder, left_s=left_s, exists=True)


def test_a_host_that_nobody_holds_is_free() -> None:
    assert lease_row(Seen(), ME, "sglang.service").verdict is OK


def test_a_host_that_another_study_holds_is_refused_with_its_owner() -> None:
    row = lease_row(seen(OTHER, 300.0), ME, "sglang.service")
    assert row.verdict is FAILED
    assert "bob@there" in row.detail
    assert "night" in row.detail
    assert row.remedy


def test_a_lease_that_has_run_out_or_is_our_own_does_not_stop_us() -> None:
    assert lease_row(seen(OTHER, -1.0), ME, "sglang.service").verdict is OK
    row = lease_row(seen(ME, 300.0), replace(ME, pid=2), "sglang.service")
    assert row.verdict is OK
    assert row.detail == "sglang.service is leased by a run of this study, pid 1"


@pytest.mark.parametrize("found", [seen(ME, 300.0), seen(ME, -1.0), seen(OTHER, -1.0), Seen(exists=True)])
def test_who_only_looks_is_not_told_that_a_lease_was_taken_over(found: Seen) -> None:
    assert "was taken over" not in lease_row(found, ME, "sglang.service").detail


def test_a_lease_that_cannot_be_read_is_no_free_host() -> None:
    row = lease_row(HostFault("x: the host has no flock: install util-linux there"), ME, "x")
    assert row.verdict is FAILED
    assert row.remedy == "install util-linux there"


# ------------------------------------------------------------------ process hosts


@pytest.mark.parametrize(("answer", "verdict"), [("yes", OK), ("no", FAILED), ("file", FAILED), ("", FAILED)])
def test_a_state_dir_can_be_written_or_another_is_asked_for(answer: str, verdict: RowVerdict) -> None:
    assert state_row("/srv/tuner", answer, "/srv", "ops").verdict is verdict


def test_a_missing_program_is_a_failure_with_a_remedy() -> None:
    row = program_row("sglang", "", "gpu01")
    assert row.verdict is FAILED
    assert "sglang" in row.detail
    assert row.remedy
    assert program_row("sglang", "/opt/bin/sglang", "gpu01").verdict is OK
