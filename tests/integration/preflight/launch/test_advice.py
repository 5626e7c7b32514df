"""`preflight run --advise` and `Tuner(advise=True)` on a real training: what is measured, and that nothing changes."""

import subprocess
import sys
from pathlib import Path

import pytest
from support.launching import read_report, run

PROGRAM = """
import atexit
atexit.register(lambda: print(*state()))  # before torch: after ours, that is
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 10))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
loader = DataLoader(TensorDataset(torch.randn(64, 3, 8, 8), torch.randint(0, 10, (64,))), batch_size=16)
def state():
    tensors = [*model.state_dict().values(), *[each.grad for each in model.parameters()]]
    return *[each.double().sum().item() for each in tensors], torch.randn(1).item(), model.training
for epoch in range(40):
    for inputs, targets in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
model.eval()
"""
LIBRARY = """
import torch
from preflight import Tuner
tuner = Tuner(advise=True)
model = torch.nn.ModuleList([torch.nn.LSTM(8, 4), torch.nn.Linear(4, 1)])
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(300):
    tuner.step(model, optimizer, (torch.randn(12, 16, 8), torch.randn(16, 1)),
               lambda model, batch: torch.nn.functional.mse_loss(model[1](model[0](batch[0])[0][-1]), batch[1]))
print(tuner.report())
"""


@pytest.mark.slow
def test_everything_is_measured_after_the_last_step_and_nothing_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a C++ compiler, as in most containers: compiling takes minutes on a busy machine."""
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    plain = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    report = tmp_path / "report.json"
    done = run([sys.executable, str(script)], "--exact", "--advise", "--json", str(report))
    assert done.stdout == plain.stdout
    assert "batches of 32 samples: " in done.stderr
    assert "bfloat16: " in done.stderr and "the gradients' cosine is " in done.stderr
    assert "channels_last: " in done.stderr
    assert "DataLoader workers was not measured: fetching a batch takes" in done.stderr
    assert "torch.compile was not measured: it needs a C++ compiler, and there is none here" in done.stderr
    assert all(line.startswith("preflight: ") for line in done.stderr.splitlines()), done.stderr
    assert "measuring this took" in str(read_report(report)["text"])


@pytest.mark.slow
def test_the_library_advises_on_parts_and_sequences_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The script calls an LSTM, whose samples are in the second dimension, and then a linear layer."""
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    done = subprocess.run([sys.executable, "-c", LIBRARY], capture_output=True, text=True, check=True)
    assert "batches of 32 samples: " in done.stdout
    assert "channels_last was not measured: the model has no convolution of pictures" in done.stdout
