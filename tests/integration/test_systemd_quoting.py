"""Hostile words through real systemd, into a process and back out of /proc."""

from __future__ import annotations

import asyncio
import base64
import uuid

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tuner.hosts.clock import SystemClock
from tuner.hosts.ssh.transport import SshTransport
from tuner.hosts.systemd.expansion import expand, parse_environment_file
from tuner.hosts.systemd.quoting import assignment, checked_line, literal, program, quoted
from tuner.hosts.systemd.root import Root
from tuner.hosts.systemd.service import SystemdServiceManager
from tuner.hosts.systemd.unit import read_unit
from tuner.model.trial import Command
from tuner.testing.rig import Rig

SLEEPER = "/usr/bin/python3"
SLEEPER_ARGUMENTS = ("-S", "-c", "import time; time.sleep(300)")
SPECIAL = "$%{}\\\"' \t\n\r;#=-@+!:|*?~`()[]&<>^éaAnN0x\x01\x1f\x7f\x85\u2028\ufeff😀"
HARD = (
    *("", " ", "\t", "\n", "\r", "$", "$$", "$HOME", "${HOME}", "${", "%", "%%", "%n", "%{x}", "'", '"', "\\", "\\n"),
    *(";", "\\;", "#", "--", "@x", "+x", "!x", ":x", "-x", "'a b'", "a\\", "\x1b[0m", "$(x)", "[Service]", "\\x41"),
    *('{"method": "eagle3", "path": "a \\"b\\" $5 100%"}', "x" * 131071, " lead", "trail "),
)
words = st.lists(
    st.one_of(
        st.sampled_from(HARD),
        st.text(alphabet=st.sampled_from(SPECIAL), max_size=8),
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8),
    ),
    max_size=300,
)
values = st.dictionaries(
    st.from_regex(r"[A-Z_][A-Z0-9_]{0,8}", fullmatch=True).map("T_".__add__),
    st.text(
        alphabet=st.sampled_from([c for c in SPECIAL if ord(c) >= 32 and ord(c) != 127] + ["\t", "\n"]), max_size=8
    ),
    max_size=60,
)
through_systemd = settings(
    max_examples=10, deadline=None, database=None, suppress_health_check=list(HealthCheck), report_multiple_bugs=False
)


class Bench:
    """A unit that is written, started, and looked at from inside the host."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.unit = f"words-{uuid.uuid4().hex[:8]}.service"

    def started(self, *lines: str) -> None:
        self.rig.install_unit(self.unit, "[Service]\nType=exec\n" + "".join(f"{line}\n" for line in lines), start=False)
        self.rig.run("systemctl", "restart", self.unit, check=True)

    def proc(self, name: str) -> list[str]:
        pid = self.rig.show("MainPID", unit=self.unit)["MainPID"]
        content = self.rig.run("base64", "-w0", f"/proc/{pid}/{name}", check=True).stdout
        return base64.b64decode(content).decode().split("\0")[:-1]


@pytest.fixture
def bench(rig: Rig) -> Bench:
    return Bench(rig)


@through_systemd
@given(words=words)
def test_every_word_reaches_the_process_unchanged(bench: Bench, words: list[str]) -> None:
    line = " ".join([program(SLEEPER), *map(literal, (*SLEEPER_ARGUMENTS, *words))])
    bench.started(checked_line(f"ExecStart={line}"))
    assert bench.proc("cmdline")[4:] == words


@through_systemd
@given(environment=values)
def test_every_environment_value_reaches_the_process_unchanged(bench: Bench, environment: dict[str, str]) -> None:
    lines = [f"Environment={assignment(name, value)}" for name, value in environment.items()]
    bench.started(*lines, " ".join([f"ExecStart={program(SLEEPER)}", *map(literal, SLEEPER_ARGUMENTS)]))
    found = dict(entry.split("=", 1) for entry in bench.proc("environ"))
    assert {name: value for name, value in found.items() if name.startswith("T_")} == environment


@through_systemd
@given(
    raw=st.lists(st.text(alphabet=st.sampled_from("$${}AB_ x'\"\\"), max_size=7), max_size=100),
    a=st.text(alphabet=st.sampled_from("ab \t'\"$\\"), max_size=8),
)
def test_variables_are_expanded_as_systemd_expands_them(bench: Bench, raw: list[str], a: str) -> None:
    # An open quote in a variable that is split makes systemd refuse the start: no server runs with it.
    a = a if a.count("'") % 2 == 0 and a.count('"') % 2 == 0 and not a.endswith("\\") else a.translate(_NO_QUOTES)
    variables = {"A": a, "B": "b"}
    lines = [f"Environment={assignment(name, value)}" for name, value in variables.items()]
    line = " ".join([program(SLEEPER), *map(literal, SLEEPER_ARGUMENTS), *map(quoted, raw)])
    bench.started(*lines, checked_line(f"ExecStart={line}"))
    assert bench.proc("cmdline")[4:] == [part for word in raw for part in expand(word, variables)]


_NO_QUOTES = str.maketrans("", "", "'\"\\")


def test_a_units_own_command_is_known_to_the_last_word_and_survives_our_drop_in(rig: Rig) -> None:
    unit = f"own-{uuid.uuid4().hex[:8]}@7.service"
    stem = unit.partition("@")[0]
    environment = "# keys\nAPI_KEY=\"sk-a b\"\nEXTRA=--one 'two words' --three\\\n=4\nQUOTE='it is \"quoted\"'\n"
    rig.write(f"/etc/{stem}/keys.env", environment, mode=0o600)
    rig.install_unit(
        f"{stem}@.service",
        "[Service]\n"
        f"EnvironmentFile=/etc/{stem}/*.env\nEnvironmentFile=-/etc/nothing\n"
        "Environment=A=1 \"B=two  words\" 'C=x$y%%z'\n"
        f"ExecStart=-@{SLEEPER} engine-%i -S -c 'import time; time.sleep(300)' \\\n"
        "  --port 3000%i --api-key ${API_KEY} $EXTRA $NOTHING ${NOTHING} --quote=${QUOTE} \\\n"
        '  --json \'{"a": "$$5 100%%"}\' "--b=${B}" ${C} $B x$A "" \\x41 \';\' %%n\n',
        start=False,
    )
    rig.run("systemctl", "start", unit, check=True)

    def cmdline() -> tuple[str, ...]:
        pid = rig.show("MainPID", unit=unit)["MainPID"]
        return tuple(rig.run("cat", f"/proc/{pid}/cmdline", check=True).stdout.split("\0")[:-1])

    async def scenario() -> None:
        transport = SshTransport(rig.login())
        try:
            root = Root(transport, sudo=False)
            found = await read_unit(transport, unit, root)
            assert dict(found.file_environment) == dict(parse_environment_file(environment))
            command = found.command()
            own = cmdline()
            assert own[0] == "engine-7"
            assert command.argv == (SLEEPER, *own[1:])
            manager = SystemdServiceManager(transport, root, unit, SystemClock())
            await manager.stop(grace_s=0.0)
            await manager.start(command)
            assert cmdline() == own
            await manager.stop(grace_s=0.0)
            changed = tuple("30008" if word == "30007" else word for word in command.argv)
            await manager.start(Command(argv=(*changed, "--new", "$5 %n")))
            assert cmdline() == (own[0], *changed[1:], "--new", "$5 %n")
            drop_in = rig.run("cat", f"/run/systemd/system/{unit}.d/zzzz-tuner.conf", check=True).stdout
            assert "sk-a b" not in drop_in
            assert "${API_KEY}" in drop_in
            await manager.stop(grace_s=0.0)
        finally:
            await transport.close()

    asyncio.run(scenario())
