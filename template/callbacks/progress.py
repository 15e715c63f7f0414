"""The progress bar of a terminal: loss, learning rate and images per second."""

import time
from typing import Any

import lightning.pytorch as L
from lightning.pytorch.callbacks import RichProgressBar

from template.callbacks.step_log import StepLog, readable

_EVERY = 0.25  # seconds between two changes of the bar: one takes 3 ms
_SHOWN = {"loss": "train/loss", "lr": "train/learning_rate", "images/s": "train/images_per_second"}


class Bar(RichProgressBar):
    """Lightning's rich bar with the values that StepLog last logged; nothing is computed for it."""

    def __init__(self) -> None:
        super().__init__(refresh_rate=10)
        self._changed = 0.0

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.is_last_batch or time.monotonic() - self._changed >= _EVERY:
            self._changed = time.monotonic()
            super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)

    def get_metrics(self, trainer: L.Trainer, pl_module: L.LightningModule) -> dict[str, int | str | float]:  # type: ignore[override]
        latest = next((callback.latest for callback in trainer.callbacks if isinstance(callback, StepLog)), {})  # type: ignore[attr-defined]
        return {short: readable(name, latest[name]) for short, name in _SHOWN.items() if name in latest}
