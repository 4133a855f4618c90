"""What a study says of a server that runs as a process of this machine holds as for any other host."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from tuner.model.study import HostCare, ProcessHostSpec, Reach
from tuner.ports import HostPorts
from tuner.wiring.holder import holder_of
from tuner.wiring.host import build_host

NVIDIA_SMI = """#!/bin/sh
for query; do
    case $query in
    --query-gpu=*clocks*) echo 'Field "clocks" is not a valid field to query.'; exit 2 ;;
    --query-gpu=*) printf '0, [N/A], [N/A], GPU-a\\n1, 512, 81920, GPU-b\\n' ;;
    esac
done
"""


def ports(folder: Path, reach: Reach, care: HostCare) -> HostPorts:
    spec = ProcessHostSpec(name="here", state_dir=str(folder / "host"), reach=reach, care=care)
    return build_host(spec, holder_of("s", str(folder)))


def test_its_gpus_its_address_and_its_owners_care_are_heeded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(NVIDIA_SMI)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    care = HostCare(gpu_indices=(1,), cleanup_command=("sh", "-c", 'echo "freed $TUNER_HOST"'), wait_s=7.0)
    host = ports(tmp_path, Reach(base_url="http://127.0.0.9:8080"), care)

    async def scenario() -> None:
        look = await host.gpu.look()
        assert [(reading.index, reading.memory_used_bytes) for reading in look.readings] == [(1, 512 << 20)]
        assert await host.route.open(30000) == "http://127.0.0.9:8080"
        assert host.cleanup is not None
        assert (await host.cleanup()).stdout == "freed here\n"
        assert host.wait_s == 7.0

    asyncio.run(scenario())


def test_a_machine_without_nvidia_smi_has_no_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shell = tmp_path / "sh"
    shell.symlink_to("/bin/sh")
    monkeypatch.setenv("PATH", str(tmp_path))
    host = ports(tmp_path, Reach(), HostCare())
    assert asyncio.run(host.gpu.look()).readings == ()
