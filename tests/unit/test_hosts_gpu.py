"""What nvidia-smi says, and what it does not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from tuner.errors import HostFault, TransportFault
from tuner.hosts.gpu import NvidiaSmiProbe
from tuner.hosts.smi_text import gpu_fields, parse_gpus, parse_processes
from tuner.model.host import CommandResult, GpuLook, GpuProcess, GpuReading

MIB = 1024 * 1024
UUIDS = {"GPU-a": 0, "GPU-b": 1}
CALM = "Not Active, Not Active, Not Active, Not Active, 312.45"
FULL, OLDER, CLOCK, MEMORY = gpu_fields()


class ScriptedTransport:
    """Answers a command by its text, and remembers all."""

    def __init__(self, answer: Callable[[str], CommandResult] | CommandResult) -> None:
        self._answer = answer
        self.argvs: list[tuple[str, ...]] = []

    async def run(
        self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 30.0, repeat: bool = True
    ) -> CommandResult:
        assert timeout_s > 0
        assert repeat
        assert not stdin
        self.argvs.append(tuple(argv))
        return self._answer if isinstance(self._answer, CommandResult) else self._answer(" ".join(argv))

    async def read_file(self, path: str) -> bytes:
        raise TransportFault(path)

    async def write_file(self, path: str, content: bytes, *, mode: int = 0o600) -> None:
        raise TransportFault(f"{path} {len(content)} {mode}")

    async def close(self) -> None:
        pass


def said(stdout: str = "", *, status: int = 0, stderr: str = "") -> CommandResult:
    return CommandResult(status=status, stdout=stdout, stderr=stderr)


class Driver:
    """An nvidia-smi that knows only some fields; it answers queries and looks."""

    def __init__(self, lacks: str, gpus: str, processes: str = "") -> None:
        self._lacks, self._gpus, self._processes = lacks, gpus, processes

    def __call__(self, command: str) -> CommandResult:
        if "--query-gpu" in command and self._lacks and self._lacks in command:
            return said(f'Field "{self._lacks}.x" is not a valid field to query.\n', status=2)
        if "sh -c" in command:
            return said(f"{self._gpus}--\n{self._processes}")
        return said(self._gpus if "--query-gpu" in command else self._processes)


TWO = f"0, 512, 1000, GPU-a, 1980, {CALM}\n1, 0, 1000, GPU-b, 1665, {CALM}\n"


def test_every_gpu_is_read_in_bytes_and_hertz() -> None:
    transport = ScriptedTransport(said(TWO))
    assert asyncio.run(NvidiaSmiProbe(transport).read()) == (
        GpuReading(
            index=0, memory_used_bytes=512 * MIB, memory_total_bytes=1000 * MIB, sm_clock_hz=1.98e9, power_w=312.45
        ),
        GpuReading(index=1, memory_used_bytes=0, memory_total_bytes=1000 * MIB, sm_clock_hz=1.665e9, power_w=312.45),
    )
    assert transport.argvs == [("nvidia-smi", f"--query-gpu={','.join(FULL)}", "--format=csv,noheader,nounits")]


@pytest.mark.parametrize(
    ("cells", "slowed_by"),
    [
        (CALM, ()),
        ("Active, Not Active, Not Active, Active, 300", ("hw_thermal_slowdown", "hw_slowdown")),
        ("Not Active, Active, Active, Not Active, 300", ("hw_power_brake_slowdown", "sw_thermal_slowdown")),
        ("[N/A], [Not Supported], [N/A], [N/A], [N/A]", ()),
    ],
)
def test_only_what_the_driver_calls_active_slows_a_gpu_down(cells: str, slowed_by: tuple[str, ...]) -> None:
    (gpu,) = parse_gpus(f"0, 1, 2, GPU-a, [N/A], {cells}", FULL)
    assert gpu.reading is not None
    assert gpu.reading.slowed_by == slowed_by
    assert gpu.reading.sm_clock_hz is None


@pytest.mark.parametrize(
    ("cell", "watts"),
    [("312.45", 312.45), ("70", 70.0), ("[N/A]", None), ("[Not Supported]", None), ("-1.5", None), ("", None)],
    ids=["a-fraction", "whole", "not-known", "not-supported", "negative", "empty"],
)
def test_power_is_what_the_driver_says_in_watts_or_nothing(cell: str, watts: float | None) -> None:
    (gpu,) = parse_gpus(f"0, 1, 2, GPU-a, 1980, {cell}", CLOCK)
    assert gpu.reading is not None
    assert gpu.reading.power_w == watts


@pytest.mark.parametrize(
    ("lacks", "gpus", "queries"),
    [
        ("clocks_event_reasons", f"0, 5, 9, GPU-a, 1980, {CALM}\n", 2),
        ("_reasons", "0, 5, 9, GPU-a, 1980, 300\n", 3),
        ("clocks", "0, 5, 9, GPU-a\n", 4),
    ],
)
def test_what_a_driver_cannot_be_asked_is_learned_once(lacks: str, gpus: str, queries: int) -> None:
    transport = ScriptedTransport(Driver(lacks, gpus))
    probe = NvidiaSmiProbe(transport)

    async def main() -> None:
        assert (await probe.read())[0].memory_used_bytes == 5 * MIB
        assert len(transport.argvs) == queries
        assert (await probe.look()).readings == await probe.read()
        assert len(transport.argvs) == queries + 2

    asyncio.run(main())


def test_a_driver_that_lacks_even_the_memory_is_the_hosts_fault() -> None:
    with pytest.raises(HostFault, match="not a valid field"):
        asyncio.run(NvidiaSmiProbe(ScriptedTransport(Driver("memory", ""))).read())


def test_a_look_is_one_command_and_says_both() -> None:
    transport = ScriptedTransport(Driver("", TWO, "7, python, 100, GPU-b\n"))
    look = asyncio.run(NvidiaSmiProbe(transport, "/opt/nvidia-smi", {"A": "b c"}).look())
    assert [reading.index for reading in look.readings] == [0, 1]
    assert look.processes == (GpuProcess(pid=7, name="python", memory_used_bytes=100 * MIB, gpus=(1,)),)
    (argv,) = transport.argvs
    assert argv[-3:] == ("env", "A=b c", "/opt/nvidia-smi")


def test_a_look_at_gpus_that_nobody_uses_has_no_processes() -> None:
    assert asyncio.run(NvidiaSmiProbe(ScriptedTransport(Driver("", TWO))).look()).processes == ()


def test_a_process_on_two_gpus_is_one_process_with_the_sum_of_its_memory() -> None:
    text = "4711, sglang::scheduler_TP0, 100, GPU-a\n4712, a, b, 7, GPU-a\n4711, sglang, 50, GPU-b\n"
    assert parse_processes(text, UUIDS) == (
        GpuProcess(pid=4711, name="sglang", memory_used_bytes=150 * MIB, gpus=(0, 1)),
        GpuProcess(pid=4712, name="a, b", memory_used_bytes=7 * MIB, gpus=(0,)),
    )


@pytest.mark.parametrize("memory", ["[N/A]", "[Not Supported]", "[Insufficient Permissions]"])
def test_memory_that_the_driver_does_not_tell_counts_as_none_and_the_process_is_named(memory: str) -> None:
    assert parse_processes(f"12, python, {memory}, GPU-b", UUIDS) == (
        GpuProcess(pid=12, name="python", memory_used_bytes=0, gpus=(1,)),
    )


def test_a_process_that_is_gone_has_no_name() -> None:
    assert parse_processes("12, [Not Found], 5, GPU-a", UUIDS)[0].name == ""


def test_only_the_gpus_of_the_server_are_looked_at() -> None:
    driver = Driver("", TWO, "7, mine, 100, GPU-b\n8, other, 100, GPU-a\n9, unknown, 1, MIG-x\n7, mine, 50, GPU-a\n")
    transport = ScriptedTransport(driver)
    probe = NvidiaSmiProbe(transport, indices=(1,))

    async def main() -> None:
        processes = await probe.processes()
        assert [(process.pid, process.memory_used_bytes) for process in processes] == [(7, 100 * MIB), (9, MIB)]
        assert [reading.index for reading in await probe.read()] == [1]
        look = await probe.look()
        assert ([reading.index for reading in look.readings], look.processes) == ([1], processes)

    asyncio.run(main())


def test_a_gpu_of_others_need_not_tell_its_memory() -> None:
    mine, other = parse_gpus("0, 512, 1024, GPU-a\n1, [N/A], [N/A], GPU-b\n", MEMORY, indices=(0,))
    assert mine.reading is not None
    assert other.reading is None
    assert (other.index, other.uuid) == (1, "GPU-b")


def test_a_gpu_that_is_not_there_is_named_with_those_that_are() -> None:
    probe = NvidiaSmiProbe(ScriptedTransport(Driver("", TWO)), indices=(1, 7))
    with pytest.raises(HostFault, match=r"no GPU 7, only 0, 1: correct gpu_indices"):
        asyncio.run(probe.look())


def test_no_processes_are_no_processes() -> None:
    assert parse_processes("\n", UUIDS) == ()


def test_the_environment_goes_in_front_of_a_program_with_its_own_path() -> None:
    transport = ScriptedTransport(said())
    asyncio.run(NvidiaSmiProbe(transport, "/opt/bin/nvidia-smi", {"BOOK": "/run/a b"}).read())
    assert transport.argvs[0][:3] == ("env", "BOOK=/run/a b", "/opt/bin/nvidia-smi")


@pytest.mark.parametrize(
    "line",
    [
        "0, [N/A], 143771, GPU-a",
        "0, [Not Supported], [Not Supported], GPU-a",
        "0, 512, 1024",
        "0, 512, 1024, GPU-a, 3",
        "0, 512 MiB, 1024 MiB, GPU-a",
        "0, -1, 1024, GPU-a",
        "0, 5.5, 1024, GPU-a",
        "0, ٣, 1024, GPU-a",
        "Unable to determine the device handle for GPU0: Unknown Error",
    ],
)
def test_a_gpu_line_without_numbers_is_the_hosts_fault_and_quoted(line: str) -> None:
    with pytest.raises(HostFault) as caught:
        parse_gpus(f"1, 0, 1024, GPU-b\n{line}\n", MEMORY)
    assert line in str(caught.value)


@pytest.mark.parametrize(
    "line", ["python, 5, GPU-a", "12", "x, python, 5, GPU-a", "12, 5, GPU-a", "[N/A], a, 5, GPU-a"]
)
def test_a_process_line_without_a_pid_is_the_hosts_fault_and_quoted(line: str) -> None:
    with pytest.raises(HostFault) as caught:
        parse_processes(line, UUIDS)
    assert line in str(caught.value)


@pytest.mark.parametrize(
    "answer",
    [
        said(status=127, stderr="nvidia-smi: not found"),
        said(status=127, stderr="env: 'nvidia-smi': No such file or directory"),
        said("No devices were found\n", status=6),
    ],
)
def test_a_host_without_gpus_has_no_readings(answer: CommandResult) -> None:
    probe = NvidiaSmiProbe(ScriptedTransport(answer), indices=(0,))
    assert asyncio.run(probe.read()) == ()
    assert asyncio.run(probe.processes()) == ()
    assert asyncio.run(probe.look()) == GpuLook()


def test_an_nvidia_smi_that_fails_is_the_hosts_fault_with_its_own_words() -> None:
    probe = NvidiaSmiProbe(ScriptedTransport(said("NVIDIA-SMI has failed because it couldn't communicate\n", status=9)))
    for work in (probe.read, probe.processes, probe.look):
        with pytest.raises(HostFault, match="status 9: NVIDIA-SMI has failed"):
            asyncio.run(work())
    with pytest.raises(HostFault, match="status 2: it said nothing"):
        asyncio.run(NvidiaSmiProbe(ScriptedTransport(said(status=2))).processes())


def test_a_look_that_says_only_half_is_the_hosts_fault() -> None:
    with pytest.raises(HostFault, match="status 0"):
        asyncio.run(NvidiaSmiProbe(ScriptedTransport(said(TWO))).look())
