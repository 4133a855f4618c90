"""``nvidia-smi`` of the simulated host: answers from its memory book."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from tuner.simulator import profile
from tuner.simulator.book import Book, Holding
from tuner.simulator.host import HostError, read_facts
from tuner.simulator.profile import Profile

_MIB = 1024**2
NOT_KNOWN = "[N/A]"
_DRIVER = "570.133.20"
_CUDA = "12.8"


class UsageError(ValueError):
    """The command line is not understood; the message is nvidia-smi's."""


def answer(argv: Sequence[str], shape: Profile, holdings: Sequence[Holding], *, hot: bool = False) -> str:
    """Return what nvidia-smi prints.

    Args:
        argv: its arguments.
        shape: the host's GPUs.
        holdings: who holds how much of them.
        hot: the hardware slows them down.

    Raises:
        UsageError: an unknown option, query or field.
    """
    options = dict(_split(item) for item in argv)
    unknown = options.keys() - {"--query-gpu", "--query-compute-apps", "--format"}
    if unknown:
        raise UsageError(
            f"Invalid combination of input arguments. Please run 'nvidia-smi -h' for help. ({min(unknown)})"
        )
    if not options:
        return _summary(shape, holdings)
    styles = options.get("--format", "").split(",")
    if styles[0] != "csv" or not set(styles[1:]) <= {"noheader", "nounits"}:
        raise UsageError('Option "--format=" is not specified or not recognized; use csv[,noheader][,nounits].')
    if ("--query-gpu" in options) == ("--query-compute-apps" in options):
        raise UsageError("Exactly one of --query-gpu and --query-compute-apps is needed.")
    if "--query-gpu" in options:
        rows = [{**_gpu_fields(shape, holdings, index), **_clock_fields(hot=hot)} for index in range(shape.gpu.count)]
        names, known = options["--query-gpu"].split(","), rows[0]
    else:
        rows = [
            _app_fields(holding, index, count)
            for holding in holdings
            for index, count in sorted(holding.bytes_per_gpu.items())
        ]
        names, known = options["--query-compute-apps"].split(","), _app_fields(_NOBODY, 0, 0)
    names = [name.strip() for name in names]
    for name in names:
        if name not in known:
            raise UsageError(f'Field "{name}" is not a valid field to query.')
    units = "nounits" not in styles
    lines = [] if "noheader" in styles else [", ".join(_header(name, units=units) for name in names)]
    lines += [", ".join(_cell(name, row[name], units=units) for name in names) for row in rows]
    return "".join(line + "\n" for line in lines)


def _split(item: str) -> tuple[str, str]:
    name, _, value = item.partition("=")
    return name, value


def _gpu_fields(shape: Profile, holdings: Sequence[Holding], index: int) -> dict[str, str]:
    total = shape.gpu.memory_bytes // _MIB
    used = sum(holding.bytes_per_gpu.get(index, 0) for holding in holdings) // _MIB
    return {
        "index": str(index),
        "name": shape.gpu.name,
        "uuid": _uuid(index),
        "gpu_uuid": _uuid(index),
        "driver_version": _DRIVER,
        "memory.total": str(total),
        "memory.used": str(used),
        "memory.free": str(total - used),
        # How busy a GPU is, nobody wrote into the book.
        "utilization.gpu": NOT_KNOWN,
        "utilization.memory": NOT_KNOWN,
        "temperature.gpu": NOT_KNOWN,
        "compute_cap": f"{shape.gpu.compute_capability // 10}.{shape.gpu.compute_capability % 10}",
        "power.draw": f"{_power_w(holdings, index):.2f}",
        "mig.mode.current": "Disabled",
    }


def _power_w(holdings: Sequence[Holding], index: int) -> float:
    """Return a GPU's power: idle, or that of one whose memory a living process fills.

    How busy it is nobody wrote into the book, so it does not follow the load. Decoding reads the weights from
    memory in every step whatever the batch, which makes a serving GPU's power nearly constant.
    """
    held = sum(holding.bytes_per_gpu.get(index, 0) for holding in holdings if holding.alive)
    return _SERVING_W if held > _CONTEXT_BYTES else _IDLE_W


def _clock_fields(*, hot: bool) -> dict[str, str]:
    # How fast a GPU runs, nobody wrote into the book either, except that it is too hot.
    clock = str(_HOT_MHZ) if hot else NOT_KNOWN
    fields = {"clocks.current.sm": clock, "clocks.sm": clock}
    for reason in _REASONS:
        active = "Active" if hot and reason in _HOT_REASONS else "Not Active"
        fields |= {f"clocks_event_reasons.{reason}": active, f"clocks_throttle_reasons.{reason}": active}
    return fields


_NOBODY = Holding(pid=0, name="", bytes_per_gpu={}, alive=False, foreign=False)
_HOT_MHZ = 1200
_IDLE_W = 72.0
_SERVING_W = 420.0
_CONTEXT_BYTES = 4 * 1024**3  # what does not hold more serves no model
_REASONS = (
    *("gpu_idle", "applications_clocks_setting", "sw_power_cap", "hw_slowdown", "hw_thermal_slowdown"),
    *("hw_power_brake_slowdown", "sw_thermal_slowdown", "sync_boost"),
)
_HOT_REASONS = ("hw_slowdown", "hw_thermal_slowdown")
_UNITS = {
    "clocks.current.sm": "MHz",
    "clocks.sm": "MHz",
    "power.draw": "W",
    "memory.total": "MiB",
    "memory.used": "MiB",
    "memory.free": "MiB",
    "used_memory": "MiB",
    "used_gpu_memory": "MiB",
    "utilization.gpu": "%",
    "utilization.memory": "%",
}


def _app_fields(holding: Holding, index: int, count: int) -> dict[str, str]:
    # The driver does not know the name of a process that is gone.
    name = holding.name if holding.alive else "[Not Found]"
    used = str(count // _MIB)
    return {
        "pid": str(holding.pid),
        "process_name": name,
        "name": name,
        "used_memory": used,
        "used_gpu_memory": used,
        "gpu_uuid": _uuid(index),
        "gpu_name": "",
    }


def _header(name: str, *, units: bool) -> str:
    return f"{name} [{_UNITS[name]}]" if units and name in _UNITS else name


def _cell(name: str, value: str, *, units: bool) -> str:
    return f"{value} {_UNITS[name]}" if units and name in _UNITS and value != NOT_KNOWN else value


def _uuid(index: int) -> str:
    return f"GPU-5d1c0000-51a1-4f6e-9e0d-{index:012x}"


def _summary(shape: Profile, holdings: Sequence[Holding]) -> str:
    """The table a person sees."""
    bar = "+" + "-" * 89 + "+"
    lines = [
        time.strftime("%a %b %d %H:%M:%S %Y"),
        bar,
        f"| {f'NVIDIA-SMI {_DRIVER}':<29}{f'Driver Version: {_DRIVER}':<36}{f'CUDA Version: {_CUDA}':<23}|",
        bar,
    ]
    for index in range(shape.gpu.count):
        row = _gpu_fields(shape, holdings, index)
        memory = f"{row['memory.used']}MiB / {row['memory.total']}MiB"
        lines.append(f"| {index:>3}  {shape.gpu.name:<38}{memory:>24}{row['utilization.gpu']:>12}      Default |")
    lines += [bar, "", bar, f"| {'Processes:':<88}|"]
    found = [
        f"| {index:>3}   N/A  N/A {holding.pid:>9}      C   {_app_fields(holding, index, count)['process_name']:<38}"
        f"{f'{count // _MIB}MiB':>14} {'':>3}|"
        for holding in holdings
        for index, count in sorted(holding.bytes_per_gpu.items())
    ]
    lines += found or [f"| {' No running processes found':<88}|"]
    return "".join(line + "\n" for line in (*lines, bar))


def main(argv: Sequence[str], environ: Mapping[str, str], write: Callable[[str], object]) -> int:
    """Print the answer; return the exit status, nvidia-smi's where it has one."""
    try:
        host = read_facts(environ)
        shape = profile.load(host.profile)
        book = Book(host.home)
        write(answer(argv, shape, book.holdings(), hot=book.is_hot()))
    except (HostError, profile.ProfileError, UsageError) as error:
        write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ, sys.stdout.write))
