"""The numbers of a report equal those of the libraries that people would check them with."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn import metrics
from torchmetrics.functional.classification import multiclass_calibration_error

from template.results import scores


def outputs(classes: int = 4, samples: int = 200) -> tuple[np.ndarray, np.ndarray]:
    draws = np.random.default_rng(0)
    targets = draws.integers(0, classes, samples)
    logits = draws.normal(size=(samples, classes)) + 1.5 * np.eye(classes)[targets]
    return targets, torch.from_numpy(logits).softmax(1).numpy()


def test_confusion_has_the_true_class_in_its_rows() -> None:
    targets, probabilities = outputs()
    predicted = probabilities.argmax(1)
    expected = metrics.confusion_matrix(targets, predicted, labels=range(4))
    np.testing.assert_array_equal(scores.confusion_matrix(targets, predicted, 4), expected)


def test_precision_recall_and_f1_are_per_class_and_nan_where_they_are_not_defined() -> None:
    targets, probabilities = outputs()
    targets[targets == 3] = 0  # no sample of class 3
    probabilities[:, 2] = 0  # no prediction of class 2
    found = scores.per_class(targets, probabilities)
    expected = metrics.precision_recall_fscore_support(
        targets, probabilities.argmax(1), labels=range(4), zero_division=np.nan
    )
    assert np.isnan(found.precision[2])
    assert np.isnan(found.recall[3])
    for mine, theirs in zip((found.precision, found.recall, found.f1, found.support), expected, strict=True):
        np.testing.assert_allclose(mine, theirs)


def test_multi_label_classes_are_counted_from_a_half_on() -> None:
    draws = np.random.default_rng(1)
    targets, probabilities = draws.integers(0, 2, (50, 3)), draws.random((50, 3))
    found = scores.per_class(targets, probabilities)
    expected = metrics.precision_recall_fscore_support(targets, probabilities >= 0.5)
    for mine, theirs in zip((found.precision, found.recall, found.f1, found.support), expected, strict=True):
        np.testing.assert_allclose(mine, theirs)


@pytest.mark.parametrize(("right", "n"), [(0, 10), (9, 10), (10, 10), (352, 360)])
def test_the_interval_of_an_accuracy_is_wilsons(right: int, n: int) -> None:
    expected = stats.binomtest(right, n).proportion_ci(0.95, method="wilson")
    found = scores.interval(np.array([1.0] * right + [0.0] * (n - right)))
    assert found == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_the_interval_of_shares_is_the_normal_one() -> None:
    values = np.array([0.5, 1.0, 0.75, 0.25, 1.0])
    half = stats.norm.ppf(0.975) * stats.sem(values)
    assert scores.interval(values) == pytest.approx((0.7 - half, min(1, 0.7 + half)))


def test_the_interval_over_seeds_is_students_and_one_seed_has_none() -> None:
    values = [0.91, 0.93, 0.90]
    low, high = stats.t.interval(0.95, 2, loc=np.mean(values), scale=stats.sem(values))
    assert scores.mean_interval(values) == pytest.approx((np.mean(values), (high - low) / 2))
    assert math.isnan(scores.mean_interval([0.9])[1])


def test_calibration_error_equals_torchmetrics() -> None:
    targets, probabilities = outputs()
    found = scores.calibration(targets, probabilities)
    expected = multiclass_calibration_error(torch.from_numpy(probabilities), torch.from_numpy(targets), 4, n_bins=10)
    assert found.error == pytest.approx(float(expected), abs=1e-6)
    assert found.count.sum() == len(targets)


def test_a_certain_prediction_is_in_the_last_bin() -> None:
    found = scores.calibration(np.array([0, 1]), np.array([[1.0, 0.0], [1.0, 0.0]]))
    assert found.count.tolist() == [0] * 9 + [2]
    assert (found.confidence[-1], found.accuracy[-1], found.error) == (1.0, 0.5, 0.5)


def test_the_most_confused_pairs_are_mistakes_only_the_most_frequent_first() -> None:
    counts = np.array([[50, 2, 0], [7, 40, 1], [0, 0, 9]])
    assert scores.most_confused(counts) == [(1, 0, 7), (0, 1, 2), (1, 2, 1)]
    assert scores.most_confused(counts, most=1) == [(1, 0, 7)]


def test_the_most_confident_mistakes_are_wrong_and_in_order() -> None:
    probabilities = np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.01, 0.99]])
    assert scores.confident_mistakes(np.array([1, 1, 0, 1]), probabilities).tolist() == [0, 2, 1]
    labels = np.array([[1, 0], [0, 1], [1, 1], [1, 1]])
    assert scores.confident_mistakes(labels, probabilities).tolist() == [3, 2, 1]
    assert scores.confident_mistakes(np.array([0, 0, 1, 1]), probabilities).tolist() == []
