"""A small finished run, trained once a test session: coloured noise in three classes with awkward names."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from template.cli import main

CLASSES = ("2", "10", "猫 1")
ARGUMENTS = [
    *("--wandb.mode", "disabled", "--seed", "3", "--trainer.max_epochs", "8", "--trainer.log_every_n_steps", "2"),
    *("--trainer.accelerator", "cpu", "--data.global_batch_size", "8", "--data.preprocessing.size", "16"),
    *("--data.preprocessing.resize", "18", "--data.preprocessing.mean", "[0.3,0.3,0.3]"),
    *(
        "--data.preprocessing.std",
        "[0.2,0.2,0.2]",
        "--model.width",
        "4",
        "--model.learning_rate",
        "0.01",
        "--checkpoints.keep_best",
        "1",
    ),
]


def write_images(root: Path) -> None:
    """Write 48 train, 20 val and 20 test images, each of its own size, alike enough that some are mistaken."""
    random = np.random.default_rng(0)
    for split, count in (("train", 48), ("val", 20), ("test", 20)):
        for row in range(count):
            number = row % 3
            folder = root / split / CLASSES[number]
            folder.mkdir(parents=True, exist_ok=True)
            shape = (int(random.integers(18, 30)), int(random.integers(18, 30)), 3)
            pixels = random.integers(0, 200, shape)
            pixels[..., number] += int(random.integers(10, 55))
            Image.fromarray(pixels.astype(np.uint8)).save(folder / f"ñ{row}.png")


@cache
def _train(base: Path) -> Path:
    write_images(base / "données")
    status = main(["fit", "--data.root", str(base / "données"), *ARGUMENTS, "--run_dir", str(base / "run")])
    assert status == 0
    return base / "run"


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run's folder; its data is in ``données`` beside it."""
    return _train(tmp_path_factory.getbasetemp() / "finished")
