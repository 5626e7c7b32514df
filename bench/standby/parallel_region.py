"""A module whose import runs a parallel region of OpenMP: what a server must not preload."""

import torch

torch.set_num_threads(2)
torch.rand(1000, 1000) @ torch.rand(1000, 1000)
