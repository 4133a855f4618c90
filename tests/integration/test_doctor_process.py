"""doctor at a host without systemd, whose server is a process over SSH."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from tuner.hosts.clock import SystemClock
from tuner.hosts.shell.service import ShellServiceManager
from tuner.hosts.shell.tenancy import ShellTenancy
from tuner.hosts.ssh.transport import SshTransport
from tuner.model.lease import LeaseTerms
from tuner.model.study import ProcessHostSpec
from tuner.model.trial import Command
from tuner.testing.doctored import AIM, COMMAND, ME, failures, look
from tuner.testing.host_project import let_everybody
from tuner.testing.rig import HOME, OPERATOR, Rig, sglang_unit
from tuner.testing.unit_on_host import UnitOnHost


def test_a_process_host_over_ssh_is_ready_or_says_what_is_missing(rig: Rig) -> None:
    let_everybody(rig)
    base = Command(argv=("sglang", *COMMAND.split()[1:]))
    host = ProcessHostSpec(name="gpu01", state_dir="/tmp/tuner", login=rig.login(OPERATOR))
    found = look(host, replace(AIM, base=base))
    assert list(failures(found)) == ["program"]
    found = look(host, replace(AIM, base=replace(base, argv=(f"{HOME}/bin/sglang", *base.argv[1:]))))
    assert failures(found) == {}
    found = look(replace(host, state_dir="/etc/tuner"), replace(AIM, base=base))
    assert set(failures(found)) == {"state_dir", "program"}


def test_a_server_that_a_killed_run_left_is_ours_and_nobody_elses(rig: Rig) -> None:
    host = ProcessHostSpec(name="gpu01", state_dir="/tmp/tuner", login=rig.login())
    line = next(line for line in sglang_unit().splitlines() if line.startswith("ExecStart="))
    base = Command(argv=tuple(line.removeprefix("ExecStart=").split()))
    aim = replace(AIM, base=base)

    async def scenario() -> None:
        transport = SshTransport(rig.login())
        clock = SystemClock()
        tenancy = ShellTenancy(transport, host.state_dir, ME, LeaseTerms(), clock)
        service = ShellServiceManager(transport, host.state_dir, clock, lease=tenancy.lease_folder)
        try:
            await tenancy.enter()
            await service.start(base)
            await asyncio.to_thread(UnitOnHost(rig).wait_until_it_answers)
            found = await asyncio.to_thread(look, host, replace(aim, asking=replace(ME, pid=4712)))
            assert failures(found) == {}
            assert found["lease"].detail == "/tmp/tuner is leased by a run of this study, pid 4711"
            assert "an earlier run of ours left" in found["port"].detail
            other = replace(ME, owner="bob@there", study="night", directory="/studies/night")
            found = await asyncio.to_thread(look, host, replace(aim, asking=other))
            assert set(failures(found)) == {"lease", "port"}
            assert "me@here" in found["lease"].detail
        finally:
            await service.stop(grace_s=5.0)
            await tenancy.leave()
            await transport.close()

    asyncio.run(scenario())
