"""Where a run is told of: the console, train.log, Weights & Biases, TensorBoard."""

import logging
import re
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import rich

from template.callbacks.progress import Bar
from template.callbacks.step_log import StepLog, readable
from template.cli import _Console, _Logging
from template.run_folder import sync_command, text_log, wandb_mode

STEP = re.compile(r"step (\d+)/8 epoch \d+  train  loss ")


def folder_of(out: str) -> Path:
    return Path(out.splitlines()[-1])


def test_train_log_has_each_logged_step_once_and_the_times_of_all_lines(command, small):
    _, out, _ = command("fit", *small, "--trainer.log_every_n_steps", "1")
    lines = (folder_of(out) / "train.log").read_text().splitlines()
    assert [int(found[1]) for line in lines if (found := STEP.search(line))] == list(range(1, 9))
    assert sum("val  loss" in line for line in lines) == 2
    assert sum("test  loss" in line for line in lines) == 1
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d (INFO|WARNING) ", line) for line in lines)


def test_train_log_has_warnings_and_what_lightning_says(tmp_path):
    with _Logging(), text_log(tmp_path / "train.log"), warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.getLogger("template.data").warning("3 files left out")
        logging.getLogger("lightning.pytorch.trainer").info("stopped")
        warnings.warn("a library's warning", UserWarning, stacklevel=1)
    text = (tmp_path / "train.log").read_text()
    assert "WARNING 3 files left out\n" in text
    assert "INFO stopped\n" in text
    assert "UserWarning: a library's warning" in text


def test_away_from_a_terminal_periodic_lines_come_at_most_every_five_seconds(monkeypatch, capsys):
    now = 100.0
    monkeypatch.setattr("template.cli.time.monotonic", lambda: now)
    monkeypatch.setattr(rich.get_console(), "_force_terminal", False)
    handler = _Console()
    for step in range(12):
        now += 1.0
        record = logging.LogRecord("template", logging.INFO, "", 0, f"step {step}", None, None)
        record.periodic = True
        handler.emit(record)
    assert capsys.readouterr().out.split("\n")[:-1] == ["step 0", "step 5", "step 10"]


def test_on_a_terminal_the_bar_stands_for_the_periodic_lines(monkeypatch, capsys):
    monkeypatch.setattr(rich.get_console(), "_force_terminal", True)
    record = logging.LogRecord("template", logging.INFO, "", 0, "step 1", None, None)
    record.periodic = True
    _Console().emit(record)
    assert "step 1" not in capsys.readouterr().out


def test_the_bar_shows_loss_rate_and_images_per_second():
    log = StepLog()
    values = {"train/loss": 0.12345, "train/learning_rate": 3e-4, "train/images_per_second": 1234.5, "val/loss": 1.0}
    log.latest.update(values)
    trainer: Any = SimpleNamespace(callbacks=[log])
    assert Bar().get_metrics(trainer, trainer) == {"loss": "0.1235", "lr": "0.0003", "images/s": "1,234"}
    assert readable("train/data_wait", 0.123) == "12%"


def test_a_command_leaves_the_loggers_as_they_were():
    loggers = [logging.getLogger(name) for name in ("template", "lightning.pytorch", "py.warnings")]
    before = [(list(logger.handlers), logger.level, logger.propagate) for logger in loggers]
    with _Logging():
        pass
    assert [(list(logger.handlers), logger.level, logger.propagate) for logger in loggers] == before


def test_tensorboard_writes_events_that_can_be_read(command, small):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    _, out, _ = command("fit", *small, "--tensorboard", "true", "--trainer.log_every_n_steps", "2")
    events = EventAccumulator(str(folder_of(out) / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("train/loss")] == [2, 4, 6, 8]
    assert [event.step for event in events.Scalars("val/accuracy")] == [4, 8]


def test_without_an_account_weights_and_biases_is_offline_and_never_asks(command, small, monkeypatch):
    monkeypatch.delenv("WANDB_MODE")
    monkeypatch.setattr("builtins.input", lambda *prompt: pytest.fail("a prompt"))
    status, out, errors = command("fit", *small)
    assert (status, errors) == (0, "")
    folder = folder_of(out)
    offline = list((folder / "wandb").glob("offline-run-*"))
    assert len(offline) == 1
    assert (folder / "wandb/id.txt").read_text().strip() in offline[0].name
    assert len(list(offline[0].glob("run-*.wandb"))) == 1
    assert f"to upload this run: wandb sync {offline[0]}\n" in out
    assert sync_command(folder) == f"wandb sync {offline[0]}"


def test_an_account_makes_it_online(monkeypatch):
    monkeypatch.delenv("WANDB_MODE")
    assert wandb_mode("auto") == "offline"
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    assert wandb_mode("auto") == "online"


def test_a_stored_login_makes_it_online_and_is_asked_for_without_a_prompt(monkeypatch):
    asked = []

    def login(**how):
        asked.append(how)
        return True

    monkeypatch.delenv("WANDB_MODE")
    monkeypatch.setattr("wandb.login", login)
    assert wandb_mode("auto") == "online"
    assert asked == [{"prompt": False, "verify": False}]


@pytest.mark.parametrize("mode", ["online", "offline", "disabled"])
def test_the_mode_can_be_set_in_the_environment_and_the_config_wins(monkeypatch, mode):
    monkeypatch.setenv("WANDB_MODE", mode)
    assert wandb_mode("auto") == mode
    assert wandb_mode("offline") == "offline"


def test_there_is_no_sync_command_without_an_offline_run(tmp_path):
    assert sync_command(tmp_path) is None
