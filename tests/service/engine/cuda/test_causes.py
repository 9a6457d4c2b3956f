"""Error texts as the real onnxruntime-gpu 1.31.1 writes them, on the stand-in of `make check-gpu-install`."""

import pytest

from quatserve.service.engine.cuda.causes import cause_of, explain, is_device_failure, is_out_of_memory

SIGNATURES = (
    "/onnxruntime_src/onnxruntime/core/providers/cuda/cuda_call.cc:154 std::conditional_t<THRW, void, "
    "onnxruntime::common::Status> onnxruntime::CudaCall(ERRTYPE, const char*, const char*, SUCCTYPE, const "
    "char*, const char*, int) [with ERRTYPE = cudaError; bool THRW = true; SUCCTYPE = cudaError; "
    "std::conditional_t<THRW, void, common::Status> = void] "
)
WHERE = " ; GPU=0 ; hostname=vm ; file=/onnxruntime_src/a.cc ; line=355 ; expr=cudaSetDevice(id); \n\n"
ARENA = (
    "[ONNXRuntimeError] : 1 : FAIL : Exception during initialization: /onnxruntime_src/onnxruntime/core/"
    "framework/bfc_arena.cc:360 void* onnxruntime::BFCArena::AllocateRawInternal(size_t, bool, onnxruntime::"
    "Stream*) Failed to allocate memory for requested buffer of size 1024"
)
NO_CUDNN = (
    "[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : Non-zero status code returned while running Conv node. Name:"
    "'components.expand' Status Message: cuDNN is unavailable or disabled for CUDA Execution Provider: "
    "dlopen failed for libcudnn.so: libcudnn.so: cannot open shared object file: No such file or directory"
)
LAUNCH = (
    "[ONNXRuntimeError] : 1 : FAIL : Non-zero status code returned while running Transpose node. "
    "Name:'pixels' Status Message: CUDA error cudaErrorNoKernelImageForDevice:no kernel image is "
    "available for execution"
)
LEFT = (
    "[ONNXRuntimeError] : 1 : FAIL : This session contains graph nodes that are assigned to the default CPU "
    "EP, but fallback to CPU EP has been explicitly disabled by the user."
)


def failure(call: str) -> str:
    return f"{SIGNATURES}{SIGNATURES}{call}{WHERE}"


@pytest.mark.parametrize(
    ("text", "cause", "remedy", "words"),
    [
        (failure("CUDA failure 35: CUDA driver version is insufficient for CUDA runtime version"),
         "driver is too old for CUDA 13", "install driver 580", "CUDA failure 35: CUDA driver version is"),
        (failure("CUDA failure 209: no kernel image is available for execution on the device"),
         "no code for this GPU's compute capability", "docs/gpu-host.md", "failure 209: no kernel image"),
        (failure("CUDA failure 2: out of memory"), "memory is full", "lower max_batch", "failure 2: out"),
        (failure("CUDA failure 719: unspecified launch failure"), "lost", "start the process again", "719"),
        (failure("CUDA failure 803: system has unsupported display driver / cuda driver combination"),
         "driver was updated", "reboot the host", "803"),
        (failure("CUDNN failure 4000: CUDNN_STATUS_INTERNAL_ERROR"), "cuDNN failed", "check-gpu", "4000"),
        (failure("CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED"), "memory is full", "max_batch", "failure 3"),
        (LAUNCH, "no code for this GPU's compute capability", "docs/gpu-host.md", "cudaErrorNoKernelImage"),
        (ARENA, "memory is full", "gpu_memory_bytes", "requested buffer of size 1024"),
        (NO_CUDNN, "library is missing", "install quatserve[gpu] again", "libcudnn.so: cannot open"),
        (LEFT, "no CUDA kernel for some operators", "--device cpu", "assigned to the default CPU EP"),
    ],
)  # fmt: skip
def test_the_cause_and_the_remedy_stand_in_one_short_line(
    text: str, cause: str, remedy: str, words: str
) -> None:
    line = explain(RuntimeError(text))
    assert cause in line
    assert remedy in line
    assert words in line
    assert "\n" not in line
    assert len(line) < 600
    assert is_device_failure(RuntimeError(text))


def test_an_unknown_failure_of_cuda_keeps_its_own_words() -> None:
    line = explain(RuntimeError(failure("CUDA failure 12345: something new")))
    assert line == "CUDA failure 12345: something new"
    line = explain(RuntimeError(LAUNCH.replace("NoKernelImageForDevice", "OfTomorrow")))
    assert line == "CUDA error cudaErrorOfTomorrow:no kernel image is available for execution"


def test_what_is_no_failure_of_the_device_is_not_taken_for_one() -> None:
    told = RuntimeError("[ONNXRuntimeError] : 1 : FAIL : Exiting due to terminate flag being set to true.")
    assert cause_of(str(told)) is None
    assert not is_device_failure(told)
    assert explain(told) == str(told)
    assert explain(ValueError()) == "ValueError"


def test_missing_memory_is_recognised_behind_other_errors() -> None:
    error = ValueError("the session cannot be opened")
    error.__cause__ = RuntimeError(ARENA)
    assert is_out_of_memory(error)
    assert not is_out_of_memory(ValueError("no"))
