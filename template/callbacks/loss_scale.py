"""How often the loss scaler of 16-mixed left out a step, because float16 gradients had overflowed."""

from typing import Any

import lightning.pytorch as L
import torch
from torch import Tensor


class LossScale(L.Callback):
    """Counts the steps that the scaler skipped, on the device: after each of them, and only then, it lowers the scale.

    Attributes:
        skipped: Scalar int64, or None without a scaler.
    """

    def __init__(self) -> None:
        self.skipped: Tensor | None = None
        self._scale: Tensor | None = None
        self._stored = 0

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        if scaler is not None:
            self.skipped = torch.tensor(self._stored, device=pl_module.device)
            self._scale = torch.full((), scaler.get_scale(), device=pl_module.device)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: object, batch: object, batch_idx: int
    ) -> None:
        if self.skipped is not None:
            scale = trainer.precision_plugin.scaler._scale  # type: ignore[attr-defined]  # get_scale() would wait for the device
            self.skipped += scale < self._scale
            self._scale = scale.clone()

    def state_dict(self) -> dict[str, Any]:
        return {"skipped": self._stored if self.skipped is None else int(self.skipped)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._stored = state_dict["skipped"]

    def values(self) -> dict[str, float]:
        """Skipped steps so far and the scale, by the names of the log; waits for the device."""
        if self.skipped is None or self._scale is None:
            return {}
        return {"train/skipped_steps": float(self.skipped), "train/loss_scale": float(self._scale)}
