"""The recipes, untuned, on the other data sets whose files are here: one training each.

    python -m bench.speed others [--recipes NAME ...]

They were chosen on MNIST; this shows how far they carry. Seconds: training and testing, imports apart, under
a plan that was not calibrated.
"""

from dataclasses import replace

from bench.record import start
from bench.speed.common import BenchOptions, as_json, ask, fast_plan
from training.config.recipes import RECIPES
from training.config.registry import DATASETS, names
from training.data.prepare import prepare, prepared
from training.errors import DatasetError
from worker.config.settings import load


def main(asked: BenchOptions) -> None:
    """Train and print."""
    record = start("others", "python -m bench.speed others", "process starts, imports and calibration")
    settings = load()
    recipes = [name for name in RECIPES if name in asked.recipes]
    missing = []
    record.head("data set", "training samples", *(f"recipe `{name}`" for name in recipes))
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
            plan = fast_plan(spec)
            run = ask("bench.speed.recipe", {**as_json(spec, plan), "store": str(store.path)}, plan)
            found.append(f"{run['accuracy']:.2%} in {run['seconds']:.1f} s")
        record.row(dataset, f"{store.train_count:,}", *found)
    if missing:
        record.note(f"Their files were missing: {', '.join(missing)}")
    record.write()
