"""What is reported, by task: collections of torchmetrics over (B, K) logits."""

from torchmetrics import Metric, MetricCollection
from torchmetrics.classification import (
    MulticlassAccuracy,
    MulticlassF1Score,
    MultilabelAccuracy,
    MultilabelAveragePrecision,
    MultilabelF1Score,
)

from template.model.criterion import Task


def build_metrics(task: Task, num_classes: int) -> MetricCollection:
    """Metrics of one stage; ``compute()`` gives {name: scalar}, over all samples of all ranks, each counted once."""
    metrics: dict[str, Metric | MetricCollection]
    if task == "multiclass":
        metrics = {
            "accuracy": MulticlassAccuracy(num_classes, average="micro"),
            "macro_f1": MulticlassF1Score(num_classes, average="macro"),
        }
        if num_classes > 5:
            metrics["top5_accuracy"] = MulticlassAccuracy(num_classes, average="micro", top_k=5)
    else:
        metrics = {
            "accuracy": MultilabelAccuracy(num_classes, average="micro"),
            "macro_f1": MultilabelF1Score(num_classes, average="macro"),
            "mean_average_precision": MultilabelAveragePrecision(num_classes, average="macro"),
        }
    # Groups that share state are found by equal values of the first batch: a batch that is all correct makes accuracy
    # and top-5 one metric from then on.
    return MetricCollection(metrics, compute_groups=False)
