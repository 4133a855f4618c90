"""The pure parts of hosts that have only a shell, and what the manager makes of what a host says."""

from __future__ import annotations

import asyncio
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.errors import HostFault, HostKeyRefused, LeaseLost, TransportFault
from tuner.hosts.shell import looks, scripts
from tuner.hosts.shell.order import checked_directory, encode_order
from tuner.hosts.shell.service import ShellServiceManager
from tuner.hosts.shell.status import Phase, read_look, read_piece, read_scan, read_status
from tuner.model.host import Activity, CommandResult
from tuner.model.trial import Command, ServiceIdentity
from tuner.testing.fake_clock import FakeClock
from tuner.testing.scripted_transport import ScriptedTransport, said

BOOT, LATER_BOOT = "11111111-aaaa", "22222222-bbbb"
COMMAND = Command(argv=("sglang", "serve"))
WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\0"))


def line(phase: str, *, boot: str = BOOT, restarts: int = 0, code: str = "-") -> str:
    return f"{boot} 10 100 {phase} {restarts} inv-1 20 200 {code}"


def decoded(order: bytes) -> list[bytes]:
    """Read an order as ``printf %b`` does."""
    return [
        line[:1] + re.sub(rb"\\0([0-7]{3})", lambda match: bytes([int(match[1], 8)]), line[1:])
        for line in order.splitlines()
    ]


@given(st.lists(WORDS, max_size=5), WORDS)
def test_every_word_survives_the_way_to_the_host(words: list[str], value: str) -> None:
    order = encode_order(Command(argv=("program", *words), env=(("NAME", value),)))
    assert re.fullmatch(rb"[\n\x20-\x7e]*\n\.\n", order)
    assert decoded(order) == [
        f"ENAME={value}".encode(),
        b"Aprogram",
        *(f"A{word}".encode() for word in words),
        b".",
    ]


@pytest.mark.parametrize(
    "command",
    [
        Command(argv=()),
        Command(argv=("",)),
        Command(argv=("-c", "x")),
        Command(argv=("program", "a\0b")),
        Command(argv=("program",), env=(("A-B", "x"),)),
        Command(argv=("program",), env=(("A", "x\0"),)),
    ],
)
def test_what_no_process_can_be_given_is_refused_before_the_host_is_asked(command: Command) -> None:
    with pytest.raises(HostFault):
        encode_order(command)


def test_a_folder_has_one_name_only() -> None:
    assert {checked_directory(path) for path in ("/a/b", "/a//b/", "//a/./b", "/a/c/../b")} == {"/a/b"}
    with pytest.raises(HostFault, match="absolute"):
        checked_directory("a/b")


@pytest.mark.parametrize(
    ("code", "status", "by_signal"),
    [("-", None, None), ("0", 0, None), ("127", 127, None), ("137", None, 9), ("143", None, 15), ("255", 255, None)],
)
def test_a_shells_number_is_a_status_or_a_signal(code: str, status: int | None, by_signal: int | None) -> None:
    found = read_status(line("failed", code=code))
    assert (found.exit_status, found.exit_signal) == (status, by_signal)


def test_a_start_that_has_written_nothing_has_no_identity() -> None:
    look = read_look(f"{BOOT} 0 0 0\n   none 0 - - - -\n")
    assert (look.status.phase, look.status.identity, look.supervised) == (Phase.NONE, None, False)


def test_a_piece_of_log_comes_in_an_encoding_that_no_transport_changes() -> None:
    assert read_piece("1 base64\nYWL/\n") == (b"ab\xff", True)
    assert read_piece("0 hex\n 61 62\n ff\n") == (b"ab\xff", False)
    assert read_piece("0 none\n") == (b"", False)
    with pytest.raises(ValueError, match="not a piece"):
        read_piece("Welcome to this host!\n")


def test_a_process_is_listed_once_and_without_words_too() -> None:
    found = read_scan("m 1 20 python serve \ns 1 10 sh -c\nm 1 20 \nm 0 30 \n")
    assert [(one.pid, one.supervisor, one.current, one.command) for one in found] == [
        (20, False, True, "python serve"),
        (10, True, True, "sh -c"),
        (30, False, False, ""),
    ]


class SaidHost(ScriptedTransport):
    """A host that says what it is told to: the last word for a script stays."""

    def __init__(self) -> None:
        super().__init__(self._say)
        self.says: dict[str, str] = {
            looks.PLACE: "8:1 /\n",
            scripts.START: f"started\n{line('running')}\n",
            looks.STOP: "",
            looks.SCAN: "",
        }
        self.fault: TransportFault | None = None

    def _say(self, argv: tuple[str, ...]) -> CommandResult:
        if self.fault is not None:
            raise self.fault
        return said(self.says[argv[2]])


def started(host: SaidHost, *, leased: bool = False) -> ShellServiceManager:
    lease = (lambda: "/host/lease") if leased else None
    return ShellServiceManager(host, "/host", FakeClock(), lease=lease)


def test_a_reboot_is_told_once_and_then_the_server_is_gone() -> None:
    async def scenario() -> None:
        for leased in (False, True):
            host = SaidHost()
            manager = started(host, leased=leased)
            await manager.start(COMMAND)
            host.says[looks.LOOK] = f"{LATER_BOOT} 0 0 0\n{line('running')}\n"
            with pytest.raises(LeaseLost if leased else HostFault, match="rebooted"):
                await manager.state()
            await manager.stop(grace_s=1.0)
            state = await manager.state()
            assert state.activity is Activity.INACTIVE
            assert state.identity == ServiceIdentity(invocation_id="inv-1", main_pid=20)

    asyncio.run(scenario())


def test_a_host_that_was_rebooted_after_a_stop_that_did_not_reach_it_can_be_used_again() -> None:
    async def scenario() -> None:
        host = SaidHost()
        manager = started(host, leased=True)
        await manager.start(COMMAND)
        host.fault = TransportFault("gpu01: no route")
        with pytest.raises(TransportFault):
            await manager.stop(grace_s=1.0)
        host.fault = None
        host.says[looks.LOOK] = f"{LATER_BOOT} 0 0 0\n{line('running')}\n"
        assert (await manager.state()).activity is Activity.INACTIVE

    asyncio.run(scenario())


def test_a_server_that_nobody_watches_is_told_once_and_can_then_be_stopped() -> None:
    async def scenario() -> None:
        host = SaidHost()
        manager = started(host, leased=True)
        await manager.start(COMMAND)
        host.says[looks.LOOK] = f"{BOOT} 0 0 1\n{line('running')}\n"
        with pytest.raises(HostFault, match="supervisor was killed"):
            await manager.state()
        assert (await manager.state()).activity is Activity.RUNNING
        await manager.stop(grace_s=1.0)
        assert (await manager.state()).activity is Activity.INACTIVE

    asyncio.run(scenario())


def test_the_first_look_of_a_manager_after_a_reboot_is_inactive() -> None:
    assert asyncio.run(started(SaidHost()).state()).activity is Activity.INACTIVE


def test_how_a_server_ended_is_known_even_if_the_host_no_longer_answers() -> None:
    async def scenario() -> None:
        host = SaidHost()
        manager = started(host)
        await manager.start(COMMAND)
        host.says[looks.LOOK] = f"{BOOT} 1 0 0\n{line('failed', code='3')}\n"
        died = await manager.state()
        assert (died.activity, died.exit_status) == (Activity.FAILED, 3)
        host.fault = TransportFault("gpu01: no route")
        assert await manager.state() == died

    asyncio.run(scenario())


def test_a_death_that_cannot_be_written_down_is_told() -> None:
    async def scenario() -> None:
        host = SaidHost()
        manager = started(host)
        await manager.start(COMMAND)
        host.says[looks.LOOK] = f"{BOOT} 1 0 0\n{line('running')}\n"
        with pytest.raises(HostFault, match="free space"):
            await manager.state()

    asyncio.run(scenario())


def test_a_talkative_login_is_told_and_no_guess_is_made() -> None:
    async def scenario() -> None:
        host = SaidHost()
        manager = started(host)
        await manager.start(COMMAND)
        host.says[looks.LOOK] = "Welcome!\n"
        with pytest.raises(TransportFault, match="'Welcome!'"):
            await manager.state()

    asyncio.run(scenario())


def test_a_fault_of_the_transport_is_one_line_without_the_script() -> None:
    async def scenario() -> None:
        host = SaidHost()
        manager = started(host)
        await manager.start(COMMAND)
        host.fault = TransportFault(f"sh -c {looks.LOOK} tuner: no result after 30 s, killed")
        with pytest.raises(TransportFault) as caught:
            await manager.state()
        assert len(str(caught.value)) < 200
        assert "\n" not in str(caught.value)
        assert "no result after 30 s" in str(caught.value)
        host.fault = HostKeyRefused("gpu01: another key")
        with pytest.raises(HostKeyRefused):
            await manager.state()

    asyncio.run(scenario())


def test_no_script_names_a_variable_that_a_login_might_have() -> None:
    texts = [value for module in (scripts, looks) for value in vars(module).values() if isinstance(value, str)]
    names = {name for text in texts for name in re.findall(r"(?:^|[ (])([A-Za-z_]\w*)=(?!=)", text, re.MULTILINE)}
    assert {name for name in names if not name.startswith("t_")} <= {"IFS", "TUNER_SERVICE", "SPT_NOENV"}
