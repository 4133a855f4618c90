"""What a study would do and what it did, as lines for the reader."""

from __future__ import annotations

import math
import shlex
import textwrap
from collections.abc import Sequence
from pathlib import Path

from tuner.model.metric import OBJECTIVES
from tuner.model.names import short_names
from tuner.model.secrets import MASK, masked
from tuner.model.space import describe
from tuner.model.study import HostSpec, SimulatedHostSpec, SshLogin, StudySpec, UnitHostSpec
from tuner.model.trial import Command
from tuner.model.workload import Workload
from tuner.screen.words import counted, duration, settings

_LABEL_WIDTH = 11
_INDENT = "  "
_GLUE = "\0"
"""Stands for a space at which no line may be broken; no path holds it."""


def command_lines(command: Command) -> list[str]:
    """Quote a command for a POSIX shell, one flag with its values a line.

    Only for reading: what is started is the tuple itself, never this text. Secrets are hidden.
    """
    command = masked(command)
    lines = [f"{key}={_quoted(value)}" for key, value in command.env]
    words: list[str] = []
    for word in command.argv:
        if word.startswith("-") and words:
            lines.append(" ".join(words))
            words = []
        words.append(_quoted(word))
    lines.append(" ".join(words))
    return [lines[0] + _continued(lines, 0)] + [
        f"  {line}{_continued(lines, index)}" for index, line in enumerate(lines[1:], start=1)
    ]


def _quoted(word: str) -> str:
    """Quote for a shell, but for the mask: it only says that something is hidden."""
    return word if word.rpartition("=")[2] == MASK else shlex.quote(word)


def _continued(lines: Sequence[str], index: int) -> str:
    return " \\" if index < len(lines) - 1 else ""


def _repeats(spec: StudySpec) -> list[str]:
    """Say what is measured again on fresh starts; nothing where nothing is."""
    terms = spec.repeats
    most = terms.limit(spec.trials)
    parts = [f"the baseline after every {terms.baseline_every} trials of a host"] if terms.baseline_every else []
    if terms.confirmations:
        parts.append(f"winners and near misses {counted(terms.confirmations, 'time')} each at the end")
    return [f"{', '.join(parts)}; at most {most} in all"] if parts and most else []


def plan_lines(spec: StudySpec) -> list[str]:
    """Say what a run of ``spec`` would do, for how long and where the results would go."""
    names = short_names([parameter.name for parameter in spec.space.parameters])
    size = math.prod(len(parameter.values()) for parameter in spec.space.parameters)
    return [
        _labelled("study", f"{spec.name} (SIMULATED)" if spec.simulated else spec.name),
        _labelled("engine", spec.engine),
        _labelled("space", f"{spec.space.name}: {size:,} combinations before the engine's rules"),
        *(_labelled("", f"{parameter.name}: {describe(parameter)}") for parameter in spec.space.parameters),
        _labelled("trial 0", f"{settings(spec.baseline, names)} (the command above as it stands)"),
        _labelled("trials", f"{spec.trials}, sampler {spec.sampler}, seed {spec.seed}"),
        *(_labelled("repeats", text) for text in _repeats(spec)),
        *aim_lines(spec),
        *(
            _labelled("" if index else "workload", text)
            for index, text in enumerate(workload_lines(spec.workload, simulated=spec.simulated))
        ),
        *(_labelled("" if index else "hosts", host_words(host)) for index, host in enumerate(spec.hosts)),
        _labelled("results", spec.directory),
        _labelled("time", time_words(spec)),
    ]


def aim_lines(spec: StudySpec) -> list[str]:
    """Say what the study wants, where it is not just the two throughputs."""
    lines = []
    if spec.objectives != OBJECTIVES:
        words = [f"{each.name} ({each.direction.value}, {each.unit or 'a share'})" for each in spec.objectives]
        lines += [_labelled("" if index else "objectives", text) for index, text in enumerate(words)]
    return lines + [_labelled("" if index else "limits", each.text) for index, each in enumerate(spec.constraints)]


def workload_lines(workload: Workload, *, simulated: bool) -> list[str]:
    """Say what load a trial's server is put under."""
    ladder = " ".join(str(level) for level in workload.ladder)
    length = f"{workload.output_tokens} output tokens"
    length += " exactly" if workload.ignore_eos else " at most"
    shortened = " (shortened for the simulated host)" if simulated else ""
    level = f"{workload.level_min_s:g} to {workload.level_max_s:g} s each"
    soak = f"{workload.soak_s:g} to {workload.soak_max_s:g} s more"
    interval = f"until the 95 % interval is within ±{100 * workload.interval:g} %"
    return [
        f"{workload.prompts} prompts, {length}, temperature {workload.temperature:g}{shortened}",
        f"{ladder} requests at once, {level} {interval}; then {soak} at the highest",
    ]


def host_words(host: HostSpec) -> str:
    """Name a host, say what it is and how the load reaches it."""
    if isinstance(host, SimulatedHostSpec):
        faults = f", faults {' '.join(host.faults)}" if host.faults else ""
        profile = f"profile {host.profile}, loads {host.speed:g} times faster than real{faults}"
        return f"{host.name}: simulated GPU host at {host.address}, {profile}"
    place = "this machine" if host.login is None else f"{login_words(host.login)} over SSH"
    what = [f"{host.unit} of {place}" if isinstance(host, UnitHostSpec) else place]
    if isinstance(host, UnitHostSpec) and host.sudo:
        what.append("with sudo")
    if host.care.gpu_indices:
        what.append(f"GPU {' '.join(str(index) for index in host.care.gpu_indices)}")
    if host.reach.base_url is not None:
        what.append(f"load to {host.reach.base_url}")
    elif host.login is not None:
        what.append("load through an SSH tunnel" if host.reach.tunnel else "load straight to its port")
    if host.reach.ray_node is not None:
        what.append(f"from the Ray node {host.reach.ray_node}")
    if host.is_owned:
        what.append(f"restores itself {duration(host.care.lease.lasts_s)} after tuner is gone")
    return f"{host.name}: {', '.join(what)}"


def login_words(login: SshLogin) -> str:
    """Write where to log in, as ssh takes it."""
    host = f"[{login.host}]" if ":" in login.host and login.port is not None else login.host
    user = "" if login.user is None else f"{login.user}@"
    return f"{user}{host}" if login.port is None else f"{user}{host}:{login.port}"


def time_words(spec: StudySpec) -> str:
    """Estimate how long the measuring of all trials takes; loading is the server's own."""
    workload = spec.workload
    rounds = math.ceil(spec.trials / len(spec.hosts))
    shortest_s, longest_s = (
        rounds * (len(workload.ladder) * level_s + soak_s)
        for level_s, soak_s in (
            (workload.level_min_s, workload.soak_s),
            (workload.level_max_s, workload.soak_max_s),
        )
    )
    return (
        f"{duration(shortest_s)} to {duration(longest_s)} of measuring in {counted(rounds, 'round')}, "
        f"less for configurations that fail; and {counted(rounds, 'server start')}"
    )


def ending_lines(
    spec: StudySpec, gains: Sequence[str], *, again: str | None, viewer: str, width: int | None = None
) -> list[str]:
    """Say how a run ended, what was gained, where it is written and how to look at it.

    Args:
        spec: the study.
        gains: what was gained against trial 0, as lines.
        again: the command that goes on after an interruption; None: the study is complete.
        viewer: optuna-dashboard, as a shell finds it.
        width: columns of the terminal; None: lines may be of any length.
    """
    badge = " (SIMULATED: these are numbers of the simulated GPU host)" if spec.simulated else ""
    end = "is complete" if again is None else "was interrupted"
    folder = Path(spec.directory)
    prose = [f"study {spec.name} {end}{badge}", *gains]
    written = f"written to {folder}: front.csv, trials.csv, front.png, study.db, and the evidence of every trial"
    return [
        *(part for line in prose for part in wrapped(line, width)),
        *([] if again is None else _with_command("go on with:", again, width)),
        *wrapped(written, width, whole=str(folder)),
        *_with_command("look at it with:", f"{viewer} {dashboard_url(folder)}", width),
    ]


def wrapped(line: str, width: int | None, *, whole: str = "") -> list[str]:
    """Break a line at its words, neither within one nor within ``whole``; None: leave it as it is."""
    if width is None or len(line) <= width:
        return [line]
    joined = line.replace(whole, whole.replace(" ", _GLUE)) if whole else line
    parts = textwrap.wrap(joined, width, subsequent_indent=_INDENT, break_long_words=False, break_on_hyphens=False)
    return [part.replace(_GLUE, " ") for part in parts]


def _with_command(label: str, command: str, width: int | None) -> list[str]:
    """Put a command that does not fit beside its label on a line of its own, whole, to be copied."""
    line = f"{label} {command}"
    return [line] if width is None or len(line) <= width else [label, f"{_INDENT}{command}"]


def dashboard_url(folder: Path) -> str:
    """Return the study's database as optuna-dashboard takes it, quoted for a shell."""
    return shlex.quote(f"sqlite:///{folder / 'study.db'}")


def _labelled(label: str, text: str) -> str:
    return f"{label:<{_LABEL_WIDTH}}{text}".rstrip()
