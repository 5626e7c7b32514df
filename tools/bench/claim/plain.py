"""The training as plain PyTorch, at its defaults: `python plain.py DATASET MODEL EPOCHS SAMPLES`, SAMPLES an epoch.

Data, network, batch, optimizer, schedule and test are those of `preflight train`.
"""

import json
import os
import sys
from importlib.metadata import entry_points
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    dataset, name, epochs, most = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    (data,) = entry_points(group="preflight.datasets", name=dataset)
    (network,) = entry_points(group="preflight.models", name=name)
    samples = data.load().load(Path(os.environ["PREFLIGHT_DATA_DIR"]), download=False)
    images, labels = torch.from_numpy(samples.train.images[:most]), torch.from_numpy(samples.train.labels[:most])
    loader = DataLoader(TensorDataset(images, labels), batch_size=128, shuffle=True, drop_last=True)
    scale = images.float()
    mean, deviation = scale.mean(), scale.std()

    def normalised(batch: Tensor) -> Tensor:
        return (batch.float() - mean) / deviation

    model: nn.Module = network.load()(samples.shape, samples.classes)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=5e-3, total_steps=epochs * len(loader), pct_start=0.2, anneal_strategy="linear"
    )
    for _ in range(epochs):
        for batch, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(normalised(batch)), targets.long())
            torch.autograd.backward(loss)
            optimizer.step()
            schedule.step()
    model.eval()
    test, answers = torch.from_numpy(samples.test.images), torch.from_numpy(samples.test.labels)
    with torch.no_grad():
        hits = sum(
            int((model(normalised(batch)).argmax(1) == targets).sum())
            for batch, targets in zip(test.split(1000), answers.split(1000), strict=True)
        )
    print(json.dumps({"test_accuracy": hits / len(answers)}))


if __name__ == "__main__":
    main()
