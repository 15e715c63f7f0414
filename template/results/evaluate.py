"""Metrics of a checkpoint on a split of the data that it was trained with."""

from pathlib import Path
from typing import Any, Literal

import lightning.pytorch as L
import torch

from template.callbacks.checkpoints import LAST
from template.callbacks.step_log import stage_values
from template.data.datamodule import DataModule
from template.errors import InputError
from template.model.module import Classifier, load_classifier


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


def find_checkpoint(path: Path) -> Path:
    """The checkpoint itself, or the best one of a run folder, or its last where no best is left.

    Raises:
        InputError: There is none.
    """
    if path.is_file():
        return path
    last = path / "checkpoints" / LAST
    if not last.is_file():
        raise InputError(f"{path} is neither a checkpoint nor a run folder with {Path('checkpoints') / LAST}")
    callbacks = torch.load(last, map_location="cpu", weights_only=True)["callbacks"]
    best: list[tuple[float, str]] = next(
        (state["best"] for key, state in callbacks.items() if key.startswith("Checkpoints")), []
    )
    return next((file for _, name in best if (file := last.parent / name).is_file()), last)


def print_metrics(metrics: dict[str, Any]) -> None:
    """Print metrics as a table."""
    from rich import get_console
    from rich.table import Table

    table = Table("metric", "value")
    for name, value in metrics.items():
        table.add_row(name, f"{value:.4f}" if isinstance(value, float) else str(value))
    get_console().print(table)
