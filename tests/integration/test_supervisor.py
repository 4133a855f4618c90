"""The supervisor with real processes: who is killed, who is left."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tuner.errors import HostFault, TransportFault
from tuner.hosts import files
from tuner.hosts.process import ProcessServiceManager
from tuner.hosts.status import Status, read_status
from tuner.model.host import Activity
from tuner.model.trial import Command

ROOT = Path(__file__).parents[2]
PATIENCE_S = 20.0

# A server that puts a daemon into the world as daemons do (two forks, a session of its own, no parent
# left). It logs the daemon's PID and then its own. Neither ends by SIGTERM.
DAEMON_MAKER = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
reading, writing = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.write(1, b"daemon %d\\n" % os.getpid())
        os.write(writing, b".")
        time.sleep(300)  # the daemon
    os._exit(0)
os.wait()
os.read(reading, 1)
os.write(1, b"main %d\\n" % os.getpid())
time.sleep(300)  # the server
"""


def python(program: str) -> Command:
    return Command(argv=(sys.executable, "-S", "-c", program))


def manager_of(folder: Path, *, restart_delay_s: float | None = None) -> ProcessServiceManager:
    restart = "no" if restart_delay_s is None else "always"
    return ProcessServiceManager(folder, dict(os.environ), restart=restart, restart_delay_s=restart_delay_s or 0.0)


def until(holds: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline_s, f"never: {what}"
        time.sleep(0.01)


def status_of(folder: Path) -> Status:
    """Return the status of the only start in ``folder``."""
    (directory,) = folder.glob("start-*")
    status = read_status(directory)
    assert status is not None
    return status


def key_of(pid: int) -> files.ProcessKey:
    stat = files.process_stat(pid)
    assert stat is not None
    return stat.key


async def logged(manager: ProcessServiceManager, text: str) -> str:
    """Wait until the server has logged ``text``; returns its whole log."""
    deadline_s = time.monotonic() + PATIENCE_S
    while text not in (log := (await manager.read_log(None)).text):
        assert time.monotonic() < deadline_s, log
        await asyncio.sleep(0.01)
    return log


async def logged_keys(manager: ProcessServiceManager) -> dict[str, files.ProcessKey]:
    """Wait until a DAEMON_MAKER has logged its two PIDs, by name."""
    lines = (await logged(manager, "main ")).split()
    return {name: key_of(int(pid)) for name, pid in zip(lines[::2], lines[1::2], strict=True)}


async def dead(manager: ProcessServiceManager) -> None:
    """Wait until the server is seen dead."""
    deadline_s = time.monotonic() + PATIENCE_S
    while (await manager.state()).activity is Activity.RUNNING:
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.005)


def test_a_daemon_of_the_server_is_killed_by_stop(tmp_path: Path) -> None:
    async def scenario() -> None:
        manager = manager_of(tmp_path)
        await manager.start(python(DAEMON_MAKER))
        keys = await logged_keys(manager)
        supervisor = status_of(tmp_path).supervisor
        await manager.stop(grace_s=0.2)
        assert not any(map(files.is_running, [*keys.values(), supervisor]))
        assert await manager.leftovers() == ()

    asyncio.run(scenario())


@pytest.mark.parametrize("also_the_supervisor", [False, True])
def test_a_tuner_that_is_killed_leaves_nothing(tmp_path: Path, also_the_supervisor: bool) -> None:
    folder = tmp_path / "host"
    tuner_program = f"""
import asyncio, os, time
from pathlib import Path
from tuner.hosts.process import ProcessServiceManager
from tuner.model.trial import Command
manager = ProcessServiceManager(Path({str(folder)!r}), dict(os.environ))
asyncio.run(manager.start(Command(argv=({sys.executable!r}, "-S", "-c", {DAEMON_MAKER!r}))))
print("started", flush=True)
time.sleep(300)
"""
    with subprocess.Popen([sys.executable, "-c", tuner_program], cwd=ROOT, stdout=subprocess.PIPE) as tuner:
        assert tuner.stdout is not None
        assert tuner.stdout.readline() == b"started\n"
        (log,) = folder.glob("start-*/log")
        until(lambda: b"main" in log.read_bytes() and b"daemon" in log.read_bytes(), "both PIDs in the log")
        pids = [int(line.split()[1]) for line in log.read_text().splitlines()]
        keys = [status_of(folder).supervisor, *map(key_of, pids)]
        tuner.kill()
        if also_the_supervisor:
            files.send_signal(keys[0], signal.SIGKILL)
    if also_the_supervisor:

        async def next_run() -> None:
            manager = manager_of(folder)
            assert (await manager.state()).activity is Activity.INACTIVE
            await manager.kill_leftovers()
            assert await manager.leftovers() == ()

        asyncio.run(next_run())
    else:
        until(lambda: not any(map(files.is_running, keys)), "all of them gone")
        status = status_of(folder)
        assert (status.is_final, status.stop_requested, status.stop_reason) == (True, True, "the tuner is gone")
    assert not any(map(files.is_running, keys))


def test_when_the_supervisor_is_killed_the_server_dies_and_the_rest_is_found_and_killed(tmp_path: Path) -> None:
    folder, other_folder = tmp_path / "host", tmp_path / "other"

    async def scenario() -> None:
        manager, other = manager_of(folder), manager_of(other_folder)
        await other.start(python("import time; time.sleep(300)"))
        await manager.start(python(DAEMON_MAKER))
        keys = await logged_keys(manager)
        files.send_signal(status_of(folder).supervisor, signal.SIGKILL)
        until(lambda: not files.is_running(keys["main"]), "the server dies with its supervisor")
        with pytest.raises(TransportFault, match="supervisor was killed"):
            await manager.state()
        assert files.is_running(keys["daemon"])
        assert [entry.pid for entry in await manager.leftovers()] == [keys["daemon"].pid]
        assert await other.leftovers() == ()
        await other.kill_leftovers()
        assert files.is_running(keys["daemon"]), "it is no business of a manager with another folder"
        await manager.kill_leftovers()
        assert not files.is_running(keys["daemon"])
        assert (await other.state()).activity is Activity.RUNNING
        await manager.stop(grace_s=1.0)
        await other.stop(grace_s=1.0)
        state = await manager.state()
        assert (state.activity, state.stop_requested) == (Activity.INACTIVE, True)

    asyncio.run(scenario())


def test_stop_alone_cleans_up_after_a_killed_supervisor_and_a_start_works_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        manager = manager_of(tmp_path)
        await manager.start(python(DAEMON_MAKER))
        keys = await logged_keys(manager)
        files.send_signal(status_of(tmp_path).supervisor, signal.SIGKILL)
        await manager.stop(grace_s=5.0)
        assert not any(map(files.is_running, keys.values()))
        identity = await manager.start(python("import time; time.sleep(300)"))
        assert (await manager.state()).identity == identity
        await manager.stop(grace_s=5.0)

    asyncio.run(scenario())


def test_a_process_that_lost_our_mark_is_found_through_the_status_file(tmp_path: Path) -> None:
    program = DAEMON_MAKER.replace("time.sleep(300)  # the daemon", 'os.execve("/bin/sleep", ["sleep", "300"], {})')

    async def scenario() -> None:
        manager = manager_of(tmp_path)
        await manager.start(python(program))
        keys = await logged_keys(manager)
        until(lambda: keys["daemon"] in status_of(tmp_path).processes, "the daemon in the status file")
        until(lambda: files.environment(keys["daemon"].pid) == {}, "its environment is empty")
        files.send_signal(status_of(tmp_path).supervisor, signal.SIGKILL)
        until(lambda: not files.is_running(keys["main"]), "the server dies with its supervisor")
        later = manager_of(tmp_path)
        assert [entry.pid for entry in await later.leftovers()] == [keys["daemon"].pid]
        await later.kill_leftovers()
        assert not files.is_running(keys["daemon"])
        await manager.stop(grace_s=1.0)

    asyncio.run(scenario())


def test_a_process_that_took_over_a_pid_is_not_touched(tmp_path: Path) -> None:
    async def run_once() -> None:
        manager = manager_of(tmp_path)
        await manager.start(python("import time; time.sleep(300)"))
        await manager.stop(grace_s=5.0)

    async def clean() -> None:
        later = manager_of(tmp_path)
        assert await later.leftovers() == ()
        await later.kill_leftovers()

    asyncio.run(run_once())
    (path,) = tmp_path.glob("start-*/status.json")
    fields = json.loads(path.read_text())
    with subprocess.Popen(["sleep", "300"]) as bystander:
        fields["main"] = fields["supervisor"] = [bystander.pid, key_of(bystander.pid).start_ticks - 1]
        fields["processes"] = [fields["main"]]
        path.write_text(json.dumps(fields))
        asyncio.run(clean())
        assert bystander.poll() is None
        assert not files.send_signal(files.ProcessKey(bystander.pid, 1), signal.SIGKILL)
        assert bystander.poll() is None
        bystander.kill()


def test_a_stop_is_on_disk_before_the_server_sees_the_signal(tmp_path: Path) -> None:
    program = """
import glob, json, signal, sys, time
def on_term(number, frame):
    (path,) = glob.glob(sys.argv[1] + "/start-*/status.json")
    with open(path) as file:
        print("requested", json.load(file)["stop_requested"], flush=True)
signal.signal(signal.SIGTERM, on_term)
print("listening", flush=True)
while True:
    time.sleep(300)
"""

    async def scenario() -> None:
        manager = manager_of(tmp_path)
        await manager.start(Command(argv=(sys.executable, "-S", "-c", program, str(tmp_path))))
        await logged(manager, "listening")
        assert (await manager.state()).stop_requested is False
        began_s = time.monotonic()
        await manager.stop(grace_s=1.0)
        assert time.monotonic() - began_s >= 1.0
        assert "requested True" in (await manager.read_log(None)).text
        state = await manager.state()
        assert (state.activity, state.exit_signal, state.stop_requested) == (Activity.INACTIVE, signal.SIGKILL, True)

    asyncio.run(scenario())


def test_a_crash_loop_restarts_with_new_pids_and_each_life_starts_without_children_of_the_last(tmp_path: Path) -> None:
    # The daemon inherits the lock and keeps it, as a child keeps a port, until it is killed.
    lock = (
        f"import fcntl; lock = open({str(tmp_path / 'lock')!r}, 'w'); fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)"
    )
    program = lock + DAEMON_MAKER.replace("time.sleep(300)  # the server", "sys.exit(5)")

    async def scenario() -> None:
        manager = manager_of(tmp_path / "host", restart_delay_s=0.05)
        first = await manager.start(python(program))
        deadline_s = time.monotonic() + PATIENCE_S
        identities, restarts = {first}, 0
        while restarts < 3:
            state = await manager.state()
            assert state.identity is not None
            assert state.restarts >= restarts
            if state.activity is Activity.RESTARTING:
                assert (state.exit_status, state.stop_requested) == (5, False)
            identities.add(state.identity)
            restarts = state.restarts
            assert time.monotonic() < deadline_s
            await asyncio.sleep(0.005)
        assert len(identities) >= 2
        assert len({identity.invocation_id for identity in identities}) == len(identities)
        assert len({identity.main_pid for identity in identities}) == len(identities)
        await manager.stop(grace_s=0.1)
        log = (await manager.read_log(None)).text
        assert log.count("main ") >= 3
        assert "BlockingIOError" not in log, "a daemon of the last life still had the lock"
        assert (await manager.state()).activity is Activity.INACTIVE

    asyncio.run(scenario())


@pytest.mark.parametrize("delay_s", [0.0, 0.03, 0.1])
def test_a_start_that_is_cancelled_can_be_stopped_at_once(tmp_path: Path, delay_s: float) -> None:
    async def scenario() -> None:
        manager = manager_of(tmp_path)
        starting = asyncio.ensure_future(manager.start(python(DAEMON_MAKER)))
        await asyncio.sleep(delay_s)
        starting.cancel()
        await asyncio.wait({starting})
        began_s = time.monotonic()
        await manager.stop(grace_s=0.0)
        assert time.monotonic() - began_s < PATIENCE_S, "the stop was read with the order, and forgotten"
        assert await manager.leftovers() == ()
        assert not any(files.is_running(key) for key in status_of(tmp_path).processes)

    asyncio.run(scenario())


def test_a_program_that_cannot_be_executed_is_the_hosts_fault_and_named(tmp_path: Path) -> None:
    program = tmp_path / "nonsense-server"
    program.write_bytes(b"\x7fELF nonsense")
    program.chmod(0o700)

    async def scenario() -> None:
        manager = manager_of(tmp_path / "host")
        with pytest.raises(HostFault, match=r"nonsense-server could not be executed: .*Exec format error"):
            await manager.start(Command(argv=(str(program),)))
        assert (await manager.state()).activity is Activity.FAILED
        await manager.stop(grace_s=1.0)

    asyncio.run(scenario())


def test_log_and_status_are_for_the_owner_only_and_old_starts_are_forgotten(tmp_path: Path) -> None:
    async def scenario() -> None:
        manager = manager_of(tmp_path)
        for _ in range(3):
            await manager.start(python("print('key=secret')"))
            await dead(manager)
        await manager.stop(grace_s=1.0)

    asyncio.run(scenario())
    (directory,) = tmp_path.glob("start-*")
    for path in (directory, directory / "log", directory / "status.json"):
        assert path.stat().st_mode & 0o077 == 0


def test_the_supervisor_survives_what_a_closing_terminal_sends(tmp_path: Path) -> None:
    async def scenario() -> None:
        manager = manager_of(tmp_path)
        await manager.start(python("import time; time.sleep(300)"))
        supervisor = status_of(tmp_path).supervisor
        assert os.getsid(supervisor.pid) != os.getsid(0)
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGINT):
            files.send_signal(supervisor, number)
        await asyncio.sleep(0.2)
        state = await manager.state()
        assert (state.activity, state.stop_requested) == (Activity.RUNNING, False)
        await manager.stop(grace_s=5.0)

    asyncio.run(scenario())


def test_the_server_gets_default_signals_its_environment_and_no_input(tmp_path: Path) -> None:
    program = """
import os, signal, sys
print([signal.getsignal(n) is signal.SIG_DFL for n in (signal.SIGHUP, signal.SIGTERM, signal.SIGCHLD)])
print(sorted(os.environ.get(n, "") for n in ("A", "B")), repr(sys.stdin.read()), os.getsid(0) == os.getpid())
print(sorted(os.listdir("/proc/self/fd"))[:4])
"""

    async def scenario() -> str:
        manager = ProcessServiceManager(tmp_path, {"PATH": os.environ["PATH"], "A": "base", "B": "base"})
        await manager.start(Command(argv=(sys.executable, "-S", "-c", program), env=(("B", "own"),)))
        await dead(manager)
        text = (await manager.read_log(None)).text
        await manager.stop(grace_s=1.0)
        return text

    signals, environment, descriptors = asyncio.run(scenario()).splitlines()
    assert signals == "[True, True, True]"
    assert environment == "['base', 'own'] '' True"
    assert descriptors == "['0', '1', '2', '3']"  # 3 is the folder being listed


def test_twenty_megabytes_of_log_without_a_newline_are_read_in_pieces(tmp_path: Path) -> None:
    # Two bytes a character after one of one byte: the cursor's megabytes fall inside characters.
    program = "import os\nfor part in [b'x', *[('é' * 500_000).encode()] * 20]: os.write(1, part)"

    async def scenario() -> tuple[str, int]:
        manager = manager_of(tmp_path)
        await manager.start(python(program))
        pieces, cursor, deadline_s = [], None, time.monotonic() + PATIENCE_S
        while True:
            is_dead = (await manager.state()).activity is not Activity.RUNNING
            chunk = await manager.read_log(cursor)
            cursor = chunk.cursor
            pieces.append(chunk.text)
            if is_dead and not chunk.text:
                break
            assert time.monotonic() < deadline_s
            if not chunk.text:
                await asyncio.sleep(0.01)
        await manager.stop(grace_s=1.0)
        return "".join(pieces), max(len(piece.encode()) for piece in pieces)

    text, largest = asyncio.run(scenario())
    assert len(text) == 10_000_001
    assert set(text[1:]) == {"é"}
    assert largest <= 1024 * 1024


def test_a_character_cut_by_the_servers_death_is_shown_replaced(tmp_path: Path) -> None:
    async def scenario() -> str:
        manager = manager_of(tmp_path)
        await manager.start(python("import os; os.write(1, b'last words \\xc3')"))
        await dead(manager)
        await manager.stop(grace_s=1.0)
        return (await manager.read_log(None)).text

    assert asyncio.run(scenario()) == "last words \ufffd"


def test_a_death_is_seen_soon_after_it_happened(tmp_path: Path) -> None:
    async def delay_s(folder: Path) -> float:
        manager = manager_of(folder)
        identity = await manager.start(python("import time; time.sleep(300)"))
        died_s = time.monotonic()
        os.kill(identity.main_pid, signal.SIGKILL)
        await dead(manager)
        seen_s = time.monotonic()
        await manager.stop(grace_s=1.0)
        return seen_s - died_s

    # The best of five: it is 0.01 s on a quiet machine, and this one is not. A supervisor that
    # looked once a second would have to be lucky.
    assert min(asyncio.run(delay_s(tmp_path / str(number))) for number in range(5)) < 0.2
