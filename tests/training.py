"""What the tests of training share: a tiny data set on disk, and one function that trains on it."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import lightning.pytorch as L
import numpy as np
import torch
from PIL import Image
from torch import nn

from template.callbacks.checkpoints import LAST, Checkpoints, WholeFileIO
from template.callbacks.step_log import StepLog
from template.callbacks.warmup_cosine import WarmupCosine
from template.data.datamodule import DataModule
from template.data.transforms import Augmentation, Preprocessing
from template.model.module import Classifier

AUGMENTED = Augmentation(crop_scale=0.5, shift=1, flip=0.5, erase=0.5, brightness=0.2)


def write_images(root: Path, sizes: dict[str, int], classes: int = 3, side: int = 8, seed: int = 0) -> Path:
    """Noise images whose brightness tells the class, as PNG class folders: ``sizes`` images in each split."""
    rng = np.random.default_rng(seed)
    for split, n in sizes.items():
        for i in range(n):
            folder = root / split / f"class{i % classes}"
            folder.mkdir(parents=True, exist_ok=True)
            pixels = rng.integers(0, 96, (side, side, 3)) + 60 * (i % classes)
            Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{i:03d}.png")
    return root


class KeepAll(L.Callback):
    """Copies each last.ckpt that is written, by the step it was written at."""

    def __init__(self, folder: Path, checkpoints: Checkpoints) -> None:
        self.folder = folder
        self.checkpoints = checkpoints
        put = checkpoints._put

        def put_and_copy(partial: Path, best: Path | None) -> None:
            put(partial, best)
            assert checkpoints.folder is not None
            step = torch.load(checkpoints.folder / LAST, weights_only=True)["global_step"]
            moment = "validated" if checkpoints._metrics else "plain"
            shutil.copy(checkpoints.folder / LAST, folder / f"{step:04d}_{moment}.ckpt")

        checkpoints._put = put_and_copy  # type: ignore[method-assign]


class Recorder(L.Callback):
    """Remembers the keys and the loss of every training batch, by the number of the batch in the run."""

    def __init__(self) -> None:
        self.keys: dict[int, list[list[int]]] = {}
        self.losses: dict[int, float] = {}

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        number = trainer.fit_loop.epoch_loop.total_batch_idx
        self.keys[number] = batch["key"].tolist()
        self.losses[number] = float(outputs["loss"])


class NoBatchStatistics(L.Callback):
    """Replaces BatchNorm, whose statistics are those of the piece, by nothing."""

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        for name, module in list(pl_module.named_modules()):
            if isinstance(module, nn.BatchNorm2d):
                pl_module.set_submodule(name, nn.Identity())


def train(
    root: Path,
    folder: Path,
    resume: Path | None = None,
    keep: Path | None = None,
    workers: int = 0,
    max_batch: int | None = None,
    callbacks: tuple[L.Callback, ...] = (),
    optimizer: str = "AdamW",
    augmentation: Augmentation = AUGMENTED,
    every_steps: int | None = None,
    global_batch_size: int = 8,
    dropout: float = 0.3,
    seed: int = 3,
    schedule: WarmupCosine | None = None,
    model: Mapping[str, Any] = MappingProxyType({}),
    data: Mapping[str, Any] = MappingProxyType({}),
    **trainer_options: Any,
) -> tuple[Classifier, L.Trainer, Recorder]:
    """Train the small network on the images of ``root`` and return it with what happened."""
    L.seed_everything(seed, verbose=False)
    datamodule = DataModule(
        root,
        preprocessing=Preprocessing(size=8),
        augmentation=augmentation,
        global_batch_size=global_batch_size,
        max_batch_per_device=max_batch,
        num_workers=workers,
        seed=seed,
        **data,
    )
    module = Classifier(
        datamodule.class_names,
        datamodule.preprocessing,
        datamodule.settings(),
        seed,
        **{"width": 4, "dropout": dropout, "optimizer": optimizer, **model},
    )
    checkpoints = Checkpoints(folder / "checkpoints", "val/loss", "min", keep_best=2, every_steps=every_steps)
    recorder = Recorder()
    own: list[L.Callback] = [StepLog(), schedule or WarmupCosine(0.5), checkpoints, recorder, *callbacks]
    if keep is not None:
        keep.mkdir(exist_ok=True)
        own.append(KeepAll(keep, checkpoints))
    trainer = L.Trainer(
        **{
            "max_epochs": 3,
            "accelerator": "cpu",
            "logger": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "log_every_n_steps": 2,
            "default_root_dir": folder,
            "use_distributed_sampler": False,
            "accumulate_grad_batches": datamodule.accumulation(),
            "plugins": [WholeFileIO()],
            **trainer_options,
        },
        callbacks=own,
    )
    trainer.fit(module, datamodule, ckpt_path=resume)
    return module, trainer, recorder


def assert_same_state(one: tuple[Classifier, L.Trainer], other: tuple[Classifier, L.Trainer]) -> None:
    """Every weight, buffer and optimizer tensor has the same bits."""
    for name, tensor in one[0].state_dict().items():
        assert torch.equal(tensor, other[0].state_dict()[name]), name
    states = [trainer.optimizers[0].state_dict() for _, trainer in (one, other)]
    assert states[0]["param_groups"] == states[1]["param_groups"]
    assert states[0]["state"].keys() == states[1]["state"].keys()
    for number, state in states[0]["state"].items():
        for name, tensor in state.items():
            assert torch.equal(torch.as_tensor(tensor), torch.as_tensor(states[1]["state"][number][name])), name
