"""The optimizer step against formulas written out by hand in float64."""

import platform
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from preflight.contract.plan import MemoryFormat, Plan, Precision
from preflight.contract.spec import TrainSpec
from training.models.factory import build
from training.step.train_step import TrainStep

pytestmark = pytest.mark.usefixtures("one_torch_thread")

BATCH, CLASSES, SHAPE = 16, 10, (1, 6, 6)


@pytest.fixture
def linear(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have `TrainStep` build one linear layer: its gradient can be written out, and it has no batch statistics."""

    def build(name: str, shape: tuple[int, int, int], classes: int) -> nn.Module:
        assert (name, shape) == ("linear", SHAPE)
        return nn.Sequential(nn.Flatten(), nn.Linear(36, classes))

    monkeypatch.setattr("training.step.train_step.build", build)  # a registered model would need a package


SPEC = TrainSpec(
    dataset="digits", model="linear", batch_size=BATCH, optimizer="sgd", momentum=0.0, weight_decay=0.0,
    label_smoothing=0.0, gradient_clip=0.0,
)  # fmt: skip


def a_step(spec: TrainSpec, *, micro_batch: int = BATCH) -> TrainStep:
    return TrainStep(spec, Plan(threads=1, micro_batch=micro_batch), SHAPE, CLASSES)


def a_batch(number: int = 0, shape: tuple[int, int, int] = SHAPE, size: int = BATCH) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(number)
    images = torch.randn(size, *shape, generator=generator)
    return images, torch.randint(0, CLASSES, (size,), generator=generator)


def by_hand(
    weight: Tensor, bias: Tensor, images: Tensor, labels: Tensor, smoothing: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the mean loss of a linear model and its gradients, from the formula and not by autograd."""
    pixels = images.double().flatten(1)
    logits = pixels @ weight.double().T + bias.double()
    logarithms = logits - logits.logsumexp(1, keepdim=True)
    target = torch.full_like(logits, smoothing / CLASSES)
    target[torch.arange(len(labels)), labels] += 1 - smoothing
    error = (logarithms.exp() - target) / len(labels)
    return -(target * logarithms).sum() / len(labels), error.T @ pixels, error.sum(0)


def parameters(step: TrainStep) -> tuple[Tensor, Tensor]:
    weight, bias = (parameter.detach().clone() for parameter in step.model.parameters())
    return weight, bias


def gradients(step: TrainStep) -> list[Tensor]:
    found = [parameter.grad for parameter in step.model.parameters()]
    return [gradient.detach().clone() for gradient in found if gradient is not None]


def close(found: Tensor, expected: Tensor, tolerance: float = 1e-6) -> bool:
    """Whether two tensors differ by no more than `tolerance` anywhere."""
    return bool((found.double() - expected.double()).abs().max() <= tolerance)


@pytest.mark.usefixtures("linear")
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("micro_batch", [1, 3, 5, 16, 100])
def test_accumulated_gradients_are_those_of_the_whole_batch(micro_batch: int, smoothing: float) -> None:
    """However a batch is cut up, remainder included, loss and gradients are the formula's, within 1e-6."""
    step = a_step(replace(SPEC, label_smoothing=smoothing), micro_batch=micro_batch)
    images, labels = a_batch()
    loss, of_weight, of_bias = by_hand(*parameters(step), images, labels, smoothing)
    for _ in range(2):  # the second time over, nothing of the first may be left
        found_loss = step.gradients(images, labels)
        weight, bias = gradients(step)
        assert close(found_loss, loss)
        assert close(weight, of_weight)
        assert close(bias, of_bias)
    assert (found_loss.shape, found_loss.requires_grad) == ((), False)


@pytest.mark.usefixtures("linear")
def test_three_sgd_steps_follow_the_formula() -> None:
    """Nesterov momentum and weight decay, a rate of its own per step: buf = m buf + g; p -= rate (g + m buf)."""
    step = a_step(replace(SPEC, momentum=0.9, weight_decay=0.01, label_smoothing=0.1), micro_batch=5)
    now = [value.double() for value in parameters(step)]
    memory = [torch.zeros_like(value) for value in now]
    for number, rate in enumerate((0.5, 0.1, 0.3)):
        images, labels = a_batch(number)
        loss, *of = by_hand(now[0], now[1], images, labels, 0.1)
        for which, gradient in enumerate(of):
            gradient += 0.01 * now[which]
            memory[which] = 0.9 * memory[which] + gradient
            now[which] = now[which] - rate * (gradient + 0.9 * memory[which])
        assert close(step.run(images, labels, rate), loss)
        for found, expected in zip(parameters(step), now, strict=True):
            assert close(found, expected)


@pytest.mark.usefixtures("linear")
def test_three_adamw_steps_follow_the_formula() -> None:
    """Decoupled weight decay, bias-corrected moments with 0.9, 0.999 and 1e-8, a rate of its own per step."""
    step = a_step(replace(SPEC, optimizer="adamw", weight_decay=0.1))
    now = [value.double() for value in parameters(step)]
    means = [torch.zeros_like(value) for value in now]
    squares = [torch.zeros_like(value) for value in now]
    for number, rate in enumerate((0.01, 0.02, 0.005), 1):
        images, labels = a_batch(number)
        _, *of = by_hand(now[0], now[1], images, labels, 0.0)
        for which, gradient in enumerate(of):
            means[which] = 0.9 * means[which] + 0.1 * gradient
            squares[which] = 0.999 * squares[which] + 0.001 * gradient**2
            mean, square = means[which] / (1 - 0.9**number), squares[which] / (1 - 0.999**number)
            now[which] = now[which] * (1 - rate * 0.1) - rate * mean / (square.sqrt() + 1e-8)
        step.run(images, labels, rate)
        for found, expected in zip(parameters(step), now, strict=True):
            assert close(found, expected)


@pytest.mark.usefixtures("linear")
@pytest.mark.parametrize("clip", [0.01, 1e6, 0.0])
def test_the_clip_bounds_the_norm_of_the_whole_gradient(clip: float) -> None:
    """A gradient above the bound is scaled to it, in all parameters alike; one below is left; 0 is no bound."""
    step = a_step(replace(SPEC, gradient_clip=clip), micro_batch=3)
    images, labels = a_batch()
    before = parameters(step)
    _, *gradient = by_hand(*before, images, labels, 0.0)
    norm = float(torch.cat([part.flatten() for part in gradient]).norm())
    assert norm > 0.01
    scale = clip / norm if clip == 0.01 else 1.0
    step.run(images, labels, 1.0)
    for found, was, part in zip(parameters(step), before, gradient, strict=True):
        assert close(found, was.double() - scale * part)


def a_cnn(*, precision: Precision = "float32", memory_format: MemoryFormat = "contiguous") -> TrainStep:
    plan = Plan(threads=1, micro_batch=BATCH, precision=precision, memory_format=memory_format)
    return TrainStep(replace(SPEC, model="cnn"), plan, (1, 28, 28), CLASSES)


def test_bfloat16_logits_are_float32_and_near() -> None:
    """In bfloat16 the weights stay float32, and the logits are float32 and off by its rounding, but not more."""
    images, _ = a_batch(shape=(1, 28, 28))
    exact, rounded = (step.logits(images).detach() for step in (a_cnn(), a_cnn(precision="bfloat16")))
    assert exact.dtype == rounded.dtype == torch.float32
    assert {parameter.dtype for parameter in a_cnn(precision="bfloat16").model.parameters()} == {torch.float32}
    spread = float(exact.std())
    assert 0 < float((exact - rounded).abs().max()) < 0.1 * spread


def test_channels_last_computes_the_same() -> None:
    """The layout is that of weights and images, and changes loss and gradients by roundings only."""
    images, labels = a_batch(shape=(1, 28, 28))
    plain, last = a_cnn(), a_cnn(memory_format="channels_last")
    weights = [weight for weight in last.model.parameters() if weight.dim() == 4]
    assert all(weight.is_contiguous(memory_format=torch.channels_last) for weight in weights)
    expected = plain.gradients(images, labels)
    found = last.gradients(images.contiguous(memory_format=torch.channels_last), labels)
    assert close(found, expected, 1e-5)
    for one, other in zip(gradients(last), gradients(plain), strict=True):
        assert close(one, other, 1e-4)


def run(program: str) -> list[str]:
    """Run `program` in a fresh interpreter, because what it sets cannot be taken back, and return its words."""
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.split()


FAULTS = """
import resource, sys
from preflight.tuner.settings import set_malloc
tuned = set_malloc(tuned=True) if sys.argv[1:] else False
for _ in range(5):
    b"x" * (1 << 26)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    b"x" * (1 << 26)
print(tuned, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")
def test_the_tuned_allocator_keeps_its_pages() -> None:
    """On glibc tuning succeeds, and a large block made again and again soon faults no pages in."""
    # Made by malloc, as bytes are: torch's memalign cannot always reuse a freed block before glibc 2.38 (bug 14581).
    _, untuned = run(FAULTS)
    accepted, tuned = run(f"import sys; sys.argv.append('tune')\n{FAULTS}")
    assert accepted == "True"
    assert int(tuned) < int(untuned) / 10


@pytest.mark.sampled(1)
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")
@pytest.mark.parametrize("plan", ["threads=1, micro_batch=1", 'threads=1, micro_batch=1, allocator="tuned"'])
def test_every_training_has_glibc_tuned(plan: str) -> None:
    """Whatever the plan says, that of an older job included: a large block is not mapped and faulted in each time."""
    program = f"""
from preflight.contract.plan import Plan
from training.step.train_step import prepare_process
prepare_process(Plan({plan}))
"""
    _, untuned = run(FAULTS)
    _, tuned = run(f"{program}\n{FAULTS}")
    assert int(tuned) < int(untuned) / 10


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")
@pytest.mark.parametrize(("frugal", "kept_mib"), [(False, 200), (True, 0)])
def test_a_frugal_process_gives_back_what_it_frees(frugal: bool, kept_mib: int) -> None:
    """After memory ran out, the next process of a training may not keep what it no longer needs."""
    program = f"""
import torch
from preflight.contract.plan import Plan
from preflight.container.resources import status_sizes
from training.step.train_step import prepare_process
prepare_process(Plan(threads=1, micro_batch=1), frugal={frugal})
before = status_sizes()["VmRSS"]
torch.ones(50 << 20)
print((status_sizes()["VmRSS"] - before) >> 20)
"""
    assert int(run(program)[0]) == pytest.approx(kept_mib, abs=20)


def test_a_plan_sets_the_whole_process() -> None:
    """Threads of both kinds are those of the plan."""
    program = """
import torch
from preflight.contract.plan import Plan
from training.step.train_step import prepare_process
prepare_process(Plan(threads=3, interop=2, micro_batch=1))
print(torch.get_num_threads(), torch.get_num_interop_threads())
"""
    assert run(program) == ["3", "2"]


@pytest.mark.usefixtures("linear")
@pytest.mark.parametrize("micro_batch", [3, BATCH])
def test_hits_are_those_of_the_batch_as_it_was_trained(micro_batch: int) -> None:
    """Counted before the update, over all micro-batches, and taken once."""
    step = a_step(SPEC, micro_batch=micro_batch)
    images, labels = a_batch()
    expected = int((step.model(images).argmax(1) == labels).sum())
    step.run(images, labels, 0.1)
    assert step.pop_correct() == expected
    assert step.pop_correct() == 0


@pytest.mark.parametrize(("model", "has"), [("cnn", True), ("resnet18", True), ("linear", False)])
def test_batch_norm_is_detected(model: str, has: bool) -> None:
    """With batch norm the micro-batch changes the result."""

    def make(name: str, shape: tuple[int, int, int], classes: int) -> nn.Module:
        linear = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
        return linear if name == "linear" else build(name, shape, classes)

    step = TrainStep(TrainSpec(dataset="digits", model=model), Plan(threads=1, micro_batch=4), (1, 28, 28), 10, make)
    assert step.batch_statistics is has
