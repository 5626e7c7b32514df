"""A loop that calls the tuner: batches are split while memory is short, bfloat16 is taken where gradients agree."""

import sys

import torch
from torch import nn

from preflight import Tuner

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 1))
optimizer = torch.optim.AdamW(model.parameters())


def loss_of(model, batch):
    inputs, targets = batch
    return nn.functional.mse_loss(model(inputs), targets)


tuner = Tuner(precision="auto", micro_batch="auto", steps=steps)
for _ in range(steps):
    loss = tuner.step(model, optimizer, (torch.randn(128, 256), torch.randn(128, 1)), loss_of)
print(f"loss {loss:.3f}")
print(tuner.report())
