"""Two processes train and evaluate like one: pytest tests/test_ddp_training.py"""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from training import train, write_images
from two_processes_training import TRAINING, callbacks

HERE = Path(__file__).parent
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{HERE.parent}{os.pathsep}{HERE}", "COLUMNS": "200"}


def run(*arguments: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, **ENVIRONMENT, **environment},
        capture_output=True,
        text=True,
        timeout=240,
    )


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, subprocess.CompletedProcess[str]]:
    """The images, the folder and the end of two_processes_training.py."""
    folder = tmp_path_factory.mktemp("two")
    images = write_images(folder / "images", {"train": 29, "val": 7, "test": 4})
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")
    return images, folder, run(*launcher, HERE / "two_processes_training.py", images, folder, cwd=folder)


def test_two_processes_end_with_the_weights_of_one(two, tmp_path):
    """With accumulation, an uneven tail, clipping, a head that trains first, layer-wise rates and an average."""
    images, folder, result = two
    one = train(images, tmp_path, callbacks=callbacks(), **{**TRAINING, "max_batch": None})[0].state_dict()
    assert (folder / "two.pt").exists(), result.stderr[-3000:]
    other = torch.load(folder / "two.pt", weights_only=True)
    difference = max(float((tensor - other[name]).abs().max()) for name, tensor in one.items())
    print(f"largest difference {difference:.1e}")
    assert difference < 2e-5


def test_evaluation_counts_every_sample_once(two):
    assert json.loads((two[1] / "found.json").read_text())["evaluated"] == [pytest.approx(0.8), 5]


def test_a_split_smaller_than_the_processes_is_refused(two):
    refused = json.loads((two[1] / "found.json").read_text())["refused"]
    assert refused == "the val split has 1 samples for 2 processes; each needs at least one"


def test_synchronised_norms_are_off_on_a_cpu_with_a_message(two):
    assert "model.norm is sync, which torch does not have on a CPU" in two[2].stderr


def test_parameters_that_no_loss_reaches_are_named(two):
    assert two[2].returncode != 0
    assert "no gradient reached network.unused_head.weight, network.unused_head.bias" in two[2].stderr


def options(images: Path, folder: Path) -> tuple[str | Path, ...]:
    return (
        *("-m", "template", "fit", "--data.root", images, "--data.preprocessing.size", "8", "--model.width", "4"),
        *("--data.global_batch_size", "8", "--trainer.accelerator", "cpu", "--trainer.devices", "2"),
        *("--trainer.strategy", "ddp", "--trainer.max_epochs", "2", "--trainer.log_every_n_steps", "1"),
        *("--report", "false", "--run_dir", folder),
    )


@pytest.mark.slow  # 20 s
def test_two_processes_write_each_step_once_into_one_log_and_one_run_of_wandb(two, tmp_path):
    result = run(*options(two[0], tmp_path / "run"), cwd=tmp_path, WANDB_MODE="offline", WANDB_SILENT="true")
    assert result.returncode == 0, result.stderr[-3000:]
    assert result.stdout.splitlines()[-1] == str(tmp_path / "run")
    with (tmp_path / "run" / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["step"]) for row in rows if row["train/loss"]] == [1, 2, 3, 4, 5, 6, 7, 8]
    text = (tmp_path / "run" / "train.log").read_text()
    assert [text.count(f" step {step}/8 ") for step in (1, 2, 3, 5, 6, 7)] == [1] * 6
    assert len([*(tmp_path / "run").glob("wandb/offline-run-*")]) == 1
    assert "wandb sync" in text + result.stdout + result.stderr


@pytest.mark.slow  # 15 s, more where others work
def test_a_rank_that_fails_ends_the_run(two, tmp_path):
    images = write_images(tmp_path / "images", {"train": 24, "val": 4})
    damaged = images / "train" / "class0" / "000.png"
    damaged.write_bytes(damaged.read_bytes()[:60])  # one rank will read it in the first epoch
    result = run(*options(images, tmp_path / "run"), "--quick_check", "false", cwd=tmp_path)
    assert result.returncode != 0
    assert f"cannot read {damaged}" in result.stderr
