"""What nvidia-smi says, and what it does not."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from tuner.errors import HostFault, TransportFault
from tuner.hosts.gpu import NoGpu, NvidiaSmiProbe, parse_gpus, parse_processes
from tuner.model.host import CommandResult, GpuProcess, GpuReading

MIB = 1024 * 1024


class ScriptedTransport:
    """Answers every command alike, and remembers them."""

    def __init__(self, status: int = 0, stdout: str = "", stderr: str = "") -> None:
        self._result = CommandResult(status=status, stdout=stdout, stderr=stderr)
        self.argvs: list[tuple[str, ...]] = []

    async def run(self, argv: Sequence[str], *, timeout_s: float = 30.0) -> CommandResult:
        assert timeout_s > 0
        self.argvs.append(tuple(argv))
        return self._result

    async def read_file(self, path: str) -> bytes:
        raise TransportFault(path)

    async def write_file(self, path: str, content: bytes, *, mode: int = 0o600) -> None:
        raise TransportFault(f"{path} {len(content)} {mode}")


def test_every_gpu_is_read_in_bytes() -> None:
    transport = ScriptedTransport(stdout="0, 512, 143771\n1, 0, 143771\n")
    assert asyncio.run(NvidiaSmiProbe(transport).read()) == (
        GpuReading(index=0, memory_used_bytes=512 * MIB, memory_total_bytes=143771 * MIB),
        GpuReading(index=1, memory_used_bytes=0, memory_total_bytes=143771 * MIB),
    )
    assert transport.argvs == [
        ("nvidia-smi", "--query-gpu=index,memory.used,memory.total", "--format=csv,noheader,nounits")
    ]


def test_a_process_on_two_gpus_is_one_process_with_the_sum_of_its_memory() -> None:
    transport = ScriptedTransport(stdout="4711, sglang::scheduler_TP0, 100\n4712, a, b, 7\n4711, sglang, 50\n")
    assert asyncio.run(NvidiaSmiProbe(transport).processes()) == (
        GpuProcess(pid=4711, name="sglang", memory_used_bytes=150 * MIB),
        GpuProcess(pid=4712, name="a, b", memory_used_bytes=7 * MIB),
    )


def test_no_processes_are_no_processes() -> None:
    assert asyncio.run(NvidiaSmiProbe(ScriptedTransport(stdout="\n")).processes()) == ()


def test_the_environment_goes_in_front_of_a_program_with_its_own_path() -> None:
    transport = ScriptedTransport()
    asyncio.run(NvidiaSmiProbe(transport, "/opt/bin/nvidia-smi", {"BOOK": "/run/a b"}).read())
    assert transport.argvs[0][:3] == ("env", "BOOK=/run/a b", "/opt/bin/nvidia-smi")


@pytest.mark.parametrize(
    "line",
    [
        "0, [N/A], 143771",
        "0, [Not Supported], [Not Supported]",
        "0, 512",
        "0, 512, 1024, 3",
        "0, 512 MiB, 1024 MiB",
        "0, -1, 1024",
        "0, 5.5, 1024",
        "0, ٣, 1024",
        "Unable to determine the device handle for GPU0: Unknown Error",
    ],
)
def test_a_gpu_line_without_numbers_is_the_hosts_fault_and_quoted(line: str) -> None:
    with pytest.raises(HostFault) as caught:
        parse_gpus(f"1, 0, 1024\n{line}\n")
    assert line in str(caught.value)


@pytest.mark.parametrize(
    "line", ["12, python, [N/A]", "python, 5", "12", "x, python, 5", "12, python, [Not Supported]"]
)
def test_a_process_line_without_numbers_is_the_hosts_fault_and_quoted(line: str) -> None:
    with pytest.raises(HostFault) as caught:
        parse_processes(line)
    assert line in str(caught.value)


@pytest.mark.parametrize(
    "answer",
    [
        ScriptedTransport(status=127, stderr="nvidia-smi: not found"),
        ScriptedTransport(status=127, stderr="env: 'nvidia-smi': No such file or directory"),
        ScriptedTransport(status=6, stdout="No devices were found\n"),
    ],
)
def test_a_host_without_gpus_has_no_readings(answer: ScriptedTransport) -> None:
    probe = NvidiaSmiProbe(answer)
    assert asyncio.run(probe.read()) == ()
    assert asyncio.run(probe.processes()) == ()


def test_an_nvidia_smi_that_fails_is_the_hosts_fault_with_its_own_words() -> None:
    probe = NvidiaSmiProbe(
        ScriptedTransport(status=9, stdout="NVIDIA-SMI has failed because it couldn't communicate\n")
    )
    with pytest.raises(HostFault, match="status 9: NVIDIA-SMI has failed"):
        asyncio.run(probe.read())
    with pytest.raises(HostFault, match="status 2: it said nothing"):
        asyncio.run(NvidiaSmiProbe(ScriptedTransport(status=2)).processes())


def test_a_cpu_host_reads_nothing() -> None:
    assert asyncio.run(NoGpu().read()) == ()
    assert asyncio.run(NoGpu().processes()) == ()
