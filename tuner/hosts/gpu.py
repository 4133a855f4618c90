"""GPU memory as nvidia-smi shows it."""

from __future__ import annotations

from collections.abc import Mapping

from tuner.errors import HostFault
from tuner.model.host import CommandResult, GpuProcess, GpuReading
from tuner.ports import HostTransport

_MIB = 1024 * 1024  # nvidia-smi's "MiB" with --format=nounits
_FORMAT = "--format=csv,noheader,nounits"
_NOT_FOUND_STATUS = 127
_NO_DEVICES = "No devices were found"  # status 6: the driver is there, the GPU is not


class NvidiaSmiProbe:
    """``ports.GpuProbe`` over nvidia-smi; a host without it is a host without GPUs.

    Args:
        transport: runs it on the host.
        path: the program, absolute or on the host's PATH.
        env: set for it, on top of the host's environment.
    """

    def __init__(
        self, transport: HostTransport, path: str = "nvidia-smi", env: Mapping[str, str] | None = None
    ) -> None:
        self._transport = transport
        # env(1) and not an argument of the transport: it works over SSH just the same.
        settings = tuple(f"{name}={value}" for name, value in (env or {}).items())
        self._program = ("env", *settings, path) if settings else (path,)

    async def read(self) -> tuple[GpuReading, ...]:
        """Return one reading a GPU, in nvidia-smi's order.

        Raises:
            HostFault: it failed, or says something else than numbers.
            TransportFault: its result is not known.
        """
        result = await self._query("--query-gpu=index,memory.used,memory.total")
        return parse_gpus(result.stdout) if result else ()

    async def processes(self) -> tuple[GpuProcess, ...]:
        """Return each process that holds GPU memory once, with its memory on all GPUs together.

        Raises:
            HostFault: nvidia-smi failed, or says something else than numbers.
            TransportFault: its result is not known.
        """
        result = await self._query("--query-compute-apps=pid,process_name,used_memory")
        return parse_processes(result.stdout) if result else ()

    async def _query(self, query: str) -> CommandResult | None:
        """Run one query; None: this host has no GPU."""
        result = await self._transport.run((*self._program, query, _FORMAT))
        said = (result.stdout + result.stderr).strip()
        if result.status == _NOT_FOUND_STATUS or (result.status != 0 and _NO_DEVICES in said):
            return None
        if result.status != 0:
            first = said.splitlines()[0] if said else "it said nothing"
            msg = f"{self._program[-1]} {query}: status {result.status}: {first}: repair the driver on the host"
            raise HostFault(msg)
        return result


class NoGpu:
    """``ports.GpuProbe`` for a host on whose GPUs, if any, nothing depends."""

    async def read(self) -> tuple[GpuReading, ...]:
        """Return nothing."""
        return ()

    async def processes(self) -> tuple[GpuProcess, ...]:
        """Return nothing."""
        return ()


def parse_gpus(text: str) -> tuple[GpuReading, ...]:
    """Read ``index, memory.used, memory.total`` lines.

    Raises:
        HostFault: names the line that has no numbers in it.
    """
    readings = []
    for line in _lines(text):
        fields = line.split(",")
        if len(fields) != 3:
            raise _unreadable(line)
        index, used, total = (_number(field, line) for field in fields)
        readings.append(GpuReading(index=index, memory_used_bytes=used * _MIB, memory_total_bytes=total * _MIB))
    return tuple(readings)


def parse_processes(text: str) -> tuple[GpuProcess, ...]:
    """Read ``pid, process_name, used_memory`` lines; a name may have commas in it.

    Raises:
        HostFault: names the line that has no numbers where they belong.
    """
    found: dict[int, GpuProcess] = {}
    for line in _lines(text):
        first, comma, rest = line.partition(",")
        name, other_comma, last = rest.rpartition(",")
        if not comma or not other_comma:
            raise _unreadable(line)
        pid, used = _number(first, line), _number(last, line) * _MIB
        before = found[pid].memory_used_bytes if pid in found else 0
        found[pid] = GpuProcess(pid=pid, name=name.strip(), memory_used_bytes=before + used)
    return tuple(found.values())


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def _number(field: str, line: str) -> int:
    text = field.strip()
    if not (text.isascii() and text.isdigit()):  # "[N/A]", "[Not Supported]", "[Insufficient Permissions]"
        raise _unreadable(line)
    return int(text)


def _unreadable(line: str) -> HostFault:
    return HostFault(f"nvidia-smi says {line!r}, which is not numbers: GPU memory cannot be watched on this host")
