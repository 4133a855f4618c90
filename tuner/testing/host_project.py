"""A project folder whose study runs on hosts of the rig, by the real command line: for end-to-end tests."""

from __future__ import annotations

import json
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tuner.testing.project import Project, free_port, tree
from tuner.testing.rig import CHECKOUT, HOME, OPERATOR, UNIT, Rig
from tuner.testing.unit_on_host import Standing, UnitOnHost

STUDY = """
engine = "sglang"
space = "sglang-mtp"
seed = 3

[workload]
output_tokens = 24
ladder = [1, 4]
level_min_s = 0.5
level_max_s = 0.8
interval = 0.2
soak_s = 0.3
warmup_requests = 2
request_timeout_s = 20
load_timeout_s = 60

[budget]
trials = {trials}
confirmations = 0
baseline_every = 0
"""
SHORT_LEASE_S = 30.0
"""The shortest dead-man that a study may ask for."""

Table = Mapping[str, object]


def ssh_host(rig: Rig, user: str = "root", **more: object) -> Table:
    """Return a ``[[hosts]]`` table for a unit of ``rig``; ``more`` goes on top."""
    login = rig.login(user)
    table: dict[str, object] = {
        "kind": "ssh",
        "name": rig.name,
        "address": f"{user}@{rig.address}",
        "unit": UNIT,
        "ssh_config": login.config_file,
        "known_hosts": login.known_hosts,
        "identity_file": login.identity_file,
    }
    if user == OPERATOR:
        table["sudo"] = True
    return table | more


def toml_table(header: str, content: Table) -> str:
    """Return a TOML table; JSON's texts, numbers, booleans and lists are TOML's too."""
    return "\n".join((f"\n{header}", *(f"{name} = {json.dumps(value)}" for name, value in content.items()), ""))


@dataclass
class HostProject(Project):
    """A folder with studies that run on hosts of somebody's, and the command line in it.

    Attributes:
        ray: where Ray keeps its sessions; short, because its sockets' names may have 107 bytes only.
    """

    name: str = "mtp"
    ray: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="tr")))

    def write_hosts(self, *hosts: Table, trials: int = 2, server: Sequence[str] = (), more: str = "") -> None:
        """Write the study file; ``server`` is its command, where it has one, ``more`` TOML after that."""
        text = STUDY.format(trials=trials)
        text += toml_table("[server]", {"command": list(server)} if server else {}) + more
        text += "".join(toml_table("[[hosts]]", host) for host in hosts)
        (self.root / "studies" / f"{self.name}.toml").write_text(text)

    def write_local(self, command: Sequence[str], *, trials: int, speed: float = 200.0) -> None:
        """Write a study of the same server on the simulated host of this machine."""
        words = list(command)
        words[words.index("--port") + 1] = str(free_port())
        more = toml_table("[simulated]", {"profile": "qwen3.5-122b-a10b-4gpu", "speed": speed})
        self.write_hosts(trials=trials, server=words, more=more)

    def other(self, name: str) -> HostProject:
        """Return another study in the same folder."""
        return HostProject(self.root, name=name, env=self.env, started=self.started, ray=self.ray)

    def doctor(self, *options: str) -> tuple[int, dict[str, dict[str, Any]]]:
        """Run doctor; return its exit code and the findings by check, of a study with one host."""
        done = self.tuner("doctor", "--study", self.name, "--format", "json", *options)
        assert "Traceback" not in done.stderr, done.stderr
        rows = json.loads(done.stdout)
        return done.returncode, {row["check"]: row for row in rows}

    def refused_run(self, *options: str, command: str = "run") -> str:
        """Run tuner on a host that cannot be used; hold that nothing is written, and return its one line."""
        before = tree(self.results)
        done = self.tuner(command, "--study", self.name, *options)
        # 2: a unit that no study can tune as it is written.
        assert done.returncode in {2, 3}, done.stderr
        assert not done.stdout, done.stdout
        line = done.stderr.splitlines()[-1]
        assert line.startswith("tuner: error: "), done.stderr
        assert "Traceback" not in done.stderr
        assert "starting Ray" not in done.stderr, "it is seen before anything is started"
        assert tree(self.results) == before, "something was written"
        return line.removeprefix("tuner: error: ")


@contextmanager
def host_project(folder: Path) -> Iterator[HostProject]:
    """Make a project in ``folder``; what it started is ended afterwards."""
    shutil.copytree(CHECKOUT / "search_spaces", folder / "search_spaces")
    (folder / "studies").mkdir()
    project = HostProject(folder)
    project.env["RAY_TMPDIR"] = str(project.ray)
    try:
        yield project
    finally:
        for process in project.started:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            with suppress(ValueError):  # closed: it was waited for
                process.communicate()
        shutil.rmtree(project.ray, ignore_errors=True)  # Ray's node may still be about to end
    project.wait_until_no_server()


def let_everybody(rig: Rig) -> None:
    """Let every user run the simulated nvidia-smi, as the real one: its Python may lie below root's home."""
    rig.run("chmod", "711", "/root", check=True)
    rig.run("chmod", "-R", "a+rwX", str(HOME), check=True)


@contextmanager
def journal_reader(rig: Rig) -> Iterator[None]:
    """Let the operator read the journal meanwhile."""
    rig.run("usermod", "-a", "-G", "systemd-journal", OPERATOR, check=True)
    try:
        yield
    finally:
        rig.run("gpasswd", "-d", OPERATOR, "systemd-journal", check=True)


@contextmanager
def left_as_it_was(*hosts: UnitOnHost, within_s: float = 0.0) -> Iterator[tuple[Standing, ...]]:
    """Hold that hosts are afterwards what they were before, and that nothing of ours is there.

    Args:
        hosts: each with a unit on it, which answers before where it runs.
        within_s: how long they may take for it, from the end of the block.
    """
    for host in hosts:
        if host.shows("ActiveState") == "active":
            host.wait_until_it_answers()
    before = tuple(host.standing() for host in hosts)
    assert [standing.traces for standing in before] == [""] * len(hosts)
    yield before
    deadline_s = time.monotonic() + within_s
    while (after := tuple(host.standing() for host in hosts)) != before and time.monotonic() < deadline_s:
        time.sleep(0.2)
    found = [text for now, was in zip(after, before, strict=True) for text in now.differences(was)]
    assert after == before, "\n".join(found)
