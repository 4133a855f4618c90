"""What is put together for a host."""

from __future__ import annotations

from tuner.hosts.systemd.service import SystemdServiceManager
from tuner.hosts.systemd.tenancy import UnitTenancy
from tuner.model.study import SshLogin, UnitHostSpec
from tuner.testing.tenancy_suite import holder
from tuner.wiring.host import build_host


def test_a_units_tenancy_and_the_manager_of_its_servers_know_of_each_other() -> None:
    """Else the one restores what the other started, and the other stops what the one restored."""
    ports = build_host(UnitHostSpec(name="gpu01", unit="a.service", login=SshLogin(host="gpu01")), holder())
    assert isinstance(ports.tenancy, UnitTenancy)
    assert isinstance(ports.service, SystemdServiceManager)
    assert ports.service._record is ports.tenancy.record
