"""Scores: figures of each class, and when a score is no better than chance."""

import warnings

import pytest
import torch
from sklearn.metrics import f1_score, recall_score

from preflight.contract.plan import Plan
from preflight.contract.spec import TrainSpec
from training.data.dataset_info import DatasetInfo
from training.data.dataset_store import open_dataset
from training.loop.evaluate import Score, chance_warning, evaluate
from training.step.train_step import TrainStep


def test_figures_of_classes_are_those_of_scikit_learn(digits_store: DatasetInfo, torch_as_it_was: None) -> None:  # noqa: ARG001
    """Of an untrained model, in batches that do not fill the last one."""
    store = open_dataset(digits_store.path)
    info = store.info
    step = TrainStep(
        TrainSpec(dataset="digits", model="cnn"), Plan(threads=1, micro_batch=64, eval_batch=100), info.shape, 10
    )
    said = torch.zeros(info.test_count, 10)
    score = evaluate(step, store.test_images, store.test_labels, info.mean, info.std, said)
    truth, predicted = store.test_labels.numpy(), said.argmax(1).numpy()
    assert score.accuracy == (truth == predicted).mean()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of classes that are never predicted
        assert score.macro_f1 == pytest.approx(f1_score(truth, predicted, average="macro"))
        recall = recall_score(truth, predicted, average=None)
    assert [one.recall for one in score.classes] == pytest.approx([*recall])


@pytest.mark.parametrize(
    ("counts", "accuracy", "warned"),
    [
        ([1000] * 10, 0.1, True),
        ([1000] * 10, 0.108, True),  # ten classes guessed, 2.7 standard deviations of luck
        ([1000] * 10, 0.11, False),
        ([9000, 1000], 0.9, True),
        ([9000, 1000], 0.92, False),
        ([5, 5], 0.9, True),  # nine of ten by coins: rare, and not rare enough
        ([100], 1.0, True),  # one class alone
    ],
)
def test_an_accuracy_is_compared_with_the_largest_class(counts: list[int], accuracy: float, warned: bool) -> None:
    """What answering with one class reaches by itself, and luck, is no learning."""
    labels = torch.arange(len(counts), dtype=torch.uint8).repeat_interleave(torch.tensor(counts))
    warning = chance_warning(Score(accuracy=accuracy, loss=1.0, samples=len(labels)), labels)
    assert (warning is not None) == warned
    if warning is not None:
        largest = max(counts) / sum(counts)
        assert f"recognizes {accuracy:.1%} of the test samples, no better than chance" in warning
        assert f"alone is {largest:.1%} of them" in warning
