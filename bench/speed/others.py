"""The recipes, untuned, on the other data sets whose files are here: one training each.

    python -m bench.speed others [--recipes NAME ...]

They were chosen on MNIST; this shows how far they carry. Seconds: training and testing, imports apart, under
a plan that was not calibrated.
"""

from dataclasses import replace

from bench.speed.common import Asked, as_json, ask, quick_plan
from bench.tables import head, row
from training.config.recipes import RECIPES
from training.config.registry import DATASETS, names
from training.data.prepare import prepare, prepared
from training.errors import DatasetError
from worker.config.settings import load


def main(asked: Asked) -> None:
    """Train and print."""
    settings = load()
    recipes = [name for name in RECIPES if name in asked.recipes]
    missing = []
    head("data set", "training samples", *(f"recipe `{name}`" for name in recipes))
    for dataset in names(DATASETS):
        if dataset == RECIPES["fast"].dataset:
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
            plan = quick_plan(spec)
            run = ask("bench.speed.recipe", {**as_json(spec, plan), "store": str(store.path)}, plan)
            found.append(f"{run['accuracy']:.2%} in {run['seconds']:.1f} s")
        row(dataset, f"{store.train_count:,}", *found)
    if missing:
        print(f"\nTheir files are not in {settings.data_dir}: {', '.join(missing)}")
