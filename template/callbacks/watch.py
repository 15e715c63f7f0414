"""Trouble that a run's own numbers tell of: a loss at guessing, gradients, a starving device, a full disk."""

import logging
import math
import statistics
import time
from pathlib import Path
from typing import Any

import lightning.pytorch as L

from template.callbacks.alert import alert
from template.callbacks.checkpoints import LAST, Checkpoints
from template.callbacks.step_log import StepLog
from template.checks.labels import guessing_loss
from template.checks.speed import free_bytes
from template.model.module import Classifier

log = logging.getLogger(__name__)
_GUESSING_STEPS = 300  # after the warmup; slower starts than that exist, but not without a look at them
_DISK_SECONDS = 60.0


class Watch(L.Callback):
    """Looks at the values of each logged step and says in one line, once a run and kind, when they tell of trouble.

    It reads what ``StepLog`` has read already, so it costs the device nothing. It stands after ``StepLog``.

    Attributes:
        guessing: Loss of answers that do not look at the image.
        said: Kinds of trouble that were found.
    """

    def __init__(self) -> None:
        self.guessing = math.inf
        self.said: set[str] = set()
        self._seen_step = -1
        self._losses: list[tuple[int, float]] = []
        self._norms: list[float] = []
        self._waits: list[float] = []
        self._disk_looked = 0.0

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, Classifier)
        splits = getattr(trainer.datamodule, "splits", None)  # type: ignore[attr-defined]
        if splits is not None:
            train, settings = splits["train"], pl_module.settings
            self.guessing = guessing_loss(
                train.counts() / len(train), pl_module.task, settings["label_smoothing"], settings["class_weights"]
            )

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        step_log = next(c for c in trainer.callbacks if isinstance(c, StepLog))  # type: ignore[attr-defined]
        values, step = step_log.latest, step_log.latest_step
        if step == self._seen_step or not trainer.is_global_zero:
            return
        self._seen_step = step
        warmup = next((c.warmup for c in trainer.callbacks if hasattr(c, "warmup")), 0)  # type: ignore[attr-defined]
        if "train/loss" in values:
            self._losses = [*self._losses, (step, values["train/loss"])][-20:]
        if "train/gradient_norm" in values:
            self._norms.append(values["train/gradient_norm"])
        self._waits = [*self._waits, values.get("train/data_wait", 0.0)][-3:]
        workers = getattr(trainer.datamodule, "num_workers", 0)  # type: ignore[attr-defined]
        findings = {
            "loss": stuck(self._losses, self.guessing, warmup),
            "gradient": odd_gradient(self._norms, self._losses, self.guessing, trainer.gradient_clip_val is not None),
            "data": starving(self._waits, workers),
            "disk": self._disk(trainer),
        }
        for kind, text in findings.items():
            if text is not None and kind not in self.said:
                self.said.add(kind)
                log.warning(f"step {step}: {text}")
                alert(trainer.loggers, f"Trouble: {kind}", f"step {step}: {text}")

    def _disk(self, trainer: L.Trainer) -> str | None:
        if time.monotonic() - self._disk_looked < _DISK_SECONDS:
            return None
        self._disk_looked = time.monotonic()
        checkpoints = next((c for c in trainer.callbacks if isinstance(c, Checkpoints)), None)  # type: ignore[attr-defined]
        last = None if checkpoints is None or checkpoints.folder is None else checkpoints.folder / LAST
        size = last.stat().st_size if last is not None and last.exists() else 0
        folder = Path(trainer.default_root_dir)
        return filling(free_bytes(folder), size, folder)


def stuck(losses: list[tuple[int, float]], guessing: float, warmup: int) -> str | None:
    """A loss that after 300 steps has not left that of answers which do not look at the image.

    Args:
        losses: (step, mean loss since the line before) of the last logged steps.
        guessing: What :func:`guessing_loss` gives for the training labels.
        warmup: Steps of the warmup.
    """
    late = [(step, loss) for step, loss in losses if step > warmup + _GUESSING_STEPS / 2]
    if len(late) < 3 or late[-1][0] < warmup + _GUESSING_STEPS or not math.isfinite(guessing):
        return None
    mean = statistics.fmean(loss for _, loss in late[-3:])
    if mean < 0.98 * guessing:
        return None
    return (
        f"the loss is {mean:.3f}, and guessing by class frequency gives {guessing:.3f}: nothing is learned. Are labels "
        "right, does the gradient reach the network, is the learning rate far off? python -m template check looks"
    )


def odd_gradient(norms: list[float], losses: list[tuple[int, float]], guessing: float, clipped: bool) -> str | None:
    """A gradient that vanished while there is much to learn, or a hundred times its usual size and not clipped.

    Args:
        norms: Norms of all logged steps.
        losses: As :func:`stuck` has them.
        guessing: The same.
        clipped: Whether gradients are clipped.
    """
    if not norms or not losses:
        return None
    norm, usual = norms[-1], statistics.median(norms[-50:])
    far = losses[-1][1] > 0.5 * guessing
    if far and (norm < 1e-7 or (len(norms) >= 3 and norm < 1e-5 * statistics.median(norms[:10]))):
        return f"the gradient's norm is {norm:.1e} with a loss of {losses[-1][1]:.3f}: it vanishes; are units dead?"
    if not clipped and len(norms) >= 10 and norm > 100 * usual:
        return f"the gradient's norm is {norm:.1e}, usually {usual:.1e}: it explodes; set trainer.gradient_clip_val"
    return None


def starving(waits: list[float], workers: int) -> str | None:
    """Most of the time of three logged lines in a row spent waiting for data.

    Args:
        waits: Shares of the time, of the last lines.
        workers: ``data.num_workers``.
    """
    if len(waits) < 3 or min(waits[-3:]) < 0.5:
        return None
    share = statistics.fmean(waits[-3:])
    return f"{share:.0%} of the time is spent waiting for data with {workers} workers: raise data.num_workers"


def filling(free: int, checkpoint: int, folder: Path) -> str | None:
    """A disk that has not room for two more checkpoints and 100 MB of logs.

    Args:
        free: Bytes.
        checkpoint: Bytes of one.
        folder: Of the run.
    """
    if free > 2 * checkpoint + 100e6:
        return None
    return f"{free / 1e9:.2f} GB are left at {folder}, and a checkpoint takes {checkpoint / 1e9:.2f}: free some space"
