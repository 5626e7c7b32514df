"""A plain PyTorch loop: nothing in it knows of preflight."""

import sys

import torch
from torch import nn

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(1, 16, 3),
    nn.ReLU(),
    nn.Conv2d(16, 32, 3),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(4),
    nn.Flatten(),
    nn.Linear(512, 10),
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for _ in range(steps):
    images, labels = torch.randn(32, 1, 28, 28), torch.randint(0, 10, (32,))
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.3f}")
