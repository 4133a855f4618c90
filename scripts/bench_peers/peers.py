"""Other load clients: how each is installed, run and read.

Each lives in an environment of its own below the cache folder, made from wheels alone, without
the server it belongs to: what its benchmark never uses is left out.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench_peers.loads import Scenario

HERE = Path(__file__).parent
INSTALL_S = 600.0
_PROMPTS = 1000
_WORDS = 1000
_SGLANG = ("aiohttp", "numpy", "requests", "tqdm", "transformers", "orjson", "pillow", "pybase64", "datasets")
_SGLANG_MORE = ("psutil", "pyzmq", "msgspec")
_PYTHON = "bin/python"


def cache_folder() -> Path:
    """Return where environments and files of the peers are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tuner" / "bench_peers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Another client.

    Attributes:
        name: in the table.
        place: folder of its environment.
        bare: packages installed without what they require.
        packages: installed with it.
        argv: python, base URL, scenario, folder of files, report -> its command line.
        has_stamps: it writes what it saw as ``stock.py`` does.
        ttft_s: what it says of the mean TTFT, out of its report; None: it is not read.
    """

    name: str
    place: str
    bare: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    argv: Callable[[Path, str, Scenario, Path, Path], Sequence[str]]
    has_stamps: bool = False
    ttft_s: Callable[[Path], float] | None = None

    @property
    def python(self) -> Path:
        """Of its environment."""
        return cache_folder() / self.place / _PYTHON


def _sglang(module: str, *more: str) -> Callable[[Path, str, Scenario, Path, Path], Sequence[str]]:
    def argv(python: Path, base_url: str, scenario: Scenario, files: Path, report: Path) -> Sequence[str]:
        return (
            str(python), str(HERE / "run_sglang.py"), module,
            "--backend", "sglang-oai-chat", "--base-url", base_url, "--model", str(files), "--tokenizer", str(files),
            "--dataset-name", "sharegpt", "--dataset-path", str(files / "sharegpt.json"),
            "--sharegpt-output-len", str(scenario.tokens), "--num-prompts", str(scenario.streams * scenario.requests),
            "--max-concurrency", str(scenario.streams), "--warmup-requests", "1", "--disable-tqdm",
            "--output-file", str(report), *more,
        )  # fmt: skip

    return argv


def _vllm(python: Path, base_url: str, scenario: Scenario, files: Path, report: Path) -> Sequence[str]:
    return (
        str(python), str(HERE / "run_vllm.py"),
        "--backend", "openai-chat", "--base-url", base_url, "--endpoint", "/v1/chat/completions",
        "--model", "paced", "--tokenizer", str(files), "--dataset-name", "sharegpt",
        "--dataset-path", str(files / "sharegpt.json"), "--sharegpt-output-len", str(scenario.tokens),
        "--num-prompts", str(scenario.streams * scenario.requests), "--max-concurrency", str(scenario.streams),
        "--ignore-eos", "--disable-tqdm", "--save-result", "--result-filename", str(report),
    )  # fmt: skip


def _mean_ttft_s(report: Path) -> float:
    return float(json.loads(report.read_text().splitlines()[-1])["mean_ttft_ms"]) / 1e3


def _httpx_aiohttp(python: Path, base_url: str, scenario: Scenario, _files: Path, _report: Path) -> Sequence[str]:
    numbers = (scenario.streams, scenario.requests, scenario.tokens)
    return (str(python), str(HERE / "stock.py"), "httpx-aiohttp", base_url, *map(str, numbers))


PEERS = (
    Peer(
        name="httpx-aiohttp",
        place="httpx_aiohttp",
        packages=("httpx-aiohttp", "httpx", "aiohttp", "orjson"),
        argv=_httpx_aiohttp,
        has_stamps=True,
    ),
    Peer(
        name="SGLang Rust client",
        place="sglang",
        bare=("sglang==0.5.23",),
        packages=(*_SGLANG, *_SGLANG_MORE),
        argv=_sglang("rust_client", "--worker-threads", "1"),
        ttft_s=_mean_ttft_s,
    ),
    Peer(
        name="SGLang bench_serving",
        place="sglang",
        bare=("sglang==0.5.23",),
        packages=(*_SGLANG, *_SGLANG_MORE),
        argv=_sglang("serving"),
        ttft_s=_mean_ttft_s,
    ),
    Peer(
        name="vLLM bench serve",
        place="vllm",
        bare=("vllm==0.33.0",),
        packages=(*_SGLANG, *_SGLANG_MORE, "regex", "pydantic", "cloudpickle"),
        argv=_vllm,
        ttft_s=_mean_ttft_s,
    ),
)

LEFT_OUT = {
    "GuideLLM": "it brings torch and 6 GB with it",
    "inference-perf": "it needs Python 3.12, and nothing here makes such an environment yet",
    "AIPerf": "it refused the tokenizer in a folder and wanted one of Hugging Face's: not solved yet",
    "genai-bench": "its installation, 1.3 GB, was not waited for; nothing here runs it yet",
}
"""Clients that are not run, and why."""


def install(peer: Peer) -> str | None:
    """Make the peer's environment unless it is there; return why it cannot be, in one line."""
    folder = cache_folder() / peer.place
    stamp, wanted = folder / "stamp", "\n".join((sys.version, *peer.bare, *peer.packages))
    if stamp.exists() and stamp.read_text() == wanted:
        return None
    if (folder / "failed").exists():
        return (folder / "failed").read_text()
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=True)
    pip = (
        str(folder / _PYTHON),
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--only-binary=:all:",
    )
    for some in ((*pip, *peer.packages), (*pip, "--no-deps", *peer.bare)):
        if some[-1].startswith("--"):
            continue  # nothing is to be installed this way
        try:
            done = subprocess.run(some, capture_output=True, text=True, timeout=INSTALL_S, check=False)
        except subprocess.TimeoutExpired:
            return _failed(folder, f"not installed within {INSTALL_S:g} s")
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or ["pip failed"]
            return _failed(folder, errors[0].removeprefix("ERROR: "))
    stamp.write_text(wanted)
    return None


def _failed(folder: Path, why: str) -> str:
    """Keep the reason and free the disk."""
    shutil.rmtree(folder)
    folder.mkdir()
    (folder / "failed").write_text(why)
    return why


def write_files() -> Path:
    """Write the prompts and the tokenizer that the peers want; return their folder."""
    folder = cache_folder() / "files"
    folder.mkdir(parents=True, exist_ok=True)
    words = ["[UNK]", "[EOS]", "word", *(f"w{number}" for number in range(_WORDS))]
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": k, "content": words[k], **special} for k in range(2)],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": {word: k for k, word in enumerate(words)}, "unk_token": words[0]},
    }
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": words[0],
        "eos_token": words[1],
        "model_max_length": 1 << 17,
        "chat_template": "{% for turn in messages %}{{ turn['content'] }} {% endfor %}",
    }
    talks = [
        {
            "id": str(k),
            "conversations": [
                {"from": "human", "value": " ".join(f"w{(7 * k + i) % _WORDS}" for i in range(24))},
                {"from": "gpt", "value": " ".join(["word"] * 40)},
            ],
        }
        for k in range(_PROMPTS)
    ]
    for name, content in {
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": settings,
        "config.json": {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": len(words)},
        "sharegpt.json": talks,
    }.items():
        (folder / name).write_text(json.dumps(content))
    return folder
