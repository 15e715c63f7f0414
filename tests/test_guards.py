"""Trouble that a run's own numbers tell of is said once, in one line with its step."""

import logging
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning.pytorch as L
import pytest
import torch
from lightning.pytorch.loggers import WandbLogger
from training import train, write_images

from template.callbacks import watch
from template.callbacks.alert import alert
from template.callbacks.step_log import StepLog
from template.callbacks.watch import Watch, filling, odd_gradient, starving, stuck

LN10 = math.log(10)


def losses(*values: float, start: int = 280, every: int = 20) -> list[tuple[int, float]]:
    return [(start + every * i, value) for i, value in enumerate(values)]


def test_a_loss_that_stays_at_guessing_after_three_hundred_steps_is_said():
    text = stuck(losses(2.31, 2.30, 2.30), LN10, warmup=0)
    assert text is not None
    assert "the loss is 2.303, and guessing by class frequency gives 2.303: nothing is learned" in text


def test_a_loss_that_moves_or_is_still_young_or_warming_up_is_not():
    assert stuck(losses(2.30, 2.20, 2.10), LN10, warmup=0) is None
    assert stuck(losses(2.31, 2.30, 2.30, start=100), LN10, warmup=0) is None
    assert stuck(losses(2.31, 2.30, 2.30), LN10, warmup=100) is None


def test_a_gradient_that_vanishes_with_much_to_learn_is_said_and_one_at_the_end_of_learning_is_not():
    assert "vanishes" in str(odd_gradient([1.0, 0.9, 0.0], losses(2.3), LN10, clipped=False))
    assert "vanishes" in str(odd_gradient([1.0, 0.9, 1e-6], losses(2.3), LN10, clipped=False))
    assert odd_gradient([1.0, 0.9, 1e-8], losses(0.01), LN10, clipped=False) is None


def test_a_gradient_a_hundred_times_its_usual_size_is_said_unless_it_is_clipped():
    norms = [1.0] * 10 + [150.0]
    assert "usually 1.0e+00: it explodes; set trainer.gradient_clip_val" in str(
        odd_gradient(norms, losses(2.3), LN10, False)
    )
    assert odd_gradient(norms, losses(2.3), LN10, clipped=True) is None
    assert odd_gradient([1.0] * 10 + [50.0], losses(2.3), LN10, clipped=False) is None


def test_three_lines_of_waiting_for_data_are_said_with_the_number_of_workers():
    assert str(starving([0.6, 0.7, 0.8], 2)).startswith("70% of the time is spent waiting for data with 2 workers")
    assert starving([0.9, 0.2, 0.9], 2) is None
    assert starving([0.9, 0.9], 2) is None


def test_a_disk_without_room_for_two_checkpoints_is_said():
    assert "0.30 GB are left at runs/a, and a checkpoint takes 0.20" in str(
        filling(300_000_000, 200_000_000, Path("runs/a"))
    )
    assert filling(10**10, 2 * 10**8, Path("runs/a")) is None


def run(tmp_path: Path, *callbacks: L.Callback, **options: Any) -> L.Trainer:
    root = write_images(tmp_path / "data", {"train": 24, "val": 3, "test": 3})
    _, trainer, _ = train(
        root,
        tmp_path / "run",
        callbacks=callbacks,
        **{"limit_val_batches": 0, "num_sanity_val_steps": 0, "log_every_n_steps": 1, **options},
    )
    return trainer


class Dead(L.Callback):
    """Makes every gradient zero."""

    def on_after_backward(self, trainer, pl_module):
        for parameter in pl_module.parameters():
            if parameter.grad is not None:
                parameter.grad.zero_()


def test_a_vanished_gradient_is_said_once_in_a_run_with_its_step(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "template.callbacks.watch"):
        run(tmp_path, Watch(), Dead())
    (record,) = [record for record in caplog.records if record.name == "template.callbacks.watch"]
    assert record.getMessage().startswith("step 1: the gradient's norm is 0.0e+00 with a loss of ")


def test_a_full_disk_is_said_in_a_run(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(watch, "free_bytes", lambda folder: 5_000_000)
    with caplog.at_level(logging.WARNING, "template.callbacks.watch"):
        run(tmp_path, Watch())
    assert "step 1: 0.01 GB are left at" in caplog.text


def test_a_frozen_run_is_said_to_guess(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(watch, "_GUESSING_STEPS", 4)
    with caplog.at_level(logging.WARNING, "template.callbacks.watch"):
        run(tmp_path, Watch(), Dead(), max_epochs=4, optimizer="SGD")
    assert "guessing by class frequency gives 1.099: nothing is learned" in caplog.text


def test_a_healthy_run_has_no_finding(tmp_path, caplog):
    guard = Watch()
    run(tmp_path, guard, max_epochs=2)
    assert guard.said - {"data"} == set()  # a loaded machine may be slow to read


def test_every_logged_step_has_its_time_gradient_norm_and_peak_memory(tmp_path):
    norms: list[float] = []

    class Norms(L.Callback):
        def on_before_optimizer_step(self, trainer, pl_module, optimizer):
            grads = [parameter.grad for parameter in pl_module.parameters() if parameter.grad is not None]
            norms.append(float(torch.cat([grad.flatten() for grad in grads]).norm()))

    trainer = run(tmp_path, Norms(), max_epochs=1, log_every_n_steps=50)
    latest = next(c for c in trainer.callbacks if isinstance(c, StepLog)).latest  # type: ignore[attr-defined]
    assert latest["train/gradient_norm"] == pytest.approx(norms[-1], rel=1e-5)
    assert latest["train/step_seconds"] > 0
    assert 0.05 < latest["train/peak_memory_gib"] < 1000


def test_an_alert_goes_to_an_account_that_is_online_and_to_no_other(monkeypatch):
    sent: list[tuple[str, str]] = []
    for mode, expected in (("offline", []), ("online", [("Trouble", "step 3: x")])):
        settings = SimpleNamespace(mode=mode)
        experiment = SimpleNamespace(settings=settings, alert=lambda title, text: sent.append((title, text)))
        monkeypatch.setattr(WandbLogger, "experiment", experiment)
        alert([WandbLogger.__new__(WandbLogger)], "Trouble", "step 3: x")
        assert sent == expected
