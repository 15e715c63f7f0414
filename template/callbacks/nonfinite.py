"""The run stops at its first loss or gradient that is NaN or infinite, and says which step, which samples and why."""

import json
import logging
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import torch
from lightning.pytorch.utilities.types import STEP_OUTPUT
from torch import Tensor, nn

from template.callbacks.alert import alert
from template.callbacks.checkpoints import LAST, Checkpoints, link
from template.errors import InputError
from template.model.module import Classifier
from template.run_folder import write_whole

log = logging.getLogger(__name__)
STEP, BATCH, CHECKPOINT = "step.json", "batch.pt", "checkpoint.ckpt"
_LARGEST_BATCH = 64 * 2**20  # bytes of the batch's images that are still copied into the folder


@dataclass
class _Step:
    """One optimizer step and what is known of it; tensors stay on the device until a person has to read them."""

    number: int
    epoch: int
    batches: list[int] = field(default_factory=list)
    keys: list[Tensor] = field(default_factory=list)
    losses: list[Tensor] = field(default_factory=list)
    value: Tensor | None = None  # finite where the losses and the gradient's norm are: adding them up is the cheapest
    gradient_norm: Tensor | None = None
    learning_rate: float = math.nan


class NonFinite(L.Callback):
    """Stops all ranks at the first optimizer step whose loss or gradient is not finite.

    Whether a step was is kept on the device, copied to the host behind the step's work and read in the next step, or
    before a checkpoint or a validation; so nothing waits for the device, and nothing that is not finite is saved.
    Float16 gradients that overflow are left to the loss scaler until it cannot lower the scale any more.

    ``nonfinite_step<N>/`` in the run folder gets step.json, batch.pt where the batch is small, and checkpoint.ckpt, the
    last good one; ``python -m template replay`` explains it.

    Args:
        tolerance: Steps to skip, each reported, before the run stops. Above 0 every step waits for the device, because
            a step has to be known as bad before the weights change.
        check_weights: Also look at the weights after each step.

    Attributes:
        skipped: Steps skipped so far.

    Raises:
        InputError: A value is out of range, or a step was not finite: names the step and its folder.
    """

    def __init__(self, tolerance: int = 0, check_weights: bool = False) -> None:
        if tolerance < 0:
            raise InputError(f"nonfinite.tolerance is {tolerance}; expected 0 or more, in steps")
        self.tolerance = tolerance
        self.check_weights = check_weights
        self.skipped = 0
        self._step: _Step | None = None
        self._pending: tuple[_Step, _HostValue] | None = None
        self._values: list[_HostValue] = []
        self._before: dict[str, Tensor] = {}

    def state_dict(self) -> dict[str, Any]:
        return {"skipped": self.skipped}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.skipped = state_dict["skipped"]

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._step = self._pending = None
        self._values = [_HostValue(pl_module.device) for _ in range(2)]

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if self._step is None:
            self._step = _Step(trainer.global_step + 1, trainer.current_epoch)
            if self.tolerance:
                self._before = {name: tensor.clone() for name, tensor in _statistics(pl_module).items()}
                if isinstance(pl_module, Classifier):
                    pl_module.train_totals.settle()
        self._step.batches.append(batch_idx)
        if isinstance(batch, dict) and "key" in batch:
            self._step.keys.append(batch["key"])

    def on_before_backward(self, trainer: L.Trainer, pl_module: L.LightningModule, loss: Tensor) -> None:
        assert self._step is not None
        loss = loss.detach()
        self._step.value = loss if self._step.value is None else self._step.value + loss

    def on_before_optimizer_step(
        self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        step = self._step
        assert step is not None
        step.gradient_norm, step.learning_rate = gradient_norm(optimizer), float(optimizer.param_groups[0]["lr"])
        norm = step.gradient_norm
        scale = getattr(getattr(trainer.precision_plugin, "scaler", None), "_scale", None)
        if scale is not None:
            norm = norm.where(scale <= 1, 0.0)
        step.value = self._agreed(trainer, norm if step.value is None else step.value + norm)
        if not self.tolerance:
            self._settle(trainer, pl_module)  # the step before this one
        elif not math.isfinite(step.value):
            self._skip(pl_module, optimizer)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: STEP_OUTPUT, batch: Any, batch_idx: int
    ) -> None:
        step = self._step
        assert step is not None
        if isinstance(outputs, dict) and "loss" in outputs:
            step.losses.append(outputs["loss"])
        if trainer.global_step < step.number or step.value is None:  # inside an accumulation window
            return
        self._step = None
        if self.check_weights:
            parameters = [parameter.detach() for parameter in pl_module.parameters()]
            step.value = step.value + self._agreed(trainer, torch.nn.utils.get_total_norm(parameters))
        value = self._values[step.number % 2]
        value.send(step.value)
        self._pending = step, value
        if self.tolerance:
            self._settle(trainer, pl_module)

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._settle(trainer, pl_module)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._settle(trainer, pl_module)

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Lets no checkpoint be written after a step, or with weights, that are not finite."""
        self._settle(trainer, pl_module)
        bad = non_finite_names(checkpoint["state_dict"].items(), {name for name, _ in pl_module.named_parameters()})
        if bad:
            step = _Step(trainer.global_step, trainer.current_epoch)
            self._stop(trainer, pl_module, step, f"{', '.join(bad[:3])} of the weights became NaN or infinite")

    def _agreed(self, trainer: L.Trainer, value: Tensor) -> Tensor:
        """Finite where it is on all ranks: a reduction on the device, which the host does not wait for."""
        if trainer.world_size == 1:
            return value
        bad = trainer.strategy.reduce((~torch.isfinite(value)).float(), reduce_op="max")
        return bad.where(bad == 0, math.inf)

    def _skip(self, pl_module: L.LightningModule, optimizer: torch.optim.Optimizer) -> None:
        """Make the step change nothing: no gradients, and the running statistics and sums as they were."""
        optimizer.zero_grad(set_to_none=True)
        for name, tensor in _statistics(pl_module).items():
            tensor.copy_(self._before[name])
        if isinstance(pl_module, Classifier):
            pl_module.train_totals.pending.clear()  # all that is there is of this step

    def _settle(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Read what the last finished step left."""
        if self._pending is None:
            return
        (step, value), self._pending = self._pending, None
        if math.isfinite(value.read()):
            return
        what = "the loss or a gradient is NaN or infinite"
        if self.skipped >= self.tolerance:
            self._stop(trainer, pl_module, step, what)
        self.skipped += 1
        folder = self._write(trainer, pl_module, step, what)
        log.warning(f"step {step.number}: {what}: skipped, {self.skipped} of {self.tolerance} allowed; see {folder}")

    def _stop(self, trainer: L.Trainer, pl_module: L.LightningModule, step: _Step, what: str) -> None:
        folder = self._write(trainer, pl_module, step, what)
        text = f"step {step.number}: {what}"
        alert(trainer.loggers, "Not finite", text)
        raise InputError(f"{text}; see {folder}, explained by: python -m template replay {folder}")

    def _write(self, trainer: L.Trainer, pl_module: L.LightningModule, step: _Step, what: str) -> Path:
        folder = Path(trainer.strategy.broadcast(str(trainer.default_root_dir))) / f"nonfinite_step{step.number}"
        keys = [key for part in step.keys for key in part.tolist()]
        ranks: list[Any] = [None] * trainer.world_size
        if trainer.world_size > 1:
            torch.distributed.all_gather_object(ranks, (keys, [_plain(loss) for loss in step.losses]))
        else:
            ranks = [(keys, [_plain(loss) for loss in step.losses])]
        if trainer.is_global_zero and not trainer.fast_dev_run:  # type: ignore[attr-defined]
            folder.mkdir(parents=True, exist_ok=True)
            all_keys = [key for keys, _ in ranks for key in keys]
            summary = {
                "what": what,
                "step": step.number,
                "epoch": step.epoch,
                "batches": step.batches,
                "losses": [losses for _, losses in ranks],
                "gradient_norm": _plain(step.gradient_norm),
                "learning_rate": step.learning_rate,
                "weights_not_finite": non_finite_names(pl_module.named_parameters()),
                "last_good_checkpoint": _keep_checkpoint(trainer, folder),
                "keys": [keys for keys, _ in ranks],
                "paths": _paths(trainer, all_keys),
            }
            write_whole(folder / STEP, json.dumps(summary, indent=2, ensure_ascii=False) + "\n")
            _keep_batch(trainer, folder, all_keys)
        trainer.strategy.barrier("nonfinite")
        return folder


class _HostValue:
    """One number on its way from the device: ``send`` does not wait for the device, ``read`` does."""

    def __init__(self, device: torch.device) -> None:
        cuda = device.type == "cuda"
        self.host = torch.zeros((), pin_memory=cuda)
        self.view = self.host.numpy()
        self.event = torch.cuda.Event() if cuda else None

    def send(self, value: Tensor) -> None:
        self.host.copy_(value.reshape(()), non_blocking=self.event is not None)
        if self.event is not None:
            self.event.record()

    def read(self) -> float:
        if self.event is not None:
            self.event.synchronize()
        return float(self.view)


def gradient_norm(optimizer: torch.optim.Optimizer) -> Tensor:
    """Euclidean norm of all gradients together, on the device."""
    gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    if not gradients:
        return torch.zeros(())
    # What get_total_norm does for gradients of one device, without half of its time for sorting them by device.
    return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))


def non_finite_names(tensors: Iterable[tuple[str, Tensor]], weights: set[str] | None = None) -> list[str]:
    """Names of the tensors that hold NaN, or infinity if among ``weights`` (None: all): a mask may hold infinity."""
    bad = []
    for name, tensor in tensors:
        if isinstance(tensor, Tensor) and tensor.is_floating_point():
            wrong = torch.isnan(tensor) if weights is not None and name not in weights else ~torch.isfinite(tensor)
            if bool(wrong.any()):
                bad.append(name)
    return bad


def _statistics(module: L.LightningModule) -> dict[str, Tensor]:
    """Running statistics: what a forward pass changes by itself."""
    network: nn.Module = getattr(module, "network", module)
    return dict(network.named_buffers())


def _keep_checkpoint(trainer: L.Trainer, folder: Path) -> str | None:
    """Give the last good checkpoint a second name in the folder, and return the first; None if none was written yet."""
    checkpoints = next((c for c in trainer.callbacks if isinstance(c, Checkpoints)), None)  # type: ignore[attr-defined]
    if checkpoints is None or checkpoints.folder is None or not (checkpoints.folder / LAST).exists():
        return None
    link(checkpoints.folder / LAST, folder / CHECKPOINT)
    return str(checkpoints.folder / LAST)


def _paths(trainer: L.Trainer, keys: list[list[int]]) -> list[str]:
    splits = getattr(trainer.datamodule, "splits", None)  # type: ignore[attr-defined]
    return [] if splits is None else [splits["train"].paths[index] for _, index in keys]


def _keep_batch(trainer: L.Trainer, folder: Path, keys: list[list[int]]) -> None:
    """Read the samples again, as the loader made them, and store them where they are few."""
    dataset: Any = getattr(trainer.train_dataloader, "dataset", None)
    if not keys or not hasattr(dataset, "__getitems__"):
        return
    first = dataset.__getitems__([tuple(keys[0])])
    if first["image"].nbytes * len(keys) <= _LARGEST_BATCH:
        torch.save(dataset.__getitems__([tuple(key) for key in keys]), folder / BATCH)


def _plain(value: Tensor | None) -> float | str | None:
    """A number for JSON, which knows neither NaN nor infinity: those become words."""
    if value is None:
        return None
    number = float(value)
    return number if math.isfinite(number) else str(number)
