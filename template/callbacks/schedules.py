"""Other schedules than the cosine: after the warmup the learning rate stays, falls in steps, or falls on a plateau."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import lightning.pytorch as L

from template.callbacks.warmup_cosine import WarmupCosine
from template.errors import InputError


@dataclass
class Schedule:
    """The learning rate after the warmup.

    Attributes:
        shape: ``cosine`` (see ``warmup_cosine``), ``constant``, ``step`` (falls every ``every_epochs``) or ``plateau``
            (falls when ``checkpoints.monitor`` did not improve for ``patience`` validations).
        factor: What the learning rate is multiplied by when it falls.
        every_epochs: Epochs between two falls of ``step``, fractions allowed.
        patience: Validations without improvement that ``plateau`` waits for.
    """

    shape: Literal["cosine", "constant", "step", "plateau"] = "cosine"
    factor: float = 0.1
    every_epochs: float = 30.0
    patience: int = 5

    def __post_init__(self) -> None:
        if not 0 < self.factor < 1:
            raise InputError(f"schedule.factor is {self.factor:g}; expected between 0 and 1")
        if self.every_epochs <= 0 or self.patience < 1:
            raise InputError(
                f"schedule.every_epochs is {self.every_epochs:g} and .patience {self.patience}; expected above 0"
            )


def falls_on_plateaus(scores: Sequence[float], mode: Literal["max", "min"], patience: int) -> int:
    """How often the learning rate has fallen: each time ``patience`` scores in a row were no better than the best."""
    best, waited, falls = None, 0, 0
    for score in scores:
        if best is None or (score > best if mode == "max" else score < best):
            best, waited = score, 0
        else:
            waited += 1
        if waited == patience:
            falls, waited = falls + 1, 0
    return falls


class Stepwise(WarmupCosine):
    """Warmup, then a learning rate that stays or falls: a pure function of the step, for a plateau of the scores too.

    Args:
        schedule: The shape.
        monitor: Metric that a plateau is one of; one that validation reports.
        mode: ``max`` or ``min``: whether more or less of it is better.
        warmup_epochs: Epochs of the rise.
    """

    def __init__(
        self, schedule: Schedule, monitor: str, mode: Literal["max", "min"], warmup_epochs: float = 0.0
    ) -> None:
        super().__init__(warmup_epochs)
        self.schedule = schedule
        self.monitor = monitor
        self.mode = mode
        self.scores: list[float] = []
        self.steps_per_epoch = 1.0

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        self.steps_per_epoch = -(-int(trainer.num_training_batches) // trainer.accumulate_grad_batches)

    def factor(self, step: int) -> float:
        """Of the peak learning rate, for a step: during the warmup as for the cosine."""
        if step < self.warmup:
            return (step + 1) / (self.warmup + 1)
        falls = 0
        if self.schedule.shape == "step":
            falls = step // round(self.schedule.every_epochs * self.steps_per_epoch)
        elif self.schedule.shape == "plateau":
            falls = falls_on_plateaus(self.scores, self.mode, self.schedule.patience)
        return self.schedule.factor**falls

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self.schedule.shape == "plateau" and not trainer.sanity_checking:
            self.scores.append(float(trainer.callback_metrics[self.monitor]))

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "scores": self.scores}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self.scores = list(state_dict["scores"])


def build_schedule(options: Any) -> WarmupCosine:
    """The callback that sets the learning rate, of the options of ``fit``."""
    schedule = Schedule(**options.schedule.as_dict())
    if schedule.shape == "cosine":
        return WarmupCosine(**options.warmup_cosine.as_dict())
    checkpoints = options.checkpoints
    return Stepwise(schedule, checkpoints.monitor, checkpoints.mode, options.warmup_cosine.warmup_epochs)
