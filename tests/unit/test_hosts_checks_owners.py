"""Whose GPUs, whose port, whose rights: what a check decides about others on the host."""

from __future__ import annotations

import pytest

from tuner.hosts.checks.advice import Advice
from tuner.hosts.checks.gpus import Gpu, Gpus, GpuUser, gpus_row, memory_row, parse_gpus, parse_persistence, parse_users
from tuner.hosts.checks.machine import Machine
from tuner.hosts.checks.needs import commands, lines
from tuner.hosts.checks.port import Listener, meets, parse_proc, parse_ss, port_row
from tuner.hosts.checks.processes import Owner, parse_owners
from tuner.hosts.checks.rights import Rights, Rule, decide, parse_rules, rights_row
from tuner.model.finding import RowVerdict
from tuner.model.host import CommandResult
from tuner.model.lease import LeaseTerms

OK, WARNING, FAILED = RowVerdict.OK, RowVerdict.WARNING, RowVerdict.FAILED
GIB = 1 << 30
UNIT = "sglang.service"


def owner(pid: int, place: str = UNIT, name: str = "python") -> Owner:
    return Owner(pid=pid, user="llm", name=name, cgroups=(f"/system.slice/{place}",))


def gpu(index: int, used: int | None = 0) -> Gpu:
    return Gpu(index=index, name="H100", used_bytes=used, total_bytes=80 * GIB)


# ------------------------------------------------------------------ processes


def test_a_process_belongs_to_the_unit_whose_group_it_is_in() -> None:
    text = "7\tllm\tpython\t0::/system.slice/sglang.service/sub \n8\troot\tXorg\t4:cpu:/user.slice 0::/\n\tx\n9\t\n"
    mine, other = parse_owners(text)
    assert mine.belongs_to(UNIT)
    assert not other.belongs_to(UNIT)
    assert not mine.belongs_to("sub.service")
    assert mine.shown() == "pid 7 python (llm of sglang.service)"
    assert other.cgroups == ("/user.slice", "/")


def test_a_unit_whose_name_another_contains_is_not_taken_for_it() -> None:
    assert not owner(1, "my-sglang.service").belongs_to(UNIT)


# ------------------------------------------------------------------ GPUs


def test_gpus_are_read_also_where_the_driver_does_not_say_all() -> None:
    text = "0, 1024, 81920, NVIDIA H100, 80GB\n1, [N/A], [N/A], MIG\nnot a line\n"
    assert parse_gpus(text) == (
        Gpu(index=0, name="NVIDIA H100, 80GB", used_bytes=GIB, total_bytes=80 * GIB),
        Gpu(index=1, name="MIG", used_bytes=None, total_bytes=None),
    )


def test_a_process_on_several_gpus_is_one_with_all_of_its_memory() -> None:
    text = "7, 1024, sglang::scheduler_TP0\n7, 1024, sglang::scheduler_TP0\n8, [N/A], x\n"
    assert parse_users(text) == (
        GpuUser(pid=7, name="sglang::scheduler_TP0", used_bytes=2 * GIB),
        GpuUser(pid=8, name="x", used_bytes=None),
    )


def test_persistence_is_known_only_where_it_is_said() -> None:
    assert parse_persistence("Enabled\nEnabled\n") is True
    assert parse_persistence("Enabled\nDisabled\n") is False
    assert parse_persistence("[N/A]\n") is None
    assert parse_persistence("") is None


@pytest.mark.parametrize(
    ("found", "indices", "needed", "verdict"),
    [
        (Gpus(gpus=(gpu(0), gpu(1))), (), True, OK),
        (Gpus(gpus=(gpu(0), gpu(1))), (1,), True, OK),
        (Gpus(gpus=(gpu(0), gpu(1))), (1, 2), True, FAILED),
        (Gpus(gpus=(gpu(0), gpu(1, None))), (), True, FAILED),
        (Gpus(gpus=(gpu(0), gpu(1, None))), (), False, FAILED),
        (Gpus(gpus=(gpu(0), gpu(1, None))), (0,), True, OK),
        (Gpus(gpus=(gpu(0),), persistent=False), (), True, WARNING),
        (Gpus(missing=True, problem="status 127"), (), True, FAILED),
        (Gpus(missing=True, problem="status 127"), (), False, WARNING),
        (Gpus(problem="driver/library mismatch"), (), True, FAILED),
        (Gpus(), (), True, FAILED),
        (Gpus(), (), False, WARNING),
    ],
)
def test_gpus_that_cannot_be_watched_are_found_out(
    found: Gpus, indices: tuple[int, ...], verdict: RowVerdict, *, needed: bool
) -> None:
    row = gpus_row(found, indices, needed=needed)
    assert row.verdict is verdict
    assert bool(row.remedy) == (verdict is not OK)


def test_the_memory_of_the_units_own_processes_is_fine() -> None:
    found = Gpus(gpus=(gpu(0, 60 * GIB),), users=(GpuUser(pid=7, name="x", used_bytes=60 * GIB),))
    row = memory_row(found, (), {7: owner(7)}, UNIT, wait_s=600)
    assert row.verdict is OK
    assert "60.0 GiB by 1 processes of sglang.service" in row.detail


def test_foreign_memory_is_named_with_its_owner() -> None:
    users = (GpuUser(pid=8, name="train.py", used_bytes=2 * GIB), GpuUser(pid=9, name="gone", used_bytes=None))
    row = memory_row(Gpus(gpus=(gpu(0, 2 * GIB),), users=users), (), {8: owner(8, "job.scope")}, UNIT, wait_s=600)
    assert row.verdict is WARNING
    assert "pid 8" in row.detail
    assert "job.scope" in row.detail
    assert "2.0 GiB" in row.detail
    assert "pid 9 gone" in row.detail
    assert "600 s" in row.remedy


def test_what_another_unit_runs_may_be_production_and_is_not_to_be_ended_just_so() -> None:
    found = Gpus(gpus=(gpu(0, 2 * GIB),), users=(GpuUser(pid=8, name="sglang", used_bytes=2 * GIB),))
    row = memory_row(found, (), {8: owner(8, "sglang-qwen.service")}, UNIT, wait_s=600)
    assert row.remedy.startswith("sglang-qwen.service may be somebody's production: ask its owner")
    theirs = port_row(30000, (Listener(address="*", pids=(8,)),), {8: owner(8, "nginx.service")}, UNIT, running=False)
    assert theirs.remedy.startswith("nginx.service may be somebody's production")
    mine = memory_row(found, (), {8: owner(8, "user@1000.service")}, UNIT, wait_s=600)
    assert mine.remedy.startswith("end them")


def test_memory_that_nobody_holds_is_a_warning_only_on_our_gpus() -> None:
    found = Gpus(gpus=(gpu(0, 2 * GIB), gpu(1, 100 << 20)))
    assert memory_row(found, (), {}, UNIT, wait_s=600).verdict is WARNING
    assert memory_row(found, (1,), {}, UNIT, wait_s=600).verdict is OK


# ------------------------------------------------------------------ port

SS = (
    'LISTEN 0 128 0.0.0.0:30000 0.0.0.0:* users:(("python",pid=7,fd=3),("python",pid=8,fd=3)) uid:1 ino:5 sk:1 '
    "cgroup:/system.slice/sglang.service <->\n"
    "LISTEN 0 128 [::1]:30000 [::]:* ino:6 sk:2 v6only:1 <->\n"
    "LISTEN 0 128 127.0.0.1%lo:30000 0.0.0.0:* ino:7 sk:3 cgroup:/user.slice/x.scope <->\n"
)


def test_listeners_are_read_from_ss() -> None:
    assert parse_ss(SS) == (
        Listener(address="0.0.0.0", pids=(7, 8), cgroup="/system.slice/sglang.service", inode=5),
        Listener(address="::1", inode=6),
        Listener(address="127.0.0.1", cgroup="/user.slice/x.scope", inode=7),
    )


def test_listeners_are_read_from_proc_where_there_is_no_ss() -> None:
    text = (
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
        "   0: 0100007F:7530 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 4711 1 x 100\n"
        "   1: 00000000:7531 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 4712 1 x 100\n"
        "   2: 0100007F:7530 0100007F:9999 01 00000000:00000000 00:00000000 00000000  1000        0 4713 1 x 100\n"
        "   0: 00000000000000000000000000000000:7530 00000000000000000000000000000000:0000 0A 0:0 00:0 0 0 0 4714 1\n"
    )
    assert parse_proc(text, 30000) == (
        Listener(address="127.0.0.1", inode=4711),
        Listener(address="::", inode=4714),
    )


@pytest.mark.parametrize(
    ("address", "listen", "collide"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("127.0.0.1", "localhost", True),
        ("127.0.0.1", "127.0.0.2", False),
        ("0.0.0.0", "127.0.0.2", True),
        ("127.0.0.1", "0.0.0.0", True),
        ("*", "10.0.0.1", True),
    ],
)
def test_two_servers_collide_where_their_addresses_meet(address: str, listen: str, *, collide: bool) -> None:
    assert meets(Listener(address=address), listen) is collide


@pytest.mark.parametrize(
    ("listener", "running", "verdict", "part"),
    [
        (Listener(address="*", pids=(7,)), True, OK, "sglang.service's own"),
        (Listener(address="*", cgroup=f"/system.slice/{UNIT}"), True, OK, "own"),
        (Listener(address="*", pids=(8,)), True, FAILED, "nginx.service"),
        (Listener(address="*", cgroup="/system.slice/nginx.service"), False, FAILED, "nginx.service"),
        (Listener(address="*"), True, OK, "may not see"),
        (Listener(address="*"), False, FAILED, "may not see"),
    ],
)
def test_a_port_is_the_units_own_or_somebody_elses(
    listener: Listener, verdict: RowVerdict, part: str, *, running: bool
) -> None:
    owners = {7: owner(7), 8: owner(8, "nginx.service")}
    row = port_row(30000, (listener,), owners, UNIT, running=running)
    assert row.verdict is verdict
    assert part in row.detail
    assert bool(row.remedy) == (verdict is FAILED)


def test_a_port_that_nobody_has_is_free() -> None:
    assert port_row(30000, (), {}, UNIT, running=False).verdict is OK


def test_a_process_host_has_no_unit_that_could_own_the_port() -> None:
    assert port_row(30000, (Listener(address="*", pids=(7,)),), {7: owner(7)}, None, running=False).verdict is FAILED


def test_a_server_that_an_earlier_run_left_stops_no_run() -> None:
    left, other = Listener(address="*", pids=(7,)), Listener(address="*", pids=(8,))
    owners = {7: owner(7, "session-1.scope"), 8: owner(8, "nginx.service")}
    row = port_row(30000, (left,), owners, None, running=False, survivors={7})
    assert row.verdict is OK
    assert "an earlier run of ours left (pid 7)" in row.detail
    row = port_row(30000, (left, other), owners, None, running=False, survivors={7})
    assert row.verdict is FAILED
    assert "pid 7" not in row.detail
    found = Gpus(gpus=(gpu(0, 60 * GIB),), users=(GpuUser(pid=7, name="x", used_bytes=60 * GIB),))
    assert memory_row(found, (), owners, None, wait_s=600, survivors={7}).verdict is OK


# ------------------------------------------------------------------ rights

START, STOP = ("systemctl", "start", UNIT), ("systemctl", "stop", UNIT)
LISTING = """Matching Defaults entries for ops on gpu01:
    env_reset, mail_badpass,
    secure_path=/usr/local/sbin\\:/usr/bin

User ops may run the following commands on gpu01:
    (root) NOPASSWD: /usr/bin/systemctl start sglang.service, /usr/bin/tee
    (root) /usr/bin/systemctl stop sglang.service
    (www-data) NOPASSWD: /usr/bin/systemctl stop sglang.service
"""


def said(status: int, stdout: str = "", stderr: str = "") -> CommandResult:
    return CommandResult(status=status, stdout=stdout, stderr=stderr)


def allowed(command: tuple[str, ...]) -> CommandResult:
    return said(0, f"/usr/bin/{' '.join(command)}\n")


def test_rules_are_read_with_the_tags_that_hold_for_them() -> None:
    assert parse_rules(LISTING) == (
        Rule(command=f"/usr/bin/systemctl start {UNIT}", free=True),
        Rule(command="/usr/bin/tee", free=True),
        Rule(command=f"/usr/bin/systemctl stop {UNIT}", free=False),
    )
    assert parse_rules("    (ALL : ALL) NOPASSWD: PASSWD: ALL\n") == (Rule(command="ALL", free=False),)


def test_a_command_that_wants_a_password_is_missing_although_sudo_says_yes() -> None:
    rights = decide((START, STOP), (allowed(START), allowed(STOP)), said(0, LISTING))
    assert rights.missing == (STOP,)


def test_a_command_that_sudo_refuses_is_missing() -> None:
    assert decide((START, STOP), (allowed(START), said(1)), said(0, LISTING)).missing == (STOP,)


def test_everything_without_a_password_leaves_nothing_missing() -> None:
    listing = said(0, "    (ALL : ALL) ALL\n    (ALL) NOPASSWD: ALL\n")
    assert decide((START, STOP), (allowed(START), allowed(STOP)), listing).missing == ()


def test_the_last_rule_counts() -> None:
    listing = said(0, "    (ALL) NOPASSWD: ALL\n    (ALL : ALL) ALL\n")
    assert decide((START,), (allowed(START),), listing).missing == (START,)


def test_a_rule_without_arguments_allows_any_and_one_with_a_pattern_what_it_matches() -> None:
    listing = said(0, "    (root) NOPASSWD: /usr/bin/systemctl, /usr/bin/tee /run/*\n    (root) /bin/other\n")
    tee = ("tee", "/run/tuner/x")
    assert decide((START, tee), (allowed(START), allowed(tee)), listing).missing == ()


def test_a_sudo_that_wants_a_password_for_everything_is_told_in_its_own_words() -> None:
    rights = decide((START,), (said(1),), said(1, stderr="sudo: a password is required\n"))
    assert rights == Rights(missing=(START,), problem="sudo: a password is required")


def machine(uid: int) -> Machine:
    return Machine(
        user="ops",
        uid=uid,
        groups=frozenset(),
        name="gpu01",
        booted_with_systemd=True,
        systemd="systemd 252",
        init="systemd",
        tools=(),
    )


@pytest.mark.parametrize(
    ("uid", "rights", "sudo", "verdict"),
    [
        (0, None, False, OK),
        (1001, Rights(), True, OK),
        (1001, None, False, FAILED),
        (1001, Rights(missing=(START,)), True, FAILED),
        (1001, Rights(missing=(START,), without_sudo=True), True, FAILED),
    ],
)
def test_missing_rights_come_with_the_lines_that_give_them(
    uid: int, rights: Rights | None, verdict: RowVerdict, *, sudo: bool
) -> None:
    wanted = lines("ops", (START,), {"systemctl": "/bin/systemctl"})
    assert wanted == ("ops ALL=(root) NOPASSWD: /bin/systemctl start sglang.service",)
    row = rights_row(machine(uid), rights, sudo=sudo, lines=wanted)
    assert row.verdict is verdict
    if verdict is FAILED:
        assert row.lines == wanted
        assert "/etc/sudoers.d/tuner" in row.remedy


def test_a_host_of_the_command_line_gets_sudo_there() -> None:
    row = rights_row(machine(1001), None, sudo=False, lines=(), advice=Advice(by_options=True))
    assert row.remedy.startswith("give --sudo, add these lines")


def test_a_program_that_was_not_found_is_expected_in_usr_bin() -> None:
    assert lines("ops", (START,), {}) == ("ops ALL=(root) NOPASSWD: /usr/bin/systemctl start sglang.service",)


def test_a_user_whom_sudoers_cannot_name_gets_a_comment() -> None:
    assert lines("dom\\ops", (START,), {})[0].startswith("# ")


def test_every_command_is_listed_once() -> None:
    wanted = commands(UNIT, LeaseTerms())
    assert len(wanted) == len(set(wanted))
    assert ("systemctl", "daemon-reload") in wanted
