"""Logits and targets to per-sample losses, by name; the module decides what they are divided by."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

Task = Literal["multiclass", "multilabel"]
#: A target that takes no part: its loss is 0, and it still counts as a sample.
IGNORED = -100


class CrossEntropy(nn.Module):
    """Softmax cross-entropy over classes that exclude each other.

    Args:
        label_smoothing: Share of the target spread over all classes (arXiv:1512.00567).
        class_weights: (K,) factors of each class's loss. They multiply the loss and leave the divisor alone, so the
            gradient of a sample does not depend on which samples share its batch.
        focal_gamma: The loss is multiplied by (1 - p) ** gamma, p being the probability of the target
            (arXiv:1708.02002, equation 4); 0 leaves it as it is.
    """

    def __init__(
        self, label_smoothing: float = 0.0, class_weights: Sequence[float] | None = None, focal_gamma: float = 0.0
    ) -> None:
        super().__init__()
        self.label_smoothing = label_smoothing
        self.focal_gamma = focal_gamma
        weights = None if class_weights is None else torch.tensor(class_weights, dtype=torch.float32)
        self.register_buffer("weights", weights, persistent=False)
        self.weights: Tensor | None

    def forward(self, logits: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """(B, K) logits and (B,) int64 or (B, K) float targets to {"loss": (B,) float32}."""
        logits = logits.float()
        loss = F.cross_entropy(
            logits, targets, self.weights, ignore_index=IGNORED, label_smoothing=self.label_smoothing, reduction="none"
        )
        if self.focal_gamma:
            probabilities = logits.softmax(1)
            if targets.ndim == 1:
                p = probabilities.gather(1, targets.clamp(min=0)[:, None])[:, 0]
            else:
                p = (probabilities * targets).sum(1)
            loss = loss * _focus(p, self.focal_gamma)
        return {"loss": loss}


class BinaryCrossEntropy(nn.Module):
    """Sigmoid cross-entropy, a yes or no for each class, averaged over classes.

    Args:
        positive_weights: (K,) factors of the loss where the class is present.
        focal_gamma: As for :class:`CrossEntropy`, class by class.
    """

    def __init__(self, positive_weights: Sequence[float] | None = None, focal_gamma: float = 0.0) -> None:
        super().__init__()
        self.focal_gamma = focal_gamma
        weights = None if positive_weights is None else torch.tensor(positive_weights, dtype=torch.float32)
        self.register_buffer("weights", weights, persistent=False)
        self.weights: Tensor | None

    def forward(self, logits: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """(B, K) logits and (B, K) float targets to {"loss": (B,) float32}."""
        logits, targets = logits.float(), targets.float()
        loss = F.binary_cross_entropy_with_logits(logits, targets, pos_weight=self.weights, reduction="none")
        if self.focal_gamma:
            present = logits.sigmoid()
            loss = loss * _focus(present * targets + (1 - present) * (1 - targets), self.focal_gamma)
        return {"loss": loss.mean(dim=1)}


def _focus(p: Tensor, gamma: float) -> Tensor:
    """(1 - p) ** gamma, kept off 0, where a power below 1 has an infinite gradient."""
    return (1 - p).clamp(min=1e-6) ** gamma


def balanced_weights(counts: np.ndarray, samples: int, task: Task) -> list[float]:
    """Factors that give every class the same total weight: N / (K count), or for multi-label negatives / positives.

    Args:
        counts: (K,) training samples of each class; all above 0.
        samples: N.
        task: The task.
    """
    if task == "multilabel":
        return [float(weight) for weight in (samples - counts) / counts]
    return [float(weight) for weight in samples / (len(counts) * counts)]
