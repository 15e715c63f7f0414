"""What the log says every few steps: losses, learning rate, speed, waiting for data, gradient norm, peak memory."""

import logging
import sys
import time

import lightning.pytorch as L
import torch

from template.callbacks.loss_scale import LossScale
from template.callbacks.nonfinite import gradient_norm
from template.model.module import Classifier
from template.model.totals import Totals

log = logging.getLogger(__name__)


class StepLog(L.Callback):
    """Sends training values to the loggers and the text log every ``log_every_n_steps`` steps, and at epochs' ends.

    Steps are numbered by the optimizer steps done. Between two lines values add up on the device, so only a step that
    is logged waits for it. ``train/loss`` and the like are means over the samples since the last line, on rank 0.

    Attributes:
        latest: The last values by name, for the progress bar and the guards.
        latest_step: Optimizer steps done when the last training values were logged.
    """

    def __init__(self) -> None:
        self.latest: dict[str, float] = {}
        self.latest_step = 0
        self._gradient_norm: torch.Tensor | None = None
        self._steps = 0
        self._total: int | float = 0
        self._images = 0
        self._since = self._mark = self._waited = 0.0

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._total = trainer.estimated_stepping_batches  # later it would be a collective call

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._restart_clock()

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: object, batch_idx: int
    ) -> None:
        if not self._mark:
            self._restart_clock()
        fetched = getattr(trainer.datamodule, "fetched", None) or time.perf_counter()  # type: ignore[attr-defined]
        self._waited += max(0.0, fetched - self._mark)

    def on_before_optimizer_step(
        self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        self._steps += 1
        if trainer.is_last_batch or (trainer.global_step + 1) % trainer.log_every_n_steps == 0:  # type: ignore[attr-defined]
            self._gradient_norm = gradient_norm(optimizer)  # before clipping

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: object,
        batch: dict[str, torch.Tensor],
        batch_idx: int,
    ) -> None:
        assert isinstance(pl_module, Classifier)
        self._mark = time.perf_counter()
        self._images += len(batch["image"])
        last = batch_idx + 1 == trainer.num_training_batches
        stepped = last or (batch_idx + 1) % trainer.accumulate_grad_batches == 0
        every: int = trainer.log_every_n_steps  # type: ignore[attr-defined]
        if stepped and (last or trainer.global_step % every == 0):
            values = self._step_values(trainer, pl_module.train_totals)
            if last:
                epoch = pl_module.train_totals.of_epoch(trainer)
                values |= {f"train/epoch_{name}": mean for name, mean in epoch.items()}
            self._restart_clock()
            self.latest_step = trainer.global_step
            self._log(trainer, values, periodic=True)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not trainer.sanity_checking:
            self._log(trainer, stage_values(trainer, "val"))
        self._restart_clock()

    def on_test_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._log(trainer, stage_values(trainer, "test"))

    def _step_values(self, trainer: L.Trainer, totals: Totals) -> dict[str, float]:
        means = {f"train/{name}": mean for name, mean in totals.since_line().items()}
        if means.get("train/loss") == means.get("train/accuracy") == 0.0:  # no answer is that sure and always wrong
            log.warning("every target since the last line is ignored (-100): the loss is 0 and nothing is learnt")
        elapsed = max(time.perf_counter() - self._since, 1e-9)
        values = {
            **means,
            "train/learning_rate": float(trainer.optimizers[0].param_groups[0]["lr"]),
            "train/images_per_second": self._images * trainer.world_size / elapsed,
            "train/data_wait": self._waited / elapsed,
            "train/step_seconds": elapsed / max(self._steps, 1),
        }
        if self._gradient_norm is not None:
            values["train/gradient_norm"] = float(self._gradient_norm)
        scale = next((c for c in trainer.callbacks if isinstance(c, LossScale)), None)  # type: ignore[attr-defined]
        return values | (scale.values() if scale else {}) | _peak_memory()

    def _log(self, trainer: L.Trainer, values: dict[str, float], periodic: bool = False) -> None:
        if not trainer.is_global_zero or not values:
            return
        self.latest.update(values)
        # Tests come after the last epoch, which Lightning counts as one more: say the one that was trained last.
        epoch = trainer.current_epoch - (not trainer.training and not trainer.validating)
        for logger in trainer.loggers:
            logger.log_metrics({"epoch": epoch, **values}, trainer.global_step)
        log.info(
            f"step {trainer.global_step}/{self._total or trainer.global_step} epoch {epoch}  " + sentence(values),
            extra={"periodic": periodic},
        )

    def _restart_clock(self) -> None:
        self._since = self._mark = time.perf_counter()
        self._waited, self._images, self._steps = 0.0, 0, 0


def _peak_memory() -> dict[str, float]:
    """Most memory that tensors took on the accelerator so far, or on a CPU the process; in GiB."""
    if torch.cuda.is_available():
        return {"train/peak_memory_gib": torch.cuda.max_memory_allocated() / 2**30}
    try:
        import resource
    except ImportError:  # Windows
        return {}
    unit = 1 if sys.platform == "darwin" else 2**10  # bytes of ru_maxrss
    return {"train/peak_memory_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30}


def sentence(values: dict[str, float]) -> str:
    """Values of one stage on one line: the stage, then each name without it."""
    stage = next(iter(values)).split("/")[0]
    return f"{stage}  " + "  ".join(
        f"{name.split('/', 1)[-1]} {readable(name, value)}" for name, value in values.items()
    )


def readable(name: str, value: float) -> str:
    """A value as a person reads it: shares in per cent, rates without decimals, the rest to four digits."""
    if name.endswith("data_wait"):
        return f"{value:.0%}"
    return f"{value:,.0f}" if name.endswith("images_per_second") else f"{value:.4g}"


def stage_values(trainer: L.Trainer, stage: str) -> dict[str, float]:
    """Metrics that a stage (``val``, ``test``) reported last, by name."""
    return {name: float(v) for name, v in trainer.callback_metrics.items() if name.startswith(f"{stage}/")}
