"""What happens to a server when everything around it breaks: the worker, the disk, a second manager."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tuner.errors import HostFault, TransportFault
from tuner.hosts import files
from tuner.hosts.process import ProcessServiceManager
from tuner.hosts.status import MARKER, read_status
from tuner.model.host import Activity
from tuner.model.trial import Command

ROOT = Path(__file__).parents[2]
PATIENCE_S = 20.0
KEY = "planted-s3cret"
STUBBORN = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(300)"

# A worker that starts a server in argv[1] with the command in argv[4:], and is killed argv[2] seconds
# after the order went out; argv[3] "stopping": after it has asked for the stop of a server that is up.
WORKER = """
import asyncio, os, signal, sys
from pathlib import Path
from tuner.hosts.process import ProcessServiceManager
from tuner.model.trial import Command

folder, delay_s, phase, argv = Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3], tuple(sys.argv[4:])

async def work():
    manager = ProcessServiceManager(folder, dict(os.environ))
    starting = asyncio.ensure_future(manager.start(Command(argv=argv)))
    if phase == "stopping":
        await starting
        while "up" not in (await manager.read_log(None)).text:
            await asyncio.sleep(0.01)
        stopping = asyncio.ensure_future(manager.stop(grace_s=60.0))
    await asyncio.sleep(delay_s)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(work())
"""


def python(program: str, *arguments: str) -> Command:
    return Command(argv=(sys.executable, "-S", "-c", program, *arguments))


def manager_of(folder: Path) -> ProcessServiceManager:
    return ProcessServiceManager(folder, dict(os.environ))


def killed_worker(folder: Path, delay_s: float, phase: str, command: Command) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WORKER, str(folder), str(delay_s), phase, *command.argv], cwd=ROOT, check=False
    )
    assert done.returncode == -signal.SIGKILL


async def until_nothing_is_left(manager: ProcessServiceManager) -> float:
    began_s = time.monotonic()
    while left := await manager.leftovers():
        assert time.monotonic() - began_s < PATIENCE_S, left
        await asyncio.sleep(0.02)
    return time.monotonic() - began_s


async def logged(manager: ProcessServiceManager, text: str) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while text not in (await manager.read_log(None)).text:
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.01)


def stored(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


def starts(folder: Path, name: str = "") -> list[Path]:
    """Return the folders of starts, or the files of this name in them."""
    return list(folder.glob(f"start-*/{name}"))


async def end_seen(manager: ProcessServiceManager) -> None:
    """Look at the server until it no longer runs."""
    deadline_s = time.monotonic() + PATIENCE_S
    while (await manager.state()).activity is Activity.RUNNING:
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.01)


def test_an_order_whose_tuner_is_dead_is_not_carried_out(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    killed_worker(tmp_path / "host", 0.0, "starting", python("import sys; open(sys.argv[1], 'w')", str(ran)))

    async def look() -> None:
        manager = manager_of(tmp_path / "host")
        assert await manager.leftovers(), "it is found before it has a status file"
        await until_nothing_is_left(manager)

    asyncio.run(look())
    assert not ran.exists()


@pytest.mark.parametrize("delay_s", [0.05, 0.1, 0.2])
def test_a_worker_killed_at_any_moment_of_a_start_leaves_nothing(tmp_path: Path, delay_s: float) -> None:
    killed_worker(tmp_path, delay_s, "starting", python("import time; time.sleep(300)", "--api-key", KEY))

    async def look() -> None:
        manager = manager_of(tmp_path)
        assert (await manager.state()).activity is Activity.INACTIVE
        await until_nothing_is_left(manager)
        await manager.forget()
        assert starts(tmp_path) == []

    asyncio.run(look())


def test_a_worker_killed_while_it_stops_a_stubborn_server_shortens_the_wait(tmp_path: Path) -> None:
    killed_worker(tmp_path, 0.2, "stopping", python(STUBBORN, "--api-key", KEY))

    async def look() -> float:
        return await until_nothing_is_left(manager_of(tmp_path))

    assert asyncio.run(look()) < 10.0, "60 s were granted by a worker that no longer waits"
    assert not starts(tmp_path, "log"), "nobody is left to read the log"
    assert KEY.encode() not in stored(tmp_path)


@pytest.mark.parametrize("grace_s", [0.0, 10.0])
def test_a_new_manager_stops_the_server_that_an_old_one_still_runs(tmp_path: Path, grace_s: float) -> None:
    async def scenario() -> None:
        old, new = manager_of(tmp_path), manager_of(tmp_path)
        identity = await old.start(python(STUBBORN, "--api-key", KEY))
        await logged(old, "up")
        main = files.process_stat(identity.main_pid)
        assert main is not None
        began_s = time.monotonic()
        await new.stop(grace_s=grace_s)
        assert time.monotonic() - began_s < max(1.0, grace_s)
        assert not files.is_running(main.key)
        assert await new.leftovers() == ()
        for manager in (old, new):
            await manager.stop(grace_s=0.0)
            assert (await manager.state()).activity is Activity.INACTIVE
        await new.forget()
        assert stored(tmp_path) == b""
        await new.start(python("import time; time.sleep(300)"))
        assert (await new.state()).activity is Activity.RUNNING
        await new.stop(grace_s=5.0)

    asyncio.run(scenario())


def test_a_resumed_run_can_start_while_the_old_supervisor_still_stops_its_server(tmp_path: Path) -> None:
    killed_worker(tmp_path, 0.0, "stopping", python(STUBBORN))

    async def scenario() -> None:
        manager = manager_of(tmp_path)
        assert (await manager.state()).activity is Activity.INACTIVE
        assert any("supervisor" in entry.command for entry in await manager.leftovers())
        await manager.kill_leftovers()
        assert await manager.leftovers() == ()
        identity = await manager.start(python("import time; time.sleep(300)"))
        await asyncio.sleep(2.5)  # longer than an orphaned server is granted
        state = await manager.state()
        assert (state.activity, state.identity) == (Activity.RUNNING, identity)
        await manager.stop(grace_s=5.0)

    asyncio.run(scenario())


def test_killing_leftovers_forgets_their_logs_but_not_the_last_servers_own(tmp_path: Path) -> None:
    async def scenario() -> None:
        old, manager = manager_of(tmp_path), manager_of(tmp_path)
        await old.start(python(STUBBORN, "--api-key", KEY))
        await logged(old, "up")
        await old.stop(grace_s=0.0)
        assert starts(tmp_path, "log")
        await old.kill_leftovers()
        assert "up" in (await old.read_log(None)).text
        await manager.kill_leftovers()
        assert stored(tmp_path) == b""

    asyncio.run(scenario())


def test_the_key_is_nowhere_but_in_the_log_and_in_the_process_itself(tmp_path: Path) -> None:
    program = "import sys, time; print('args', sys.argv, flush=True); time.sleep(300)"

    async def scenario() -> None:
        manager = manager_of(tmp_path)
        command = python(program, "--api-key", KEY)
        identity = await manager.start(Command(argv=command.argv, env=(("MY_KEY", KEY),)))
        await logged(manager, KEY)
        (directory,) = starts(tmp_path)
        holders = [path.name for path in directory.iterdir() if KEY.encode() in path.read_bytes()]
        assert holders == ["log"]
        status = read_status(directory)
        assert status is not None
        assert KEY not in files.command_line(status.supervisor.pid)
        assert KEY not in "".join(files.environment(status.supervisor.pid).values())
        assert KEY in files.command_line(identity.main_pid)
        await manager.stop(grace_s=5.0)
        await manager.forget()
        assert starts(tmp_path) == []
        assert stored(tmp_path) == b""

    asyncio.run(scenario())


def test_a_state_folder_with_spaces_and_letters_of_any_kind_works(tmp_path: Path) -> None:
    folder = tmp_path / "a host's disk [1]*" / "größe \U0001f680 $HOME"

    async def scenario() -> None:
        manager = manager_of(folder)
        await manager.start(python(STUBBORN))
        await logged(manager, "up")
        assert len(await manager_of(folder).leftovers()) == 2
        await manager.stop(grace_s=0.0)
        assert await manager_of(folder).leftovers() == ()
        await manager.forget()
        assert starts(folder) == []

    asyncio.run(scenario())


def test_a_supervisor_that_ended_without_a_word_does_not_spoil_the_manager(tmp_path: Path) -> None:
    async def scenario() -> None:
        manager = manager_of(tmp_path)
        starting = asyncio.ensure_future(manager.start(python("import time; time.sleep(300)")))
        await asyncio.sleep(0)  # the order is out, the supervisor's Python not yet up
        for stat in files.descendants(os.getpid()):
            if files.environment(stat.key.pid).get(MARKER, "").endswith(":supervisor"):
                files.send_signal(stat.key, signal.SIGKILL)
        with pytest.raises(HostFault):
            await starting
        with pytest.raises(TransportFault, match="before it wrote anything"):
            await manager.state()
        await manager.stop(grace_s=0.0)
        assert (await manager.state()).activity is Activity.INACTIVE
        await manager.start(python("import time; time.sleep(300)"))
        assert (await manager.state()).activity is Activity.RUNNING
        await manager.stop(grace_s=5.0)

    asyncio.run(scenario())


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A state folder on a disk of 256 KiB."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small disk")
    place = tmp_path / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(place)], check=True)
    yield place
    subprocess.run(["umount", str(place)], check=True)


def fill(disk: Path) -> Path:
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while file.write(b"x" * 4096):
                pass
        except OSError:
            return filler
    raise AssertionError("the disk has no end")


def test_a_full_disk_refuses_a_start_and_no_server_runs(small_disk: Path) -> None:
    filler = fill(small_disk)

    async def scenario() -> None:
        manager = manager_of(small_disk / "host")
        with pytest.raises(HostFault, match=r"No space left on device.*free space there"):
            await manager.start(python("import time; time.sleep(300)"))
        await manager.stop(grace_s=0.0)
        assert await manager_of(small_disk / "host").leftovers() == ()
        filler.unlink()
        await manager.start(python("import time; time.sleep(300)"))
        assert (await manager.state()).activity is Activity.RUNNING
        await manager.stop(grace_s=5.0)
        await manager.forget()

    asyncio.run(scenario())


def test_a_disk_that_fills_up_under_a_server_is_the_hosts_fault_and_not_a_death(small_disk: Path) -> None:
    # It writes until the disk is full and dies of it, as a server would.
    program = "import os\nwhile True: os.write(1, b'x' * 4096)"

    async def scenario() -> None:
        manager = manager_of(small_disk / "host")
        await manager.start(python(program))
        with pytest.raises(TransportFault, match=r"could not write.*No space left on device.*free space there"):
            await end_seen(manager)
        assert await manager.leftovers() == ()
        await manager.stop(grace_s=0.0)
        await manager.forget()
        await manager.start(python("import time; time.sleep(300)"))
        await manager.stop(grace_s=5.0)
        await manager.forget()

    asyncio.run(scenario())


def test_what_still_lives_is_found_after_its_log_was_forgotten(tmp_path: Path) -> None:
    # Its child takes our mark out of its environment: only the status file knows it.
    program = """
import os, time
if os.fork() == 0:
    os.setsid()
    os.execve("/bin/sleep", ["sleep", "300"], {})
print("up", flush=True)
time.sleep(300)
"""

    async def scenario() -> None:
        manager = manager_of(tmp_path)
        await manager.start(python(program, "--api-key", KEY))
        await logged(manager, "up")
        (directory,) = starts(tmp_path)
        deadline_s = time.monotonic() + PATIENCE_S
        while (status := read_status(directory)) is None or len(status.processes) < 2:
            assert time.monotonic() < deadline_s
            await asyncio.sleep(0.05)
        files.send_signal(status.supervisor, signal.SIGKILL)
        later = manager_of(tmp_path)
        while len(left := await later.leftovers()) != 1:
            assert time.monotonic() < deadline_s, left
            await asyncio.sleep(0.02)
        await later.forget()
        assert starts(tmp_path, "log") == []
        assert await later.leftovers() == left
        await later.kill_leftovers()
        assert starts(tmp_path) == []
        await manager.stop(grace_s=0.0)

    asyncio.run(scenario())
