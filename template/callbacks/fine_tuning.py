"""Fine-tuning: the head learns first, then all of the network; batch norms may stay as they were pretrained."""

import logging

import lightning.pytorch as L
import torch
from torch import nn

from template.errors import InputError
from template.model.module import Classifier
from template.model.network import head_name
from template.model.norms import freeze_norms

log = logging.getLogger(__name__)


class FineTuning(L.Callback):
    """Trains the head alone for some epochs, the other parts frozen and their batch norms in eval mode.

    What is frozen is a function of the epoch, so nothing is stored. All parameters are in the optimizer from the start;
    those without a gradient are left alone by it.

    Args:
        head_epochs: Epochs that only the head trains, before all of the network does; 0 trains it from the start.
        freeze_norms: Keep batch norms on their pretrained statistics for the whole run.

    Raises:
        InputError: A value is out of range.
    """

    def __init__(self, head_epochs: int = 0, freeze_norms: bool = False) -> None:
        if head_epochs < 0:
            raise InputError(f"fine_tuning.head_epochs is {head_epochs}; expected 0 or more")
        self.head_epochs = head_epochs
        self.freeze_norms = freeze_norms

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._apply(trainer, pl_module)

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._apply(trainer, pl_module)
        if self.head_epochs and trainer.current_epoch == self.head_epochs:
            log.info(f"epoch {trainer.current_epoch}: the whole network trains from here on")

    def on_before_optimizer_step(
        self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        if trainer.current_epoch < self.head_epochs:
            for parameter in _body(pl_module):
                parameter.grad = None

    def _apply(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, Classifier)
        frozen = trainer.current_epoch < self.head_epochs
        if trainer.world_size == 1:  # DDP knows only the parameters that had a gradient when it wrapped the network
            for parameter in _body(pl_module):
                parameter.requires_grad_(not frozen)
        if self.freeze_norms or frozen:
            freeze_norms(pl_module.network)
        elif self.head_epochs:
            pl_module.network.train()


def _body(module: L.LightningModule) -> list[nn.Parameter]:
    """Parameters of all but the head."""
    assert isinstance(module, Classifier)
    head = set(module.network.get_submodule(head_name(module.network)).parameters())
    return [parameter for parameter in module.network.parameters() if parameter not in head]
