"""Runs ``sglang.benchmark`` in a process that has no torch: what it never uses becomes empty.

python run_sglang.py rust_client|serving ARGUMENTS…
"""

from __future__ import annotations

import importlib.util
import runpy
import sys
from pathlib import Path
from types import ModuleType

# Packages whose own __init__ would import the server; their modules are found as before.
HOLLOW = ("sglang", "sglang.srt", "sglang.srt.utils")


def hollow(name: str, folder: Path) -> None:
    """Put an empty package in the place of ``name``."""
    module = ModuleType(name)
    module.__path__ = [str(folder)]
    sys.modules[name] = module
    parent, _, leaf = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], leaf, module)


def main() -> None:
    """Run the module named first with the arguments after it."""
    found = importlib.util.find_spec("sglang")
    if found is None or found.submodule_search_locations is None:
        sys.exit("sglang is not installed here")
    root = Path(found.submodule_search_locations[0])
    for name in HOLLOW:
        hollow(name, root.joinpath(*name.split(".")[1:]))
    # The one constant that the benchmark takes from the server's disaggregation.
    constants = ModuleType("sglang.srt.disaggregation.utils")
    constants.__dict__["FAKE_BOOTSTRAP_HOST"] = "2.2.2.2"
    sys.modules["sglang.srt.disaggregation.utils"] = constants
    module = f"sglang.benchmark.{sys.argv.pop(1)}"
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
