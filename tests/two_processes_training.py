"""Run by test_ddp_training.py under torchrun: what training and evaluation of two processes come to; rank 0 prints."""

import json
import sys
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import torch
from torch import Tensor, nn
from training import NoBatchStatistics, train, write_images

from template.callbacks.averaging import MovingAverage
from template.callbacks.fine_tuning import FineTuning
from template.callbacks.first_batch import FirstBatch
from template.data.datamodule import DataModule
from template.data.transforms import Preprocessing
from template.errors import InputError
from template.model.module import Classifier

TRAINING: dict[str, Any] = {
    "dropout": 0.0,
    "model": {"learning_rate": 0.01, "layer_decay": 0.5},
    "gradient_clip_val": 0.1,
    "max_batch": 2,
}


def callbacks() -> tuple[L.Callback, ...]:
    return NoBatchStatistics(), FineTuning(head_epochs=1), MovingAverage(0.8)


class AllButTheFirst(nn.Module):
    """Says class 1 of every image; only the first of the split is of class 0."""

    def forward(self, images: Tensor) -> Tensor:
        return nn.functional.one_hot(torch.ones(len(images), dtype=torch.long), 2).float()


class SecondHead(nn.Module):
    """A network with a head that no loss reaches."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.unused_head = nn.Linear(16, 2)

    def forward(self, images: Tensor) -> Tensor:
        return self.network(images)


class Unused(L.Callback):
    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        pl_module.network = SecondHead(pl_module.network)


def evaluated(folder: Path, val: dict[str, int]) -> tuple[float, int]:
    """Accuracy of :class:`AllButTheFirst` on the split, and the number of samples that it was counted over."""
    for name, n in {**val, "train/class0": 4, "train/class1": 4, "test/class0": 2, "test/class1": 2}.items():
        source = write_images(folder / "source", {"train": n}, classes=1)
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (source / "train" / "class0").rename(folder / name)
    data = DataModule(folder, preprocessing=Preprocessing(size=8), global_batch_size=4)
    module = Classifier(data.class_names, data.preprocessing, width=4)
    module.network = AllButTheFirst()
    quiet: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = L.Trainer(
        accelerator="cpu", devices=2, enable_checkpointing=False, use_distributed_sampler=False, **quiet
    )
    count = Count()
    trainer.callbacks.append(count)  # type: ignore[attr-defined]
    trainer.validate(module, data, verbose=False)
    return float(trainer.callback_metrics["val/accuracy"]), count.samples


class Count(L.Callback):
    """Samples that the loss of a validation was taken over, on all ranks."""

    samples = 0

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self.samples = int(trainer.strategy.reduce(pl_module.losses["val"].weight.clone(), reduce_op="sum"))


def main(images: Path, folder: Path) -> None:
    options = {**TRAINING, "devices": 2, "strategy": "ddp"}
    module, trainer, _ = train(images, folder / "two", callbacks=callbacks(), **options)
    rank = trainer.global_rank
    found: dict[str, Any] = {"evaluated": evaluated(folder / f"five{rank}", {"val/class0": 1, "val/class1": 4})}
    train(images, folder / "sync", model={"norm": "sync"}, max_epochs=1, devices=2, strategy="ddp")
    try:
        evaluated(folder / f"one{rank}", {"val/class1": 1})
    except InputError as error:
        found["refused"] = str(error)
    if rank == 0:
        torch.save(module.state_dict(), folder / "two.pt")
        (folder / "found.json").write_text(json.dumps(found))
    # last: DDP does not recover from it
    train(images, folder / "unused", callbacks=(Unused(), FirstBatch()), devices=2, strategy="ddp")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
