"""Ends of SGLang that the log alone does not explain."""

# ruff: noqa: E501 - texts stand here as the engine prints them

from __future__ import annotations

from tuner.model.outcome import Cause, Ending, MemoryDirection, TrialState
from writing.alive import FRIGHTENING, PROMPTS, SURVIVED, UNBALANCED
from writing.case import Death, Expected, Line, out_of_memory, scheduler, traceback

_LOAD = TrialState.MEASURING
_KILLED = "Out of memory: Killed process {0} total-vm:412334104kB, anon-rss:201334104kB, file-rss:0kB, UID:0"
_SCHEDULER = _KILLED.format("4241 (sglang::schedul)")
_CGROUP = (
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,oom_memcg=/system.slice/sglang.service,"
    "task_memcg=/system.slice/sglang.service,task=sglang::schedul,pid=4241,uid=0"
)


def _host(name: str, at: str, ending: Ending, *, told: str = "parent", evidence: str = "") -> Death:
    return Death(
        name=name,
        at=at,
        lines=(),
        told=told,
        expected=Expected(cause=Cause.HOST_OOM, evidence=evidence),
        ending=ending,
        silent=not told.startswith("poll"),
        decisive=("exit code -9",),
        families=("0.5.15", "0.5.23") if told.startswith("poll") else ("0.5.9", "0.5.15", "0.5.23"),
    )


_HOSTS = (
    _host("child_killed", "serving", Ending(exit_signal=9, state=_LOAD), told="poll:-9", evidence="exit code -9"),
    _host(
        "child_killed_kernel",
        "serving",
        Ending(exit_signal=9, state=_LOAD, kernel=(_SCHEDULER,)),
        told="poll:-9",
        evidence="Killed process 4241",
    ).but(silent=True),
    _host("loading_killed", "load_weights", Ending(exit_signal=9, kernel=(_SCHEDULER,)), evidence="Killed process 4241"),
    _host(
        "cgroup_limit", "load_weights", Ending(exit_signal=9, kernel=(_CGROUP,), service_result="oom-kill"),
        evidence="oom-kill",
    ),
    _host("systemd_says", "serving", Ending(exit_signal=9, state=_LOAD, service_result="oom-kill")),
    Death(
        name="host_memory_refused",
        at="load_weights",
        lines=(scheduler("model_loader/weight_utils.py:611:read", error="OSError: [Errno 12] Cannot allocate memory"),),
        expected=Expected(cause=Cause.HOST_OOM, evidence="[Errno 12] Cannot allocate memory"),
    ),
)  # fmt: skip

_TERM = Line("SIGTERM received. signum=15 frame=None. Draining requests and shutting down...")
_DRAIN = Line("Gracefully exiting... Remaining number of requests 3. Remaining requests remaining_rids=['a'].")
_NOISE = Line(
    "Scheduler hit an exception: Traceback (most recent call last):\n"
    "torch.distributed.DistBackendError: NCCL error: remote process exited",
    "TP1",
)


def _stop(name: str, cause: Cause, at: str, ending: Ending, *lines: Line) -> Death:
    return Death(
        name=name,
        at=at,
        lines=lines,
        told="parent",
        expected=Expected(cause=cause, config_fault=False),
        ending=ending,
        silent=True,
    )


_LATE = scheduler("model_executor/model_runner.py:1822:forward_extend", error=out_of_memory(1.5, 1.12))
_STILL = Line("Schedulers still alive 15s after ShutdownReq, killing them before they released: [4241]")
_CHILD = Line("Subprocess scheduler_0 (pid=4241) crashed with exit code -9. Triggering SIGQUIT for cleanup...")
_OURS, _THEIRS = Cause.OWN_STOP, Cause.OPERATOR_STOP
_STOPS = (
    _stop("own_stop", _OURS, "serving", Ending(exit_status=0, signals_sent=(15,)), _TERM, _DRAIN),
    _stop("own_stop_loading", _OURS, "load_draft", Ending(exit_signal=15, signals_sent=(15,))),
    _stop("own_stop_killed", _OURS, "serving", Ending(exit_signal=9, signals_sent=(15, 9)), _TERM, _DRAIN, _DRAIN),
    _stop("own_stop_noise", _OURS, "serving", Ending(exit_signal=9, signals_sent=(15,)), _TERM, _DRAIN, _NOISE),
    _stop("own_stop_then_memory", _OURS, "serving", Ending(exit_signal=9, signals_sent=(15, 9)), _TERM, _DRAIN, _LATE),
    _stop("own_stop_slow", _OURS, "serving", Ending(exit_status=0, signals_sent=(15,)), _TERM, _DRAIN, _STILL),
    _stop("own_stop_child_first", _OURS, "serving", Ending(exit_signal=9, signals_sent=(15, 9)), _TERM, _CHILD),
    _stop("operator_stop_slow", _THEIRS, "serving", Ending(exit_status=0), _TERM, _DRAIN, _STILL),
    _stop("operator_stop", _THEIRS, "serving", Ending(exit_status=0), _TERM, _DRAIN),
    _stop("operator_stop_noise", _THEIRS, "serving", Ending(exit_status=0), _TERM, _DRAIN, _NOISE),
    _stop("operator_stop_timeout", _THEIRS, "serving", Ending(exit_signal=9, service_result="timeout"), _TERM, _DRAIN),
    _stop("operator_stop_loading", _THEIRS, "load_weights", Ending(exit_signal=15)),
    _stop("operator_told_systemd", _THEIRS, "capture", Ending(exit_status=0, stopped_by_others=True)),
    _stop("operator_stop_old", _THEIRS, "serving", Ending(exit_signal=9), _TERM, _DRAIN).but(families=("0.5.9",)),
)


def _unknown(name: str, at: str, ending: Ending, *lines: Line, told: str = "parent") -> Death:
    return Death(
        name=name, at=at, lines=lines, told=told, expected=Expected(cause=Cause.UNKNOWN), ending=ending, silent=True
    )


_UNKNOWNS = (
    _unknown("killed_without_a_word", "serving", Ending(exit_signal=9, state=_LOAD, service_result="signal")),
    _unknown("killed_loading", "load_weights", Ending(exit_signal=9)),
    _unknown("ended_well_after_nothing", "serving", Ending(exit_status=0)),
    _unknown("exit_1_without_a_word", "args", Ending(exit_status=1)),
    _unknown("silent_from_the_start", "nothing", Ending(exit_status=1)),
    _unknown("killed_after_pressure", "serving", Ending(exit_signal=9, state=_LOAD), *FRIGHTENING),
    _unknown("ended_well_while_loading", "load_weights", Ending(exit_status=0)),
    _unknown("killed_after_survived_warnings", "serving", Ending(exit_signal=9, state=_LOAD), *SURVIVED),
    _unknown("killed_after_prompts", "serving", Ending(exit_signal=9, state=_LOAD), *PROMPTS),
    _unknown(
        "kernel_killed_another",
        "serving",
        Ending(exit_signal=9, state=_LOAD, kernel=(_KILLED.format("912 (postgres)"),)),
    ),
    _unknown("launch_died_minus_3", "load_weights", Ending(exit_status=1), told="race:-3").but(
        families=("0.5.15", "0.5.23")
    ),
    _unknown("child_crashed_minus_11", "serving", Ending(exit_signal=9), told="poll:-11").but(
        families=("0.5.15", "0.5.23")
    ),
    _unknown("child_gone_old", "args", Ending(exit_status=1), told="race").but(families=("0.5.9",)),
    _unknown(
        "told_to_look_above",
        "args",
        Ending(exit_status=1),
        Line(traceback("entrypoints/engine.py:811:launch", error="RuntimeError: Initialization failed. Please see the "
             "error messages above.").replace("managers/scheduler.py", "launch_server.py")),
    ),
)  # fmt: skip


_POOL = scheduler("mem_cache/kv_cache_configurator.py:233:configure", error=out_of_memory(2.5, 1.25))
_LEFT = Expected(cause=Cause.LEFTOVER_MEMORY, config_fault=False, evidence="3911")
_ANOTHER = "Process 3911 has 61.20 GiB memory in use. "
_FOREIGN = ("3911 python3 train.py (57.0 GiB on GPU 0)",)
_LEFTOVERS = (
    Death(
        name="foreign_memory_pool",
        at="draft",
        lines=(_POOL,),
        expected=_LEFT,
        ending=Ending(exit_signal=9, foreign=_FOREIGN),
        silent=True,
    ),
    Death(
        name="foreign_memory_fraction",
        at="draft",
        lines=(
            scheduler(
                "mem_cache/kv_cache_configurator.py:233:configure",
                error="ValueError: Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=0.6. "
                "Raise --mem-fraction-static above 0.913 (minimum viable = 1 - available/pre = 1 - 5.40/62.10). If "
                "using speculative decoding, draft weights are now counted.",
            ),
        ),
        expected=_LEFT,
        ending=Ending(exit_signal=9, foreign=_FOREIGN),
        silent=True,
    ),
    Death(
        name="foreign_memory_at_once",
        at="args",
        lines=(
            scheduler(
                "distributed/parallel_state.py:1402:init", error="torch.AcceleratorError: CUDA error: out of memory"
            ),
        ),
        expected=_LEFT,
        ending=Ending(exit_signal=9, foreign=_FOREIGN),
        silent=True,
    ),
    Death(  # PyTorch names who else holds memory of the GPU
        name="torch_names_another",
        at="state",
        lines=(
            scheduler(
                "mem_cache/kv_cache_configurator.py:233:configure", error=out_of_memory(2.5, 1.25, others=_ANOTHER)
            ),
        ),
        expected=Expected(cause=Cause.LEFTOVER_MEMORY, evidence="Process 3911 has 61.20 GiB memory in use"),
    ),
    Death(
        name="unbalanced_refused",
        at="baseline",
        lines=(scheduler("model_executor/model_runner.py:733:init", error=f"RuntimeError: {UNBALANCED.text}"),),
        expected=Expected(cause=Cause.LEFTOVER_MEMORY, evidence="memory capacity is unbalanced"),
    ),
    Death(
        name="unbalanced_then_pool",
        at="draft",
        lines=(UNBALANCED, _POOL),
        expected=Expected(
            cause=Cause.OOM_KV_POOL,
            config_fault=None,
            direction=MemoryDirection.FRACTION_TOO_HIGH,
            evidence="memory capacity is unbalanced",
        ),
        decisive=("out of memory",),
        without=frozenset({Cause.UNKNOWN, Cause.LEFTOVER_MEMORY}),
    ),
)

_TIMED = Death(
    name="start_timeout_systemd",
    at="load_weights",
    lines=(),
    told="parent",
    expected=Expected(cause=Cause.START_TIMEOUT),
    ending=Ending(exit_signal=15, service_result="timeout", state=TrialState.LOADING),
    silent=True,
)
_LOOP = Death(
    name="restarted_without_a_word",
    at="serving",
    lines=(),
    told="parent",
    expected=Expected(cause=Cause.CRASH_LOOP),
    ending=Ending(exit_signal=9, restarts=3),
    silent=True,
)

DEATHS = (*_HOSTS, *_STOPS, *_UNKNOWNS, *_LEFTOVERS, _TIMED, _LOOP)
