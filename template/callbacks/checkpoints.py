"""Checkpoints: the last, the one before it and the best few, written whole and at moments that can be resumed.

Lightning's ModelCheckpoint writes ``last`` only when a best was saved too, stores a NaN as a best score, forgets the
best in a new folder and saves in the middle of things: on a batch whose validation then is skipped by the resume, or
inside an accumulation window, whose gradients are lost.
"""

import logging
import math
import os
import time
from pathlib import Path
from typing import Any, Literal

import lightning.pytorch as L
import torch
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO
from lightning.pytorch.trainer.states import TrainerFn

from template.errors import InputError

log = logging.getLogger(__name__)
LAST, PREVIOUS = "last.ckpt", "previous.ckpt"
_PARTIAL = "partial.tmp"


class Checkpoints(Checkpoint):
    """Keeps ``last.ckpt``, ``previous.ckpt`` and the best ``keep_best`` by a monitored metric.

    A file is written after each validation, at the end of an epoch without one, and every ``every_steps`` or
    ``every_minutes``: then after an optimizer step with no validation due, or as soon as there is such a moment. Best
    files are hard links, so that a validation costs one write.

    Args:
        folder: Where the files go; None is ``checkpoints`` in the Trainer's ``default_root_dir``.
        monitor: Metric that says which is best, such as ``val/accuracy``.
        mode: ``max`` or ``min``: whether more or less of it is better.
        keep_best: How many best files to keep.
        every_steps: Also save the last every so many optimizer steps.
        every_minutes: Also save the last every so many minutes.

    Attributes:
        best: (score, path) of the best files, best first.

    Raises:
        InputError: The monitored metric is not reported by the run, or a value is out of range.
    """

    def __init__(
        self,
        folder: Path | None = None,
        monitor: str = "val/accuracy",
        mode: Literal["max", "min"] = "max",
        keep_best: int = 1,
        every_steps: int | None = None,
        every_minutes: float | None = None,
    ) -> None:
        for name, value in (("keep_best", keep_best), ("every_steps", every_steps), ("every_minutes", every_minutes)):
            if value is not None and value <= 0:
                raise InputError(f"checkpoints.{name} is {value}; expected above 0")
        self.folder = folder
        self.monitor = monitor
        self.mode = mode
        self.keep_best = keep_best
        self.every_steps = every_steps
        self.every_minutes = every_minutes
        self.best: list[tuple[float, Path]] = []
        self._accumulation = 1
        self._due = False
        self._saved_step = -1
        self._saved_time = 0.0
        self._metrics: dict[str, float] = {}

    @property
    def best_model_path(self) -> str:
        """Path of the best file, or an empty string, as Lightning's own callback has it."""
        return str(self.best[0][1]) if self.best else ""

    @property
    def best_model_score(self) -> torch.Tensor | None:
        return torch.tensor(self.best[0][0]) if self.best else None

    def request(self) -> None:
        """Save the last checkpoint at the next moment that can be resumed."""
        self._due = True

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        if self.folder is None:
            self.folder = Path(trainer.default_root_dir) / "checkpoints"
        self.folder = Path(trainer.strategy.broadcast(str(self.folder)))

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._saved_time = time.monotonic()
        self._accumulation = trainer.accumulate_grad_batches

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: object, batch: object, batch_idx: int
    ) -> None:
        loop = trainer.fit_loop.epoch_loop
        if loop._should_accumulate():
            return
        if self.every_steps and trainer.global_step % self.every_steps == 0:
            self._due = True
        if self.every_minutes:
            elapsed = time.monotonic() - self._saved_time
            # ranks' clocks differ, and a save is a collective: rank 0 decides
            self._due |= bool(trainer.strategy.broadcast(elapsed >= 60 * self.every_minutes))
        last_batch = batch_idx + 1 == trainer.num_training_batches
        fetcher = trainer.fit_loop._data_fetcher
        if self._due and not last_batch and fetcher is not None and not loop._should_check_val_fx(fetcher):
            self._save(trainer, best=None)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.sanity_checking or trainer.state.fn != TrainerFn.FITTING:
            return
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        if self.monitor not in metrics:
            raise InputError(
                f"checkpoints.monitor is {self.monitor!r}, which is not among {', '.join(sorted(metrics))}"
            )
        self._metrics = {name: value for name, value in metrics.items() if name.startswith("val/")}
        self._save(trainer, best=metrics[self.monitor])
        self._metrics = {}

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self._saved_step != trainer.global_step:
            self._save(trainer, best=None)

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        checkpoint["metrics"] = self._metrics

    def state_dict(self) -> dict[str, Any]:
        assert self.folder is not None
        best = [[score, os.path.relpath(path, self.folder)] for score, path in self.best]
        return {"best": best, "accumulation": self._accumulation}

    def on_load_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        state = checkpoint["callbacks"].get(self.state_key)
        if trainer.state.fn != TrainerFn.FITTING or state is None or trainer.ckpt_path is None:
            return
        folder = Path(trainer.ckpt_path).parent
        self.best = [(score, folder / name) for score, name in state["best"] if (folder / name).exists()]
        self._saved_step = checkpoint["global_step"]
        _rescale(checkpoint["loops"]["fit_loop"], state["accumulation"], trainer.accumulate_grad_batches)

    def _save(self, trainer: L.Trainer, best: float | None) -> None:
        """Write the last checkpoint, and link it as a best one where its score is among the best."""
        assert self.folder is not None
        step = trainer.global_step
        linked, dropped = None, []
        if best is not None and not math.isfinite(best):
            log.warning(f"step {step}: {self.monitor} is {best}: not among the best checkpoints")
        elif best is not None:
            path = self.folder / f"step{step:07d}_{self.monitor.split('/')[-1]}{best:.4f}.ckpt"
            ranked = sorted([*self.best, (best, path)], key=lambda entry: entry[0], reverse=self.mode == "max")
            self.best, dropped = ranked[: self.keep_best], ranked[self.keep_best :]
            linked = path if (best, path) in self.best else None

        partial = self.folder / _PARTIAL
        trainer.save_checkpoint(partial, weights_only=False)
        if trainer.is_global_zero:
            self._put(partial, linked)
            for _, path in dropped:
                if path.parent == self.folder:
                    path.unlink(missing_ok=True)
        trainer.strategy.barrier("checkpoint")
        self._due, self._saved_step, self._saved_time = False, step, time.monotonic()

    def _put(self, partial: Path, best: Path | None) -> None:
        assert self.folder is not None
        if best is not None:
            link(partial, best)
        last = self.folder / LAST
        if last.exists():
            link(last, self.folder / PREVIOUS)
        os.replace(partial, last)


def _rescale(fit_loop: dict[str, Any], stored: int, now: int) -> None:
    """Count the epoch's batches in another accumulation: a checkpoint lies between windows, so nothing is lost.

    The last window of an epoch may be short; counting it as a whole one says all the same that the epoch is done.
    """
    for counts in fit_loop["epoch_loop.batch_progress"].values():
        if isinstance(counts, dict):
            counts.update({name: -(-count // stored) * now for name, count in counts.items()})


class WholeFileIO(TorchCheckpointIO):
    """Writes a checkpoint to disk before it gets its name, and lets no failure pass.

    Lightning's own swallows a PermissionError and holds a second copy of the file in memory.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any = None
    ) -> None:
        """Raises InputError, with the file that had the name before left as it was, when the write fails."""
        path = Path(path)
        partial = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with partial.open("wb") as file:
                torch.save(checkpoint, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
        except (OSError, RuntimeError) as error:  # torch wraps a full disk in a RuntimeError
            partial.unlink(missing_ok=True)
            raise InputError(
                f"cannot save the checkpoint {path}: {error}; free space or mend the permissions, then resume"
            ) from error


def link(source: Path, target: Path) -> None:
    """Give a file a second name, or where the file system has no hard links a copy, replacing what had that name."""
    import shutil

    partial = target.with_name(f".{target.name}")
    partial.unlink(missing_ok=True)
    try:
        os.link(source, partial)
    except OSError:
        shutil.copyfile(source, partial)
    os.replace(partial, target)
