"""A signal stops a run at a step boundary, saved, and the resume ends in the same bits: pytest tests/test_signals.py"""

import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import pytest
from training import assert_same_state, train, write_images

from template.callbacks.checkpoints import LAST, Checkpoints
from template.callbacks.signals import Signals


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("images"), {"train": 29, "val": 7, "test": 4})


class Send(L.Callback):
    """Sends a signal to this process, and to its loader workers as a signal to the group would, at one moment."""

    def __init__(self, number: int, hook: str, at: int) -> None:
        self.number, self.at, self.calls = number, at, 0
        setattr(self, hook, self._send)

    def _send(self, *args: Any) -> None:
        self.calls += 1
        if self.calls == self.at:
            for child in multiprocessing.active_children():
                assert child.pid is not None
                os.kill(child.pid, self.number)
            os.kill(os.getpid(), self.number)


class LateSignals(Signals):
    """Signals that takes the run's own Checkpoints, which the tests' helper makes."""

    def __init__(self) -> None:
        pass

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        checkpoints = trainer.checkpoint_callback
        assert isinstance(checkpoints, Checkpoints)
        super().__init__(checkpoints)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("number", "hook", "at", "saved_step"),
    [
        (signal.SIGTERM, "on_train_batch_start", 6, 6),
        (signal.SIGINT, "on_before_zero_grad", 6, 6),
        (signal.SIGTERM, "on_train_batch_start", 8, 8),  # its validation is due: done first
        (signal.SIGTERM, "on_validation_batch_start", 3, 4),  # the first is the sanity check's, the second epoch 0's
        (signal.SIGTERM, "on_train_epoch_end", 3, 12),  # after the last step
    ],
    ids=["in a step", "Ctrl-C", "before a validation", "in a validation", "at the end"],
)
def test_a_signal_saves_exits_with_its_status_and_resumes_to_the_same_bits(
    images, tmp_path, workers, number, hook, at, saved_step
):
    whole = train(images, tmp_path / "whole", workers=workers)
    before = signal.getsignal(number)
    with pytest.raises(SystemExit) as exit_status:
        train(images, tmp_path / "cut", workers=workers, callbacks=(LateSignals(), Send(number, hook, at)))
    assert exit_status.value.code == 128 + number
    assert signal.getsignal(number) == before
    last = tmp_path / "cut" / "checkpoints" / LAST
    resumed = train(images, tmp_path / "cut", last, workers=workers)
    assert min(resumed[2].keys, default=12) == saved_step
    assert_same_state(resumed[:2], whole[:2])


def test_a_signal_in_the_sanity_check_leaves_nothing_to_resume(images, tmp_path):
    with pytest.raises(SystemExit) as exit_status:
        train(images, tmp_path, callbacks=(LateSignals(), Send(signal.SIGTERM, "on_validation_batch_start", 1)))
    assert exit_status.value.code == 143
    assert not (tmp_path / "checkpoints").exists()


def test_a_second_signal_ends_the_process_at_once(monkeypatch):
    sent = []
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append((pid, number)))
    monkeypatch.setattr(signal, "signal", lambda number, handler: sent.append((number, handler)))
    signals = Signals(Checkpoints())
    signals._receive(signal.SIGTERM, None)
    assert sent == []
    signals._receive(signal.SIGTERM, None)
    assert sent == [(signal.SIGTERM, signal.SIG_DFL), (os.getpid(), signal.SIGTERM)]
