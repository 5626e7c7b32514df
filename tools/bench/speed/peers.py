"""A process that trains as users write it without us; prints one line of JSON. The digits are those of a store.

`plain`: the MNIST example of pytorch/examples: conv32-conv64-fc128 with dropout, Adadelta, batch 64, a DataLoader.
`lightning`: a Trainer with the network, optimizer, schedule and batch of the recipe `fast`, and a DataLoader.
"""

import json
import sys
import time
from pathlib import Path
from typing import Final

import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from training.data.dataset_store import PreparedDataset, open_dataset

MEAN, STD = 0.1307, 0.3081
"""Mean and standard deviation of MNIST's pixels, as in the example."""
TEST_BATCH: Final = 1000


class Digits(Dataset[tuple[Tensor, int]]):
    """Images one by one through PIL, as torchvision's MNIST gives them."""

    def __init__(self, images: Tensor, labels: Tensor, transform: transforms.Compose) -> None:
        self._images, self._labels, self._transform = images, labels, transform

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        image = Image.fromarray(self._images[number, 0].numpy(), mode="L")
        return self._transform(image), int(self._labels[number])


class Example(nn.Module):
    """The network of the example, 1.2 million parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 32, 3, 1), nn.Conv2d(32, 64, 3, 1)
        self.dropout1, self.dropout2 = nn.Dropout(0.25), nn.Dropout(0.5)
        self.fc1, self.fc2 = nn.Linear(9216, 128), nn.Linear(128, 10)

    def forward(self, images: Tensor) -> Tensor:
        maps = F.max_pool2d(F.relu(self.conv2(F.relu(self.conv1(images)))), 2)
        hidden = F.relu(self.fc1(torch.flatten(self.dropout1(maps), 1)))
        return F.log_softmax(self.fc2(self.dropout2(hidden)), dim=1)


def loaders(
    store: PreparedDataset, batch: int, *augmentation: object, workers: int = 1
) -> tuple[DataLoader[tuple[Tensor, int]], DataLoader[tuple[Tensor, int]]]:
    """Return a loader of the training and one of the test samples."""
    plain = [transforms.ToTensor(), transforms.Normalize((MEAN,), (STD,))]
    train = Digits(store.train_images, store.train_labels, transforms.Compose([*augmentation, *plain]))
    test = Digits(store.test_images, store.test_labels, transforms.Compose(plain))
    return (
        DataLoader(train, batch, shuffle=True, num_workers=workers, drop_last=bool(augmentation)),
        DataLoader(test, TEST_BATCH, num_workers=workers),
    )


@torch.no_grad()
def accuracy(model: nn.Module, test: DataLoader[tuple[Tensor, int]]) -> float:
    """Return the share of the test samples that `model` recognizes."""
    model.eval()
    hits = sum(int((model(images).argmax(1) == labels).sum()) for images, labels in test)
    return hits / sum(len(labels) for _, labels in test)


def plain(store: PreparedDataset, target: float, epochs: int) -> dict[str, float]:
    """Train the example until it is there."""
    train, test = loaders(store, 64)
    model = Example()
    began, found, epoch = time.perf_counter(), 0.0, 0
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
    while found < target and epoch < epochs:
        model.train()
        for images, labels in train:
            optimizer.zero_grad()
            loss = F.nll_loss(model(images), labels)
            torch.autograd.backward(loss)
            optimizer.step()
        scheduler.step()
        found, epoch = accuracy(model, test), epoch + 1
    return {"seconds": time.perf_counter() - began, "accuracy": found, "epochs": epoch}


def main() -> None:
    """Run one peer."""
    asked = json.loads(sys.argv[1])
    store = open_dataset(Path(asked["store"]))
    torch.manual_seed(asked["seed"])
    match asked["peer"]:
        case "plain":
            found = plain(store, asked["target"], asked["epochs"])
        case _:
            from tools.bench.speed.trainer import trainer

            found = trainer(store, asked["target"], asked["epochs"])
    print(json.dumps(found))


if __name__ == "__main__":
    main()
