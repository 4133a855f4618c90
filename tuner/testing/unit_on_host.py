"""A unit on a host of the rig: how it stands, and what its owner and others do there."""

from __future__ import annotations

import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass

from tuner.hosts.systemd.paths import drop_in_path
from tuner.testing.rig import CHECKOUT, HOME, PORT, UNIT, Rig

_ANSWER_S = 60.0
# Inside, because the book tells the living from the dead by their PIDs there. argv: home, PID, bytes (0: release).
_BOOK = """
import sys
from pathlib import Path
from tuner.simulator.book import Book
home, pid, held = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
if held:
    Book(home).foreign(pid, name="python train.py", bytes_per_gpu={0: held})
else:
    Book(home).release(pid)
"""
# Not /run/tuner itself: it carries the lock of all leases of the host, and goes with a reboot.
_TRACES = """
ls -A /run/tuner 2>/dev/null
ls -d "$1" "${1%/*}" 2>/dev/null
systemctl list-units --all --no-legend --plain "tuner-*" | cut -d " " -f 1
ls /run/systemd/transient 2>/dev/null | grep tuner
true
"""
_LOOKS = 25
_EXEC_START = ("org.freedesktop.systemd1.Service", "ExecStartEx")


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A unit as its owner sees it, and what is there of us; two of them are compared.

    Attributes:
        text: what ``systemctl cat`` prints.
        shown: properties that must not change.
        argv: of the main process; empty: none runs.
        traces: folders, units and drop-ins of ours.
    """

    text: str
    shown: Mapping[str, str]
    argv: tuple[str, ...]
    traces: str

    def differences(self, before: Standing) -> list[str]:
        """Say what is not as it was."""
        was = {"text": before.text, "argv": before.argv, "traces": before.traces, **before.shown}
        now = {"text": self.text, "argv": self.argv, "traces": self.traces, **self.shown}
        return [f"{name} was {was[name]!r}, is {now[name]!r}" for name in was if was[name] != now[name]]


class UnitOnHost:
    """A unit on a host of the rig, looked at without the network in between.

    Args:
        rig: the host.
        unit: full name; of a template, an instance.
    """

    def __init__(self, rig: Rig, unit: str = UNIT) -> None:
        self.rig = rig
        self.unit = unit

    def standing(self) -> Standing:
        """Return how it stands now."""
        names = ("ActiveState", "SubState", "UnitFileState", "DropInPaths", "NeedDaemonReload", "Restart", "Type")
        shown = self.rig.show(*names, "TimeoutStopUSec", unit=self.unit)
        # Without the times and PIDs that the text form of ExecStart ends with.
        path = self.sh(
            "busctl call --json=short org.freedesktop.systemd1 /org/freedesktop/systemd1 "
            'org.freedesktop.systemd1.Manager LoadUnit s "$1"',
            self.unit,
        )
        told = self.sh(
            'busctl --json=short get-property org.freedesktop.systemd1 "$@"', json.loads(path)["data"][0], *_EXEC_START
        )
        shown["ExecStart"] = json.dumps([line[:3] for line in json.loads(told)["data"]])
        return Standing(
            text=self._text(),
            shown=shown,
            argv=self.argv(),
            traces=self.sh(_TRACES, drop_in_path(self.unit)),
        )

    def _text(self) -> str:
        """Return the unit's files.

        While somebody else changes them, one that systemd still names may be gone, for a moment.
        """
        for _ in range(_LOOKS):
            done = self.rig.run("systemctl", "cat", "--", self.unit)
            if done.returncode == 0:
                return done.stdout.strip()
            time.sleep(0.2)
        raise AssertionError(f"systemctl cat {self.unit}: {done.stderr}")

    def argv(self) -> tuple[str, ...]:
        """Return the main process's command line."""
        pid = self.shows("MainPID")
        said = self.rig.run("cat", f"/proc/{pid}/cmdline").stdout if pid != "0" else ""
        # A server that writes its title over its arguments leaves zeros behind them.
        return tuple(said.rstrip("\0").split("\0")) if said else ()

    def shows(self, name: str) -> str:
        """Return a property as systemd shows it."""
        return self.rig.show(name, unit=self.unit)[name]

    def sh(self, script: str, *arguments: str) -> str:
        """Run a script as root; it has to succeed."""
        done = self.rig.run("sh", "-c", script, "test", *arguments)
        assert done.returncode == 0, f"{script}: {done.stderr}"
        return done.stdout.strip()

    def is_there(self, path: str) -> bool:
        """Whether a path is there."""
        return self.rig.run("test", "-e", path).returncode == 0

    def invocations(self) -> frozenset[str]:
        """Return the ids of all starts of the unit that the journal knows of."""
        fields = "INVOCATION_ID,_SYSTEMD_INVOCATION_ID"
        argv = ("journalctl", "-q", "-o", "json", f"--output-fields={fields}", "-u", self.unit)
        entries = [json.loads(line) for line in self.rig.run(*argv).stdout.splitlines()]
        found = {entry.get("INVOCATION_ID", entry.get("_SYSTEMD_INVOCATION_ID")) for entry in entries}
        return frozenset(found - {None, self.rig.show("InvocationID", unit="init.scope")["InvocationID"]})

    def hold_gpu(self, pid: int, held_bytes: int) -> None:
        """Let a process hold memory of GPU 0; 0 gives it back."""
        argv = ("env", f"PYTHONPATH={CHECKOUT}", sys.executable, "-c", _BOOK, str(HOME), str(pid), str(held_bytes))
        self.rig.run(*argv, check=True)

    def wait_until_it_answers(self) -> None:
        """Return when the server is healthy."""
        deadline_s = time.monotonic() + _ANSWER_S
        while True:
            try:
                with urllib.request.urlopen(f"http://{self.rig.address}:{PORT}/health", timeout=2) as reply:
                    if reply.status == 200:
                        return
            except (urllib.error.URLError, OSError):
                pass
            assert time.monotonic() < deadline_s, self.rig.run("journalctl", "-u", self.unit, "-n", "20").stdout
            time.sleep(0.1)
