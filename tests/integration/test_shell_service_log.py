"""The log of a server under the shell supervisor, and a disk that has no room for it."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tuner.errors import HostFault
from tuner.hosts.local import LocalTransport
from tuner.hosts.shell.service import ShellServiceManager
from tuner.model.host import Activity
from tuner.testing.shell_server import log_until, python, tools, until, with_manager


def test_a_long_log_arrives_whole_in_pieces_of_a_megabyte(each_shell: LocalTransport, tmp_path: Path) -> None:
    # Three bytes each: every border falls inside a character.
    program = "import sys; sys.stdout.buffer.write('\u4e16'.encode() * 1000000 + b'\\xff\\xe4 end'); sys.stdout.flush()"

    async def scenario(manager: ShellServiceManager) -> None:
        await manager.start(python(program))
        await until(manager, lambda state: state.activity is Activity.FAILED)
        read, cursor, pieces = "", None, 0
        while (chunk := await manager.read_log(cursor)).text:
            assert len(chunk.text.encode()) <= 1024 * 1024 + 6
            read, cursor, pieces = read + chunk.text, chunk.cursor, pieces + 1
        assert read == "\u4e16" * 1000000 + "\ufffd\ufffd end"
        assert pieces == 3

    with_manager(each_shell, tmp_path, scenario)


def test_a_character_that_is_half_written_is_waited_for(each_shell: LocalTransport, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    program = (
        "import os, sys, time; os.write(1, b'a\\xc3')\n"
        "while not os.path.exists(sys.argv[1]): time.sleep(0.01)\n"
        "os.write(1, b'\\xa9b\\xc3'); time.sleep(300)"
    )

    async def scenario(manager: ShellServiceManager) -> None:
        await manager.start(python(program, str(gate)))
        assert await log_until(manager, "a") == "a"
        gate.touch()
        assert await log_until(manager, "b") == "aéb"
        await manager.stop(grace_s=5.0)
        assert (await manager.read_log(None)).text == "aéb\ufffd"

    with_manager(each_shell, tmp_path, scenario)


def test_a_host_without_base64_sends_its_log_all_the_same(tmp_path: Path) -> None:
    async def scenario(manager: ShellServiceManager) -> None:
        await manager.start(python("print('é one\\n two', flush=True); import time; time.sleep(300)"))
        assert await log_until(manager, "two") == "é one\n two\n"

    with_manager(LocalTransport(tools(tmp_path, "dash", without=("base64",))), tmp_path, scenario)


# ---------------------------------------------------------------------------- a full disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.getuid() != 0:
        pytest.skip("only root can mount a small disk")
    place = tmp_path / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(place)], check=True)
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_refuses_a_start_and_no_server_runs(dash: LocalTransport, small_disk: Path) -> None:
    async def scenario(manager: ShellServiceManager) -> None:
        fill(small_disk)
        with pytest.raises(HostFault, match=str(small_disk)):
            await manager.start(python("import time; time.sleep(300)"))
        await manager.stop(grace_s=0.0)
        assert await manager.leftovers() == ()

    with_manager(dash, small_disk, scenario)


def test_a_server_on_a_disk_that_is_full_can_be_stopped_and_its_death_is_told(
    dash: LocalTransport, small_disk: Path
) -> None:
    async def scenario(manager: ShellServiceManager) -> None:
        await manager.start(python("import time; print('up', flush=True); time.sleep(300)"))
        await log_until(manager, "up")
        fill(small_disk)
        await manager.stop(grace_s=1.0)
        assert (await manager.state()).activity is Activity.INACTIVE
        (small_disk / "ballast").unlink()
        await manager.forget()
        identity = await manager.start(python("import time; print('up', flush=True); time.sleep(300)"))
        await log_until(manager, "up")
        fill(small_disk)
        os.kill(identity.main_pid, signal.SIGKILL)
        with pytest.raises(HostFault, match="disk"):
            await until(manager, lambda state: state.activity is not Activity.RUNNING)

    with_manager(dash, small_disk, scenario)


def fill(place: Path) -> None:
    with (place / "ballast").open("wb", buffering=0) as ballast:
        try:
            while True:
                ballast.write(b"x" * 4096)
        except OSError:
            return
