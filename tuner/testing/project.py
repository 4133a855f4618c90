"""A project folder with one small simulated study, and the real command line in it: for end-to-end tests."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from tuner.testing.base_command import sglang_arguments

TINY = """
engine = "sglang"
space = "sglang-mtp"
seed = 3

[server]
command = {command}

[workload]
output_tokens = 24
ladder = [1, 8]
level_min_s = 0.5
level_max_s = 0.8
interval = 0.2
soak_s = 0.5
warmup_requests = 2
request_timeout_s = 20
load_timeout_s = 60

[budget]
trials = {trials}
confirmations = 0
baseline_every = 0

[simulated]
profile = "qwen3.5-122b-a10b-4gpu"
hosts = {hosts}
speed = {speed}
faults = {faults}
"""


@dataclass
class Project:
    """A folder with one small simulated study, and the command line in it."""

    root: Path
    name: str = "tiny"
    env: dict[str, str] = field(default_factory=dict)
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def results(self) -> Path:
        """The study's folder."""
        return self.root / "studies" / self.name

    def write(
        self,
        *,
        trials: int = 3,
        hosts: int = 1,
        speed: float = 200,
        port: int | None = None,
        faults: tuple[str, ...] = (),
    ) -> None:
        """Write the study file; without a ``port`` its servers listen where nobody else does now."""
        port = free_port() if port is None else port
        command = json.dumps(["sglang", *sglang_arguments(port), "--api-key", "planted-s3cret"])
        text = TINY.format(trials=trials, hosts=hosts, speed=speed, command=command, faults=json.dumps(list(faults)))
        (self.root / "studies" / f"{self.name}.toml").write_text(text)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start ``python -m tuner`` in a process group of its own, as a terminal would; ``env`` goes on top."""
        process = subprocess.Popen(
            [sys.executable, "-m", "tuner", *arguments],
            cwd=self.root,
            env={**os.environ, **self.env},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def tuner(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run ``python -m tuner`` to its end."""
        process = self.start(*arguments)
        out, err = process.communicate()
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def run(self, *options: str) -> subprocess.CompletedProcess[str]:
        """Run the study to its end."""
        return self.tuner("run", "--study", self.name, *options)

    def refused(self, *arguments: str, code: int = 2) -> str:
        """Run tuner, hold what is true of every refusal, and return its one line."""
        before = tree(self.root)
        done = self.tuner(*arguments)
        assert done.returncode == code, done.stderr
        assert not done.stdout
        *prose, line = done.stderr.splitlines()
        assert all("starting Ray" in text for text in prose), done.stderr
        assert line.startswith("tuner: error: ")
        assert tree(self.root) == before, "something was written"
        return line.removeprefix("tuner: error: ")

    def trials(self) -> list[dict[str, str]]:
        """Return the rows of trials.csv."""
        with (self.results / "trials.csv").open(newline="") as file:
            return list(csv.DictReader(file))

    def wait_for_state(self, state: str, process: subprocess.Popen[str], *, trial: int = 0) -> None:
        """Return when the trial has entered ``state``; fail when the run ends before."""
        events = self.results / "trials" / f"{trial:04d}" / "events.jsonl"
        wanted = f'"state": "{state}"'
        while not (events.exists() and wanted in events.read_text()):
            assert process.poll() is None, process.stderr and process.stderr.read()
            time.sleep(0.02)

    def server_processes(self) -> list[int]:
        """Return the PIDs of everything that runs for this project's hosts."""
        return processes_of(self.results / "hosts")

    def wait_until_no_server(self) -> None:
        """Return when nothing of this project's hosts lives any more."""
        deadline = time.monotonic() + 30
        while self.server_processes():
            assert time.monotonic() < deadline, f"still running: {self.server_processes()}"
            time.sleep(0.1)


def free_port() -> int:
    """Return a port that nobody listens on, on any loopback address."""
    with socket.socket() as probe:
        probe.bind(("0.0.0.0", 0))  # noqa: S104 - free on all addresses; nothing ever listens on it
        port: int = probe.getsockname()[1]
    return port


def tree(root: Path) -> dict[str, str]:
    """Return every path under ``root`` with a digest of what it holds."""
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
        for path in sorted(root.rglob("*"))
    }


def processes_of(folder: Path) -> list[int]:
    """Return the PIDs of the processes whose environment or command line names ``folder``."""
    found = []
    wanted = str(folder).encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            environ = (entry / "environ").read_bytes()
            command = (entry / "cmdline").read_bytes()
        except OSError:
            continue  # it ended while we looked, or is not ours to see
        if wanted in environ or wanted in command:
            found.append(int(entry.name))
    return found
