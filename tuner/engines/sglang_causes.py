"""The lines that explain SGLang's deaths: one table, read from the source of 0.5.23.

A *decisive* rule settles the cause wherever it stands. The others count only as the
text of an exception, because a healthy server may log the same words as a warning
(retractions under load, for example).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from tuner.engines.logs.grammar import Rule
from tuner.model.outcome import Cause, MemoryDirection

HIGH = MemoryDirection.FRACTION_TOO_HIGH
LOW = MemoryDirection.FRACTION_TOO_LOW
DRAFTS = MemoryDirection.TOO_MANY_DRAFT_TOKENS
_HOST_OOM_ADVICE = "the host ran out of main memory; look at `dmesg` and at what else runs there"


# First match wins: the more special rule stands before the more general one.
RULES: tuple[Rule, ...] = (
    Rule(
        tokens=("watchdog timeout (self.watchdog_timeout=",),
        unless="soft=true",  # that one only logs
        cause=Cause.HANG,
        config_fault=None,
        decisive=True,
        fatal=True,
        advice="a forward pass did not end; the py-spy dump in the log shows where",
    ),
    Rule(
        tokens=(
            "error: unrecognized arguments",
            "error: ambiguous option",
            "error: invalid choice",
            "error: argument ",
            "error: the following arguments are required",
        ),
        is_early=True,
        cause=Cause.REJECTED_ARGUMENTS,
        config_fault=True,
        decisive=True,
        fatal=True,
        advice="SGLang refuses this command line",
    ),
    Rule(
        tokens=("server couldn't get a response from detokenizer",),
        cause=Cause.HANG,
        config_fault=None,
        advice="the scheduler stopped answering while HTTP still did",
    ),
    Rule(
        tokens=("loaded weights leave no gpu memory", "not enough memory. please try to increase --mem-fraction"),
        cause=Cause.KV_POOL_TOO_SMALL,
        config_fault=True,
        direction=LOW,
        decisive=True,
        advice="raise mem_fraction_static: after the weights nothing is left for the KV cache",
    ),
    Rule(
        tokens=("leaves no room for the full kv pool", "memory pool size is too small", "max_running_request is zero"),
        cause=Cause.KV_POOL_TOO_SMALL,
        config_fault=True,
        direction=LOW,
        advice="raise mem_fraction_static: the KV cache is too small to serve one request",
    ),
    Rule(
        tokens=("not enough gpu memory for hybrid", "state cache is too small to serve"),
        cause=Cause.OOM_STATE_POOL,
        config_fault=True,
        direction=LOW,  # or too many draft tokens: see sglang_log
        decisive=True,
        advice="fewer draft tokens, a higher mem_fraction_static or fewer running requests: "
        "each request keeps one state per draft token",
    ),
    Rule(
        tokens=(
            "prefill out of memory. try to lower",
            "decode out of memory. try to lower",
            "out of memory. try to lower your batch size",
        ),
        cause=Cause.KV_SLOTS_EXHAUSTED,
        config_fault=True,
        direction=LOW,
        advice="raise mem_fraction_static or allow fewer running requests: KV slots ran out, not GPU memory",
    ),
    Rule(
        tokens=("alloc_req_slots runs out of memory",),
        cause=Cause.KV_SLOTS_EXHAUSTED,
        config_fault=True,
        advice="lower --max-running-requests: request slots ran out, not GPU memory",
    ),
    Rule(
        tokens=("out of memory: killed process",),
        shape=re.compile(r"\((?:sglang|python|launch_server)"),
        cause=Cause.HOST_OOM,
        config_fault=None,
        decisive=True,
        advice=_HOST_OOM_ADVICE,
    ),
    Rule(
        tokens=("crashed with exit code -9", "(exit code: -9)"),
        cause=Cause.HOST_OOM,
        config_fault=None,
        decisive=True,
        advice=_HOST_OOM_ADVICE,
    ),
    Rule(
        tokens=(
            "[errno 12] cannot allocate memory",
            "error code 12 (cannot allocate memory)",
            "defaultcpuallocator: can't allocate memory",
            "std::bad_alloc",
        ),
        cause=Cause.HOST_OOM,
        config_fault=None,
        advice=_HOST_OOM_ADVICE,
    ),
    Rule(
        tokens=(
            "cuda out of memory",
            "outofmemoryerror",
            "cudaerrormemoryallocation",
            "cuda error: out of memory",
            "cuda driver error: out of memory",
            "hip out of memory",
            "cuda_error_out_of_memory",
            "triton error [cuda]: out of memory",
            "cublas_status_alloc_failed",
            "cudnn_status_alloc_failed",
            "cusolver_status_alloc_failed",
        ),
        cause=Cause.UNKNOWN,
        config_fault=True,
        direction=HIGH,
    ),
    Rule(
        tokens=("cuda failure 2 'out of memory'", "cuda failure 'out of memory'"),  # NCCL says why only lines later
        refines=Cause.COLLECTIVE,
        cause=Cause.UNKNOWN,
        config_fault=True,
        direction=HIGH,
    ),
    Rule(
        tokens=("address already in use", "eaddrinuse", "port is already in use"),
        cause=Cause.PORT_IN_USE,
        config_fault=False,
        decisive=True,
        fatal=True,
        advice="another process holds the port; find it with `ss -ltnp`",
    ),
    Rule(
        tokens=("is not available in ",),
        also=" seconds",
        cause=Cause.PORT_IN_USE,
        config_fault=False,
        fatal=True,
        advice="another process holds a port that SGLang needs between its own processes; find it with `ss -ltnp`",
    ),
    Rule(
        tokens=("assert_pkg_version", "please reinstall the latest version with"),
        cause=Cause.DEPENDENCY_MISMATCH,
        config_fault=False,
        decisive=True,
        advice="a kernel package does not fit this SGLang; reinstall it as the line says",
    ),
    Rule(
        tokens=(
            "modulenotfounderror",
            "importerror:",
            "undefined symbol",
            "cannot open shared object file",
            "no kernel image is available",
            "driver version is insufficient",
            "driver on your system is too old",
            "could not find nvcc",
            "does not recognize this architecture",
            "could not load any common_ops library",
            "ninja is required to load",
        ),
        cause=Cause.DEPENDENCY_MISMATCH,
        config_fault=False,
        advice="a Python package is missing or does not fit; the installation is broken",
    ),
    Rule(
        tokens=("no such file or directory: ",),
        shape=re.compile(r"'(?:\S*/)?(?:ninja|nvcc|ptxas|gcc|g\+\+|cc|c\+\+|ld)'"),
        cause=Cause.DEPENDENCY_MISMATCH,
        config_fault=False,
        advice="a compiler that kernels are built with at their first use is missing; install it",
    ),
    Rule(
        tokens=("no such file or directory: ",),
        shape=re.compile(r"\.safetensors|\.bin'|pytorch_model|/config\.json|/tokenizer\w*\.\w+'"),
        cause=Cause.MODEL_MISSING,
        config_fault=False,
        advice="a file of the model is not on the host",
    ),
    Rule(
        tokens=(
            "cannot find any model weights",
            "is not a local folder and is not a valid model identifier",
            "repositorynotfounderror",
            "gatedrepoerror",
            "offlinemodeisenabled",
            "localentrynotfounderror",
            "entrynotfounderror",
            "hfvalidationerror",
            "does not appear to have a file named",
            "error while deserializing",  # a damaged file of weights
            "access a gated repo",
            "access gated repo",
            "404 client error",
            "couldn't connect to 'https://huggingface.co'",
            "couldn't find them in the cached files",
            "unrecognized model in ",
        ),
        cause=Cause.MODEL_MISSING,
        config_fault=False,
        advice="the model is not on the host, or its name or token is wrong",
    ),
    Rule(
        tokens=("read timed out. (read timeout=",),
        cause=Cause.HANG,
        config_fault=None,
        advice="the warm-up request was never answered",
    ),
    Rule(
        tokens=("invalid device ordinal", "no cuda gpus are available", "no cuda-capable device"),
        cause=Cause.DEPENDENCY_MISMATCH,
        config_fault=False,
        advice="the host has fewer GPUs than the command asks for; lower --tp-size or use another host",
    ),
    Rule(
        tokens=(
            "illegal memory access",
            "cudaerrorillegaladdress",
            "illegal instruction was encountered",
            "device-side assert triggered",
            "vectorized_gather_kernel",
            "acceleratorerror",
        ),
        cause=Cause.CUDA_FAULT,
        config_fault=None,
        advice="a GPU kernel failed; the traceback's line is not the culprit, CUDA reports late",
    ),
    Rule(
        tokens=("assertion `",),
        also=".cu:",
        cause=Cause.CUDA_FAULT,
        config_fault=None,
        decisive=True,
        advice="a GPU kernel's own check failed; the error that follows is reported late, and elsewhere",
    ),
    Rule(
        tokens=("fatal python error: segmentation fault",),
        cause=Cause.ENGINE_BUG,
        config_fault=None,
        decisive=True,
        advice="native code of SGLang or of what it stands on crashed; the lines that follow show where",
    ),
    Rule(
        tokens=("watchdog caught collective operation timeout", "processgroupnccl's watchdog got stuck"),
        cause=Cause.COLLECTIVE,
        config_fault=None,
        decisive=True,
        fatal=True,
        advice="GPUs stopped talking to each other; look for the rank that stopped first",
    ),
    Rule(
        tokens=(
            "nccl error",
            "ncclunhandled",
            "ncclsystemerror",
            "ncclinternalerror",
            "distbackenderror",
            "distnetworkerror",
            "diststoreerror",
            "connectfullmesh failed",  # Gloo's
            "cudart error",
        ),
        cause=Cause.COLLECTIVE,
        config_fault=None,
        advice="NCCL failed; if it comes again on a clean host, run with NCCL_DEBUG=INFO",
    ),
    Rule(
        tokens=("memory leak detected!",),
        cause=Cause.ENGINE_BUG,
        config_fault=None,
        advice="SGLang's bookkeeping check failed when it went idle",
    ),
    Rule(
        tokens=(
            "set_mamba_track_indices_from_reqs",
            "draft over-allocation",
            "'nonetype' object cannot be interpreted as an integer",
            "increase the workspace buffer size",  # FlashInfer's, of a fixed size
            "in alignedallocator",
            "must match the size of tensor",
            "sizes of tensors must match",
            "probability tensor contains either",
            "nan in the logits",
            "triton.runtime.errors.outofresources",
        ),
        cause=Cause.ENGINE_BUG,
        config_fault=None,
        advice="a defect of SGLang with this combination; note the version with the verdict",
    ),
    Rule(
        tokens=("greater than the derived context_length",),
        cause=Cause.REJECTED_ARGUMENTS,
        config_fault=None,  # nothing that is tuned
        advice="the model does not know so long a context; lower --context-length",
    ),
    Rule(
        tokens=(
            "selected index k out of range",
            "only supports topk = 1",
            "is only supported on ('flashinfer'",
            "produces incorrect results for paged attention",
            "is not supported in decode attention backend",
            "is not supported in attention backend",
            "unknown speculative algorithm name",
            "mamba_track_interval",
            "requires the draft model to share the same vocabulary",
            "chunked_prefill_size must be divisible",
            "multi-layer eagle requires",
            "only supports page_size=1",
            "no_buffer do not support",
            "speculative decoding does not support dp attention",
            "speculative decoding only supports",
            "pipeline parallelism is not compatible",
            "draft requires --speculative-algorithm",
            "is incompatible with --speculative",
            "--enable-linear-replayssm-spec",
            "please use `--attention-backend",
            "speculative-use-rejection-sampling",
            "candidate_steps",
        ),
        cause=Cause.REJECTED_ARGUMENTS,
        config_fault=True,
        advice="SGLang does not take this combination of settings",
    ),
    Rule(
        tokens=("the memory capacity is unbalanced",),  # as an exception; as a warning it is only a hint
        cause=Cause.LEFTOVER_MEMORY,
        config_fault=None,
        advice="another process holds GPU memory; clean the host",
    ),
    Rule(
        # Wraps any error of a capture, and always advises on memory: only the inner error, matched above, tells.
        tokens=("capture cuda graph failed:", "fail when using backend:"),
        cause=Cause.ENGINE_BUG,
        config_fault=None,
        advice="graph capture failed on something other than memory: a kernel does not take these settings",
    ),
)

# A check failed before any weight was touched, but not in the code that reads the arguments.
EARLY_CHECK_RULE = Rule(
    cause=Cause.REJECTED_ARGUMENTS,
    config_fault=None,
    is_weak=True,
    advice="SGLang stopped before it loaded anything",
)

HOST_MEMORY_RULE = Rule(cause=Cause.HOST_OOM, config_fault=None, advice=_HOST_OOM_ADVICE)
"""Python's MemoryError: its name stands in that of PyTorch's, too."""
ARGUMENTS_RULE = Rule(
    cause=Cause.REJECTED_ARGUMENTS, config_fault=True, fatal=True, advice="SGLang refuses this command line"
)
CUDA_RULE = Rule(
    cause=Cause.CUDA_FAULT,
    config_fault=None,
    advice="a GPU kernel failed; the traceback's line is not the culprit, CUDA reports late",
)
MISTAKE_RULE = Rule(
    cause=Cause.ENGINE_BUG,
    config_fault=None,
    advice="SGLang's scheduler made a mistake while it served; note its version with the verdict",
)
SPECULATION_BUG_RULE = Rule(
    cause=Cause.ENGINE_BUG,
    config_fault=None,
    advice="drafting or verifying failed on something other than memory; note SGLang's version with the verdict",
)

OUT_OF_MEMORY: Mapping[Cause, tuple[MemoryDirection | None, str]] = {
    # Weights do not ask for the fraction.
    Cause.OOM_WEIGHTS: (None, "the weights alone do not fit; use more GPUs, a smaller type, or no draft model"),
    Cause.OOM_KV_POOL: (HIGH, "lower mem_fraction_static: the caches were sized beyond what is free"),
    Cause.OOM_GRAPH_CAPTURE: (
        HIGH,
        "lower mem_fraction_static or the number of draft tokens: CUDA graphs found no room",
    ),
    Cause.OOM_VERIFY_WORKSPACE: (
        DRAFTS,
        "fewer draft tokens, or a lower mem_fraction_static: verifying needs memory for each, outside the fraction",
    ),
    Cause.OOM_SERVING: (
        HIGH,
        "lower mem_fraction_static or the number of draft tokens: there was no room left under load",
    ),
}
"""Of each cause that a CUDA out-of-memory can be: direction and advice."""
