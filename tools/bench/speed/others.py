"""The recipes, untuned, on the other data sets whose files are here, against a linear classifier: one training each.

    python -m tools.bench.speed others [--recipes NAME ...]

They were chosen on MNIST, for which there is `accuracy`; this shows how far they carry. The linear classifier is
scikit-learn's multinomial logistic regression on pixels from 0 to 1, which no recipe may end below. Seconds: training
and testing, imports apart, under a plan that was not calibrated.
"""

from dataclasses import replace
from pathlib import Path
from typing import Final

from sklearn.linear_model import LogisticRegression

from preflight.contract.recipes import RECIPES
from preflight.contract.registry import DATASETS, names
from preflight.errors import DatasetError
from tools.bench.record import start
from tools.bench.speed.common import BenchOptions, as_json, ask, fast_plan
from training.data.dataset_store import open_dataset
from training.data.prepare import prepare, prepared
from worker.config.settings import load

CHOSEN_ON: Final = "mnist"
ITERATIONS: Final = 300
"""Most iterations of the linear classifier."""


def main(asked: BenchOptions) -> None:
    """Train and print."""
    record = start("others", "python -m tools.bench.speed others", "process starts, imports and calibration")
    settings = load()
    recipes = [name for name in RECIPES if name in asked.recipes]
    missing = []
    record.head("data set", "training samples", "linear classifier", *(f"recipe `{name}`" for name in recipes))
    for dataset in names(DATASETS):
        if dataset == CHOSEN_ON:
            continue
        where = dataset, settings.data_dir, settings.cache_dir
        try:
            store = prepared(*where) or prepare(*where, download=False)
        except DatasetError:
            missing.append(dataset)
            continue
        found = []
        for name in recipes:
            spec = replace(RECIPES[name], dataset=dataset)
            plan = fast_plan(spec)
            run = ask("tools.bench.speed.recipe", {**as_json(spec, plan), "store": str(store.path)}, plan)
            found.append(f"{run['accuracy']:.2%} in {run['seconds']:.1f} s")
        record.row(dataset, f"{store.train_count:,}", f"{linear_accuracy(store.path):.2%}", *found)
    if missing:
        record.note(f"Their files were missing: {', '.join(missing)}")
    record.write()


def linear_accuracy(path: Path) -> float:
    """Return the test accuracy of a linear classifier on a prepared data set."""
    store = open_dataset(path)
    train, test = (images.flatten(1).numpy() / 255 for images in (store.train_images, store.test_images))
    linear = LogisticRegression(max_iter=ITERATIONS).fit(train, store.train_labels.numpy())
    return float(linear.score(test, store.test_labels.numpy()))
