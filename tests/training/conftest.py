"""One thread a process: the networks here are tiny, and tests start several processes at once."""

import torch

torch.set_num_threads(1)
