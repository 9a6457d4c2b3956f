"""Turns the errors of CUDA, cuDNN and onnxruntime into one line: the cause and the remedy.

onnxruntime's message begins with C++ signatures; "CUDA failure 35" stands some 700 characters into it.
"""

import re
from dataclasses import dataclass

CUDA_MAJOR = 13  # of the libraries in the gpu extra
DRIVER_RELEASE = 580  # the first NVIDIA driver for that CUDA
CALL = re.compile(r"(CUDA|CUDNN|CUBLAS) failure (?P<code>\d+): .*?(?= ?;|\n|$)")
LAUNCH = re.compile(r"CUDA error (?P<name>\w+): ?[^\n]*")  # a kernel that could not be launched
LENGTH = 300  # of a message without a known cause


@dataclass(frozen=True)
class Cause:
    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.what}: {self.remedy}"


OLD_DRIVER = Cause(
    f"the NVIDIA driver is too old for CUDA {CUDA_MAJOR}",
    f"install driver {DRIVER_RELEASE} or newer on the host",
)
MEMORY = Cause(
    "the GPU's memory is full, or gpu_memory_bytes too small",
    "free some (nvidia-smi lists its users), raise the limit, or lower max_batch",
)
ARCHITECTURE = Cause(
    "onnxruntime has no code for this GPU's compute capability",
    "docs/gpu-host.md lists those it has; take another GPU, or --device cpu",
)
DRIVER_MISMATCH = Cause(
    "the driver was updated, and the kernel still runs the old one",
    "reboot the host, or reload the nvidia kernel modules",
)
NO_GPU = Cause(
    "the driver shows no GPU",
    "in a container, run it with one (--gpus all); on the host, see whether nvidia-smi lists it",
)
NO_SUCH_GPU = Cause("the chosen GPU is not there", "name one that `nvidia-smi -L` lists (GPU=...)")
IN_USE = Cause("the GPU is taken by another process", "end that process, or set the compute mode to default")
LOST = Cause(
    "the GPU or its context is lost", "start the process again; if it recurs, read Xid errors in dmesg"
)
NOT_READY = Cause("the GPUs' fabric is not ready", "start nvidia-fabricmanager on the host, or wait for it")
COMPATIBILITY = Cause(
    "this GPU does not support forward compatibility",
    f"install driver {DRIVER_RELEASE} or newer on the host, and remove cuda-compat",
)
UNKNOWN = Cause(
    "the driver cannot start CUDA",
    "reboot the host, or reload the nvidia kernel modules; dmesg says more",
)
LIBRARY = Cause("a CUDA library is missing or does not load", "install quatserve[gpu] again, as a whole")
CPU_OPERATORS = Cause(
    "onnxruntime has no CUDA kernel for some operators of the graph", "take --precision fp32, or --device cpu"
)
BROKEN_CUDNN = Cause("cuDNN failed", "install quatserve[gpu] again; if it recurs, run quatserve check-gpu")
BROKEN_CUBLAS = Cause("cuBLAS failed", "install quatserve[gpu] again; if it recurs, run quatserve check-gpu")

# The runtime's and the driver's API share these numbers, but for 35 and 36, which only the runtime has.
CUDA_ERRORS = (
    (2, "MemoryAllocation", MEMORY),
    (35, "InsufficientDriver", OLD_DRIVER),
    (36, "CallRequiresNewerDriver", OLD_DRIVER),
    (46, "DevicesUnavailable", IN_USE),
    (100, "NoDevice", NO_GPU),
    (101, "InvalidDevice", NO_SUCH_GPU),
    (209, "NoKernelImageForDevice", ARCHITECTURE),
    (214, "ECCUncorrectable", LOST),
    (304, "OperatingSystem", UNKNOWN),
    (700, "IllegalAddress", LOST),
    (702, "LaunchTimeout", LOST),
    (709, "ContextIsDestroyed", LOST),
    (710, "Assert", LOST),
    (714, "HardwareStackError", LOST),
    (715, "IllegalInstruction", LOST),
    (716, "MisalignedAddress", LOST),
    (717, "InvalidAddressSpace", LOST),
    (718, "InvalidPc", LOST),
    (719, "LaunchFailure", LOST),
    (802, "SystemNotReady", NOT_READY),
    (803, "SystemDriverMismatch", DRIVER_MISMATCH),
    (804, "CompatNotSupportedOnDevice", COMPATIBILITY),
    (999, "Unknown", UNKNOWN),
)
OF_CODE = {code: cause for code, _, cause in CUDA_ERRORS}
OF_NAME = {f"cudaError{name}": cause for _, name, cause in CUDA_ERRORS}
OF_CUBLAS = {3: MEMORY}
OF_TEXT = {
    "Failed to allocate memory for requested buffer": MEMORY,
    "Available memory of": MEMORY,  # the arena's own limit
    "cuDNN is unavailable": LIBRARY,
    "assigned to the default CPU EP": CPU_OPERATORS,
}


def cause_of(text: str) -> Cause | None:
    """What a message of onnxruntime means; None if it is not known."""
    if call := CALL.search(text):
        library, code = call[1], int(call["code"])
        if library == "CUDNN":
            return BROKEN_CUDNN
        return OF_CUBLAS.get(code, BROKEN_CUBLAS) if library == "CUBLAS" else OF_CODE.get(code)
    if launch := LAUNCH.search(text):
        return OF_NAME.get(launch["name"])
    return next((cause for part, cause in OF_TEXT.items() if part in text), None)


def is_device_failure(error: BaseException) -> bool:
    """Whether CUDA failed, rather than the graph or a caller: the process may have lost its GPU for good."""
    text = str(error)
    return bool(CALL.search(text) or LAUNCH.search(text) or cause_of(text))


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether this error, or one that it was raised from, says so."""
    while error is not None and cause_of(str(error)) is not MEMORY:
        error = error.__cause__
    return error is not None


def explain(error: BaseException) -> str:
    """The cause and the remedy, and behind them onnxruntime's own words; or these alone."""
    text = str(error).strip()
    call = CALL.search(text) or LAUNCH.search(text)
    words = call[0] if call else (text.splitlines() or [type(error).__name__])[0]
    words = words if len(words) <= LENGTH else f"...{words[-LENGTH:]}"
    cause = cause_of(text)
    return f"{cause} ({words})" if cause else words
