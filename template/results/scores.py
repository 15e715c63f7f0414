"""What a report says about predictions, as pure functions of targets and probabilities."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

#: Two-sided 95 % of the normal distribution.
Z95 = 1.959963984540054


@dataclass(frozen=True)
class PerClass:
    """(K,) arrays; a value whose denominator is 0 is NaN: no prediction of the class, or no sample of it."""

    precision: np.ndarray
    recall: np.ndarray
    f1: np.ndarray
    support: np.ndarray


@dataclass(frozen=True)
class Calibration:
    """Reliability in bins of equal width (arXiv:1706.04599).

    Attributes:
        confidence: (bins,) mean probability of each bin; NaN where it is empty.
        accuracy: (bins,) share that was right.
        count: (bins,) decisions in it.
        error: Expected calibration error: the mean of |accuracy - confidence|, weighted by the counts.
    """

    confidence: np.ndarray
    accuracy: np.ndarray
    count: np.ndarray
    error: float


def confusion_matrix(targets: np.ndarray, predicted: np.ndarray, num_classes: int) -> np.ndarray:
    """(K, K) counts: row the true class, column the predicted one."""
    return np.bincount(targets * num_classes + predicted, minlength=num_classes**2).reshape(num_classes, num_classes)


def per_class(targets: np.ndarray, probabilities: np.ndarray) -> PerClass:
    """Precision, recall, F1 and support of each class.

    Args:
        targets: (N,) class numbers, or (N, K) zeros and ones for multi-label.
        probabilities: (N, K); the largest is the prediction, or for multi-label all from 0.5 on.
    """
    classes = probabilities.shape[1]
    if targets.ndim == 1:
        truth = targets[:, None] == np.arange(classes)
        chosen = probabilities.argmax(1)[:, None] == np.arange(classes)
    else:
        truth, chosen = targets.astype(bool), probabilities >= 0.5
    right, support, predicted = (truth & chosen).sum(0), truth.sum(0), chosen.sum(0)
    with np.errstate(invalid="ignore"):
        return PerClass(right / predicted, right / support, 2 * right / (support + predicted), support)


def sample_scores(targets: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    """(N,) 1 where the prediction is right and 0 where not; for multi-label the share of labels that are right."""
    if targets.ndim == 1:
        return (probabilities.argmax(1) == targets).astype(float)
    return ((probabilities >= 0.5) == targets.astype(bool)).mean(1)


def interval(scores: np.ndarray) -> tuple[float, float]:
    """95 % interval of the mean of per-sample scores in [0, 1].

    Wilson's score interval (1927) for scores of 0 and 1, which holds near 0 and 1 too; else the normal one, clipped.
    """
    n, mean = len(scores), float(scores.mean())
    if np.isin(scores, (0, 1)).all():
        centre = (mean + Z95**2 / (2 * n)) / (1 + Z95**2 / n)
        half = Z95 / (1 + Z95**2 / n) * math.sqrt(mean * (1 - mean) / n + Z95**2 / (4 * n * n))
    else:
        centre, half = mean, Z95 * float(scores.std(ddof=1)) / math.sqrt(n)
    return max(0.0, centre - half), min(1.0, centre + half)


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean over seeds and half the width of its 95 % interval (Student's t); NaN for one value."""
    from scipy.stats import t

    mean = float(np.mean(values))
    if len(values) < 2:
        return mean, math.nan
    return mean, float(t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / math.sqrt(len(values)))


def calibration(targets: np.ndarray, probabilities: np.ndarray, bins: int = 10) -> Calibration:
    """Reliability of the predicted class's probability, or for multi-label of every label's."""
    if targets.ndim == 1:
        confidence, right = probabilities.max(1), probabilities.argmax(1) == targets
    else:
        confidence, right = probabilities.ravel(), targets.astype(bool).ravel()
    which = np.minimum((confidence * bins).astype(int), bins - 1)
    count = np.bincount(which, minlength=bins)
    with np.errstate(invalid="ignore"):
        mean = np.bincount(which, confidence, bins) / count
        accuracy = np.bincount(which, right, bins) / count
    error = float(np.nansum(np.abs(accuracy - mean) * count) / len(confidence))
    return Calibration(mean, accuracy, count, error)


def most_confused(confusion: np.ndarray, most: int = 10) -> list[tuple[int, int, int]]:
    """(true class, predicted class, count) of the most frequent mistakes, the most frequent first."""
    mistakes = confusion - np.diag(np.diag(confusion))
    order = np.argsort(-mistakes, axis=None, kind="stable")[:most]
    rows, columns = np.unravel_index(order, mistakes.shape)
    pairs = zip(rows.tolist(), columns.tolist(), mistakes[rows, columns].tolist(), strict=True)
    return [pair for pair in pairs if pair[2] > 0]


def confident_mistakes(targets: np.ndarray, probabilities: np.ndarray, most: int = 12) -> np.ndarray:
    """Rows whose wrong prediction is the most certain; for multi-label those with the label most certainly wrong."""
    if targets.ndim == 1:
        certainty = np.where(probabilities.argmax(1) == targets, -1.0, probabilities.max(1))
    else:
        wrong = np.abs(probabilities - targets).max(1)
        certainty = np.where(wrong > 0.5, wrong, -1.0)
    order = np.argsort(-certainty, kind="stable")[:most]
    return order[certainty[order] >= 0]
