"""ResNet-18 on images of 32x32, batch 64, SGD."""

import torch
from torchvision.models import resnet18

model = resnet18(num_classes=10)
optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
images, labels = torch.randn(64, 3, 32, 32), torch.randint(0, 10, (64,))
while True:
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(images), labels).backward()
    optimizer.step()
