"""Logits and targets to per-sample losses, by name; the module decides what they are divided by."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Task = Literal["multiclass", "multilabel"]


class CrossEntropy(nn.Module):
    """Softmax cross-entropy over classes that exclude each other.

    Args:
        label_smoothing: Share of the target spread over all classes (arXiv:1512.00567).
        class_weights: (K,) factors of each class's loss. They multiply the loss and leave the divisor alone, so the
            gradient of a sample does not depend on which samples share its batch.
    """

    def __init__(self, label_smoothing: float = 0.0, class_weights: Sequence[float] | None = None) -> None:
        super().__init__()
        self.label_smoothing = label_smoothing
        weights = None if class_weights is None else torch.tensor(class_weights, dtype=torch.float32)
        self.register_buffer("weights", weights, persistent=False)
        self.weights: Tensor | None

    def forward(self, logits: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """(B, K) logits and (B,) int64 or (B, K) float targets to {"loss": (B,) float32}."""
        loss = F.cross_entropy(
            logits.float(), targets, weight=self.weights, label_smoothing=self.label_smoothing, reduction="none"
        )
        return {"loss": loss}


class BinaryCrossEntropy(nn.Module):
    """Sigmoid cross-entropy, a yes or no for each class, averaged over classes.

    Args:
        positive_weights: (K,) factors of the loss where the class is present.
    """

    def __init__(self, positive_weights: Sequence[float] | None = None) -> None:
        super().__init__()
        weights = None if positive_weights is None else torch.tensor(positive_weights, dtype=torch.float32)
        self.register_buffer("weights", weights, persistent=False)
        self.weights: Tensor | None

    def forward(self, logits: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """(B, K) logits and (B, K) float targets to {"loss": (B,) float32}."""
        loss = F.binary_cross_entropy_with_logits(
            logits.float(), targets.float(), pos_weight=self.weights, reduction="none"
        )
        return {"loss": loss.mean(dim=1)}
