"""Metrics count every sample once, by its own probabilities, over the classes there are: tests/test_metrics.py"""

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, f1_score, roc_auc_score
from torch import Tensor

from template.model.criterion import IGNORED, Task
from template.model.metrics import build_metrics
from template.model.module import Classifier

GENERATOR = torch.Generator().manual_seed(0)
N, K = 23, 7
TARGETS = torch.arange(N) % K
PROBABILITIES = (torch.randn(N, K, generator=GENERATOR) + 2 * torch.eye(K)[TARGETS]).softmax(1)
LABELS = (torch.rand(N, K, generator=GENERATOR) < 0.4).long()


def values(task: Task, probabilities: Tensor, targets: Tensor, batch: int = 5) -> dict[str, float]:
    metrics = build_metrics(task, probabilities.shape[1])
    for some, their in zip(probabilities.split(batch), targets.split(batch), strict=True):
        metrics.update(some, their)
    return {name: float(value) for name, value in metrics.compute().items()}


@pytest.mark.parametrize("batch", [1, 5, 22, 23])
def test_the_values_do_not_depend_on_how_the_samples_are_cut(batch):
    assert values("multiclass", PROBABILITIES, TARGETS, batch) == pytest.approx(
        values("multiclass", PROBABILITIES, TARGETS, N), abs=1e-6
    )
    assert values("multilabel", PROBABILITIES, LABELS, batch) == pytest.approx(
        values("multilabel", PROBABILITIES, LABELS, N), abs=1e-6
    )


def test_one_wrong_of_five_in_batches_of_two_is_0_8():
    probabilities = torch.eye(3)[[1, 1, 2, 0, 1]]
    assert values("multiclass", probabilities, torch.tensor([0, 1, 2, 0, 1]), 2)["accuracy"] == pytest.approx(0.8)


def test_values_are_those_of_scikit_learn():
    found = values("multiclass", PROBABILITIES, TARGETS)
    p, y = PROBABILITIES.double().numpy(), TARGETS.numpy()
    p /= p.sum(1, keepdims=True)
    assert found["accuracy"] == pytest.approx((p.argmax(1) == y).mean())
    assert found["top5_accuracy"] == pytest.approx((np.argsort(-p, 1)[:, :5] == y[:, None]).any(1).mean())
    assert found["macro_f1"] == pytest.approx(f1_score(y, p.argmax(1), average="macro"))
    assert found["auroc"] == pytest.approx(roc_auc_score(y, p, multi_class="ovr", average="macro"))
    found = values("multilabel", PROBABILITIES, LABELS)
    y = LABELS.numpy()
    assert found["auroc"] == pytest.approx(roc_auc_score(y, p, average="macro"))
    assert found["mean_average_precision"] == pytest.approx(average_precision_score(y, p, average="macro"))
    assert found["macro_f1"] == pytest.approx(f1_score(y, p > 0.5, average="macro", zero_division=0))


def test_calibration_error_is_the_distance_of_confidence_from_accuracy():
    confidence = torch.full((10, 2), 0.3)
    confidence[:, 0] = 0.7
    targets = torch.tensor([0] * 5 + [1] * 5)
    assert values("multiclass", confidence, targets)["calibration_error"] == pytest.approx(0.2)


def test_a_first_batch_that_is_all_correct_does_not_make_one_metric_of_accuracy_and_top_5():
    probabilities = torch.cat([torch.eye(K)[TARGETS[:5]], torch.eye(K)[(TARGETS[5:] + 1) % K] * 0.6 + 0.05])
    found = values("multiclass", probabilities, TARGETS)
    assert found["accuracy"] == pytest.approx(5 / N)
    assert found["top5_accuracy"] > 0.5


@pytest.mark.parametrize("task", ["multiclass", "multilabel"])
def test_absent_classes_are_left_out_of_the_means_without_a_warning(task):
    targets = TARGETS % (K - 2) if task == "multiclass" else LABELS * (torch.arange(K) < K - 2)
    found = values(task, PROBABILITIES, targets)
    p = PROBABILITIES.double().numpy()
    y = targets.numpy() if task == "multilabel" else np.eye(K)[targets.numpy()]
    assert found["auroc"] == pytest.approx(np.mean([roc_auc_score(y[:, k], p[:, k]) for k in range(K - 2)]))
    if task == "multilabel":
        expected = [average_precision_score(y[:, k], p[:, k]) for k in range(K - 2)]
        assert found["mean_average_precision"] == pytest.approx(np.mean(expected))


def test_samples_of_one_class_alone_have_an_f1_and_no_area():
    found = values("multiclass", PROBABILITIES[:4], torch.zeros(4, dtype=torch.long))
    assert 0 <= found["macro_f1"] <= 1
    assert np.isnan(found["auroc"])


def test_ignored_targets_count_nowhere():
    kept = torch.arange(N) % 3 > 0
    ignoring = values("multiclass", PROBABILITIES, TARGETS.where(kept, IGNORED))
    assert ignoring == pytest.approx(values("multiclass", PROBABILITIES[kept], TARGETS[kept]), abs=1e-6)


def test_logits_that_all_lie_between_0_and_1_are_not_taken_for_probabilities():
    module = Classifier(("a", "b", "c"), width=4, task="multilabel")
    module.network = torch.nn.Identity()
    batch = {"image": torch.tensor([[0.3, 0.2, 0.4]]), "target": torch.ones(1, 3)}
    module._evaluate("val", batch)  # a sigmoid of 0.2 is 0.55: present
    assert float(module.metrics["val"].compute()["accuracy"]) == 1.0


def test_a_second_epoch_starts_from_nothing():
    metrics = build_metrics("multiclass", K)
    metrics.update(PROBABILITIES, (TARGETS + 1) % K)
    metrics.compute()
    metrics.reset()
    metrics.update(PROBABILITIES, TARGETS)
    found = {name: float(value) for name, value in metrics.compute().items()}
    assert found == pytest.approx(values("multiclass", PROBABILITIES, TARGETS, N))
