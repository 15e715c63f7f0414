"""Early stopping that a resume does not forget."""

from typing import Literal

import lightning.pytorch as L
from lightning.pytorch.callbacks import EarlyStopping


class EarlyStop(EarlyStopping):
    """Lightning's EarlyStopping, judged after each validation, so that the checkpoint written then has the verdict.

    Lightning judges at the epoch's end, where a resumed run has no metrics, and one resumed after the validation that
    stopped it would train on.

    Args:
        monitor: Metric, such as ``val/loss``.
        mode: ``max`` or ``min``: whether more or less of it is better.
        patience: Validations without improvement before it stops.
        min_delta: Least change that counts as improvement.
    """

    def __init__(self, monitor: str, mode: Literal["max", "min"], patience: int, min_delta: float = 0.0) -> None:
        super().__init__(monitor, min_delta, patience, mode=mode, check_on_train_epoch_end=False)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self.wait_count >= self.patience:
            trainer.should_stop = True
