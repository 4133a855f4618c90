"""Runs ``vllm bench serve`` in a process that has no torch: what it never uses becomes empty.

python run_vllm.py ARGUMENTS…
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import logging
import sys
from pathlib import Path
from types import ModuleType

# Packages whose own __init__ would import the server; their modules are found as before.
HOLLOW = ("vllm", "vllm.utils")
# Modules of which the benchmark imports names that a text benchmark never calls.
EMPTY = (
    "vllm.inputs",
    "vllm.lora",
    "vllm.lora.request",
    "vllm.lora.utils",
    "vllm.multimodal",
    "vllm.multimodal.audio",
    "vllm.multimodal.image",
    "vllm.multimodal.utils",
    "vllm.transformers_utils",
    "vllm.transformers_utils.repo_utils",
    "vllm.utils.mistral",
)


class Placeholder(ModuleType):
    """A module in which every name is a class without anything in it."""

    def __getattr__(self, name: str) -> type:
        """Make the name up."""
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def put(module: ModuleType) -> ModuleType:
    """Put a module where an import finds it."""
    sys.modules[module.__name__] = module
    parent, _, leaf = module.__name__.rpartition(".")
    if parent:
        setattr(sys.modules[parent], leaf, module)
    return module


def main() -> None:
    """Run the benchmark with the arguments of the command line."""
    found = importlib.util.find_spec("vllm")
    if found is None or found.submodule_search_locations is None:
        sys.exit("vllm is not installed here")
    root = Path(found.submodule_search_locations[0])
    for name in HOLLOW:
        module = put(ModuleType(name))
        module.__path__ = [str(root.joinpath(*name.split(".")[1:]))]
    for name in EMPTY:
        put(Placeholder(name))
    sys.modules["vllm.utils.mistral"].__dict__["is_mistral_tokenizer"] = lambda _: False
    put(ModuleType("vllm.logger")).__dict__["init_logger"] = logging.getLogger
    from transformers import AutoTokenizer  # type: ignore[import-not-found]  # noqa: PLC0415

    tokenizers = put(Placeholder("vllm.tokenizers"))
    tokenizers.__dict__["get_tokenizer"] = lambda name, **_: AutoTokenizer.from_pretrained(name)
    flexible = put(ModuleType("vllm.utils.argparse_utils"))
    flexible.__dict__["FlexibleArgumentParser"] = argparse.ArgumentParser
    from vllm.benchmarks.serve import add_cli_args, main_async  # type: ignore[import-not-found]  # noqa: PLC0415

    parser = argparse.ArgumentParser()
    add_cli_args(parser)
    asyncio.run(main_async(parser.parse_args()))


if __name__ == "__main__":
    main()
