"""What randomness and bookkeeping cost a step: python tests/benchmarks/bookkeeping.py (a minute or two)

The same training with the seeding of samples and steps, the keyed draws, the sums of the epoch, the checks for signals
and the moments of checkpoints, and with each of them replaced by nothing or by a plain generator; runs alternate.
"""

import logging
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import lightning.pytorch as L
import numpy as np
import torch
from compare import Rows, alternate, median_ratio

from template.callbacks.checkpoints import Checkpoints
from template.callbacks.signals import Signals
from template.data import datamodule as data_file
from template.data import transforms as transforms_file
from template.data.datamodule import DataModule
from template.data.index import Index
from template.data.packed import PackedStrings
from template.data.transforms import Augmentation, Preprocessing
from template.model import module as module_file
from template.model.module import Classifier
from template.model.totals import Totals

STEPS, BATCH, WIDTH = 200, 16, 6


class Clock(L.Callback):
    """Seconds from the twentieth step to the last."""

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *_: object) -> None:
        assert isinstance(pl_module, Classifier)
        if trainer.global_step == 20:
            self.start = time.perf_counter()
        if trainer.global_step == STEPS:
            pl_module.train_totals.settle()  # the steps' sums are made here, and are theirs
            self.seconds = time.perf_counter() - self.start


@contextmanager
def without() -> Iterator[None]:
    """Neither seeds nor keys nor sums."""
    nothing: Callable[..., None] = lambda *_: None  # noqa: E731

    def generator(seed: int, keys: torch.Tensor, draws: int, stream: int = 0) -> torch.Tensor:
        return torch.rand(len(keys), draws)

    with (
        patch.object(data_file, "seed_sample", nothing),
        patch.object(module_file, "seed_libraries", nothing),
        patch.object(transforms_file, "keyed_uniforms", generator),
        patch.object(Totals, "add", nothing),
    ):
        yield


def train(index: Index, workers: int, callbacks: Callable[[], list[Any]], folder: Path) -> float:
    data = DataModule(
        folder,
        preprocessing=Preprocessing(size=28),
        augmentation=Augmentation(crop_scale=0.6, flip=0.5, erase=0.2, brightness=0.2),
        global_batch_size=BATCH,
        num_workers=workers,
    )
    data.splits = {"train": index, "val": index}
    clock = Clock()
    trainer = L.Trainer(
        max_epochs=1,
        accelerator="cpu",
        callbacks=[*callbacks(), clock],
        logger=False,
        default_root_dir=folder,
        enable_checkpointing=bool(callbacks()),
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        num_sanity_val_steps=0,
        limit_val_batches=0,
    )
    trainer.fit(Classifier(index.class_names, data.preprocessing, width=WIDTH), data)
    return clock.seconds


def main() -> None:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    rows = Rows(f"Randomness and bookkeeping, batch {BATCH}, median of nine alternating runs")
    n = STEPS * BATCH
    pixels = np.random.default_rng(0).integers(0, 256, (n, 28, 28, 3), dtype=np.uint8)
    paths = PackedStrings(str(i) for i in range(n))
    index = Index(Path(), paths, np.arange(n) % 10, tuple("0123456789"), pixels=pixels)

    def ours() -> list[Any]:
        checkpoints = Checkpoints()
        return [Signals(checkpoints), checkpoints]

    for workers in (2, 0):
        with tempfile.TemporaryDirectory() as name:

            def with_all(workers: int = workers, folder: Path = Path(name)) -> float:
                return train(index, workers, ours, folder)

            def with_none(workers: int = workers, folder: Path = Path(name)) -> float:
                with without():
                    return train(index, workers, list, folder)

            seconds = alternate({"with": with_all, "without": with_none}, rounds=9)
            step = 1000 * sorted(seconds["without"])[4] / (STEPS - 20)
            text = f"{step:.1f} ms a step, {workers} workers: with / without"
            ratio = median_ratio(seconds["with"], seconds["without"])
            if workers:
                rows.at_most(text, ratio, 1.03)
            else:
                rows.plain(text, ratio)
    rows.finish()


if __name__ == "__main__":
    main()
