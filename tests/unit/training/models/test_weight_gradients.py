"""Gradients of weights as matrix products, against those that torch's autograd finds."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from training.config.plan import Plan, Precision
from training.config.spec import TrainSpec
from training.loop.train_step import TrainStep
from training.models.factory import build
from training.models.resnet import resnet18
from training.models.weight_gradients import (
    ProductConvolution,
    has_slow_weight_gradients,
    use_matrix_products,
    weight_gradient,
)

SHAPE, CLASSES = (1, 12, 12), 10
SPEC = TrainSpec(dataset="digits", model="resnet18", batch_size=8)
LIBRARY = Plan(threads=1, micro_batch=4)
PRODUCTS = replace(LIBRARY, weight_gradients="products")


@pytest.fixture(autouse=True)
def torch_state(torch_as_it_was: None) -> None:  # noqa: ARG001 - for what it does afterwards
    torch.set_num_threads(1)


def products_of(model: nn.Module) -> list[str]:
    return [name for name, layer in model.named_modules() if isinstance(layer, ProductConvolution)]


@pytest.mark.parametrize(("kernel", "stride", "padding"), [(3, 1, 1), (3, 2, 1), (1, 2, 0), (5, 3, 0), (2, 1, 1)])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_the_product_is_the_gradient(kernel: int, stride: int, padding: int, layout: torch.memory_format) -> None:
    """For any square convolution, in either layout, to the last digits of float64."""
    images = torch.randn(3, 5, 9, 8, dtype=torch.float64).to(memory_format=layout)
    weight = torch.randn(7, 5, kernel, kernel, dtype=torch.float64, requires_grad=True)
    results = F.conv2d(images, weight, stride=stride, padding=padding)
    gradient = torch.randn_like(results)
    (expected,) = torch.autograd.grad(results, weight, gradient)
    torch.testing.assert_close(weight_gradient(images, gradient, kernel, stride, padding), expected)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_training_step_learns_the_same(precision: Precision) -> None:
    """Every gradient of ResNet-18, in pieces of a batch, points where the library's does."""
    images, labels = torch.randn(8, *SHAPE), torch.arange(8)
    steps = []
    for plan in (LIBRARY, PRODUCTS):
        step = TrainStep(SPEC, replace(plan, precision=precision), SHAPE, CLASSES)
        step.model.train()
        step.gradients(images, labels)
        steps.append(step)
    library, products = ({name: p.grad for name, p in step.model.named_parameters()} for step in steps)
    assert products_of(steps[1].model)
    assert library.keys() == products.keys()
    for name, gradient in library.items():
        other = products[name]
        assert gradient is not None
        assert other is not None
        least = 0.9999 if precision == "float32" else 0.99
        assert F.cosine_similarity(gradient.flatten(), other.flatten(), dim=0) > least, name


def test_weights_and_answers_stay_as_they_are() -> None:
    """A checkpoint made with products loads without them, and the other way round."""
    torch.manual_seed(0)
    model = resnet18(SHAPE, CLASSES).eval()
    before, images = model(images := torch.randn(2, *SHAPE)), images
    names = list(model.state_dict())
    use_matrix_products(model)
    assert list(model.state_dict()) == names
    assert torch.equal(model(images), before)


def test_only_wide_convolutions_change() -> None:
    """Strided ones from 128 channels on, others from 512; a subclass, groups, a bias or a small network are left."""
    model = resnet18(SHAPE, CLASSES)
    assert has_slow_weight_gradients(model)
    use_matrix_products(model)
    assert products_of(model) == [
        "5.first.0", "5.shortcut.0", "7.first.0", "7.second.0", "7.shortcut.0", "8.first.0", "8.second.0"
    ]  # fmt: skip
    assert not has_slow_weight_gradients(model)
    assert not has_slow_weight_gradients(build("cnn", (1, 28, 28), CLASSES))


class Own(nn.Conv2d):
    """A convolution of the user's."""


@pytest.mark.parametrize(
    "layer",
    [
        Own(512, 512, 3, bias=False), nn.Conv2d(512, 512, 3), nn.Conv2d(512, 512, 3, groups=2, bias=False),
        nn.Conv2d(512, 512, 3, dilation=2, bias=False), nn.Conv2d(512, 512, (1, 3), bias=False),
        nn.Conv2d(512, 512, 3, padding="same", bias=False), nn.Conv2d(512, 512, 3, padding=(0, 1), bias=False),
        nn.Conv2d(512, 512, 3, padding_mode="reflect", padding=1, bias=False), nn.Conv2d(511, 512, 3, bias=False),
    ],
)  # fmt: skip
def test_what_is_not_understood_is_left(layer: nn.Module) -> None:
    """Another type, a bias, groups, dilation, other geometry."""
    model = nn.Sequential(layer)
    use_matrix_products(model)
    assert model[0] is layer
