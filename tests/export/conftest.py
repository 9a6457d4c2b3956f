"""One thread a process: the networks here are tiny, and the runtime brings threads of its own."""

import torch

torch.set_num_threads(1)
