"""Whether a lease that is seen on a host may be replaced, and how its files are written."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from tuner.errors import HostFault, LeaseHeld, LeaseLost
from tuner.hosts.systemd.holding import Grant, Seen, grant, read_holder, write_holder
from tuner.hosts.systemd.lease import LeaseFolder, commands
from tuner.testing.scripted_transport import ScriptedTransport, in_turn, said
from tuner.testing.tenancy_suite import holder

PLACE = "sglang.service"


def seen(study: str = "other", *, left_s: float = 100.0) -> Seen:
    who = holder(study)
    return Seen(text=write_holder(who, "token"), holder=who, left_s=left_s, exists=True)


def test_a_free_host_is_ours_without_a_word() -> None:
    assert grant(Seen(), holder(), PLACE) == Grant(must_have_run_out=False, remark="")


def test_a_folder_without_a_holder_is_taken_over() -> None:
    assert "without a holder" in grant(Seen(exists=True), holder(), PLACE).remark


def test_the_same_study_is_taken_over_though_its_lease_has_not_run_out() -> None:
    may = grant(seen("mtp"), holder(pid=1), PLACE)
    assert not may.must_have_run_out
    assert "earlier run of this study (process 4711)" in may.remark


def test_the_same_folder_on_another_machine_is_another_study() -> None:
    with pytest.raises(LeaseHeld):
        grant(seen("mtp"), replace(holder(), machine="m2"), PLACE)


def test_a_server_that_the_run_uses_by_another_name_is_refused_until_that_lease_has_run_out() -> None:
    one, other = replace(holder(), host="gpu01"), replace(holder(), host="10.0.0.1")
    held = Seen(text=write_holder(one, "t"), holder=one, left_s=9.0, exists=True)
    with pytest.raises(LeaseHeld) as refused:
        grant(held, other, PLACE)
    assert str(refused.value) == (
        "sglang.service of host 10.0.0.1 is the same server as that of host gpu01, which this run uses already: "
        "remove one of the two from [[hosts]]"
    )
    assert grant(replace(held, left_s=0.0), other, PLACE).must_have_run_out
    assert "earlier run" in grant(held, replace(other, since_s=other.since_s + 1), PLACE).remark  # a PID comes again


def test_a_holder_of_before_there_were_names_of_hosts_is_read() -> None:
    said = json.loads(write_holder(holder(), "t"))
    del said["host"]
    assert read_holder(json.dumps(said)) == holder()


def test_a_lease_that_has_run_out_is_taken_over_if_it_still_has() -> None:
    may = grant(seen(left_s=0.0), holder(), PLACE)
    assert may.must_have_run_out
    assert "ops@box (study other in /studies/other, process 4711, since 2026-11-30 00:53 UTC)" in may.remark


@pytest.mark.parametrize(("left_s", "said"), [(0.2, "1 s"), (119.0, "119 s"), (840.0, "14 min"), (7200.0, "2 h")])
def test_who_is_refused_learns_by_whom_since_when_and_what_to_do(left_s: float, said: str) -> None:
    with pytest.raises(LeaseHeld) as refused:
        grant(seen(left_s=left_s), holder(), PLACE)
    assert str(refused.value) == (
        "sglang.service is in use by ops@box (study other in /studies/other, process 4711, since 2026-11-30 00:53 UTC)"
        f"; the lease ends in {said} unless it is renewed: "
        "end that run, or wait for it, then run the same command again"
    )


def test_a_holder_that_cannot_be_read_holds_all_the_same() -> None:
    with pytest.raises(LeaseHeld, match=r"somebody whose holder\.json cannot be read"):
        grant(Seen(text="{", left_s=5.0, exists=True), holder(), PLACE)
    assert grant(Seen(text="{", left_s=-5.0, exists=True), holder(), PLACE).must_have_run_out


def test_a_holder_is_read_as_it_was_written_on_one_line() -> None:
    who = replace(holder(), owner='o"ps\n@bóx')
    text = write_holder(who, "token")
    assert "\n" not in text
    assert text.isascii()
    assert read_holder(text) == who


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", '{"owner": "x"}'])
def test_other_text_is_no_holder(text: str) -> None:
    assert read_holder(text) is None


def test_each_file_is_written_beside_its_place_and_moved_there() -> None:
    listed = commands("/run/tuner/a.service", ("before",))
    assert listed[:3] == (
        ("install", "-d", "-m", "0755", "/run/tuner"),
        ("mkdir", "-m", "0755", "/run/tuner/a.service"),
        ("rm", "-rf", "/run/tuner/a.service"),
    )
    assert listed[-3:] == (
        ("install", "-m", "0644", "/dev/null", "/run/tuner/a.service/before.new"),
        ("tee", "/run/tuner/a.service/before.new"),
        ("mv", "-fT", "/run/tuner/a.service/before.new", "/run/tuner/a.service/before"),
    )
    assert len(listed) == 3 + 3 * 3


def test_a_lease_that_changes_hands_at_every_try_is_given_up() -> None:
    answers = ScriptedTransport(in_turn(*(said(text) for _ in range(10) for text in ("changed\n", ""))))
    with pytest.raises(HostFault, match="changed hands 10 times"):
        asyncio.run(LeaseFolder(answers, "/run/tuner/a", place="a", sudo=False).take(holder(), 900.0))


def test_what_never_was_ours_is_lost_without_asking_for_it() -> None:
    answers = ScriptedTransport(in_turn(said("")))
    with pytest.raises(LeaseLost):
        asyncio.run(LeaseFolder(answers, "/run/tuner/a", place="a", sudo=False).renew(900.0))
    asyncio.run(LeaseFolder(answers, "/run/tuner/a", place="a", sudo=False).drop())
    assert len(answers.calls) == 1


def test_only_the_word_sudo_and_plain_arguments_reach_the_script() -> None:
    answers = ScriptedTransport(in_turn(said("taken\n"), said("renewed\n")))

    async def scenario() -> None:
        lease = LeaseFolder(answers, "/run/tuner/a", place="a", sudo=True)
        assert await lease.take(holder(), 899.5) == ""
        await lease.renew(899.5)

    asyncio.run(scenario())
    assert [argv[:2] for argv in answers.calls] == [("sh", "-c")] * 2
    assert answers.calls[0][3:8] == ("tuner-lease", "sudo", "/run/tuner/a", "900", "")
    assert answers.calls[1][3:7] == ("tuner-lease", "sudo", "/run/tuner/a", "900")
    assert answers.inputs == [b"", b""]
    assert min(answers.timeouts_s) >= 30.0, "longer than a script waits for the lock"


@pytest.mark.parametrize(
    ("stderr", "remedy"),
    [
        ("sudo: a password is required\n", "allow the commands that tuner doctor prints"),
        ("mkdir: cannot create directory: Permission denied\n", "allow the commands that tuner doctor prints"),
        ("tee: /run/tuner/a/expires.new: No space left on device\n", "free space there"),
        ("tuner-lease: 18: flock: not found\nthe lock cannot be had\n", "install util-linux there"),
        ("", "status 1"),
    ],
)
def test_why_it_cannot_be_used_is_said_with_the_remedy(stderr: str, remedy: str) -> None:
    lease = LeaseFolder(
        ScriptedTransport(in_turn(said(status=1, stderr=stderr))), "/run/tuner/a", place="a.service", sudo=False
    )
    with pytest.raises(HostFault, match=rf"a\.service: the lease in /run/tuner/a cannot be used: .*{remedy}"):
        asyncio.run(lease.take(holder(), 900.0))
