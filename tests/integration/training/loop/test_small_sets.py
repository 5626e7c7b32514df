"""Recipes on a small data set: trained for real, beside a linear classifier."""

import pytest
import torch
from sklearn.linear_model import LogisticRegression

from preflight.contract.plan import Plan
from preflight.contract.recipes import RECIPES
from training.data.batches import Batches
from training.data.dataset_info import DatasetInfo
from training.data.dataset_store import open_dataset
from training.loop.evaluate import evaluate
from training.step.train_step import TrainStep


@pytest.mark.slow
@pytest.mark.usefixtures("torch_as_it_was")
def test_fast_is_above_a_linear_classifier_on_1500_digits(digits_store: DatasetInfo) -> None:
    """It takes as many steps as on 60,000 samples: of one pass it would make four."""
    store, spec = open_dataset(digits_store.path), RECIPES["fast"]
    torch.set_num_threads(1)
    step = TrainStep(spec, Plan(threads=1, micro_batch=spec.batch_size, eval_batch=100), store.info.shape, 10)
    batches = list(Batches(store, spec, step.plan).of(0))
    for number, (images, labels) in enumerate(batches):
        step.run(images, labels, step.rate(number, len(batches), len(batches)))
    ours = evaluate(step, store.test_images, store.test_labels, store.info.mean, store.info.std).accuracy
    pixels = [images.flatten(1).numpy() / 255 for images in (store.train_images, store.test_images)]
    linear = LogisticRegression(max_iter=200).fit(pixels[0], store.train_labels.numpy())
    assert ours > linear.score(pixels[1], store.test_labels.numpy()) > 0.85
