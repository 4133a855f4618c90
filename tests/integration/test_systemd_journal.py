"""A server's log out of a real journal, whatever happens to the journal meanwhile."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from tuner.errors import HostFault
from tuner.hosts.clock import SystemClock
from tuner.hosts.ssh.transport import SshTransport
from tuner.hosts.systemd.journal import CHUNK_BYTES, cursor_now, read_journal
from tuner.hosts.systemd.root import Root
from tuner.hosts.systemd.service import SystemdServiceManager
from tuner.model.trial import Command
from tuner.testing.inside import InsideTransport
from tuner.testing.rig import OPERATOR, Rig

PYTHON = "/usr/bin/python3"
ASKED = (
    "import os, sys, time\n"
    "seen = 0\n"
    "while True:\n"
    "    words = open(sys.argv[1], 'rb').read()\n"
    "    sys.stdout.buffer.write(words[seen:]); sys.stdout.flush()\n"
    "    seen = len(words)\n"
    "    time.sleep(0.02)\n"
)
"""Says what is appended to a file."""


class Speaker:
    """A server that says what it is told to, and what is read of it."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.unit = f"speaks-{uuid.uuid4().hex[:8]}.service"
        self.words = f"/run/{self.unit}.words"
        rig.install_unit(self.unit, "[Service]\nExecStart=/bin/sleep 3600\n", start=False)
        rig.write(self.words, "")
        transport = InsideTransport(rig)
        self.manager = SystemdServiceManager(transport, Root(transport, sudo=False), self.unit, SystemClock())
        self.cursor: str | None = None

    async def start(self) -> None:
        await self.manager.start(Command(argv=(PYTHON, "-S", "-c", ASKED, self.words)))

    def say(self, text: str) -> None:
        self.rig.run("sh", "-c", 'cat >> "$1"', "sh", self.words, stdin=text, check=True)

    async def hears(self, *lines: str) -> None:
        """Hold that exactly these lines come next."""
        heard = ""
        wanted = "".join(f"{line}\n" for line in lines)
        deadline_s = asyncio.get_running_loop().time() + 20.0
        while len(heard) < len(wanted):
            assert asyncio.get_running_loop().time() < deadline_s, f"still {heard[:200]!r}"
            chunk = await self.manager.read_log(self.cursor)
            heard, self.cursor = heard + chunk.text, chunk.cursor
            await asyncio.sleep(0.05)
        assert heard == wanted


@pytest.fixture
def speaker(rig: Rig) -> Speaker:
    return Speaker(rig)


def test_the_first_line_is_not_lost_and_lines_of_others_are_not_heard(speaker: Speaker) -> None:
    async def scenario() -> None:
        await speaker.start()
        speaker.rig.run("logger", "-t", "stranger", "not of the unit", check=True)
        speaker.say("first\n")
        await speaker.hears("first")
        speaker.say("second\nthird\n")
        await speaker.hears("second", "third")
        assert (await speaker.manager.read_log(speaker.cursor)).text == ""
        assert (await speaker.manager.read_log(None)).text == "first\nsecond\nthird\n"
        await speaker.manager.stop(grace_s=0.0)
        # systemd's own words about the stop are not the server's.
        assert (await speaker.manager.read_log(speaker.cursor)).text == ""

    asyncio.run(scenario())


def test_lines_with_colours_long_lines_and_bytes_that_are_no_text_are_read(speaker: Speaker) -> None:
    async def scenario() -> None:
        await speaker.start()
        long = "long " * 30000 + "line"  # journald cuts it in pieces of 48 KiB
        speaker.say(f"\x1b[32mINFO\x1b[0m: é 😀\n{long}\nend\n")
        await speaker.hears("\x1b[32mINFO\x1b[0m: é 😀", long, "end")
        await speaker.manager.stop(grace_s=0.0)

    asyncio.run(scenario())


def test_more_than_a_chunk_comes_in_pieces_and_in_order(speaker: Speaker) -> None:
    async def scenario() -> None:
        await speaker.start()
        lines = [f"{number} {'x' * 200}" for number in range(8000)]
        speaker.say("".join(f"{line}\n" for line in lines))
        await asyncio.sleep(1.0)
        assert 0 < len((await speaker.manager.read_log(None)).text) < CHUNK_BYTES
        await speaker.hears(*lines)
        await speaker.manager.stop(grace_s=0.0)

    asyncio.run(scenario())


def test_a_journal_rotated_in_mid_trial_loses_and_repeats_nothing(speaker: Speaker) -> None:
    async def scenario() -> None:
        await speaker.start()
        speaker.say("before\n")
        await speaker.hears("before")
        speaker.rig.run("journalctl", "--rotate", check=True)
        speaker.say("after\n")
        await speaker.hears("after")
        # The entry of our cursor is deleted: what follows is heard all the same.
        speaker.rig.run("journalctl", "--rotate", check=True)
        speaker.rig.run("journalctl", "--vacuum-time=1s", "--vacuum-files=1", check=True)
        speaker.say("at last\n")
        await speaker.hears("at last")
        await speaker.manager.stop(grace_s=0.0)

    asyncio.run(scenario())


def test_a_journald_that_is_restarted_in_mid_trial_goes_on(speaker: Speaker) -> None:
    async def scenario() -> None:
        await speaker.start()
        speaker.say("before\n")
        await speaker.hears("before")
        speaker.rig.run("systemctl", "restart", "systemd-journald.service", check=True)
        speaker.say("after\n")
        await speaker.hears("after")
        await speaker.manager.stop(grace_s=0.0)

    asyncio.run(scenario())


def test_a_message_longer_than_a_chunk_is_passed_over_and_said_so(speaker: Speaker) -> None:
    async def scenario() -> None:
        await speaker.start()
        speaker.say("before\n")
        await speaker.hears("before")
        # Only journald's own protocol carries as much: a process of the unit speaks it.
        code = (
            "import array, os, socket, struct\n"
            "text = b'y' * 1500000\n"
            "fd = os.memfd_create('m', os.MFD_ALLOW_SEALING)\n"
            "os.write(fd, b'MESSAGE\\n' + struct.pack('<Q', len(text)) + text + b'\\n')\n"
            "import fcntl; fcntl.fcntl(fd, 1033, 15)\n"
            "s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
            "s.connect('/run/systemd/journal/socket')\n"
            "s.sendmsg([b''], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [fd]))])\n"
        )
        cursor = await cursor_now(InsideTransport(speaker.rig))
        unit = f"big-{uuid.uuid4().hex[:8]}.service"
        speaker.rig.run("systemd-run", "--wait", f"--unit={unit}", PYTHON, "-c", code + "print('end')", check=True)
        heard = ""
        for _ in range(3):
            piece = await read_journal(InsideTransport(speaker.rig), unit, cursor)
            heard, cursor = heard + piece.text, piece.cursor
        assert heard == f"[a message of more than {CHUNK_BYTES} bytes is left out]\nend\n"
        await speaker.manager.stop(grace_s=0.0)

    asyncio.run(scenario())


def test_a_login_that_may_not_read_the_journal_is_told_how_it_may(rig: Rig) -> None:
    async def scenario() -> None:
        rig.run("gpasswd", "-d", OPERATOR, "systemd-journal")
        transport = SshTransport(rig.login(OPERATOR))
        try:
            with pytest.raises(HostFault, match="usermod -aG systemd-journal"):
                await cursor_now(transport)
        finally:
            await transport.close()

    asyncio.run(scenario())
