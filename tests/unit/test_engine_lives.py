"""What a server survived, what ended it, and what others say of it: who is believed."""

from __future__ import annotations

import pytest

from tuner.engines import diagnose
from tuner.model.outcome import Cause, Ending

ALIVE = Ending(has_ended=False)
KILLED = Ending(exit_signal=9)
ARGS = (
    "[2026-10-14 02:11:01] server_args={'model_path': 'Qwen/Qwen3.5', 'mem_fraction_static': 0.85, "
    "'speculative_algorithm': 'EAGLE', 'speculative_num_steps': 3, 'random_seed': 7}\n"
)
LOADING = ARGS + "[2026-10-14 02:11:03 TP0] Load weight begin. avail mem=138.20 GB\n"
UP = LOADING + (
    "[2026-10-14 02:12:03 TP0] Load weight end. elapsed=12.91 s, type=Qwen3_5, avail mem=106.90 GB\n"
    "[2026-10-14 02:12:05 TP0] KV Cache is allocated. #tokens: 120312, K size: 11.04 GB, V size: 11.04 GB\n"
    "[2026-10-14 02:12:15 TP0] max_total_num_tokens=120312, chunked_prefill_size=8192\n"
    "[2026-10-14 02:12:20] The server is fired up and ready to roll!\n"
)
DECODING = "[2026-10-14 02:13:00 TP0] Decode batch, #running-req: 4, #token: 1000, token usage: 0.01, #queue-req: 0\n"
SERVING = UP + DECODING * 3
OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
TRACEBACK = 'Traceback (most recent call last):\n  File "/x/scheduler.py", line 7, in event_loop_overlap\n'
HIT = f"[2026-10-14 02:14:00 TP0] Scheduler hit an exception: {TRACEBACK}"
FAILED_REQUEST = f"[2026-10-14 02:13:30] Error in generate\n{TRACEBACK}{OUT_OF_MEMORY}"
DRAINING = "[2026-10-14 02:13:10] SIGTERM received. signum=15 frame=None. Draining requests and shutting down...\n"
SYSTEMD = "Oct 14 02:14:00 gpu systemd[1]: "
KERNEL = "Oct 14 02:14:00 gpu kernel: "


def cause(log: str, ending: Ending = KILLED) -> Cause:
    return diagnose("sglang", log.splitlines(), ending).cause


SURVIVED = {
    "a request that failed": FAILED_REQUEST + DECODING,
    "a capability it does without": (
        "[2026-10-14 02:13:02 TP0] Setup Custom allreduce failed with CUDART error: peer access is not supported\n"
    ),
    "an error of the web server, last": f"ERROR:    Exception in ASGI application\n{TRACEBACK}{OUT_OF_MEMORY}",
    "a request's record in JSON": (
        '{"event": "request.received", "rid": "a", "obj": {"text": "torch.OutOfMemoryError: CUDA out of memory"}}\n'
    ),
    "a prompt": "[2026-10-14 02:13:02] Receive: obj=GenerateReqInput(text='RuntimeError: CUDA out of memory')\n",
    "a retraction": "[2026-10-14 02:13:02 TP0] KV cache pool is full. Retract requests. #retracted_reqs: 3\n",
    "a status 500": 'INFO:     127.0.0.1:5 - "POST /generate HTTP/1.1" 500 Internal Server Error\n',
    "one silence": (
        "[2026-10-14 02:13:02] Health check failed. Server couldn't get a response from detokenizer for last 20 "
        f"seconds.\n{DECODING}"
    ),
    "a socket of another family": (
        "[W1014 02:12:40 socket.cpp:464] [c10d] The server socket has failed to bind to [::]:29500 (errno: 98 - "
        "Address already in use).\n"
    ),
    "another's death": f"{KERNEL}Out of memory: Killed process 4242 (postgres) total-vm:1kB\n",
}


@pytest.mark.parametrize("lines", SURVIVED.values(), ids=SURVIVED)
def test_what_a_server_survives_condemns_it_neither_alive_nor_dead(lines: str) -> None:
    assert cause(SERVING + lines, ALIVE) is Cause.HEALTHY
    if "detokenizer" not in lines:  # schedulers may decode on for nobody
        assert cause(SERVING + lines + DECODING) is Cause.UNKNOWN


def test_a_cause_that_it_survived_does_not_hide_the_one_that_it_did_not() -> None:
    log = SERVING + FAILED_REQUEST + DECODING + HIT + "RuntimeError: NCCL error: unhandled system error\n"
    assert cause(log) is Cause.COLLECTIVE
    assert cause(log.replace("RuntimeError: NCCL error: unhandled system", "RuntimeError: nobody knows this")) is (
        Cause.UNKNOWN
    )


def test_a_warning_that_the_start_went_on_after_explains_no_death() -> None:
    warning = "[2026-10-14 02:11:02 TP0] NCCL error: no direct link between two GPUs\n"
    assert cause(ARGS + warning) is Cause.COLLECTIVE
    assert cause(ARGS + warning + LOADING.removeprefix(ARGS)) is Cause.UNKNOWN


def test_a_start_after_an_orderly_stop_is_judged_alone() -> None:
    assert cause(SERVING + DRAINING, Ending(exit_status=0)) is Cause.OPERATOR_STOP
    again = LOADING.replace("02:11", "03:11") + HIT.replace("event_loop_overlap", "load_model")
    assert cause(SERVING + DRAINING + again + OUT_OF_MEMORY) is Cause.OOM_WEIGHTS


def test_a_start_with_other_settings_is_another_server() -> None:
    dead = SERVING + HIT + OUT_OF_MEMORY
    again = SERVING.replace("02:1", "03:1").replace("'random_seed': 7", "'random_seed': 8")
    assert cause(dead + again, ALIVE) is Cause.OOM_SERVING  # a crash loop that looks alive for a moment
    assert cause(dead + again.replace("num_steps': 3", "num_steps': 1"), ALIVE) is Cause.HEALTHY


OTHERS = {
    f"{SYSTEMD}sglang.service: Failed with result 'oom-kill'.\n": Cause.HOST_OOM,
    f"{SYSTEMD}sglang.service: A process of this unit has been killed by the OOM killer.\n": Cause.HOST_OOM,
    f"{SYSTEMD}sglang.service: Failed with result 'watchdog'.\n": Cause.HANG,
    f"{SYSTEMD}sglang.service: Main process exited, code=killed, status=9/KILL\n": Cause.UNKNOWN,
    f"{SYSTEMD}Stopping sglang.service - SGLang...\n": Cause.OPERATOR_STOP,
    f"{SYSTEMD}Started sglang.service - SGLang.\n": Cause.HEALTHY,
    f"{KERNEL}Out of memory: Killed process 4242 (sglang::schedul) total-vm:1kB\n": Cause.HOST_OOM,
    f"{KERNEL}NVRM: Xid (PCI:0000:c1:00): 79, GPU has fallen off the bus.\n": Cause.HEALTHY,
}


@pytest.mark.parametrize(("line", "told"), OTHERS.items())
def test_what_systemd_and_the_kernel_say_in_a_journal_is_believed(line: str, told: Cause) -> None:
    assert cause(SERVING + line, ALIVE) is told
    assert cause(SERVING + line.split(": ", 1)[1], ALIVE) is not Cause.OPERATOR_STOP  # anybody may have written that


def test_a_fault_that_the_driver_reports_explains_a_death_that_nothing_else_does() -> None:
    xid = f"{KERNEL}NVRM: Xid (PCI:0000:c1:00): 79, GPU has fallen off the bus.\n"
    assert cause(SERVING + xid) is Cause.CUDA_FAULT
    assert cause(SERVING + HIT + OUT_OF_MEMORY + xid) is Cause.OOM_SERVING


def test_an_exit_after_a_crash_that_systemd_reports_stays_the_crash() -> None:
    log = SERVING + HIT + OUT_OF_MEMORY + f"{SYSTEMD}sglang.service: Main process exited, code=killed, status=9/KILL\n"
    assert cause(log, ALIVE) is Cause.OOM_SERVING


@pytest.mark.parametrize("ending", [Ending(exit_signal=2), Ending(exit_status=130), Ending(exit_status=143)])
def test_signals_with_which_people_end_programs_are_an_operator_s(ending: Ending) -> None:
    assert cause(SERVING, ending) is Cause.OPERATOR_STOP


def test_a_crash_in_the_parent_itself_is_the_engine_s() -> None:
    assert cause(SERVING, Ending(exit_signal=11)) is Cause.ENGINE_BUG
    assert cause(SERVING, Ending(exit_signal=6, service_result="core-dump")) is Cause.ENGINE_BUG


def test_no_line_at_all_says_nothing_of_a_death() -> None:
    assert cause("", ALIVE) is Cause.HEALTHY
    assert cause("") is Cause.UNKNOWN
