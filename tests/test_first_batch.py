"""Every fit says what its first batch is, and whether its loss is that of an untrained network."""

import logging
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from training import train, write_images

from template.callbacks.first_batch import FirstBatch, check_batch, describe, judge_initial_loss, known, untrained_loss
from template.cli import main
from template.errors import InputError
from template.model.module import Classifier

SHORT: dict[str, Any] = {"max_epochs": 1, "limit_val_batches": 0, "num_sanity_val_steps": 0}


def classifier(task="multiclass", classes=3, **options) -> Classifier:
    return Classifier([f"c{k}" for k in range(classes)], task=task, width=4, **options)


def test_the_report_tells_shapes_types_ranges_classes_and_the_loss_beside_its_expected_value(tmp_path, caplog):
    root = write_images(tmp_path / "data", {"train": 12, "val": 3, "test": 3})
    with caplog.at_level(logging.INFO, "template.callbacks.first_batch"):
        train(root, tmp_path / "run", callbacks=(FirstBatch(),), global_batch_size=4, **SHORT)
    first, loss = (record.getMessage() for record in caplog.records if "first_batch" in record.name)
    assert "image (4, 3, 8, 8) float32" in first
    counts = [int(word.split()[1]) for word in first.split("classes ")[1].split(", ")]
    assert "target (4,) int64, 0 to 2; classes class" in first
    assert sum(counts) == 4
    assert f"ln 3 = {math.log(3):.3f} expected" in loss
    assert float(loss.split()[2].rstrip(";")) == pytest.approx(math.log(3), abs=0.5)


def test_the_report_comes_once_in_a_run(tmp_path, caplog):
    root = write_images(tmp_path / "data", {"train": 12, "val": 3, "test": 3})
    with caplog.at_level(logging.INFO, "template.callbacks.first_batch"):
        train(root, tmp_path / "run", callbacks=(FirstBatch(),), global_batch_size=4, **{**SHORT, "max_epochs": 2})
    assert sum("first batch:" in record.getMessage() for record in caplog.records) == 1
    assert sum("initial loss" in record.getMessage() for record in caplog.records) == 1


def test_wrong_labels_of_the_index_stop_the_fit_before_a_step_and_before_a_run_folder(tmp_path, capsys, monkeypatch):
    from template.data import datamodule

    root = write_images(tmp_path / "data", {"train": 12, "val": 3, "test": 3})
    read = datamodule.read_source

    def from_one(*arguments):
        splits = read(*arguments)
        return {split: replace(index, targets=index.targets + 1) for split, index in splits.items()}

    monkeypatch.setattr(datamodule, "read_source", from_one)
    folder = tmp_path / "run"
    options = ["--data.root", str(root), "--run_dir", str(folder), "--wandb.mode", "disabled"]
    assert main(["fit", *options, "--model.width", "4", "--data.preprocessing.size", "8"]) == 1
    assert "train labels must be in [0, 2]; found 3 in 4 row(s), first train/class2/002.png" in capsys.readouterr().err
    assert not folder.exists()


def test_a_wrong_label_that_only_the_data_set_makes_is_refused_before_the_first_step():
    batch = {"image": torch.zeros(2, 3, 8, 8), "target": torch.tensor([1, 3]), "key": torch.tensor([[0, 5], [0, 9]])}
    with pytest.raises(InputError, match=r"targets must be in \[0, 2\]; found 3 in 1 row\(s\), first key \[0, 9\]"):
        check_batch(batch, classifier())


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        (torch.zeros(2, 8, 8, 3), r"\(2, 8, 8, 3\) float32; expected \(B, 3, H, W\) float"),
        (torch.zeros(2, 3, 8, 8, dtype=torch.uint8), "uint8; expected"),
        (torch.full((2, 3, 8, 8), math.nan), "NaN or infinity"),
        (torch.zeros(3, 3, 8, 8), "3 images and 2 targets"),
    ],
)
def test_images_that_a_network_cannot_have_are_refused(image, expected):
    with pytest.raises(InputError, match=expected):
        check_batch({"image": image, "target": torch.tensor([0, 1])}, classifier())


def test_the_expected_loss_follows_class_weights_smoothing_mixing_and_multi_label():
    assert untrained_loss(classifier(), torch.tensor([0, 1])) == pytest.approx(math.log(3))
    weighted = classifier(class_weights=[1.0, 4.0, 1.0], label_smoothing=0.1)
    assert untrained_loss(weighted, torch.tensor([1])) == pytest.approx((0.9 * 4 + 0.1 * 2) * math.log(3), rel=1e-5)
    assert untrained_loss(classifier(), torch.tensor([[0.5, 0.5, 0.0]])) == pytest.approx(math.log(3))
    many = classifier("multilabel")
    assert untrained_loss(many, torch.tensor([[1.0, 0.0, 1.0]])) == pytest.approx(math.log(2))
    assert known(math.log(2), many) == "ln 2 = 0.693 expected"


def test_an_initial_loss_is_judged_by_its_ratio_to_the_expected_one():
    assert judge_initial_loss(2.5, math.log(10)) is None
    assert "far above" in str(judge_initial_loss(20.0, math.log(10)))
    assert "far below" in str(judge_initial_loss(0.3, math.log(10)))
    assert "not finite" in str(judge_initial_loss(math.nan, math.log(10)))


def test_a_parameter_without_gradient_is_named_in_the_first_step(tmp_path, caplog):
    class Unused(FirstBatch):
        def on_fit_start(self, trainer, pl_module):
            super().on_fit_start(trainer, pl_module)
            pl_module.network.spare = torch.nn.Linear(2, 2)

    root = write_images(tmp_path / "data", {"train": 12, "val": 3, "test": 3})
    train(root, tmp_path / "run", callbacks=(Unused(),), **SHORT)
    assert "no gradient reached network.spare.weight, network.spare.bias" in caplog.text


def test_multi_label_counts_are_those_of_the_classes():
    target = torch.tensor([[1.0, 0.0], [1.0, 1.0]])
    text = describe({"image": torch.zeros(2, 3, 4, 4), "target": target}, ("cat", "dog"))
    assert text.endswith("target (2, 2) float32, 0 to 1; classes cat 2, dog 1")


def test_a_run_of_one_multi_label_row_keeps_its_shape(tmp_path, caplog, monkeypatch):
    from template.data import datamodule

    root = write_images(tmp_path / "data", {"train": 13, "val": 3, "test": 3})
    read = datamodule.read_source

    def many(*arguments):
        return {
            split: replace(index, targets=np.eye(3, dtype=np.uint8)[index.targets])
            for split, index in read(*arguments).items()
        }

    monkeypatch.setattr(datamodule, "read_source", many)
    options = ["--data.root", str(root), "--run_dir", str(tmp_path / "run"), "--wandb.mode", "disabled"]
    options += [
        "--model.width",
        "4",
        "--data.preprocessing.size",
        "8",
        "--trainer.max_epochs",
        "1",
        "--trainer.log_every_n_steps",
        "2",
    ]
    assert main(["fit", *options, "--model.task", "multilabel", "--data.global_batch_size", "4"]) == 0
    assert "initial loss" in (tmp_path / "run" / "train.log").read_text()
