"""Compiles a GPU that is none: a driver, and a CUDA runtime on which the real onnxruntime-gpu opens sessions.

Both go before the real libraries by LD_PRELOAD. A session on them is real up to its first kernel: the
provider's options, the operators it has kernels for, its memory arena and its error texts.
"""

import re
import subprocess
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
INTERPOSED = ("libcudart.", "libcublas.", "libcublasLt.")


@dataclass(frozen=True)
class StandIn:
    driver: Path  # libcuda.so.1
    runtime: Path  # the runtime and cuBLAS
    cudnn: Path  # libcudnn.so.9, which does nothing

    def environment(self, *libraries: Path, **answers: int) -> dict[str, str]:
        """LD_PRELOAD with these libraries, and what the stand-in is to answer."""
        return {
            "LD_PRELOAD": ":".join(map(str, libraries)),
            "STAND_IN": " ".join(f"{name}={value}" for name, value in answers.items()),
        }


def needed_symbols(library: Path) -> dict[str, list[str]]:
    """The functions of the CUDA runtime and cuBLAS that a library calls, by their symbol version."""
    command = ["nm", "--dynamic", "--undefined-only", str(library)]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found: dict[str, list[str]] = defaultdict(list)
    for line in listed.splitlines():
        symbol, _, version = line.split()[-1].partition("@")
        if version.startswith(INTERPOSED):
            found[version].append(symbol)
    return found


def build(work: Path, provider: Path) -> StandIn:
    """Compile it for `provider`, the library that will call it."""
    built = StandIn(work / "libcuda.so.1", work / "libgpu_stand_in.so", work / "libcudnn.so.9")
    _compile(built.driver, HERE / "driver.c")

    symbols = needed_symbols(provider)
    written = set(re.findall(r"(\w+)\(", (HERE / "runtime.c").read_text()))
    others = work / "others.c"
    names = [name for listed in symbols.values() for name in listed if name not in written]
    others.write_text("".join(f"int {name}(void) {{ return 0; }}\n" for name in names))
    versions = work / "versions.map"
    versions.write_text(
        "".join(f"{version} {{ global: {'; '.join(listed)}; }};\n" for version, listed in symbols.items())
    )
    _compile(built.runtime, HERE / "runtime.c", others, f"-Wl,--version-script={versions}")

    cudnn = work / "cudnn.c"
    functions = ("cudnnCreate", "cudnnDestroy", "cudnnSetStream", "cudnnGetVersion")
    cudnn.write_text("".join(f"int {name}(void) {{ return 0; }}\n" for name in functions))
    _compile(built.cudnn, cudnn)
    return built


def _compile(library: Path, *arguments: Path | str) -> None:
    command = ["gcc", "-w", "-shared", "-fPIC", f"-Wl,-soname,{library.name}", "-o", library, *arguments]
    subprocess.run(command, check=True)
