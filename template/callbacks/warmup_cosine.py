"""The learning rate: linear warmup, then a cosine down to a share of the peak, as a pure function of the step."""

import logging
import math
from typing import Any

import lightning.pytorch as L
from torch import Tensor

from template.errors import InputError

log = logging.getLogger(__name__)


def warmup_cosine(step: int, total: int, warmup: int, final: float = 0.0) -> float:
    """Factor of the peak learning rate for one step (warmup: arXiv:1706.02677; cosine: arXiv:1608.03983).

    It rises from 1 / (warmup + 1) at step 0 to 1 at step ``warmup``, and is exactly ``final`` at the last step.

    Args:
        step: Optimizer steps already taken, 0 to total - 1.
        total: Steps of the run.
        warmup: Steps of the rise.
        final: Factor at the last step.
    """
    if step < warmup:
        return (step + 1) / (warmup + 1)
    if step >= total - 1:
        return final
    return final + (1 - final) * (1 + math.cos(math.pi * (step - warmup) / (total - 1 - warmup))) / 2


class WarmupCosine(L.Callback):
    """Sets every group's learning rate before each optimizer step; it is stored only to tell when it changes.

    Args:
        warmup_epochs: Epochs of the rise, fractions allowed, before whatever ``schedule.shape`` says.
        final: Learning rate of the cosine's last step, as a share of the peak.

    Raises:
        InputError: A value is out of range, or, when the run starts, the warmup is as long as the run or longer.
    """

    def __init__(self, warmup_epochs: float = 0.0, final: float = 0.0) -> None:
        if warmup_epochs < 0:
            raise InputError(f"warmup_cosine.warmup_epochs is {warmup_epochs:g}; expected 0 or more")
        if not 0 <= final <= 1:
            raise InputError(f"warmup_cosine.final is {final:g}; expected 0 to 1, a share of the peak learning rate")
        self.warmup_epochs = warmup_epochs
        self.final = final
        self.total = self.warmup = 0
        self.peaks: list[float | Tensor] = []
        self._stored_total = 0

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.peaks = [group["lr"] for group in trainer.optimizers[0].param_groups]

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        total = trainer.estimated_stepping_batches
        if not math.isfinite(total):
            raise InputError("warmup_cosine needs the length of the run; set trainer.max_epochs or trainer.max_steps")
        steps_per_epoch = math.ceil(trainer.num_training_batches / trainer.accumulate_grad_batches)
        self.total, self.warmup = int(total), round(self.warmup_epochs * steps_per_epoch)
        if trainer.fast_dev_run:  # type: ignore[attr-defined]
            self.warmup = min(self.warmup, self.total - 1)
        if self.warmup >= self.total:
            raise InputError(
                f"warmup_cosine.warmup_epochs is {self.warmup_epochs:g}, which is {self.warmup} steps of a run of "
                f"{self.total}; shorten the warmup or raise trainer.max_epochs"
            )

        if self._stored_total not in (0, self.total):
            log.info(f"learning rate schedule: horizon {self._stored_total} -> {self.total} steps")

    def factor(self, step: int) -> float:
        """Of the peak learning rate, for a step."""
        return warmup_cosine(step, self.total, self.warmup, self.final)

    def state_dict(self) -> dict[str, Any]:
        return {"total": self.total}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._stored_total = state_dict["total"]

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: object, batch_idx: int
    ) -> None:
        if batch_idx % trainer.accumulate_grad_batches == 0:
            factor = self.factor(trainer.global_step)
            for group, peak in zip(trainer.optimizers[0].param_groups, self.peaks, strict=True):
                group["lr"] = peak * factor
