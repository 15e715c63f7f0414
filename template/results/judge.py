"""How good a run's best checkpoint is, and on which samples it is wrong."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from template.data.datamodule import DataModule
from template.data.dataset import Images
from template.data.index import Index
from template.model.module import Classifier, load_classifier
from template.results import scores
from template.results.evaluate import Predictions, find_checkpoint, load_with_data, predict_split


@dataclass(frozen=True)
class Judged:
    """A split's predictions with what is needed to show them.

    Attributes:
        predictions: The network's outputs.
        index: The split.
        module: The classifier.
        values: The figures of scores.json.
    """

    predictions: Predictions
    index: Index
    module: Classifier
    values: dict[str, Any]

    def image(self, row: int) -> np.ndarray:
        """Sample ``row`` as the network sees it, (S, S, 3) uint8."""
        return Images(self.index, self.module.preprocessing.sample)[0, row][0].permute(1, 2, 0).numpy()

    def name(self, row: int) -> tuple[str, str]:
        """The true and the predicted class of a sample; for multi-label the labels, joined."""
        names, targets = self.module.class_names, self.predictions.targets[row]
        chosen = self.predictions.probabilities[row]
        if targets.ndim == 0:
            return names[int(targets)], names[int(chosen.argmax())]
        true, predicted = (
            " + ".join(name for name, is_one in zip(names, labels, strict=True) if is_one) or "none"
            for labels in (targets, chosen >= 0.5)
        )
        return true, predicted

    def caption(self, row: int) -> str:
        """``true → predicted  98%``."""
        true, predicted = self.name(row)
        if self.predictions.targets.ndim == 1:
            return f"{true} → {predicted}  {self.predictions.probabilities[row].max():.0%}"
        return f"{true} → {predicted}"


def judge(folder: Path, root: Path | None = None, datamodule: DataModule | None = None) -> Judged:
    """Predictions of a run's best checkpoint for its test split, or its validation split, and their figures.

    Raises:
        InputError: The checkpoint or the data cannot be read.
    """
    if datamodule is None:
        module, datamodule = load_with_data(folder, root)
    else:
        module, _ = load_classifier(find_checkpoint(folder))
    split = "test" if "test" in datamodule.splits else "val"
    predictions = predict_split(module, datamodule, split)
    right = scores.sample_scores(predictions.targets, predictions.probabilities)
    each = scores.per_class(predictions.targets, predictions.probabilities)
    low, high = scores.interval(right)
    values = {
        "split": split,
        "samples": len(right),
        "accuracy": float(right.mean()),
        "accuracy_low": low,
        "accuracy_high": high,
        "macro_f1": float(np.nan_to_num(each.f1[(each.support > 0) | ~np.isnan(each.f1)]).mean()),
        "loss": float(predictions.losses.mean()),
        "calibration_error": scores.calibration(predictions.targets, predictions.probabilities).error,
        "data": {
            split: [len(datamodule.splits[split]), len(module.class_names), fingerprint]
            for split, fingerprint in datamodule.fingerprints().items()
        },
    }
    return Judged(predictions, datamodule.splits[split], module, values)
