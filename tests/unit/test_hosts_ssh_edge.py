"""Every exception that paramiko raises is one of ours on this side."""

from __future__ import annotations

import importlib
import pkgutil
import sys
import threading

import paramiko
import pytest

from tuner.errors import HostKeyRefused, LoginRefused, TransportFault
from tuner.hosts.ssh.faults import ConnectionLost
from tuner.hosts.ssh.paramiko_edge import FAULTS, Link, Session, fault_class, mapped, preferred
from tuner.hosts.ssh.session import Wake


def exceptions() -> set[type[Exception]]:
    found: set[type[Exception]] = set()
    for module in pkgutil.iter_modules(paramiko.__path__, "paramiko."):
        if (
            module.name in {"paramiko._winapi", "paramiko.win_openssh", "paramiko.win_pageant"}
            and sys.platform != "win32"
        ):
            continue
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, type) and issubclass(value, Exception) and value.__module__.startswith("paramiko"):
                found.add(value)
    return found


def test_the_library_has_the_exceptions_we_know() -> None:
    assert {"SSHException", "AuthFailure", "SFTPError", "PipeTimeout"} <= {error.__name__ for error in exceptions()}


@pytest.mark.parametrize("error", sorted(exceptions(), key=lambda error: error.__name__))
def test_an_exception_of_the_library_is_one_of_ours(error: type[Exception]) -> None:
    assert fault_class(error) is not None


@pytest.mark.parametrize(
    ("error", "ours"),
    [
        (paramiko.AuthenticationException("no"), LoginRefused),
        (paramiko.PasswordRequiredException("no"), LoginRefused),
        (paramiko.BadAuthenticationType("no", ["password"]), LoginRefused),
        (paramiko.ssh_exception.IncompatiblePeer("no"), TransportFault),
        (paramiko.ChannelException(1, "no"), TransportFault),
        (paramiko.SSHException("no"), ConnectionLost),
        (paramiko.ssh_exception.NoValidConnectionsError({("h", 1): OSError()}), ConnectionLost),
        (EOFError(), ConnectionLost),
        (TimeoutError(), ConnectionLost),
        (ConnectionResetError(104, "reset"), ConnectionLost),
    ],
)
def test_what_went_wrong_is_told_in_one_line_with_the_place(error: Exception, ours: type[TransportFault]) -> None:
    with pytest.raises(ours) as fault, mapped("me@gpu"):
        raise error
    assert type(fault.value) is ours
    assert str(fault.value).startswith("me@gpu: ")
    assert "\n" not in str(fault.value)
    assert len(str(fault.value)) > len("me@gpu: ")


def test_our_own_faults_pass_as_they_are() -> None:
    ours = HostKeyRefused("it is another")
    with pytest.raises(HostKeyRefused) as fault, mapped("me@gpu"):
        raise ours
    assert fault.value is ours


def test_no_row_hides_behind_a_wider_one() -> None:
    for number, (error, _) in enumerate(FAULTS):
        assert not any(issubclass(error, wider) for wider, _ in FAULTS[:number])


def test_types_of_host_key_that_are_known_are_asked_for_first_and_others_remain() -> None:
    supported = ("ssh-ed25519", "ecdsa-sha2-nistp256", "rsa-sha2-512", "rsa-sha2-256")
    assert preferred(("ssh-rsa", "ssh-dss"), supported) == (
        "rsa-sha2-512",
        "rsa-sha2-256",
        "ssh-ed25519",
        "ecdsa-sha2-nistp256",
    )
    assert preferred((), supported) == supported


class Dying:
    """A paramiko.Transport that loses its connection with the next message."""

    def __init__(self, said: Exception | None = None) -> None:
        self.active = True
        self._said = said

    def _send_user_message(self, _message: object) -> None:
        self.active = False

    def auth_none(self, _user: str) -> None:
        self.active = False
        raise paramiko.AuthenticationException("Authentication failed: transport shut down or saw EOF")

    def is_active(self) -> bool:
        return self.active

    def get_exception(self) -> Exception | None:
        return self._said

    def get_log_channel(self) -> str:
        return "paramiko"


def test_a_command_does_not_wait_for_ever_when_its_connection_is_lost_as_it_is_sent() -> None:
    channel = paramiko.Channel(1)
    channel._set_transport(Dying(EOFError()))
    channel.remote_chanid, channel.active = 1, True
    raised: list[BaseException] = []

    def execute() -> None:
        try:
            Session(channel, "me@gpu").execute(b"true", Wake())
        except ConnectionLost as error:
            raised.append(error)

    thread = threading.Thread(target=execute, daemon=True)
    thread.start()
    thread.join(5.0)
    assert [str(error) for error in raised] == ["me@gpu: EOFError"]


def test_a_connection_that_is_lost_while_logging_in_is_no_refusal() -> None:
    link = Link.__new__(Link)
    link._where, link._transport = "me@gpu", Dying()
    with pytest.raises(ConnectionLost, match="me@gpu: the connection was lost while logging in"):
        link.ask_methods("me")
