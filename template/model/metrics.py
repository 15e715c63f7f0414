"""What is reported, by task: collections of torchmetrics over (B, K) probabilities."""

import warnings
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric, MetricCollection
from torchmetrics.classification import (
    BinaryCalibrationError,
    MulticlassAccuracy,
    MulticlassAUROC,
    MulticlassCalibrationError,
    MulticlassF1Score,
    MultilabelAccuracy,
    MultilabelAUROC,
    MultilabelAveragePrecision,
    MultilabelF1Score,
)

from template.model.criterion import IGNORED, Task

#: Classes up to which areas under curves are exact; above, they are read at 200 thresholds, in memory flat in N.
_EXACT = 100


class OverPresentClasses(Metric):
    """Mean over the classes that have a sample of a metric of each class.

    Args:
        of_classes: Its ``compute()`` gives (K,) values; those of absent classes are not looked at.
        num_classes: K.
        against_others: Whether a class also has to have a sample that is not of it, as areas under ROC curves need.
    """

    full_state_update = False

    def __init__(self, of_classes: Metric, num_classes: int, against_others: bool = False) -> None:
        super().__init__()
        self.against_others = against_others
        self.of_classes = of_classes
        self.add_state("present", torch.zeros(num_classes, dtype=torch.long), dist_reduce_fx="sum")
        self.add_state("absent", torch.zeros(num_classes, dtype=torch.long), dist_reduce_fx="sum")
        self.present: Tensor
        self.absent: Tensor

    def update(self, probabilities: Tensor, targets: Tensor) -> None:
        """(B, K) probabilities and (B,) or (B, K) int64 targets."""
        self.of_classes.update(probabilities, targets)
        if targets.ndim == 1:
            kept = targets[targets != IGNORED]
            targets = torch.zeros(len(kept), len(self.present), dtype=torch.long, device=kept.device)
            targets.scatter_(1, kept[:, None], 1)
        self.present += targets.sum(0)
        self.absent += (1 - targets).sum(0)

    def compute(self) -> Tensor:
        """Scalar; NaN where no class is left."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the absent classes, which are left out below
            values = self.of_classes.compute()
        return values[(self.present > 0) & ((self.absent > 0) | (not self.against_others))].mean()

    def reset(self) -> None:
        super().reset()
        self.of_classes.reset()


def build_metrics(task: Task, num_classes: int) -> MetricCollection:
    """Metrics of one stage; ``compute()`` gives {name: scalar}, over all samples of all ranks, each counted once.

    They take probabilities: torchmetrics makes them of logits itself, but not in a batch whose logits all happen to lie
    between 0 and 1. Means over classes leave out those that have no sample.
    """
    k, exact = num_classes, None if num_classes <= _EXACT else 200
    metrics: dict[str, Metric | MetricCollection]
    if task == "multiclass":
        ignored: dict[str, Any] = {"ignore_index": IGNORED}
        metrics = {
            "accuracy": MulticlassAccuracy(k, average="micro", **ignored),
            "macro_f1": OverPresentClasses(MulticlassF1Score(k, average="none", **ignored), k),
            "auroc": OverPresentClasses(MulticlassAUROC(k, average="none", thresholds=exact, **ignored), k, True),
            "calibration_error": MulticlassCalibrationError(k, n_bins=15, **ignored),
        }
        if k > 5:
            metrics["top5_accuracy"] = MulticlassAccuracy(k, average="micro", top_k=5, **ignored)
    else:
        metrics = {
            "accuracy": MultilabelAccuracy(k, average="micro"),
            "macro_f1": OverPresentClasses(MultilabelF1Score(k, average="none"), k),
            "auroc": OverPresentClasses(MultilabelAUROC(k, average="none", thresholds=exact), k, True),
            "mean_average_precision": OverPresentClasses(
                MultilabelAveragePrecision(k, average="none", thresholds=exact), k
            ),
            "calibration_error": BinaryCalibrationError(n_bins=15),
        }
    # Groups that share state are found by equal values of the first batch: a batch that is all correct makes accuracy
    # and top-5 one metric from then on.
    return MetricCollection(metrics, compute_groups=False)
