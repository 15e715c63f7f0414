"""A moving average of the weights, which validation, the test and every checkpoint's reader use."""

from dataclasses import dataclass
from typing import Any

import lightning.pytorch as L
from lightning.pytorch.callbacks import EMAWeightAveraging
from lightning.pytorch.trainer.states import TrainerFn

from template.errors import InputError


@dataclass
class Ema:
    """Exponential moving average of the weights.

    Attributes:
        decay: Share of the average that a step keeps, such as 0.999: it spans about 1 / (1 - decay) steps. None is off.
    """

    decay: float | None = None

    def __post_init__(self) -> None:
        if self.decay is not None and not 0 < self.decay < 1:
            raise InputError(f"ema.decay is {self.decay:g}; expected between 0 and 1, or null")


class MovingAverage(EMAWeightAveraging):
    """Lightning's, which puts the trained weights back when the best checkpoint is loaded for the test.

    In a checkpoint ``state_dict`` is the average, ``current_model_state`` what training continues from.
    """

    def __init__(self, decay: float) -> None:
        super().__init__(decay=decay)

    def on_load_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        if trainer.state.fn == TrainerFn.FITTING:
            super().on_load_checkpoint(trainer, pl_module, checkpoint)
