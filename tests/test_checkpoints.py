"""What is written, when, and what happens when it cannot be: pytest tests/test_checkpoints.py"""

import errno
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import pytest
import torch
from lightning.pytorch.callbacks import EMAWeightAveraging
from training import assert_same_state, train, write_images

from template.callbacks.checkpoints import LAST, Checkpoints
from template.callbacks.early_stopping import EarlyStop
from template.errors import InputError
from template.model.module import Classifier, load_classifier


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("images"), {"train": 29, "val": 7, "test": 4})


class Report(L.Callback):
    """Makes the monitored metric take the given values, one a validation."""

    def __init__(self, *values: float) -> None:
        self.values = list(values)

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not trainer.sanity_checking:
            value = self.values.pop(0)
            trainer.lightning_module._log_stage = lambda stage: pl_module.log("val/loss", value, logger=False)  # type: ignore[assignment]


def checkpoints_of(trainer: L.Trainer) -> Checkpoints:
    assert isinstance(trainer.checkpoint_callback, Checkpoints)
    return trainer.checkpoint_callback


def test_the_best_are_kept_by_score_and_the_rest_removed(images, tmp_path):
    _, trainer, _ = train(images, tmp_path, max_epochs=4, callbacks=(Report(0.5, 0.2, 0.9, 0.4),))
    assert [(score, path.name) for score, path in checkpoints_of(trainer).best] == [
        (pytest.approx(0.2), "step0000008_loss0.2000.ckpt"),
        (pytest.approx(0.4), "step0000016_loss0.4000.ckpt"),
    ]
    names = {path.name for path in (tmp_path / "checkpoints").iterdir()}
    assert names == {"last.ckpt", "previous.ckpt", "step0000008_loss0.2000.ckpt", "step0000016_loss0.4000.ckpt"}


def test_a_score_that_is_not_finite_is_never_a_best_one(images, tmp_path):
    nan = float("nan")
    _, trainer, _ = train(images, tmp_path, callbacks=(Report(nan, 0.7, 0.5),))
    assert [score for score, _ in checkpoints_of(trainer).best] == pytest.approx([0.5, 0.7])
    assert not list((tmp_path / "checkpoints").glob("*nan*"))
    _, trainer, _ = train(images, tmp_path / "never", callbacks=(Report(nan, nan, nan),))
    assert checkpoints_of(trainer).best == []


def test_a_resume_into_another_folder_keeps_the_best_score_and_its_path(images, tmp_path):
    train(images, tmp_path / "one", max_epochs=1, callbacks=(Report(0.2),))
    last = tmp_path / "one" / "checkpoints" / LAST
    _, trainer, _ = train(images, tmp_path / "two", last, max_epochs=2, callbacks=(Report(0.9),))
    score, path = checkpoints_of(trainer).best[0]
    assert score == pytest.approx(0.2)
    assert path == tmp_path / "one" / "checkpoints" / "step0000004_loss0.2000.ckpt"
    assert path.exists()
    stored = torch.load(tmp_path / "two" / "checkpoints" / LAST, weights_only=True)["callbacks"]["Checkpoints"]
    assert (tmp_path / "two" / "checkpoints" / stored["best"][0][1]).resolve() == path.resolve()


def test_each_checkpoint_holds_the_metrics_of_its_own_weights(images, tmp_path):
    train(images, tmp_path / "run", keep=tmp_path / "kept", every_steps=2)
    for path in (tmp_path / "kept").iterdir():
        metrics = torch.load(path, weights_only=True)["metrics"]
        assert bool(metrics) == path.name.endswith("validated.ckpt")
    best = min((tmp_path / "run" / "checkpoints").glob("step*"), key=lambda path: path.name.split("loss")[1])
    assert f"{torch.load(best, weights_only=True)['metrics']['val/loss']:.4f}" in best.name


@pytest.mark.parametrize("problem", [PermissionError(errno.EACCES, "denied"), OSError(errno.ENOSPC, "no space left")])
def test_a_failed_save_stops_the_run_and_leaves_the_file_before_it_whole(images, tmp_path, monkeypatch, problem):
    save, calls = torch.save, []

    def failing_save(value: Any, file: Any) -> None:
        calls.append(file)
        if len(calls) == 2:
            file.write(b"half")
            raise problem
        save(value, file)

    monkeypatch.setattr(torch, "save", failing_save)
    with pytest.raises(InputError, match=r"cannot save the checkpoint .* free space or mend the permissions"):
        train(images, tmp_path)
    assert torch.load(tmp_path / "checkpoints" / LAST, weights_only=True)["global_step"] == 4
    assert {path.suffix for path in (tmp_path / "checkpoints").iterdir()} == {".ckpt"}


def test_a_save_by_minutes_comes_at_the_first_moment_that_can_be_resumed(images, tmp_path):
    train(images, tmp_path / "run", keep=tmp_path / "kept", max_batch=3, callbacks=(Minutes(),), max_epochs=1)
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == [
        "0001_plain.ckpt",
        "0002_plain.ckpt",
        "0003_plain.ckpt",
        "0004_validated.ckpt",
    ]


class Minutes(L.Callback):
    """Sets the run's Checkpoints to save so often that each step is due."""

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        checkpoints_of(trainer).every_minutes = 1e-9


def test_ema_resumed_has_the_raw_and_the_averaged_weights_of_the_unbroken_run(images, tmp_path):
    whole = train(images, tmp_path / "whole", keep=tmp_path / "kept", every_steps=1, callbacks=(ema(),))
    raw = torch.load(tmp_path / "whole" / "checkpoints" / LAST, weights_only=True)
    assert any(not torch.equal(tensor, raw["current_model_state"][name]) for name, tensor in raw["state_dict"].items())
    for path in sorted((tmp_path / "kept").iterdir())[1::3]:
        resumed = train(images, tmp_path / path.stem, path, every_steps=1, callbacks=(ema(),))
        assert_same_state(resumed[:2], whole[:2])
        last = torch.load(tmp_path / path.stem / "checkpoints" / LAST, weights_only=True)
        for weights in ("state_dict", "current_model_state"):
            assert all(torch.equal(tensor, raw[weights][name]) for name, tensor in last[weights].items())


def ema() -> EMAWeightAveraging:
    return EMAWeightAveraging(decay=0.8)


@pytest.mark.parametrize("cut", ["0008", "0012"])
def test_early_stopping_is_not_forgotten_by_a_resume(images, tmp_path, cut):
    def stopping() -> EarlyStop:
        return EarlyStop("val/loss", "min", patience=2)

    values = (0.5, 0.6, 0.7, 0.1)
    keep = tmp_path / "kept"
    whole = train(images, tmp_path / "whole", keep=keep, max_epochs=9, callbacks=(Report(*values), stopping()))
    assert whole[1].global_step == 12
    left = values[int(cut) // 4 :]
    path = keep / f"{cut}_validated.ckpt"
    resumed = train(images, tmp_path / "cut", path, max_epochs=9, callbacks=(Report(*left), stopping()))
    assert resumed[1].global_step == 12
    assert_same_state(resumed[:2], whole[:2])


def test_weights_to_start_from_are_taken_by_name_and_shape_and_the_rest_is_told(images, tmp_path, caplog):
    caplog.set_level("INFO")
    trained, _, _ = train(images, tmp_path, max_epochs=1)
    last = tmp_path / "checkpoints" / LAST
    other = Classifier(("a", "b"), width=4, weights=last)
    assert torch.equal(other.network.features[0][0].weight, trained.network.features[0][0].weight)  # type: ignore
    assert "of another shape, left as initialised: head.weight [3, 16], head.bias [3]" in caplog.text
    with pytest.raises(InputError, match=r"nothing in .* fits the network"):
        Classifier(("a", "b"), network="resnet18", weights=last)


def test_a_checkpoint_rebuilds_the_classifier_with_nothing_else(images, tmp_path):
    trained, _, _ = train(images, tmp_path)
    loaded, _ = load_classifier(tmp_path / "checkpoints" / LAST)
    assert loaded.settings == {**trained.settings, "weights": None}
    assert (loaded.class_names, loaded.preprocessing) == (trained.class_names, trained.preprocessing)
    assert not loaded.training
    image = torch.rand(2, 3, 8, 8)
    assert torch.equal(loaded(image), trained.eval()(image))
