"""GPUs as nvidia-smi shows them: memory, clocks, and who holds what."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

from tuner.errors import HostFault
from tuner.hosts.smi_text import gpu_fields, parse_gpus, parse_processes
from tuner.model.host import CommandResult, GpuLook, GpuProcess, GpuReading
from tuner.ports import HostTransport

_FORMAT = "--format=csv,noheader,nounits"
_NOT_FOUND_STATUS = 127
_NO_DEVICES = "No devices were found"  # status 6: the driver is there, the GPU is not
_UNKNOWN_FIELD = "is not a valid field to query"  # status 2
_PROCESSES = "--query-compute-apps=pid,process_name,used_memory,gpu_uuid"

_SEPARATOR = "--"
_LOOK = f"""gpus=$1 processes=$2 format=$3
shift 3
"$@" "$gpus" "$format" || exit
echo {_SEPARATOR}
exec "$@" "$processes" "$format"
"""
"""Both queries in one command: a look costs one round trip. $4 … is the program."""


class NvidiaSmiProbe:
    """``ports.GpuProbe`` over nvidia-smi; a host without it is a host without GPUs.

    Args:
        transport: runs it on the host.
        path: the program, absolute or on the host's PATH.
        env: set for it, on top of the host's environment.
        indices: the GPUs to look at, as nvidia-smi counts them; empty: all.
    """

    def __init__(
        self,
        transport: HostTransport,
        path: str = "nvidia-smi",
        env: Mapping[str, str] | None = None,
        indices: tuple[int, ...] = (),
    ) -> None:
        self._transport = transport
        # env(1) and not an argument of the transport: it works over SSH just the same.
        settings = tuple(f"{name}={value}" for name, value in (env or {}).items())
        self._program = ("env", *settings, path) if settings else (path,)
        self._indices = indices
        self._fields = gpu_fields()
        self._by_uuid: dict[str, int] = {}

    async def read(self) -> tuple[GpuReading, ...]:
        """Return one reading a GPU, in nvidia-smi's order.

        Raises:
            HostFault: it failed, says something else than numbers, or a GPU of ``indices`` is not there.
            TransportFault: its result is not known.
        """
        return self._readings(await self._query_gpus())

    async def processes(self) -> tuple[GpuProcess, ...]:
        """Return each process that holds memory of these GPUs once, with its memory on all of them together.

        Raises:
            HostFault: nvidia-smi failed, or says something else than numbers.
            TransportFault: its result is not known.
        """
        if not self._by_uuid:
            self._readings(await self._query_gpus())
        argv = (*self._program, _PROCESSES, _FORMAT)
        result = await self._transport.run(argv)
        return () if self._has_no_gpu(result) else self._processes(self._stdout(result, _PROCESSES))

    async def look(self) -> GpuLook:
        """Return readings and processes, by one command on the host.

        Raises:
            HostFault: see :meth:`read` and :meth:`processes`.
            TransportFault: its result is not known.
        """
        while True:
            query = self._gpu_query()
            result = await self._transport.run(("sh", "-c", _LOOK, "look", query, _PROCESSES, _FORMAT, *self._program))
            if self._has_no_gpu(result):
                return GpuLook()
            if not self._takes_fewer(result):
                break
        said = "\n" + self._stdout(result, query)
        gpus, separator, processes = said.partition(f"\n{_SEPARATOR}\n")
        if not separator:
            self._fail(result, query)
        readings = self._readings(gpus)
        return GpuLook(readings=readings, processes=self._processes(processes))

    # -- queries -----------------------------------------------------------------------

    def _gpu_query(self) -> str:
        return f"--query-gpu={','.join(self._fields[0])}"

    async def _query_gpus(self) -> str:
        """Return what it says of the GPUs; empty: this host has none."""
        while True:
            query = self._gpu_query()
            result = await self._transport.run((*self._program, query, _FORMAT))
            if self._has_no_gpu(result):
                return ""
            if not self._takes_fewer(result):
                return self._stdout(result, query)

    def _takes_fewer(self, result: CommandResult) -> bool:
        """Whether this driver lacks a field of the query, and there is a smaller one; it is kept for good."""
        if result.status == 0 or _UNKNOWN_FIELD not in result.stdout + result.stderr or len(self._fields) == 1:
            return False
        self._fields = self._fields[1:]
        return True

    @staticmethod
    def _has_no_gpu(result: CommandResult) -> bool:
        said = result.stdout + result.stderr
        return result.status == _NOT_FOUND_STATUS or (result.status != 0 and _NO_DEVICES in said)

    def _stdout(self, result: CommandResult, query: str) -> str:
        if result.status != 0:
            self._fail(result, query)
        return result.stdout

    def _fail(self, result: CommandResult, query: str) -> NoReturn:
        said = (result.stdout + result.stderr).strip()
        first = said.splitlines()[0] if said else "it said nothing"
        msg = f"{self._program[-1]} {query}: status {result.status}: {first}: repair the driver on the host"
        raise HostFault(msg)

    # -- what it said ------------------------------------------------------------------

    def _readings(self, text: str) -> tuple[GpuReading, ...]:
        gpus = parse_gpus(text, self._fields[0], self._indices)
        self._by_uuid = {gpu.uuid: gpu.index for gpu in gpus}
        there = {gpu.index for gpu in gpus}
        missing = sorted(set(self._indices) - there)
        if gpus and missing:
            raise HostFault(
                f"{self._program[-1]}: there is no GPU {', '.join(map(str, missing))}, "
                f"only {', '.join(map(str, sorted(there)))}: correct gpu_indices of the host in the study file"
            )
        return tuple(gpu.reading for gpu in gpus if gpu.reading is not None)

    def _processes(self, text: str) -> tuple[GpuProcess, ...]:
        return parse_processes(text, self._by_uuid, self._indices)


class NoGpu:
    """``ports.GpuProbe`` for a server that runs on no GPU, whoever uses those of its host."""

    async def read(self) -> tuple[GpuReading, ...]:
        """Return nothing."""
        return ()

    async def processes(self) -> tuple[GpuProcess, ...]:
        """Return nothing."""
        return ()

    async def look(self) -> GpuLook:
        """Return nothing."""
        return GpuLook()
