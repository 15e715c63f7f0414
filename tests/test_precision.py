"""Half precision, the loss scaler, compiled networks and clipping: pytest tests/test_precision.py"""

import logging
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import pytest
import torch
from lightning.pytorch.plugins.precision import MixedPrecision
from torch import nn
from torch.amp import GradScaler
from training import NoBatchStatistics, assert_same_state, train, write_images

from template.callbacks.checkpoints import WholeFileIO
from template.callbacks.loss_scale import LossScale
from template.model.criterion import IGNORED
from template.model.module import Classifier, load_classifier


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("images"), {"train": 29, "val": 7, "test": 4})


class Losses(L.Callback):
    """Types of the logits and losses of training steps."""

    def __init__(self) -> None:
        self.types: set[tuple[torch.dtype, torch.dtype]] = set()

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        def look(module: nn.Module, inputs: Any, output: Any) -> None:
            self.types.add((inputs[0].dtype, output["loss"].dtype))

        pl_module.criterion.register_forward_hook(look)


@pytest.mark.parametrize(("precision", "logits"), [("32-true", torch.float32), ("bf16-mixed", torch.bfloat16)])
def test_losses_are_float32_in_a_run_of_any_precision(images, tmp_path, precision, logits):
    losses = Losses()
    module = train(images, tmp_path, callbacks=(losses,), precision=precision, max_epochs=1)[0]
    assert losses.types == {(logits, torch.float32)}
    assert {parameter.dtype for parameter in module.parameters()} == {torch.float32}


def test_bf16_trains_to_nearly_the_weights_of_float32(images, tmp_path):
    options: dict[str, Any] = {"optimizer": "SGD", "model": {"learning_rate": 0.05}, "dropout": 0.0}
    full = train(images, tmp_path / "full", **options)[0]
    half = train(images, tmp_path / "half", precision="bf16-mixed", **options)[0]
    moved = difference(full, Classifier(full.class_names, seed=3, width=4))
    assert 0 < difference(full, half) < 0.02 < moved


def difference(one: Classifier, other: Classifier) -> float:
    pairs = zip(one.network.parameters(), other.network.parameters(), strict=True)
    return max(float((a - b).detach().abs().max()) for a, b in pairs)


class Overflow(L.Callback):
    """Multiplies the loss of some steps so that its scaled gradients overflow float16."""

    def __init__(self, *steps: int) -> None:
        self.steps = steps
        self.moved: list[bool] = []
        self.before: torch.Tensor | None = None

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if self.before is not None:
            self.moved.append(not torch.equal(self.before, pl_module.network.head.weight))
        self.before = pl_module.network.head.weight.detach().clone()

    def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
        if trainer.global_step in self.steps:
            pl_module.network.head.weight.grad[0, 0] = float("inf")


def scaled(scale: float = 2.0**8) -> list[Any]:
    """Lightning makes bf16 of 16-mixed on a CPU, unless it is given the scaler."""
    return [WholeFileIO(), MixedPrecision("16-mixed", "cpu", scaler=GradScaler("cpu", init_scale=scale))]


def test_steps_skipped_for_overflow_are_counted_and_logged_and_move_no_weight(images, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    scale, overflow = LossScale(), Overflow(2, 5, 6)
    _, trainer, _ = train(images, tmp_path, callbacks=(overflow, scale), plugins=scaled())
    assert scale.values() == {"train/skipped_steps": 3.0, "train/loss_scale": 2.0**5}
    assert [step for step, moved in enumerate(overflow.moved) if not moved] == [2, 5, 6]
    assert "skipped_steps 3  loss_scale 32" in caplog.text
    assert trainer.global_step == 12


def test_the_count_of_skipped_steps_resumes(images, tmp_path):
    def run(folder: Path, resume: Path | None = None, **options: Any) -> tuple[Any, Any, LossScale]:
        scale = LossScale()
        callbacks = (Overflow(2, 5, 6), scale)
        module, trainer, _ = train(images, folder, resume, callbacks=callbacks, plugins=scaled(), **options)
        return module, trainer, scale

    whole = run(tmp_path / "whole", keep=tmp_path / "kept")
    resumed = run(tmp_path / "resumed", sorted((tmp_path / "kept").iterdir())[0])
    assert_same_state(resumed[:2], whole[:2])
    assert resumed[2].values() == whole[2].values()


def test_without_a_scaler_nothing_is_counted(images, tmp_path):
    scale = LossScale()
    train(images, tmp_path, callbacks=(scale,), max_epochs=1)
    assert scale.values() == {}


class Norms(L.Callback):
    """Gradient norms that the optimizer steps were taken with."""

    def __init__(self) -> None:
        self.norms: list[float] = []

    def on_before_zero_grad(self, trainer: Any, pl_module: Any, optimizer: torch.optim.Optimizer) -> None:
        gradients = [p.grad for p in pl_module.parameters() if p.grad is not None]
        if gradients:
            self.norms.append(float(torch.nn.utils.get_total_norm(gradients)))


@pytest.mark.parametrize("max_batch", [None, 3])
def test_clipping_bounds_the_norm_of_a_whole_window_and_the_log_has_the_norm_before(
    images, tmp_path, max_batch, caplog
):
    caplog.set_level(logging.INFO)
    norms = Norms()
    own: tuple[L.Callback, ...] = (norms, NoBatchStatistics())
    options: dict[str, Any] = {"max_batch": max_batch, "dropout": 0.0, "gradient_clip_val": 0.01}
    train(images, tmp_path, callbacks=own, log_every_n_steps=1, max_epochs=1, **options)
    assert norms.norms[-1] == pytest.approx(0.01, rel=1e-3)
    logged = [float(part.split()[1]) for part in caplog.text.split("  ") if part.startswith("gradient_norm")]
    assert len(logged) == 4
    assert min(logged) > 0.02


def test_clipping_accumulated_batches_is_clipping_the_large_batch(images, tmp_path):
    def run(max_batch: int | None, clip: float) -> Classifier:
        options: dict[str, Any] = {"dropout": 0.0, "optimizer": "SGD", "model": {"learning_rate": 0.1}}
        own = (NoBatchStatistics(),)
        folder = tmp_path / f"{max_batch} {clip}"
        return train(images, folder, max_batch=max_batch, callbacks=own, gradient_clip_val=clip, **options)[0]

    assert difference(run(None, 0.05), run(3, 0.05)) < 2e-6 < difference(run(None, 0.05), run(None, 1.0))


@pytest.mark.slow  # compiles twice: about 40 s
def test_a_compiled_network_computes_the_same_and_its_checkpoint_is_that_of_a_plain_one(tmp_path):
    images = write_images(tmp_path / "images", {"train": 24, "val": 8})  # even batches: one graph each
    options: dict[str, Any] = {"optimizer": "SGD", "max_epochs": 1, "dropout": 0.0}
    plain = train(images, tmp_path / "plain", **options)[0]
    compiled = train(images, tmp_path / "compiled", model={"compile": True}, **options)[0]
    assert plain.state_dict().keys() == compiled.state_dict().keys()
    assert difference(plain, compiled) < 1e-5
    files = {kind: tmp_path / kind / "checkpoints" / "last.ckpt" for kind in ("plain", "compiled")}
    for kind, path in files.items():
        state = torch.load(path, weights_only=True)["state_dict"]
        assert not [name for name in state if "_orig_mod" in name], kind
        plain.load_state_dict(state)
        compiled.load_state_dict(state)
        load_classifier(path)


class IgnoreAll(L.Callback):
    """Makes every training target one that takes no part."""

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        batch["target"].fill_(IGNORED)


def test_steps_whose_targets_are_all_ignored_have_loss_0_move_nothing_and_warn(images, tmp_path, caplog):
    options: dict[str, Any] = {"optimizer": "SGD", "model": {"weight_decay": 0.0}, "max_epochs": 1}
    watched = Overflow()
    recorder = train(images, tmp_path, callbacks=(IgnoreAll(), watched), **options)[2]
    assert set(recorder.losses.values()) == {0.0}
    assert watched.moved == [False] * 3
    assert "every target since the last line is ignored (-100): the loss is 0" in caplog.text
