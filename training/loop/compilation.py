"""The compiled training step."""

from typing import Any

import torch
from torch import nn

# Channels lie innermost, and the first stage of a quaternion network has eight of them: vectors of eight
# floats fit. With sixteen the compiler falls back on scalar code, and a step takes seven times as long.
SIMD_BITS = 256


def compiled(model: nn.Module) -> nn.Module:
    """`model`, compiled for one shape at a time."""
    options: dict[str, Any] = {}
    if torch.backends.cpu.get_cpu_capability() == "AVX512":
        options["cpp.simdlen"] = SIMD_BITS
    fast: nn.Module = torch.compile(model, dynamic=False, options=options)  # type: ignore[assignment]
    return fast
