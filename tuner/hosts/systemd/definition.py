"""What is known of a unit, and whether its command line can be tuned."""

from __future__ import annotations

from dataclasses import dataclass, field

from tuner.errors import UsageError
from tuner.hosts.systemd.expansion import expand, names_in
from tuner.hosts.systemd.wrappers import wrapper_problem
from tuner.model.trial import Command

_SERVES = frozenset({"simple", "exec", "notify", "notify-reload", "idle"})
_STARTS = frozenset({"start", "restart", "try-restart", "reload-or-start"})
UP = frozenset({"active", "activating", "reloading", "refreshing"})
"""States (ActiveState) of a unit whose current invocation is not about to end."""
_UNEXPANDED = "no-env-expand"
_VIA_SHELL = "via-shell"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecLine:
    """One command of a unit.

    Attributes:
        path: the program, absolute unless systemd is to look for it.
        argv: after systemd replaced specifiers, before it replaces variables; argv[0] is another
            name than ``path`` where the unit has the prefix ``@``.
        flags: systemd's names for the other prefixes: ``ignore-failure`` (``-``), ``no-env-expand``
            (``:``), ``privileged`` (``+``), ``no-setuid`` (``!``), ``ambient`` (``!!``), ``via-shell`` (``|``).
    """

    path: str
    argv: tuple[str, ...]
    flags: tuple[str, ...] = ()

    @property
    def expands(self) -> bool:
        """Whether systemd replaces variables in it."""
        return _UNEXPANDED not in self.flags


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentFile:
    """A file named by EnvironmentFile=; ``path`` may be a pattern."""

    path: str
    optional: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """What systemd says of a unit. Words are systemd's own (``systemctl show``).

    Attributes:
        name: as it was asked for.
        id: its own name; another than ``name`` where that is an alias.
        version: of systemd, as it names itself.
        type: ``simple``, ``exec``, ``notify``, …
        exec_start: every ExecStart= line.
        exec_start_pre: how many ExecStartPre= lines there are.
        environment: Environment= of the unit, in order.
        environment_files: EnvironmentFile= lines, in order.
        file_environment: what those files say, in order; later ones win, and win over ``environment``.
        unreadable_files: those that could not be read.
        surroundings: variables systemd sets by itself: its own, and those of ``user``.
        unset: names that UnsetEnvironment= takes away.
        control_group: empty while it does not run.
        main_pid: 0 while it does not run.
        timeout_stop: in systemd's words, ``1min 30s``.
        triggered_by: units that start it: sockets, timers, paths.
        job: what is queued for it: ``start``, ``restart``, ``stop``, …; empty: nothing.
        system_state: of the host: ``starting`` until all that is enabled has been started.
        dependants: units that a stop of it stops too, and that its start does not start.
    """

    name: str
    id: str
    version: str
    load_state: str
    active_state: str
    sub_state: str
    unit_file_state: str
    fragment_path: str
    drop_in_paths: tuple[str, ...]
    need_daemon_reload: bool
    type: str
    user: str
    exec_start: tuple[ExecLine, ...]
    exec_start_pre: int
    environment: tuple[tuple[str, str], ...] = field(default=(), repr=False)  # may hold keys
    environment_files: tuple[EnvironmentFile, ...] = ()
    file_environment: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    unreadable_files: tuple[str, ...] = ()
    surroundings: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    unset: tuple[str, ...] = ()
    control_group: str = ""
    slice: str = ""
    main_pid: int = 0
    invocation_id: str = ""
    restart: str = ""
    kill_mode: str = ""
    timeout_stop: str = ""
    on_failure: tuple[str, ...] = ()
    triggered_by: tuple[str, ...] = ()
    standard_output: str = ""
    refuse_manual_start: bool = False
    refuse_manual_stop: bool = False
    job: str = ""
    system_state: str = ""
    dependants: tuple[str, ...] = ()

    @property
    def is_found(self) -> bool:
        """Whether there is such a unit, and systemd could read it."""
        return self.load_state == "loaded"

    @property
    def is_active(self) -> bool:
        """Whether it runs, or is on its way: a restart between two lives counts, by whomever."""
        if self.is_up or self.job in _STARTS:
            return True
        if self.active_state == "deactivating":  # its own Restart= says what comes next, unless somebody stops it
            return self.job != "stop" and self.restart not in {"", "no"}
        # sshd may answer before the host has started all that it is to start.
        return self.active_state == "inactive" and self.is_enabled and self.system_state in {"initializing", "starting"}

    @property
    def is_up(self) -> bool:
        """Whether the current invocation runs, or is being started."""
        return self.active_state in UP

    @property
    def is_enabled(self) -> bool:
        """Whether the host starts it by itself."""
        return self.unit_file_state in {"enabled", "enabled-runtime"}

    def variables(self) -> dict[str, str]:
        """Return the environment the unit's command is expanded with."""
        found = dict((*self.surroundings, *self.environment, *self.file_environment))
        for entry in self.unset:  # a name, or an assignment that falls only with this value
            name, equals, value = entry.partition("=")
            if not equals or found.get(name) == value:
                found.pop(name, None)
        return found

    def line(self) -> ExecLine:
        """Return the one command line that a trial replaces arguments of.

        Raises:
            UsageError: the unit is not there, is of a kind that cannot be tuned, or wraps the engine.
        """
        problem = self._load_problem() or self._kind_problem()
        if problem is None and (not self.is_found or len(self.exec_start) != 1):
            problem = f"has {len(self.exec_start) or 'no'} ExecStart lines: a server's unit has exactly one"
        if problem is None and _VIA_SHELL in self.exec_start[0].flags:
            problem = "runs its command through a shell (prefix `|` of ExecStart): remove that prefix"
        if problem is None:
            arguments = [word for _, words in self.words() for word in words]
            problem = wrapper_problem(self.exec_start[0].path, arguments)
        if problem is not None:
            msg = f"unit {self.name} {problem}"
            raise UsageError(msg)
        return self.exec_start[0]

    def words(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """Return each word of the command line after the program: as systemd holds it, and what it becomes."""
        line, variables = self.exec_start[0], self.variables()
        return tuple((word, expand(word, variables) if line.expands else (word,)) for word in line.argv[1:])

    def command(self) -> Command:
        """Return the literal command line, every variable expanded.

        Raises:
            UsageError: as for :meth:`line`; or a file that it takes variables from cannot be read.
        """
        line = self.line()
        referred = {name for word in line.argv[1:] for name in names_in(word)} if line.expands else set()
        if referred and self.unreadable_files:
            path = self.unreadable_files[0]
            msg = (
                f"unit {self.name} takes {', '.join(sorted(referred))} in ExecStart from its environment, and "
                f"{path} cannot be read: let the user read it, or add the sudoers line that `tuner doctor` prints"
            )
            raise UsageError(msg)
        return Command(argv=(line.path, *(word for _, words in self.words() for word in words)))

    def _load_problem(self) -> str | None:
        match self.load_state:
            case "loaded" if self.unit_file_state == "transient":
                return "was made by systemd-run, and the first stop would delete it: write a unit file for it"
            case "loaded":
                return None
            case "not-found":
                return "is not on this host: correct `unit`, or look for it with `systemctl list-unit-files`"
            case "masked":
                return f"is masked: run `systemctl unmask {self.name}`"
            case _:
                return f"cannot be loaded ({self.load_state}): see `systemctl status {self.name}`"

    def _kind_problem(self) -> str | None:
        if not self.name.endswith(".service"):
            return "is no service: name the .service unit that runs the engine"
        if self.id != self.name:
            return f"is another name of {self.id}: write that"
        if self.type not in _SERVES:
            return f"has Type={self.type}: a server's unit has Type=simple, exec or notify"
        if self.refuse_manual_start or self.refuse_manual_stop:
            return "refuses to be started or stopped by hand (RefuseManualStart=, RefuseManualStop=): remove that"
        return None
