"""`preflight.Tuner`: twenty lines tune a loop of one's own."""

import subprocess
import sys

PROGRAM = """
import torch
from preflight import Tuner

def loss_of(model, batch):
    return torch.nn.functional.mse_loss(model(batch["inputs"]), batch["targets"])

def train(most):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)).double()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    tuner._most = most
    for _ in range(20):
        batch = {"inputs": torch.randn(10, 8).double(), "targets": torch.randn(10, 1).double()}
        loss = tuner.step(model, optimizer, batch, loss_of)
    return loss, model[0].weight.detach()

tuner = Tuner(micro_batch="auto", precision="auto", exact=True)
whole, parts = train(None), train(4)
Tuner(exact=True)  # as the callback makes one for each fit
train(None)
print(abs(whole[0] - parts[0]) < 1e-9, torch.allclose(whole[1], parts[1]))
print(tuner.report())
"""


def test_a_batch_in_parts_teaches_the_same_and_the_report_counts_the_steps() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    first, second, *_ = done.stdout.splitlines()
    assert first == "True True"
    assert second.startswith("preflight: 40 steps") and "nothing was raced: --exact changes nothing" in second
