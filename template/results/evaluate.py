"""Metrics of a checkpoint on a split of the data that it was trained with."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import lightning.pytorch as L
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from template.callbacks.checkpoints import LAST
from template.callbacks.step_log import stage_values
from template.data.datamodule import DataModule, KeyedBatches
from template.data.dataset import Images
from template.data.sampler import EvalSampler
from template.errors import InputError
from template.model.module import Classifier, load_classifier
from template.resume import read_last


def evaluate(path: Path, split: Literal["val", "test"] = "test", root: Path | None = None) -> dict[str, float]:
    """Metrics of a checkpoint, or of a run's best one, by name.

    Args:
        path: A checkpoint, or a run folder.
        split: Which images.
        root: Where the data is now; None is where it was in training.

    Raises:
        InputError: The checkpoint or the data cannot be read, or their classes differ.
    """
    module, datamodule = load_with_data(path, root)
    trainer = L.Trainer(
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, devices=1
    )
    run = trainer.validate if split == "val" else trainer.test
    run(module, datamodule, verbose=False)
    return stage_values(trainer, split)


def load_with_data(path: Path, root: Path | None = None) -> tuple[Classifier, DataModule]:
    """The classifier of a checkpoint, or of a run's best one, and the data that it was trained with.

    Raises:
        InputError: The checkpoint or the data cannot be read, or their classes differ.
    """
    module, checkpoint = load_classifier(find_checkpoint(path))
    settings = checkpoint["template"]["data"]
    settings["root"] = Path(root or settings["root"])
    datamodule = DataModule(**settings, preprocessing=module.preprocessing)
    if datamodule.class_names != module.class_names:
        raise InputError(
            f"the data in {datamodule.root} has classes {', '.join(datamodule.class_names)}, and {path} was trained "
            f"on {', '.join(module.class_names)}"
        )
    return module, datamodule


@dataclass(frozen=True)
class Predictions:
    """A network's outputs for a split, in the order of its index.

    Attributes:
        split: Which split.
        targets: (N,) int64 class numbers, or (N, K) for multi-label.
        probabilities: (N, K) float32.
        losses: (N,) float32.
    """

    split: str
    targets: np.ndarray
    probabilities: np.ndarray
    losses: np.ndarray


def predict_split(module: Classifier, datamodule: DataModule, split: str, batch_size: int = 64) -> Predictions:
    """Every sample of a split once, in one process, with no Trainer: it may be called by one rank alone.

    Raises:
        InputError: There is no such split, or one of its images cannot be read.
    """
    if split not in datamodule.splits:
        raise InputError(f"the data in {datamodule.root} has no {split} split; it has {', '.join(datamodule.splits)}")
    index = datamodule.splits[split]
    loader = DataLoader(
        KeyedBatches(Images(index, module.preprocessing.sample), module.seed),
        batch_sampler=EvalSampler(len(index), batch_size),
        num_workers=datamodule.num_workers,
        collate_fn=_as_it_is,
    )
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else torch.device("cpu")
    module.eval().to(device)
    outputs: list[tuple[Tensor, Tensor, Tensor]] = []
    with torch.inference_mode():
        for batch in loader:
            logits = module(module.preprocessing.normalise(batch["image"].to(device))).float()
            target = batch["target"].to(device)
            losses = module.criterion(logits, target)["loss"]
            outputs.append((target.cpu(), module.probabilities(logits).cpu(), losses.cpu()))
    targets, probabilities, losses = (torch.cat(parts).numpy() for parts in zip(*outputs, strict=True))
    return Predictions(split, targets, probabilities, losses)


def _as_it_is(batch: Any) -> Any:
    return batch


def find_checkpoint(path: Path) -> Path:
    """The checkpoint itself, or the best one of a run folder, or its last where no best is left.

    Raises:
        InputError: There is none, or none that can be read.
    """
    if path.is_file():
        return path
    found = read_last(path)
    if found is None:
        raise InputError(f"{path} is neither a checkpoint nor a run folder with {Path('checkpoints') / LAST}")
    last, checkpoint = found
    states = (state["best"] for key, state in checkpoint["callbacks"].items() if key.startswith("Checkpoints"))
    best: list[tuple[float, str]] = next(states, [])
    return next((file for _, name in best if (file := last.parent / name).is_file()), last)


def print_metrics(metrics: dict[str, Any]) -> None:
    """Print metrics as a table."""
    from rich import get_console
    from rich.table import Table

    table = Table("metric", "value")
    for name, value in metrics.items():
        table.add_row(name, f"{value:.4f}" if isinstance(value, float) else str(value))
    get_console().print(table)
