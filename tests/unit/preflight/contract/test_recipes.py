"""Recipes: one name for everything that decides the accuracy."""

from dataclasses import replace
from typing import get_args

import pytest
from click.testing import CliRunner
from pydantic import JsonValue

from preflight.cli.app import main
from preflight.contract.recipes import FREE, NETWORKS, RECIPES, RecipeName
from preflight.contract.registry import MODELS, RECIPE_MODELS, names
from preflight.contract.spec import DEFAULTS, TrainSpec
from preflight.errors import InvalidConfig
from preflight.wire import JOB_TYPE, TrainJob, parse_job

NAMES: tuple[RecipeName, ...] = get_args(RecipeName)
LEAST: dict[str, JsonValue] = {"type": JOB_TYPE, "dataset": "mnist"}


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_is_a_whole_spec_of_its_network(name: RecipeName) -> None:
    """Its job needs a data set and nothing else; the data set is the user's, too."""
    assert NETWORKS[RECIPES[name].model] == name
    assert parse_job({**LEAST, "recipe": name}).spec() == RECIPES[name]
    other = parse_job({**LEAST, "recipe": name, "dataset": "digits"})
    assert other.spec() == replace(RECIPES[name], dataset="digits")


def test_networks_of_recipes_are_no_names() -> None:
    """They can be loaded, and are not listed; `small` is that of the tests (tests/support/network)."""
    assert names(MODELS) == ["cnn", "resnet18"]
    assert names(RECIPE_MODELS) == [*sorted(NETWORKS), "small"]


@pytest.mark.parametrize(("model", "recipe"), NETWORKS.items())
def test_a_network_needs_its_recipe(model: str, recipe: str) -> None:
    """The error says which; beside its recipe the name is allowed, as any value that equals the recipe's."""
    with pytest.raises(InvalidConfig) as caught:
        parse_job({**LEAST, "model": model})
    assert (
        str(caught.value)
        == f"model {model!r} belongs to recipe {recipe!r}; leave out model and set recipe to {recipe!r}"
    )
    for name in NAMES:
        assert parse_job({**LEAST, "recipe": name, "model": RECIPES[name].model}).spec() == RECIPES[name]


def test_without_a_recipe_the_defaults_hold() -> None:
    """`type` and `dataset` make a complete job."""
    assert parse_job(LEAST).spec() == DEFAULTS


def test_what_a_recipe_leaves_free_is_taken() -> None:
    """Seed, determinism, validation and patience are the user's, and how little of it a smoke test runs."""
    fields: dict[str, JsonValue] = {
        "seed": 7, "deterministic": True, "validation_samples": 5, "patience": 3, "metric": "macro_f1",
        "train_samples": 1_000, "max_steps": 20,
    }  # fmt: skip
    assert fields.keys() | {"dataset"} == FREE
    spec = parse_job({**LEAST, "recipe": "fast", "workers": 2, **fields}).spec()
    assert {name: getattr(spec, name) for name in fields} == fields


@pytest.mark.parametrize("field", sorted(TrainSpec.__dataclass_fields__.keys() - FREE - {"augmentation"}))
def test_what_contradicts_a_recipe_is_refused_by_both_names(field: str) -> None:
    """And what agrees with it is no contradiction."""
    agreed = getattr(RECIPES["fast"], field)
    assert parse_job({**LEAST, "recipe": "fast", field: agreed}).spec() == RECIPES["fast"]
    other = {"model": "resnet18", "optimizer": "adamw" if agreed == "sgd" else "sgd", "schedule": "cosine"}
    other |= {"class_weights": "balanced", "sampler": "balanced"}
    value = other.get(field, 0.015625 if isinstance(agreed, float) else 3)
    with pytest.raises(InvalidConfig, match=r"recipe 'fast' sets") as caught:
        parse_job({**LEAST, "recipe": "fast", field: value})
    assert caught.value.field == field
    assert caught.value.message.endswith(f"leave out either recipe or {field}")


def test_an_augmentation_beside_a_recipe_is_refused() -> None:
    """As a whole: part of one is another one."""
    with pytest.raises(InvalidConfig, match=r"leave out either recipe or augmentation"):
        parse_job({**LEAST, "recipe": "fast", "augmentation": {"rotate_degrees": 44}})


def test_a_producer_hears_of_a_contradiction_at_once() -> None:
    """The model itself refuses it, before anything is enqueued."""
    with pytest.raises(InvalidConfig, match=r"recipe 'fast' sets epochs"):
        TrainJob(type=JOB_TYPE, dataset="mnist", recipe="fast", epochs=9_999)


def test_an_unknown_recipe_is_refused_with_those_there_are() -> None:
    """With the nearest one."""
    names = "'fast', 'balanced' or 'best'"
    with pytest.raises(InvalidConfig, match=rf"recipe is 'fats', but must be one of {names} \(did you mean 'fast'\?\)"):
        parse_job({**LEAST, "recipe": "fats"})


def test_a_producer_sends_the_name_and_not_what_it_stands_for() -> None:
    """So that a worker of another version applies its own recipe instead of refusing the job."""
    job = TrainJob(type=JOB_TYPE, dataset="mnist", recipe="fast", seed=1)
    assert job.model_dump(mode="json", exclude_unset=True) == {**LEAST, "recipe": "fast", "seed": 1}


def test_the_command_line_names_both() -> None:
    """Exit code 2 and one sentence."""
    done = CliRunner().invoke(main, ["train", "--recipe", "fast", "--model", "resnet18"])
    assert done.exit_code == 2
    assert "recipe 'fast' sets model to" in done.stderr
    assert "model is 'resnet18'" in done.stderr


@pytest.mark.parametrize("name", NAMES)
def test_a_job_that_starts_from_a_model_has_its_own_defaults(name: RecipeName) -> None:
    """Fewer and smaller steps; epochs, learning rate and steps may be given beside the recipe, and nothing else."""
    usual, tuned = RECIPES[name], parse_job({**LEAST, "recipe": name, "init_from": "production"}).spec()
    assert tuned.learning_rate == pytest.approx(usual.learning_rate / 5)
    assert (tuned.epochs, tuned.epoch_samples) in {(1, 13_600), (1, 14_400), (10, None)}
    assert replace(
        usual, learning_rate=tuned.learning_rate, epochs=tuned.epochs, epoch_samples=tuned.epoch_samples
    ) == tuned  # fmt: skip
    own: dict[str, JsonValue] = {"epochs": 7, "learning_rate": 0.3, "max_steps": 5}
    given = parse_job({**LEAST, "recipe": name, "init_from": "first@0123456789", **own}).spec()
    assert (given.epochs, given.learning_rate, given.max_steps) == (7, 0.3, 5)
    for fields in ({"epochs": 7}, {"init_from": "production", "batch_size": 7}):
        with pytest.raises(InvalidConfig, match=r"sets (epochs|batch_size) to"):
            parse_job({**LEAST, "recipe": name, **fields})
    plain = parse_job({**LEAST, "init_from": "production"}).spec()
    assert (plain.epochs, plain.learning_rate) == (1, DEFAULTS.learning_rate / 5)
