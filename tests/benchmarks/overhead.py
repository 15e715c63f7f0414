"""The Trainer loop with all of the template's logging and callbacks on: python tests/benchmarks/overhead.py (a minute)

A tiny network at two sizes of step, against a plain Lightning module that logs nothing and a bare loop: minimum of
alternating runs, because whatever else the machine does only adds time.
"""

import logging
import tempfile
import time
import warnings
from pathlib import Path

import lightning.pytorch as L
import numpy as np
import torch
from compare import Rows, alternate
from end_to_end import tiny
from torch import Tensor, nn
from torch.utils.data import DataLoader

from template.callbacks.checkpoints import Checkpoints
from template.callbacks.step_log import StepLog
from template.callbacks.warmup_cosine import WarmupCosine
from template.data.datamodule import DataModule
from template.data.index import Index
from template.data.packed import PackedStrings
from template.data.transforms import Preprocessing
from template.model import module as module_file
from template.model.module import Classifier
from template.run_folder import MetricsCsv

STEPS, BATCH = 150, 128


class Plain(L.LightningModule):
    """What a person writes who logs nothing."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.network = tiny(width)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        images, targets = batch
        return nn.functional.cross_entropy(self.network((images.float() / 255 - 0.286) / 0.353), targets)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters())


class Clock(L.Callback):
    """Seconds from the tenth step to the last."""

    def on_train_batch_end(self, trainer: L.Trainer, *_: object) -> None:
        if trainer.global_step == 10:
            self.start = time.perf_counter()
        if trainer.global_step == STEPS:
            self.seconds = time.perf_counter() - self.start


def train(module: L.LightningModule, data: object, callbacks: list[L.Callback], logger: object, folder: Path) -> float:
    clock = Clock()
    trainer = L.Trainer(
        max_epochs=1,
        accelerator="cpu",
        callbacks=[*callbacks, clock],
        logger=logger,  # type: ignore[arg-type]
        default_root_dir=folder,
        enable_checkpointing=bool(callbacks),
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        num_sanity_val_steps=0,
        limit_val_batches=0,
    )
    trainer.fit(module, data)
    return clock.seconds


def main() -> None:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    rows = Rows(f"Loop overhead, tiny network, batch {BATCH}, minimum of seven alternating runs")
    n = STEPS * BATCH
    pixels = np.random.default_rng(0).integers(0, 256, (n, 28, 28, 3), dtype=np.uint8)
    index = Index(
        Path(), PackedStrings(str(i) for i in range(n)), np.arange(n) % 10, tuple("0123456789"), pixels=pixels
    )
    images, targets = torch.from_numpy(pixels).permute(0, 3, 1, 2), torch.from_numpy(index.targets)
    batches = list(zip(images.split(BATCH), targets.split(BATCH), strict=True))
    for width in (4, 24):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)

            def full(width: int = width, folder: Path = folder) -> float:
                data = DataModule(folder, preprocessing=Preprocessing(size=28), global_batch_size=BATCH)
                data.splits = {"train": index, "val": index}
                build = module_file.build_network
                module_file.build_network = lambda *_: tiny(width)
                try:
                    module = Classifier(index.class_names, data.preprocessing)
                finally:
                    module_file.build_network = build
                callbacks = [StepLog(), WarmupCosine(), Checkpoints()]
                return train(module, data, callbacks, MetricsCsv(folder / "metrics.csv"), folder)

            def plain(width: int = width, folder: Path = folder) -> float:
                loader: DataLoader[object] = DataLoader(batches, batch_size=None)  # type: ignore[arg-type]
                return train(Plain(width), loader, [], False, folder)

            def bare(width: int = width) -> float:
                module = Plain(width)
                optimizer = module.configure_optimizers()
                for i, batch in enumerate(batches):
                    if i == 10:
                        start = time.perf_counter()
                    loss = module.training_step(batch, i)
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                return time.perf_counter() - start

            seconds = {
                name: min(runs) for name, runs in alternate({"bare": bare, "plain": plain, "full": full}).items()
            }
            step = 1000 * seconds["bare"] / (STEPS - 10)
            rows.at_most(f"{step:.1f} ms a step: template / plain Lightning", seconds["full"] / seconds["plain"], 1.15)
            rows.plain(f"{step:.1f} ms a step: template / bare loop", seconds["full"] / seconds["bare"])
            rows.plain(f"{step:.1f} ms a step: plain Lightning / bare loop", seconds["plain"] / seconds["bare"])
    rows.finish()


if __name__ == "__main__":
    main()
