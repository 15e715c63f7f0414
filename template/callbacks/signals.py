"""SIGTERM, Ctrl-C and Slurm's warning: finish the step, save, leave with the status that says so."""

import logging
import os
import signal
import threading
from types import FrameType
from typing import Any

import lightning.pytorch as L

from template.callbacks.checkpoints import Checkpoints

log = logging.getLogger(__name__)
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class Signals(L.Callback):
    """Stops a run at a step boundary when a signal asks for it; a second signal ends the process at once.

    The handler only sets a flag. After the next optimizer step all ranks agree on it, the checkpoint is written (after
    the validation, where one is due on that step), and the run ends with status 128 + the signal's number: 143 for
    SIGTERM, 130 for SIGINT. In the sanity check, in a validation and in the final test nothing is written: the
    checkpoint before it stands, and a resume does that part again.

    Lightning's own handler, which this one replaces, saves nothing and communicates inside the handler.

    Args:
        checkpoints: Writes the checkpoint.
    """

    def __init__(self, checkpoints: Checkpoints) -> None:
        self.checkpoints = checkpoints
        self.received = 0
        self._stopping = False
        self._handlers: dict[int, Any] = {}

    def on_sanity_check_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._install()

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._install()

    def on_test_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._install()

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers = {}

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: object, batch: object, batch_idx: int
    ) -> None:
        if not trainer.fit_loop.epoch_loop._should_accumulate() and self._agreed(trainer):
            self._stopping = True
            self.checkpoints.request()

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: object, batch_idx: int
    ) -> None:
        if self._stopping:
            self._leave(trainer, f"saved at step {trainer.global_step}")

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self._stopping or self._agreed(trainer):
            self._leave(trainer, "training was complete and is saved")

    def on_validation_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: object,
        batch: object,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        self._on_evaluation_batch(trainer, trainer.val_dataloaders, batch_idx, "validation")

    def on_test_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: object,
        batch: object,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        self._on_evaluation_batch(trainer, trainer.test_dataloaders, batch_idx, "test")

    def _on_evaluation_batch(self, trainer: L.Trainer, loader: Any, batch_idx: int, stage: str) -> None:
        # Ranks may have one batch more or less than others: they can only agree on those that all have.
        common = getattr(getattr(loader, "batch_sampler", None), "common", 0)
        if self._stopping or (trainer.world_size > 1 and batch_idx >= common):
            return
        if self._agreed(trainer):
            self._leave(trainer, f"the {stage} was not finished and will be done again")

    def _agreed(self, trainer: L.Trainer) -> bool:
        """Whether any rank has received a signal; the answer is the same on all of them."""
        if trainer.world_size == 1:
            return self.received > 0
        return trainer.strategy.reduce_boolean_decision(self.received > 0, all=False)

    def _leave(self, trainer: L.Trainer, what: str) -> None:
        number = self.received or signal.SIGTERM
        if trainer.is_global_zero:
            log.warning(f"stopped by {signal.Signals(number).name}: {what}")
        # A child that leaves with a status of its own makes Lightning kill rank 0, perhaps before it has finished.
        raise SystemExit(128 + number if trainer.is_global_zero else 0)

    def _install(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return  # Python handles signals in the main thread only
        for number in SIGNALS:
            if (handler := signal.getsignal(number)) != self._receive:
                self._handlers[number] = handler
                signal.signal(number, self._receive)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.received:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self.received = number
