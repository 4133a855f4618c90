"""Last lines as engines and what they stand on print them, and what they must be read as."""

from __future__ import annotations

import pytest

from tuner.engines import engine
from tuner.model.outcome import Cause, Ending

START = (
    "[2026-10-14 02:11:01] server_args={'model_path': 'Qwen/Qwen3.5', 'speculative_algorithm': 'EAGLE'}\n"
    "[2026-10-14 02:11:03 TP0] Load weight begin. avail mem=138.20 GB\n"
)
LOADED = START + (
    "[2026-10-14 02:12:03 TP0] Load weight end. elapsed=12.91 s, type=Qwen3_5, avail mem=106.90 GB\n"
    "[2026-10-14 02:12:05 TP0] KV Cache is allocated. #tokens: 120312, K size: 11.04 GB, V size: 11.04 GB\n"
)
UP = LOADED + (
    "[2026-10-14 02:12:15 TP0] max_total_num_tokens=120312, chunked_prefill_size=8192\n"
    "[2026-10-14 02:12:20] The server is fired up and ready to roll!\n"
)
HIT = "[2026-10-14 02:13:00 TP0] Scheduler hit an exception: Traceback (most recent call last):\n"
SGLANG = [
    (START, "MemoryError", Cause.HOST_OOM),
    (START, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB", Cause.OOM_WEIGHTS),
    (UP, "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 1.00 GiB", Cause.OOM_SERVING),
    (
        LOADED,
        (
            "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:77, unhandled cuda error, Last error: "
            "Cuda failure 2 'out of memory'"
        ),
        Cause.OOM_KV_POOL,
    ),
    (UP, "RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx`", Cause.CUDA_FAULT),
    (UP, "torch.AcceleratorError: CUDA error: unspecified launch failure", Cause.CUDA_FAULT),
    (UP, "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered", Cause.CUDA_FAULT),
    (
        START,
        "RuntimeError: CUDA error: no kernel image is available for execution on the device",
        Cause.DEPENDENCY_MISMATCH,
    ),
    (START, "ImportError: libcudart.so.13: cannot open shared object file", Cause.DEPENDENCY_MISMATCH),
    (
        START,
        "OSError: Qwen/Qwen3.5 does not appear to have a file named config.json",
        Cause.MODEL_MISSING,
    ),
    (
        START,
        "safetensors_rust.SafetensorError: Error while deserializing header: header too large",
        Cause.MODEL_MISSING,
    ),
    (
        START,
        "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 3/4 clients joined.",
        Cause.COLLECTIVE,
    ),
    (UP, "RuntimeError: an error that nobody knows", Cause.UNKNOWN),
    (UP, "OSError: [Errno 28] No space left on device", Cause.UNKNOWN),
]
LOADING = "0.00.017.189 I srv    load_model: loading model '/models/m.gguf'\n"
CONTEXT = LOADING + "llama_context: n_ctx = 16777216\n"
LLAMACPP = [
    (
        LOADING,
        (
            "alloc_tensor_range: failed to allocate CUDA0 buffer of size 24567890123\n"
            "llama_model_load: error loading model: unable to allocate CUDA0 buffer"
        ),
        Cause.OOM_WEIGHTS,
    ),
    (CONTEXT, "ggml_gallocr_reserve_n: failed to allocate CUDA0 buffer of size 24567890123", Cause.OOM_KV_POOL),
    ("", "error: invalid argument: --draft-maximum", Cause.REJECTED_ARGUMENTS),
    (LOADING, "CUDA error: an illegal memory access was encountered", Cause.CUDA_FAULT),
]


@pytest.mark.parametrize(("before", "last", "cause"), SGLANG)
def test_sglang_s_exceptions_are_read_by_what_they_say_and_when(before: str, last: str, cause: Cause) -> None:
    reader = engine("sglang").log_reader()
    reader.feed(f"{before}{HIT}{last}\n")
    assert reader.diagnose(Ending(exit_signal=9)).cause is cause


@pytest.mark.parametrize(("before", "last", "cause"), LLAMACPP)
def test_llamacpp_s_errors_are_read_by_what_they_say_and_when(before: str, last: str, cause: Cause) -> None:
    reader = engine("llamacpp").log_reader()
    reader.feed(f"{before}{last}\n")
    assert reader.diagnose(Ending(exit_status=1)).cause is cause


def test_another_s_exit_code_in_the_sentence_about_the_oom_killer_is_no_evidence() -> None:
    text = (
        "RuntimeError: Rank 0 scheduler died during initialization (exit code: {}). If exit code is -9 (SIGKILL), a "
        "common cause is the OS OOM killer. Run `dmesg -T | grep -i oom` to check.\n"
    )
    found = {}
    for code in (-3, -9):
        reader = engine("sglang").log_reader()
        reader.feed(START + "Traceback (most recent call last):\n" + text.format(code))
        found[code] = reader.diagnose(Ending(exit_status=1)).cause
    assert found == {-3: Cause.UNKNOWN, -9: Cause.HOST_OOM}
