"""Batch sizes, accumulation and the learning rate that follows from them: pytest tests/test_batches.py"""

import logging
import shutil
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from training import assert_same_state, train, write_images

from template.data.datamodule import DataModule
from template.data.sampler import TrainSampler, repeats
from template.errors import InputError
from template.model.module import Classifier
from template.randomness import balanced_order
from template.train import nearest_batches, set_batches


def derived(size: int, ranks: int, most: int | None) -> Any:
    trainer = SimpleNamespace(world_size=ranks, accumulate_grad_batches=1)
    set_batches(trainer, DataModule(Path("nowhere"), global_batch_size=size, max_batch_per_device=most))  # type: ignore[arg-type]
    return trainer.accumulate_grad_batches


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
@pytest.mark.parametrize("most", [None, 1, 2, 5])
def test_every_global_batch_is_cut_as_the_sampler_can_or_the_nearest_that_can_are_named(ranks, most):
    possible = []
    for size in range(1, 60):
        accumulation = DataModule(Path("nowhere"), global_batch_size=size, max_batch_per_device=most).accumulation(
            ranks
        )
        try:
            TrainSampler(1000, size, 0, ranks, accumulation=accumulation)
            possible.append(size)
        except InputError:
            pass
    for size in range(1, 40):
        if size in possible:
            assert nearest_batches(size, ranks, most) == [size]
            assert derived(size, ranks, most) * ranks * (most or size) >= size
        else:
            below, above = [n for n in possible if n < size], [n for n in possible if n > size]
            nearest = [*below[-1:], above[0]]
            with pytest.raises(InputError, match=f"can be cut: {' or '.join(map(str, nearest))}$"):
                derived(size, ranks, most)


def test_the_arithmetic_of_a_batch_is_logged(caplog):
    caplog.set_level(logging.INFO)
    derived(100, 2, 16)
    assert "global batch of 100 = 2 processes x 4 accumulated batches of up to 13" in caplog.text


@pytest.mark.parametrize(("balance", "shares"), [(0.0, (0.9, 0.09, 0.01)), (1.0, (1 / 3,) * 3), (0.5, None)])
def test_a_balanced_order_draws_classes_in_proportion_to_a_power_of_their_share(balance, shares):
    targets = np.repeat([0, 1, 2], [9000, 900, 100])
    order = balanced_order(targets, balance, seed=1, epoch=2)
    expected = np.array([9000, 900, 100]) ** (1 - balance)
    expected = expected / expected.sum()
    assert shares is None or expected == pytest.approx(shares)
    assert np.bincount(targets[order]) / len(targets) == pytest.approx(expected, abs=0.015)
    assert np.array_equal(order, balanced_order(targets, balance, seed=1, epoch=2))
    assert not np.array_equal(order, balanced_order(targets, balance, seed=1, epoch=3))


def test_repeats_count_how_often_an_index_was_there_before():
    assert repeats(np.array([3, 1, 3, 3, 1, 0])).tolist() == [0, 0, 1, 2, 1, 0]
    assert repeats(np.arange(5)).tolist() == [0] * 5


def test_a_balanced_run_resumes_to_the_same_bits_and_draws_repeated_samples_anew(tmp_path):
    images = write_images(tmp_path / "images", {"train": 16, "val": 6, "test": 4})
    for file in sorted((images / "train" / "class2").iterdir())[1:]:
        file.unlink()

    def run(folder: Path, resume: Path | None = None, **options: Any) -> Any:
        return train(images, folder, resume, data={"class_balance": 1.0}, every_steps=1, **options)

    whole = run(tmp_path / "whole", keep=tmp_path / "kept")
    keys = [tuple(key) for batch in whole[2].keys.values() for key in batch]
    assert len(keys) == len(set(keys)) == 3 * 12
    times = Counter(index for _, index in keys)
    assert times[11] > max(times[index] for index in range(11))  # the only one of its class
    for path in sorted((tmp_path / "kept").iterdir())[1:-1:2]:
        resumed = run(tmp_path / path.stem, path)
        assert_same_state(resumed[:2], whole[:2])


def test_fit_takes_balanced_class_weights_from_the_training_split(command, small, tmp_path, class_folders):
    shutil.copytree(class_folders, tmp_path / "data")
    for file in sorted((tmp_path / "data" / "dark").iterdir())[10:]:
        file.unlink()
    status, _, errors = command(
        *("fit", *small, "--data.root", tmp_path / "data", "--report", "false", "--run_dir", tmp_path / "run"),
        *("--model.class_weights", "balanced"),
    )
    assert status == 0, errors
    stored = torch.load(tmp_path / "run" / "checkpoints" / "last.ckpt", weights_only=True)["template"]["model"]
    assert stored["class_weights"] == pytest.approx([24 / (2 * 8), 24 / (2 * 16)])


@pytest.mark.parametrize(("rule", "rate", "text"), [("linear", 0.4, "512 / 128"), ("sqrt", 0.2, "sqrt(512 / 128)")])
def test_the_learning_rate_is_scaled_from_its_batch_size_and_the_log_shows_how(rule, rate, text, caplog):
    caplog.set_level(logging.INFO)
    module = Classifier(("a", "b"), width=4, learning_rate=0.1, base_batch_size=128, batch_scaling=rule)
    module.scale_learning_rate(512)
    assert [group["lr"] for group in module.configure_optimizers().param_groups] == pytest.approx([rate] * 2)
    assert f"learning rate 0.1 x {text} = {rate}" in caplog.text


def test_a_learning_rate_without_a_batch_size_is_taken_as_it_is(caplog):
    caplog.set_level(logging.INFO)
    module = Classifier(("a", "b"), width=4, learning_rate=0.1)
    module.scale_learning_rate(512)
    assert {group["lr"] for group in module.configure_optimizers().param_groups} == {0.1}
    assert "learning rate" not in caplog.text


def test_fit_scales_the_learning_rate_and_the_schedule_starts_from_it(command, small, tmp_path):
    status, _, errors = command(
        *("fit", *small, "--wandb.mode", "disabled", "--report", "false", "--run_dir", tmp_path / "run"),
        *("--model.learning_rate", "1e-3", "--model.base_batch_size", "2", "--trainer.log_every_n_steps", "1"),
    )
    assert status == 0, errors
    text = (tmp_path / "run" / "train.log").read_text()
    assert "step 1/8 epoch 0" in text
    assert "learning_rate 0.004" in text
