"""Shared by the tests: small images made on the spot, the command line called in-process, and no account in reach."""

from collections.abc import Callable
from pathlib import Path

import lightning.pytorch  # noqa: F401  its log keeps the stream that is there when it is imported
import numpy as np
import pytest
import torch
from PIL import Image

from template.cli import main

torch.set_num_threads(1)  # the tests' networks are tiny, and spinning threads take the cores from the others


@pytest.fixture(autouse=True)
def _no_account(monkeypatch, tmp_path):
    """No test may find a person's Weights & Biases account, or write a run that it did not ask for."""
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("WANDB_MODE", "disabled")


@pytest.fixture(scope="session")
def class_folders(tmp_path_factory) -> Path:
    """40 noisy images of 8 x 8 pixels in two class folders, dark/ and light/, to be read only."""
    root = tmp_path_factory.mktemp("class_folders")
    draws = np.random.default_rng(0)
    for name, level in {"dark": 60, "light": 190}.items():
        (root / name).mkdir()
        for i in range(20):
            pixels = np.clip(draws.normal(level, 20, (8, 8, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(root / name / f"{i:02d}.png")
    return root


@pytest.fixture
def small(class_folders) -> list[str]:
    """Options of a run of 2 epochs x 4 steps on those images, a second long."""
    return [
        *("--data.root", str(class_folders)),
        *("--data.preprocessing.size", "8"),
        *("--data.global_batch_size", "8"),
        *("--model.width", "4"),
        *("--trainer.max_epochs", "2"),
        *("--trainer.accelerator", "cpu"),
        *("--report", "false"),
    ]


@pytest.fixture
def command(monkeypatch, tmp_path, capfd) -> Callable[..., tuple[int, str, str]]:
    """Run ``python -m template ...`` in-process and in an empty folder: (exit status, standard output, errors)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str | Path) -> tuple[int, str, str]:
        capfd.readouterr()
        try:
            status = main([str(argument) for argument in arguments])
        except SystemExit as exit_:  # --help and --print_config
            status = int(exit_.code or 0)
        return status, *capfd.readouterr()

    return run
