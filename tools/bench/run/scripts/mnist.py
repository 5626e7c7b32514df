"""The convolutional network of PyTorch's MNIST example, on random images."""

import torch
from torch import nn

model = nn.Sequential(
    nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25), nn.Flatten(),
    nn.Linear(9216, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10), nn.LogSoftmax(1),
)  # fmt: skip
optimizer = torch.optim.Adadelta(model.parameters())
# Adadelta's mean squares of units that died become denormal after some 800 steps, and steps slower from then on.
torch.set_flush_denormal(True)
images, labels = torch.randn(64, 1, 28, 28), torch.randint(0, 10, (64,))
while True:
    optimizer.zero_grad()
    nn.functional.nll_loss(model(images), labels).backward()
    optimizer.step()
