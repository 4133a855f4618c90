"""OpenSSH's own port forwarding as the load's way, to a real sshd."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tuner.errors import TransportFault
from tuner.hosts import files
from tuner.hosts.files import process_stat
from tuner.hosts.ssh.tunnel import OpenSshTunnel
from tuner.testing.simulated_host import wait_until
from tuner.testing.sshd import Sshd, sshd_program

pytestmark = pytest.mark.skipif(sshd_program() is None, reason="openssh-server is not installed")


class Hello(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"hello")

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def sshd(tmp_path: Path) -> Iterator[Sshd]:
    with Sshd(tmp_path / "sshd") as sshd:
        yield sshd


@pytest.fixture
def port() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Hello) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def fetch(base_url: str) -> bytes:
    with urllib.request.urlopen(base_url, timeout=10.0) as reply:
        return bytes(reply.read())


def tunnel_pids() -> set[int]:
    pids = (stat.key.pid for stat in files.descendants(os.getpid()) if not stat.is_zombie)
    return {pid for pid in pids if files.command_line(pid).split(" -F ")[0].endswith("/ssh")}


def test_a_server_on_the_hosts_loopback_is_reached_until_the_tunnel_is_closed(sshd: Sshd, port: int) -> None:
    async def scenario() -> None:
        tunnel = OpenSshTunnel(sshd.login)
        base_url = await tunnel.open(port)
        assert await tunnel.open(port) == base_url
        assert await asyncio.to_thread(fetch, base_url) == b"hello"
        assert len(tunnel_pids()) == 1
        await tunnel.close()
        assert not tunnel_pids()
        with pytest.raises(OSError, match="refused"):
            fetch(base_url)

    asyncio.run(scenario())


def test_a_tunnel_that_died_is_made_anew(sshd: Sshd, port: int) -> None:
    async def scenario() -> None:
        tunnel = OpenSshTunnel(sshd.login)
        base_url = await tunnel.open(port)
        assert tunnel.deaths == 0
        (first,) = tunnel_pids()
        sshd.kill_sessions()
        await asyncio.to_thread(wait_until, lambda: first not in tunnel_pids())
        assert tunnel.deaths == 1
        assert await tunnel.open(port) == base_url
        assert await asyncio.to_thread(fetch, base_url) == b"hello"
        await tunnel.close()
        assert tunnel.deaths == 1

    asyncio.run(scenario())


def test_a_tunnel_that_cannot_be_made_anew_at_once_comes_back_at_the_same_port(sshd: Sshd, port: int) -> None:
    async def scenario() -> None:
        tunnel = OpenSshTunnel(sshd.login)
        base_url = await tunnel.open(port)
        sshd.stop()
        for pid in tunnel_pids():
            os.kill(pid, signal.SIGKILL)
        await asyncio.to_thread(wait_until, lambda: not tunnel_pids())
        with pytest.raises(TransportFault, match=r"refused.*by hand: ssh -F \S+ gpu"):
            await tunnel.open(port)
        sshd.start()
        assert await tunnel.open(port) == base_url
        assert tunnel.deaths == 1
        await tunnel.close()

    asyncio.run(scenario())


def test_another_port_gets_another_tunnel_and_the_old_one_goes(sshd: Sshd, port: int) -> None:
    async def scenario() -> None:
        tunnel = OpenSshTunnel(sshd.login)
        await tunnel.open(1)
        assert await asyncio.to_thread(fetch, await tunnel.open(port)) == b"hello"
        assert len(tunnel_pids()) == 1
        await tunnel.close()

    asyncio.run(scenario())


def test_a_tunnel_goes_through_the_jump_hosts_of_its_login(sshd: Sshd, port: int, tmp_path: Path) -> None:
    async def scenario(tunnel: OpenSshTunnel) -> None:
        assert await asyncio.to_thread(fetch, await tunnel.open(port)) == b"hello"
        await tunnel.close()

    with Sshd(tmp_path / "jump", "127.0.0.2", "bastion") as jump:
        config = tmp_path / "config"
        config.write_text(f"{jump.config.read_text()}{sshd.config.read_text()}  ProxyJump bastion\n")
        asyncio.run(scenario(OpenSshTunnel(replace(sshd.login, config_file=str(config)))))
        assert "Accepted publickey" in jump.log.read_text()


def test_other_forwardings_of_ssh_config_stay_out(sshd: Sshd, port: int) -> None:
    sshd.config.write_text(f"{sshd.config.read_text()}  LocalForward {sshd.port} localhost:1\n  RequestTTY force\n")

    async def scenario() -> None:
        tunnel = OpenSshTunnel(sshd.login)
        assert await asyncio.to_thread(fetch, await tunnel.open(port)) == b"hello"
        await tunnel.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("flaw", ["unknown host", "wrong key"])
def test_a_tunnel_that_cannot_be_made_says_why_and_leaves_nothing(sshd: Sshd, port: int, flaw: str) -> None:
    if flaw == "unknown host":
        sshd.known_hosts.write_text("")
    else:
        sshd.authorized.write_text("")

    async def scenario() -> None:
        tunnel = OpenSshTunnel(sshd.login)
        expected = "Host key verification failed" if flaw == "unknown host" else "Permission denied"
        with pytest.raises(TransportFault, match=expected):
            await tunnel.open(port)
        await tunnel.close()

    asyncio.run(scenario())
    assert not tunnel_pids()


def test_a_tunnel_ends_with_a_tuner_that_is_killed(sshd: Sshd, port: int) -> None:
    program = (
        "import asyncio, sys\n"
        "from tuner.hosts.ssh.tunnel import OpenSshTunnel\n"
        "from tuner.model.study import SshLogin\n"
        "async def main():\n"
        "    tunnel = OpenSshTunnel(SshLogin(host='gpu', config_file=sys.argv[1]))\n"
        "    await tunnel.open(int(sys.argv[2]))\n"
        "    print(tunnel._process.pid, flush=True)\n"
        "    await asyncio.sleep(300)\n"
        "asyncio.run(main())\n"
    )
    argv = (sys.executable, "-c", program, str(sshd.config), str(port))
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as tuner:
        assert tuner.stdout is not None
        pid = int(tuner.stdout.readline())
        assert process_stat(pid) is not None
        tuner.send_signal(signal.SIGKILL)
        tuner.wait()
    deadline_s = time.monotonic() + 10.0
    while (stat := process_stat(pid)) is not None and not stat.is_zombie:
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
