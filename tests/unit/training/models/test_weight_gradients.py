"""Gradients of weights as matrix products, against those that torch's autograd finds."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from preflight.contract.plan import Plan, Precision
from preflight.contract.spec import TrainSpec
from training.models.factory import build
from training.models.resnet import resnet18
from training.models.weight_gradients import (
    Geometry,
    ProductConvolution,
    convolve,
    has_slow_weight_gradients,
    image_gradient,
    use_matrix_products,
    weight_gradient,
)
from training.step.train_step import TrainStep

pytestmark = pytest.mark.usefixtures("one_torch_thread")

SHAPE, CLASSES = (1, 12, 12), 10
SPEC = TrainSpec(dataset="digits", model="resnet18", batch_size=8)
LIBRARY = Plan(threads=1, micro_batch=4)
PRODUCTS = replace(LIBRARY, weight_gradients="products")


def products_of(model: nn.Module) -> list[str]:
    return [name for name, layer in model.named_modules() if isinstance(layer, ProductConvolution)]


@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "side"),
    [(3, 1, 1, 9), (3, 1, 1, 1), (3, 2, 1, 8), (3, 1, 0, 5), (1, 2, 0, 7), (5, 3, 0, 9), (2, 1, 1, 8), (3, 1, 4, 2)],
)
@pytest.mark.parametrize(("layout", "small"), [(torch.contiguous_format, False), (torch.channels_last, True)])
def test_products_are_the_convolution_and_its_gradients(
    kernel: int, stride: int, padding: int, side: int, layout: torch.memory_format, *, small: bool
) -> None:
    """For any square convolution, padding wider than its kernel included, to the last digits of float64."""
    geometry = Geometry(kernel, stride, padding)
    images = torch.randn(3, 5, side, side + 1, dtype=torch.float64).to(memory_format=layout).requires_grad_()
    weight = torch.randn(7, 5, kernel, kernel, dtype=torch.float64).to(memory_format=layout).requires_grad_()
    results = F.conv2d(images, weight, stride=stride, padding=padding)
    gradient = torch.randn_like(results)
    of_images, of_weight = torch.autograd.grad(results, (images, weight), gradient)
    seen, weights = images.detach(), weight.detach()
    torch.testing.assert_close(convolve(seen, weights.permute(2, 3, 1, 0), geometry), results.detach())
    torch.testing.assert_close(image_gradient(seen, gradient, weights, geometry, small=small), of_images)
    torch.testing.assert_close(weight_gradient(seen, gradient, geometry), of_weight)


@pytest.mark.sampled(1)
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
    """Those from 128 channels on; a subclass, groups, a bias or a small network are left."""
    model = resnet18(SHAPE, CLASSES)
    assert has_slow_weight_gradients(model)
    use_matrix_products(model)
    assert products_of(model) == [
        "3.second.0", "4.first.0", "4.second.0", "5.first.0", "5.second.0", "5.shortcut.0", "6.first.0", "6.second.0",
        "7.first.0", "7.second.0", "7.shortcut.0", "8.first.0", "8.second.0",
    ]  # fmt: skip
    assert not has_slow_weight_gradients(model)
    assert not has_slow_weight_gradients(build("cnn", (1, 28, 28), CLASSES))
    assert has_slow_weight_gradients(build("cnn-committee", (1, 28, 28), CLASSES))


@pytest.mark.parametrize(
    ("side", "kernel", "stride", "padding", "products"),
    [(14, 3, 1, 1, False), (7, 3, 1, 1, False), (4, 3, 1, 1, True), (5, 3, 1, 0, True), (6, 3, 1, 1, False),
     (7, 3, 2, 1, True), (14, 3, 2, 1, True), (14, 1, 2, 0, True)],
)  # fmt: skip
def test_images_decide(side: int, kernel: int, stride: int, padding: int, *, products: bool) -> None:
    """Few results or a stride: products. Else the layer is the library's, and so is a model that only answers."""
    layer = ProductConvolution(nn.Conv2d(128, 8, kernel, stride, padding, bias=False))
    images = torch.randn(2, 128, side, side)
    made = layer(images).grad_fn
    assert made is not None
    assert made.name() == ("_ConvolutionBackward" if products else "ConvolutionBackward0")
    with torch.no_grad():
        assert torch.equal(layer(images), F.conv2d(images, layer.weight, stride=stride, padding=padding))


def test_padding_is_not_multiplied() -> None:
    """On 4x4 pixels 100 of 144 taps are on the image: forward, for the images' gradient and for the weights'."""
    layer = nn.Conv2d(128, 8, 3, padding=1, bias=False)
    images = torch.randn(2, 128, 4, 4, requires_grad=True)
    counts = []
    for each in (layer, ProductConvolution(layer)):
        with FlopCounterMode(display=False) as counter:
            each(images).sum().backward()
        counts.append(counter.get_total_flops())
    library, products = counts
    assert products * 144 == library * 100


class Own(nn.Conv2d):
    """A convolution of the user's."""


@pytest.mark.parametrize(
    "layer",
    [
        Own(512, 512, 3, bias=False), nn.Conv2d(512, 512, 3), nn.Conv2d(512, 512, 3, groups=2, bias=False),
        nn.Conv2d(512, 512, 3, dilation=2, bias=False), nn.Conv2d(512, 512, (1, 3), bias=False),
        nn.Conv2d(512, 512, 3, padding="same", bias=False), nn.Conv2d(512, 512, 3, padding=(0, 1), bias=False),
        nn.Conv2d(512, 512, 3, padding_mode="reflect", padding=1, bias=False), nn.Conv2d(127, 512, 3, bias=False),
    ],
)  # fmt: skip
def test_what_is_not_understood_is_left(layer: nn.Module) -> None:
    """Another type, a bias, groups, dilation, other geometry."""
    model = nn.Sequential(layer)
    use_matrix_products(model)
    assert model[0] is layer
