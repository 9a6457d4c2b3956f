"""One torch thread per process: the networks are tiny and onnxruntime has its own threads."""

import torch

torch.set_num_threads(1)
