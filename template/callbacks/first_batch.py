"""What the first batch of a run looks like, and whether its loss is that of a network which knows nothing yet."""

import logging
import math
from typing import Any

import lightning.pytorch as L
import torch
from torch import Tensor

from template.checks.labels import check_labels, check_targets
from template.errors import InputError
from template.model.module import Classifier

log = logging.getLogger(__name__)
FACTOR = 1.5  # an untrained network's loss is within a fifth of its expected value; twice it has a cause


class FirstBatch(L.Callback):
    """Refuses label errors before the first step and prints shapes, types, ranges, classes and the initial loss.

    The report costs a few synchronisations with the device in the run's first step and nothing afterwards. It stands
    before ``StepLog``, which starts its sums again after each line.

    Raises:
        InputError: The index or the first batch holds labels or images that the task cannot have.
    """

    def __init__(self) -> None:
        self._expected: float | None = None

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, Classifier)
        self._expected = None
        splits = getattr(trainer.datamodule, "splits", None)  # type: ignore[attr-defined]
        if splits is not None:
            check_labels(splits, pl_module.task)

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: dict[str, Tensor], batch_idx: int
    ) -> None:
        assert isinstance(pl_module, Classifier)
        if self._expected is not None:
            return
        check_batch(batch, pl_module)
        self._expected = untrained_loss(pl_module, batch["target"])
        log.info(describe(batch, pl_module.class_names))

    def on_before_optimizer_step(
        self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        if trainer.global_step == 0 and (unused := without_gradient(pl_module)):
            log.warning(f"no gradient reached {listed(unused)} in the first step: not used, or detached")

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: dict[str, Tensor], batch_idx: int
    ) -> None:
        assert isinstance(pl_module, Classifier)
        totals = pl_module.train_totals
        if trainer.fit_loop.epoch_loop.total_batch_idx > 0 or self._expected is None or not totals.pending:
            return
        parts, _ = totals.pending[-1]
        loss = float(parts[totals.names.index("loss")].mean())
        finding = judge_initial_loss(loss, self._expected)
        text = f"initial loss {loss:.3f}; {known(self._expected, pl_module)}"
        if finding is None:
            log.info(text)
        else:
            log.warning(f"{text}: {finding}")


def check_batch(batch: dict[str, Tensor], module: Classifier) -> None:
    """Refuse a batch whose image or target the network and the criterion cannot have.

    Raises:
        InputError: Names what is wrong, and the keys of the samples.
    """
    image, target = batch["image"], batch["target"]
    if image.ndim != 4 or image.shape[1] != 3 or not image.is_floating_point():
        raise InputError(
            f"the first batch's image is {tuple(image.shape)} {_dtype(image)}; expected (B, 3, H, W) float"
        )
    if not bool(torch.isfinite(image).all()):
        raise InputError("the first batch's image holds NaN or infinity; look at preprocessing and augmentation")
    if len(target) != len(image):
        raise InputError(f"the first batch has {len(image)} images and {len(target)} targets")
    keys = batch["key"].tolist() if "key" in batch else range(len(target))
    mixed = module.task == "multiclass" and target.ndim == 2 and target.is_floating_point()
    names = [f"key {key}" for key in keys]
    check_targets(target.cpu().numpy(), len(module.class_names), module.task, names, "the first batch's targets", mixed)


def untrained_loss(module: Classifier, target: Tensor) -> float:
    """Mean loss of equal logits for every class: ln K, or ln 2 for multi-label, times the criterion's weights."""
    logits = torch.zeros(len(target), len(module.class_names), device=target.device)
    with torch.no_grad():
        return float(module.criterion(logits, target)["loss"].mean())


def known(expected: float, module: Classifier) -> str:
    """The expected initial loss in words, such as ``ln 10 = 2.303 expected``."""
    number = len(module.class_names) if module.task == "multiclass" else 2
    if math.isclose(expected, math.log(number), rel_tol=1e-3):
        return f"ln {number} = {expected:.3f} expected"
    return f"{expected:.3f} expected, ln {number} with this criterion's weights"


def judge_initial_loss(loss: float, expected: float) -> str | None:
    """What is wrong with an initial loss, or None."""
    if not math.isfinite(loss):
        return "the first loss is not finite; look at the criterion and the ranges above"
    if loss > FACTOR * expected:
        return "far above: the network's outputs start too large, or the labels of this batch are not what it expects"
    if loss < expected / FACTOR:
        return "far below: fine when training goes on from trained weights, else the target leaks into the input"
    return None


def describe(batch: dict[str, Tensor], class_names: tuple[str, ...]) -> str:
    """Shapes, types, ranges and class counts of a batch, on one line."""
    image, target = batch["image"], batch["target"]
    std, mean = torch.std_mean(image.float())
    counts = torch.bincount(target, minlength=len(class_names)) if target.ndim == 1 else target.sum(0)
    present = [(name, count) for name, count in zip(class_names, counts.tolist(), strict=True) if count]
    shown = ", ".join(f"{name} {count:.3g}" for name, count in present[:12])
    return (
        f"first batch: image {tuple(image.shape)} {_dtype(image)}, {float(image.min()):.2f} to "
        f"{float(image.max()):.2f}, mean {float(mean):.2f}, std {float(std):.2f}; target {tuple(target.shape)} "
        f"{_dtype(target)}, {float(target.min()):g} to {float(target.max()):g}; classes {shown}"
        + (f" and {len(present) - 12} more" if len(present) > 12 else "")
    )


def without_gradient(module: torch.nn.Module) -> list[str]:
    """Names of the parameters that are to be trained and have no gradient."""
    return [name for name, p in module.named_parameters() if p.requires_grad and p.grad is None]


def listed(names: list[str], most: int = 4) -> str:
    """The first names of a list, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
