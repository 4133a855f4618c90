"""Starts simulated servers on a simulated host of a test's own, and leaves nothing behind."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tuner.simulator import host
from tuner.simulator.book import Book

COMMAND = (
    *("sglang", "serve", "--model-path", "Qwen/Qwen3.5-122B-A10B", "--host", "0.0.0.0", "--tp", "4"),  # noqa: S104 - a simulated host has loopback only
    *("--attention-backend", "flashinfer", "--page-size", "1", "--enable-metrics"),
)
"""What the tests' servers have in common; no speculation, no memory fraction."""


def speculation(steps: int) -> tuple[str, ...]:
    """Return the flags of a chain of ``steps`` draft tokens at the calibrated fraction."""
    return (
        *("--speculative-algorithm", "NEXTN", "--speculative-num-steps", str(steps), "--speculative-eagle-topk", "1"),
        *("--speculative-num-draft-tokens", str(steps + 1), "--mem-fraction-static", "0.8"),
    )


def wait_until(condition: Callable[[], bool], *, within_s: float = 30.0, what: str = "") -> None:
    """Poll until ``condition`` holds.

    Raises:
        AssertionError: it did not within ``within_s``; the message is ``what``.
    """
    end = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not within {within_s} s: {what}")
        time.sleep(0.01)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What came back; ``status`` None: no reply, ``error`` says why."""

    status: int | None
    body: bytes = b""
    error: str = ""

    def json(self) -> Any:  # noqa: ANN401 - parsed text
        """The body as JSON."""
        return json.loads(self.body)

    def events(self) -> list[Any]:
        """The payloads of a stream; it ended with its end marker.

        Raises:
            AssertionError: the end marker is missing.
        """
        *events, end = [line.removeprefix("data: ") for line in self.body.decode().split("\n\n") if line]
        if end != "[DONE]":
            raise AssertionError(f"the stream ended with {end!r}")
        return [json.loads(event) for event in events]


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedServer:
    """A server process; it leads a session of its own.

    Attributes:
        address, port: where it will listen.
        log_path: its standard output and error.
    """

    process: subprocess.Popen[bytes]
    address: str
    port: int
    log_path: Path

    @property
    def log(self) -> str:
        """Everything it has logged."""
        return self.log_path.read_text()

    def children(self) -> dict[str, int]:
        """Pids of its living children by title."""
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            try:
                stat = (path / "stat").read_text().rpartition(")")[2].split()
                title = (path / "cmdline").read_bytes().rstrip(b"\0").decode()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(stat[1]) == self.process.pid and stat[0] != "Z":
                found[title] = int(path.name)
        return found

    def wait_ready(self) -> SimulatedServer:
        """Wait for SGLang's last start-up line.

        Raises:
            AssertionError: it ended instead; the message is its log.
        """

        def ready() -> bool:
            if self.process.poll() is not None:
                raise AssertionError(self.log)
            return "fired up and ready to roll" in self.log

        wait_until(ready, what=f"ready: {self.log_path}")
        return self

    def call(
        self,
        path: str,
        body: Mapping[str, Any] | bytes | None = None,
        *,
        method: str | None = None,
        key: str | None = None,
        timeout_s: float = 30.0,
    ) -> Reply:
        """Send one request and read its reply to the end; a POST if there is a body.

        Args:
            path: with query.
            body: JSON, or the bytes themselves.
            method: instead of GET or POST.
            key: API key.
            timeout_s: of each wait for the server.
        """
        content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        connection = http.client.HTTPConnection(self.address, self.port, timeout=timeout_s)
        try:
            connection.request(method or ("GET" if body is None else "POST"), path, content, headers)
            response = connection.getresponse()
            return Reply(status=response.status, body=response.read())
        except (OSError, http.client.HTTPException) as error:
            return Reply(status=None, error=type(error).__name__)
        finally:
            connection.close()

    def generate(self, tokens: int, prompt: str = "Tell me about the sea. ") -> Reply:
        """Generate exactly so many tokens by the native endpoint."""
        return self.call(
            "/generate", {"text": prompt, "sampling_params": {"max_new_tokens": tokens, "ignore_eos": True}}
        )

    def running(self) -> int:
        """How many requests run or wait, by the server's own count."""
        return int(self.call("/v1/loads").json()["loads"][0]["num_total_reqs"])

    def wait_exit(self, within_s: float = 30.0) -> int:
        """Wait for its end; return the status, negative for a signal."""
        return self.process.wait(within_s)

    def kill(self) -> None:
        """Kill it and all of its processes, if it lives."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


@dataclass(slots=True, kw_only=True)
class SimulatedHost:
    """A simulated GPU host.

    Attributes:
        home: its folder.
        address: its loopback address.
        profile: model and hardware.
        speed: of loading.
    """

    home: Path
    address: str
    profile: str = host.DEFAULT_PROFILE
    speed: float = 1000.0
    servers: list[SimulatedServer] = field(default_factory=list)

    @property
    def book(self) -> Book:
        """Its GPU memory book."""
        return Book(self.home)

    def program(self, name: str) -> str:
        """Path of one of the commands on the host's PATH."""
        return str(host.prepare(self.home, sys.executable, self.environment()) / name)

    def environment(self, *, speed: float | None = None, faults: Sequence[str] = ()) -> dict[str, str]:
        """Return the variables of this host."""
        return host.environment(self.home, self.profile, speed or self.speed, self.address, faults)

    def start(
        self,
        *command: str,
        speed: float | None = None,
        faults: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        port: int | None = None,
    ) -> SimulatedServer:
        """Start a server.

        Args:
            command: SGLang's own command line; ``--port`` is added.
            speed: instead of the host's.
            faults: what is wrong this time.
            env: more variables, SGLang's own switches.
            port: to listen on; a free one by default.
        """
        port = port or self._free_port()
        program = self.program(command[0])
        log_path = self.home / f"server{len(self.servers)}.log"
        variables = {
            "PATH": f"{Path(program).parent}:{os.environ['PATH']}",
            **self.environment(speed=speed, faults=faults),
            **(env or {}),
        }
        with log_path.open("wb") as log:
            process = subprocess.Popen(
                (program, *command[1:], "--port", str(port)),
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        server = SimulatedServer(process=process, address=self.address, port=port, log_path=log_path)
        self.servers.append(server)
        return server

    def _free_port(self) -> int:
        with socket.socket() as probe:
            probe.bind((self.address, 0))
            return int(probe.getsockname()[1])


@contextmanager
def simulated_host(home: Path, address: str) -> Iterator[SimulatedHost]:
    """Open a host; its servers are killed at the end."""
    opened = SimulatedHost(home=home, address=address)
    try:
        yield opened
    finally:
        for server in opened.servers:
            server.kill()
