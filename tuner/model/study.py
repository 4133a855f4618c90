"""One experiment: engine, space, hosts, workload, objectives, budget."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from tuner.model.lease import LeaseTerms
from tuner.model.metric import OBJECTIVES, Constraint, Objective
from tuner.model.outcome import Infeasible, Measured, Outcome
from tuner.model.record import LegTrust
from tuner.model.repeat import Repeat, RepeatTerms
from tuner.model.ruling import Correction
from tuner.model.space import Assignment, SearchSpace
from tuner.model.trial import Capacity, Command
from tuner.model.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedHostSpec:
    """The embedded simulated GPU host.

    Attributes:
        name: unique in the study.
        address: loopback address that is this host's own (127.0.0.1, 127.0.0.2, …).
        state_dir: absolute folder that is this host's "disk": memory book, pid files, logs.
        profile: name of a simulator profile.
        speed: how many times faster than real the server loads; decoding is real time.
        faults: fault switches, ``("nccl-flake:0.2", …)``.
    """

    name: str
    address: str
    state_dir: str
    profile: str
    speed: float = 1.0
    faults: tuple[str, ...] = ()

    @property
    def is_owned(self) -> bool:
        """Whether it is somebody's, to be left as it was."""
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class SshLogin:
    """How a host is reached; what is None, OpenSSH's own configuration decides.

    Attributes:
        host: a name, an address or a Host alias of ssh_config(5).
        jump: as ``ssh -J``: ``[user@]host[:port]``, several separated by commas.
        identity_file: private key; the agent and ssh_config's keys are tried without it.
        config_file: instead of ~/.ssh/config, as ``ssh -F``.
        known_hosts: instead of ssh_config's UserKnownHostsFile.
        accept_new_host_key: take an unknown host's key, once, and show its fingerprint; a key
            that has changed is refused all the same.
    """

    host: str
    user: str | None = None
    port: int | None = None
    jump: str | None = None
    identity_file: str | None = None
    config_file: str | None = None
    known_hosts: str | None = None
    accept_new_host_key: bool = False


_TERMS = LeaseTerms()
_NO_REPEATS = RepeatTerms()


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCare:
    """What the owner of a host wants of us.

    Attributes:
        cleanup_command: run where the host's worker runs when a host stays dirty (its GPU is freed from
            elsewhere, by a hypervisor say); ``TUNER_HOST`` in its environment names the host.
        gpu_indices: the GPUs of this server; empty: all of the host.
        uses_gpus: False: its server runs on none, and whoever uses them is no matter.
        wait_s: how long a host may take to become clean, other people's work on its GPUs included.
        lease: how long it is ours without a sign of life.
    """

    cleanup_command: tuple[str, ...] = ()
    gpu_indices: tuple[int, ...] = ()
    uses_gpus: bool = True
    wait_s: float = 600.0
    lease: LeaseTerms = _TERMS


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """How the load reaches the server.

    Attributes:
        base_url: ``http://gpu01:30000``; None: the login's host name and the port of the command.
        tunnel: through OpenSSH's own port forwarding, for servers that listen on loopback only.
        ray_node: address of the node of a Ray cluster on which this host's worker runs, so that the load
            comes from nearby; None: wherever Ray puts it.
    """

    base_url: str | None = None
    tunnel: bool = False
    ray_node: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessHostSpec:
    """A host without systemd: the engine runs as a supervised process.

    Attributes:
        name: unique in the study.
        state_dir: absolute folder on the host for PID files, logs and the lease.
        login: None: this machine.
    """

    name: str
    state_dir: str
    login: SshLogin | None = None
    reach: Reach = Reach()
    care: HostCare = HostCare()

    @property
    def is_owned(self) -> bool:
        """Whether it is somebody's, to be left as it was: this machine needs no lease of its own."""
        return self.login is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitHostSpec:
    """A host whose server is a unit of systemd.

    Attributes:
        name: unique in the study.
        unit: full name, ``sglang-qwen.service``.
        login: None: this machine.
        sudo: what needs root goes through ``sudo -n``.
    """

    name: str
    unit: str
    login: SshLogin | None = None
    sudo: bool = False
    reach: Reach = Reach()
    care: HostCare = HostCare()

    @property
    def is_owned(self) -> bool:
        """Whether it is somebody's, to be left as it was."""
        return True


HostSpec: TypeAlias = SimulatedHostSpec | ProcessHostSpec | UnitHostSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class StudySpec:
    """A study file, checked and resolved.

    Attributes:
        base: the command line as production runs it; trial 0.
        baseline: the tuned settings that ``base`` amounts to.
        trials: how many trials that count (Measured or Infeasible) make the study.
        directory: absolute folder of the study's results.
        prompts_digest: of what the prompts say; wherever they lie, the same texts are the same load.
        sampler: name in the sampler registry.
        repeats: how much is spent on being sure; by default nothing.
        constraints: what a configuration must keep to be on the front; by default nothing.
    """

    name: str
    engine: str
    space: SearchSpace
    base: Command
    baseline: Assignment
    hosts: tuple[HostSpec, ...]
    workload: Workload
    trials: int
    seed: int
    sampler: str
    directory: str
    prompts_digest: str = ""
    objectives: tuple[Objective, ...] = OBJECTIVES
    repeats: RepeatTerms = _NO_REPEATS
    constraints: tuple[Constraint, ...] = ()

    @property
    def simulated(self) -> bool:
        """Whether the results come from the simulated GPU host."""
        return any(isinstance(host, SimulatedHostSpec) for host in self.hosts)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRow:
    """One trial as the study's database knows it.

    Attributes:
        number: Optuna's trial number.
        assignment: canonical.
        outcome: None while the trial runs or waits.
        host: where it ran; None while it waits.
        baseline: the base command line as it stands.
        values: one per objective, in the study's order; None unless Measured.
        capacity: as the server reported it; None when it never got so far.
        duration_s: None while it runs or waits.
        trust: one per level measured; empty while it runs or waits.
        by_prompt: decode speed of a lone request by prompt (LegResult.by_prompt); empty likewise.
        corrections: what people said of it after its end, oldest first; ``outcome`` is what it became.
        repeat: set where this measures another trial once more; it is no part of the search then.
        finished_s: Unix time; None while it runs or waits, or where no host reported its end.
        own: how its own start ended, where repeats made something else of ``outcome``; None: as ``outcome`` says.
        starts: numbers of the trials that ``outcome`` was made of, where there are repeats; empty: its own alone.
    """

    number: int
    assignment: Assignment
    outcome: Outcome | None
    host: str | None
    baseline: bool
    values: tuple[float, ...] | None
    capacity: Capacity | None
    duration_s: float | None
    trust: tuple[LegTrust, ...] = ()
    by_prompt: tuple[tuple[str, float], ...] = ()
    corrections: tuple[Correction, ...] = ()
    repeat: Repeat | None = None
    finished_s: float | None = None
    own: Outcome | None = None
    starts: tuple[int, ...] = ()

    @property
    def counts(self) -> bool:
        """Whether it counts towards the budget: a trial of the search that was measured, or shown infeasible."""
        return self.repeat is None and isinstance(self.outcome, (Measured, Infeasible))
