"""Models: their size and shapes, and how they are looked up."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from preflight.errors import InvalidConfig
from preflight.wire import JOB_TYPE, parse_job
from training.models.cnn import cnn
from training.models.ensemble import Ensemble, ShiftAverage, ensemble_size
from training.models.factory import build
from training.models.layers import CosineConvolution, LastConvolution, cosines


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("name", "size"),
    [("cnn", 135_146), ("cnn-small-valid", 98_938), ("cnn-valid", 117_834),
     ("cnn-small-cosine", 98_906), ("cnn-cosine", 110_458), ("cnn-committee", 2_520_980),
     ("resnet18", 11_172_810)],
)  # fmt: skip
def test_models_have_the_documented_size(name: str, size: int) -> None:
    """Number of parameters; that of cnn does not depend on the size of the images."""
    assert parameters(build(name, (1, 28, 28), 10)) == size
    assert parameters(cnn((1, 64, 64), 10)) == parameters(cnn((1, 8, 8), 10)) == 135_146


@pytest.mark.parametrize(
    ("name", "shape", "classes"),
    [
        ("cnn", (1, 28, 28), 10), ("cnn", (3, 24, 24), 7), ("cnn", (1, 33, 24), 2),
        ("cnn", (3, 128, 128), 1000), ("cnn", (3, 23, 64), 3), ("cnn", (1, 12, 12), 3), ("cnn", (1, 11, 40), 3),
        ("cnn", (1, 6, 7), 3),
        ("cnn-small-valid", (1, 28, 28), 10), ("cnn-small-valid", (3, 29, 35), 7),
        ("cnn-valid", (1, 28, 28), 10), ("cnn-valid", (3, 31, 28), 7),
        ("cnn-small-cosine", (1, 28, 28), 10), ("cnn-small-cosine", (3, 29, 35), 7),
        ("cnn-cosine", (1, 28, 28), 10), ("cnn-cosine", (3, 28, 30), 4),
        ("cnn-committee", (1, 28, 28), 10), ("cnn-committee", (3, 28, 35), 26),
        ("resnet18", (1, 28, 28), 10), ("resnet18", (3, 8, 9), 47),
        ("resnet18", (3, 64, 48), 1000), ("resnet18", (1, 2, 1), 2),
    ],
)  # fmt: skip
def test_images_become_one_logit_per_class(name: str, shape: tuple[int, int, int], classes: int) -> None:
    """Any allowed shape goes in, [B, classes] comes out, float32 and finite."""
    model = build(name, shape, classes).eval()
    with torch.inference_mode():
        logits = model(torch.randn(2, *shape, generator=torch.Generator().manual_seed(0)))
    assert (logits.shape, logits.dtype) == ((2, classes), torch.float32)
    assert bool(logits.isfinite().all())


@pytest.mark.parametrize(
    ("name", "shape", "least", "others"),
    [("cnn", (1, 5, 28), 6, "'resnet18'"), ("cnn", (3, 28, 5), 6, "'resnet18'")]
    + [
        (name, (1, 27, 28), 28, "'cnn' or 'resnet18' instead of the recipe")
        for name in ("cnn-small-valid", "cnn-valid", "cnn-small-cosine", "cnn-cosine", "cnn-committee")
    ],
)
def test_too_small_images_are_refused(name: str, shape: tuple[int, int, int], least: int, others: str) -> None:
    """Nothing would be left for the last layer: the message names the size and the models that take it."""
    message = f"'{name}' needs images of at least {least}x{least}, but these are {shape[1]}x{shape[2]}; use {others}"
    with pytest.raises(InvalidConfig, match=message) as caught:
        build(name, shape, 10)
    assert caught.value.field == "model"


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("side", [(3, 3), (3, 4), (5, 5)], ids=str)
def test_the_last_convolution_equals_conv2d(side: tuple[int, int], layout: torch.memory_format) -> None:
    """Values and all gradients are those of nn.Conv2d, on images that its kernel just covers and on larger ones."""
    torch.manual_seed(0)
    ours = LastConvolution(4, 6, 3)
    theirs = nn.Conv2d(4, 6, 3, bias=False)
    theirs.load_state_dict(ours.state_dict())
    ours.to(memory_format=layout)
    images = torch.randn(7, 4, *side).to(memory_format=layout)

    def results(layer: nn.Module) -> list[torch.Tensor]:
        given = images.clone().requires_grad_()
        found = layer(given)
        found.square().sum().backward()
        return [found.detach(), *(each.grad for each in (given, *layer.parameters()) if each.grad is not None)]

    expected = results(theirs)
    assert len(expected) == 3
    for mine, its in zip(results(ours), expected, strict=True):
        torch.testing.assert_close(mine, its)


@pytest.mark.parametrize("channels", [1, 3])
def test_cosine_filters_are_orthonormal_and_of_both_signs(channels: int) -> None:
    """All of them make a basis of the patches; the first is their mean."""
    waves = cosines(channels, 5, channels * 25).flatten(1)
    torch.testing.assert_close(waves @ waves.T, torch.eye(channels * 25))
    torch.testing.assert_close(waves[0], torch.full((channels * 25,), (channels * 25) ** -0.5))
    filters = CosineConvolution(channels, 16, 5, 2).weight
    assert torch.equal(filters[:8], -filters[8:])
    assert torch.equal(filters[:8].flatten(1), waves[:8])


def test_a_cosine_stem_is_not_trained() -> None:
    """It wants no gradient, and images get none through it; all layers above it do."""
    model = build("cnn-small-cosine", (1, 28, 28), 10)
    model(torch.rand(4, 1, 28, 28)).square().sum().backward()
    assert [name for name, each in model.named_parameters() if each.grad is None] == ["0.0.weight"]
    assert "0.0.weight" in model.state_dict()


def test_ensemble_members_learn_from_their_shares_and_average_their_logits() -> None:
    """A member's logits and gradients are what it alone would make of its share; of a small batch each sees all."""
    torch.manual_seed(0)
    members = [nn.Sequential(nn.Flatten(), nn.Linear(4, 3)) for _ in range(3)]
    ensemble, images = Ensemble(members), torch.randn(8, 1, 2, 2)
    shares = (images[:3], images[3:6], images[6:])
    logits = ensemble.train()(images)
    assert torch.equal(logits, torch.cat([member(share) for member, share in zip(members, shares, strict=True)]))
    logits[:3].square().sum().backward()
    touched = [weight.grad is not None and bool(weight.grad.any()) for weight in ensemble.parameters()]
    assert touched == [True, True, False, False, False, False]
    mean = sum((member(images) for member in members), torch.zeros(8, 3)) / 3
    torch.testing.assert_close(ensemble.eval()(images), mean)
    torch.testing.assert_close(ensemble.train()(images[:5]), mean[:5])
    assert (ensemble_size(ensemble), ensemble_size(members[0])) == (3, 1)


def test_a_shift_average_is_the_mean_over_shifted_images() -> None:
    """Half of it for the image itself, a quarter each for those one pixel up left and down right; training has none."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(2 * 5 * 4, 3))
    average, images = ShiftAverage(network), torch.randn(6, 2, 5, 4)
    assert torch.equal(average.train()(images), network(images))
    up_left, down_right = torch.empty_like(images), torch.empty_like(images)
    for row in range(5):
        for column in range(4):
            up_left[:, :, row, column] = images[:, :, min(row + 1, 4), min(column + 1, 3)]
            down_right[:, :, row, column] = images[:, :, max(row - 1, 0), max(column - 1, 0)]
    expected = network(images) / 2 + network(up_left) / 4 + network(down_right) / 4
    torch.testing.assert_close(average.eval()(images), expected)


def test_the_same_seed_builds_the_same_model() -> None:
    """The weights come from torch's global random state alone."""

    def weights(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return torch.cat([parameter.flatten() for parameter in build("cnn", (1, 28, 28), 10).parameters()])

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))


USERS_MODULE = """
from torch import nn

def linear(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], classes))

def text(shape, classes):
    return "a model"

number = 3
"""


@pytest.fixture
def users_package(install_package: Callable[..., None]) -> None:
    """Install a package that registers models of its own, good and bad ones."""
    entries = {f"mine-{name}": f"mine_models:{name}" for name in ("linear", "text", "number", "absent")}
    entries["mine-unwritten"] = "mine_unwritten:linear"
    install_package("preflight.models", entries, "mine_models", USERS_MODULE)


@pytest.mark.usefixtures("users_package")
def test_a_model_of_a_users_package_is_built() -> None:
    """An installed package adds a model without touching this one."""
    assert parameters(build("mine-linear", (1, 4, 4), 3)) == 16 * 3 + 3


def test_a_users_model_goes_before_the_network_of_a_recipe(install_package: Callable[..., None]) -> None:
    """And is a name that a job may give."""
    install_package("preflight.models", {"cnn-cosine": "mine_models:linear"}, "mine_models", USERS_MODULE)
    assert parameters(build("cnn-cosine", (1, 4, 4), 3)) == 16 * 3 + 3
    job = parse_job({"type": JOB_TYPE, "dataset": "digits", "model": "cnn-cosine"})
    assert job.spec().model == "cnn-cosine"


@pytest.mark.usefixtures("users_package")
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("mine-text", "is registered as .*does not return a torch.nn.Module"),
        ("mine-number", "is registered as .*does not return a torch.nn.Module"),
        ("mine-absent", "is registered as .*cannot be imported"),
        ("mine-unwritten", "is registered as .*cannot be imported"),
        ("resnet-18", r"is not known \(did you mean 'resnet18'\?\)"),
    ],
)
def test_what_makes_no_module_is_refused(name: str, says: str) -> None:
    """What is no factory, or one of something else, is refused by name; an unknown name with the nearest known one."""
    with pytest.raises(InvalidConfig, match=f"model '{name}' {says}") as caught:
        build(name, (1, 28, 28), 10)
    assert caught.value.field == "model"
