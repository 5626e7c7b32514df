"""Recipes: named training settings, found by experiments. Torch-free.

Chosen on the last 10,000 training samples of MNIST, held out (docs/decisions.md); `best` was changed three
times after its test figure was seen (docs/decisions.md). They fit images like MNIST's (28x28, one channel, ten
classes) and can be tried on any other. `fast` and `balanced` take the same steps on any number of samples: they
repeat few, and take a part of many; `best` takes all samples 40 times.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final, Literal

from preflight.contract.spec import Augmentation, TrainSpec
from preflight.errors import InvalidConfig

RecipeName = Literal["fast", "balanced", "best"]

_SLOWER: Final = TrainSpec(
    dataset="mnist", model="cnn-committee", batch_size=512, optimizer="muon", learning_rate=0.02, momentum=0.95,
    label_smoothing=0.1, validation_samples=0,
    augmentation=Augmentation(rotate_degrees=10, translate=0.1),
)  # fmt: skip

RECIPES: Final[Mapping[RecipeName, TrainSpec]] = {
    "fast": TrainSpec(
        dataset="mnist", model="cnn-small-cosine", epoch_samples=54_400, batch_size=320, learning_rate=0.04,
        label_smoothing=0.1, validation_samples=0,
    ),
    "balanced": replace(
        _SLOWER,
        model="cnn-cosine",
        epochs=2,
        epoch_samples=57_600,
        batch_size=192,
        augmentation=Augmentation(rotate_degrees=7, translate=0.07),
    ),
    "best": replace(_SLOWER, epochs=40, augmentation=replace(_SLOWER.augmentation, scale=0.1)),
}  # fmt: skip
"""Above 99.0 % of MNIST's test samples, above 99.5 %, about 99.7 %; each takes several times as long as the last."""
REACHES: Final[Mapping[RecipeName, float]] = {"fast": 0.992, "balanced": 0.995, "best": 0.997}
"""Share of MNIST's test samples that each gets right, rounded down from the mean over seeds in docs/benchmarks.md."""
FREE: Final = frozenset(
    {"dataset", "train_samples", "max_steps", "validation_samples", "patience", "metric", "seed", "deterministic"}
)  # fmt: skip
"""Fields of a spec that a recipe leaves to its user; for these, the recipe's value is a default."""


TUNED: Final = frozenset({"epochs", "learning_rate"})
"""Further fields that a recipe leaves to the user of a job that starts from a model."""
TUNED_RATE: Final = 0.2
"""Share of the peak learning rate with which a job that starts from a model trains by default."""
TUNED_EPOCHS: Final = 0.25
"""Share of the epochs, at least one, and, where a recipe sets the samples of an epoch, of those."""


def fine_tuning(spec: TrainSpec) -> TrainSpec:
    """Return the defaults of a job that starts from a model: those of `spec`, shorter and with smaller steps."""
    samples = spec.epoch_samples
    return replace(
        spec,
        learning_rate=TUNED_RATE * spec.learning_rate,
        epochs=max(1, round(TUNED_EPOCHS * spec.epochs)),
        epoch_samples=None if samples is None else max(spec.batch_size, round(TUNED_EPOCHS * samples)),
    )


NETWORKS: Final[Mapping[str, RecipeName]] = {
    "cnn-small-cosine": "fast", "cnn-cosine": "balanced", "cnn-committee": "best",
    "cnn-small-valid": "fast", "cnn-valid": "balanced",
}  # fmt: skip
"""Networks of recipes, also those of versions up to 0.17.0: a job may not name them without the recipe."""
LEAST_SIDES: Final[Mapping[str, int]] = {"cnn": 6, **dict.fromkeys(NETWORKS, 28)}
"""Network -> pixels of an image's shorter side, below which its layers would shrink it to nothing."""


def require_network(reference: str, theirs: str, ours: str) -> None:
    """Raise `InvalidConfig` where a job of the network `ours` starts from a model of another one, `theirs`."""
    if theirs != ours:
        recipe = NETWORKS.get(theirs)
        remedy = f"set model to {theirs!r}" if recipe is None else f"set recipe to {recipe!r}"
        raise InvalidConfig(
            f"init_from is {reference!r}, whose network is {theirs!r}, but the job trains {ours!r}; {remedy}, or name "
            "a model of that network",
            field="init_from",
        )


def check_recipe(name: RecipeName, given: Mapping[str, object], free: Collection[str] = FREE) -> None:
    """Compare the user's fields with those of a recipe, except for the fields that are `free`.

    Raises:
        InvalidConfig: a field has another value than the recipe gives it.
    """
    for field, value in given.items():
        wanted = getattr(RECIPES[name], field)
        if field not in free and value != wanted:
            raise InvalidConfig(
                f"recipe {name!r} sets {field} to {_short(wanted)}, but {field} is {_short(value)}; "
                f"leave out either recipe or {field}",
                field=field,
            )


def _short(value: object) -> str:
    return "another" if isinstance(value, Augmentation) else ascii(value)


def require_image_size(model: str, shape: tuple[int, int, int]) -> None:
    """Raise `InvalidConfig` for images (channels, height, width) that a network of this project does not take."""
    least, (_, height, width) = LEAST_SIDES.get(model, 1), shape
    if min(height, width) < least:
        others = "'cnn' or 'resnet18' instead of the recipe" if model in NETWORKS else "'resnet18'"
        raise InvalidConfig(
            f"model {model!r} needs images of at least {least}x{least}, but these are {height}x{width}; use {others}",
            field="model",
        )
