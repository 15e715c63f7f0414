"""What a run leaves behind, and how its files are written."""

import csv
import datetime
import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml

from template.errors import InputError
from template.run_folder import MetricsCsv, choose_folder, text_log, write_whole


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def run(command, small) -> tuple[Path, str]:
    """The folder of a finished run and what the command printed."""
    status, out, errors = command("fit", *small, "--trainer.log_every_n_steps", "2")
    assert (status, errors) == (0, "")
    return Path(out.splitlines()[-1]), out


def test_a_run_leaves_its_files_and_its_path_is_the_last_line(run):
    folder, out = run
    assert folder.parent == Path("runs/unnamed")
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert {"config.yaml", "train.log", "metrics.csv", "metrics.json", "checkpoints/last.ckpt"} <= names
    assert len(list(folder.glob("checkpoints/step*_accuracy*.ckpt"))) == 1
    assert out.endswith(f"\n{folder}\n")


def test_no_half_written_file_is_left(run):
    assert [path for path in run[0].rglob("*") if "partial" in path.name or "tmp" in path.name] == []


def test_metrics_json_has_the_final_values_of_the_best_checkpoint(run):
    folder, out = run
    final = json.loads((folder / "metrics.json").read_text())
    best = folder / "checkpoints" / final["best_checkpoint"]
    assert torch.load(best, weights_only=True)["metrics"]["val/accuracy"] == final["val/accuracy"]
    assert final["steps"] == 8
    assert {"test/loss", "test/accuracy"} <= set(final)
    assert f"{final['test/loss']:.4f}" in out, "the table shows it too"


def test_metrics_csv_has_one_header_and_each_logged_step_once(run):
    lines = (run[0] / "metrics.csv").read_text().splitlines()
    assert [line for line in lines if line.startswith("step,")] == lines[:1]
    rows = read_csv(run[0] / "metrics.csv")
    assert [row["step"] for row in rows] == ["2", "4", "6", "8"]
    assert [bool(row["val/accuracy"]) for row in rows] == [False, True, False, True]
    assert all(row["train/loss"] for row in rows)


def test_config_yaml_is_complete_and_opens_with_the_command(run):
    text = (run[0] / "config.yaml").read_text()
    assert text.startswith("# python -m template fit --data.root ")
    config = yaml.safe_load(text)
    assert set(config) >= {"seed", "trainer", "data", "model", "warmup_cosine", "checkpoints", "wandb"}
    assert "run_dir" not in config
    assert config["data"]["augmentation"]["flip"] == 0.0, "defaults are there too"


def test_folders_of_one_second_are_numbered(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    class Noon(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(2026, 1, 2, 12, 0, 0)

    monkeypatch.setattr("template.run_folder.datetime", SimpleNamespace(datetime=Noon))
    names = []
    for _ in range(3):
        folder = choose_folder("digits", None)
        folder.mkdir(parents=True)
        names.append(str(folder))
    assert names == [f"runs/digits/2026-01-02_12-00-00{number}" for number in ("", "_2", "_3")]


def test_a_run_dir_may_be_empty_but_not_in_use(tmp_path):
    assert choose_folder("digits", tmp_path / "new") == tmp_path / "new"
    (tmp_path / "empty").mkdir()
    assert choose_folder("digits", tmp_path / "empty") == tmp_path / "empty"
    (tmp_path / "empty/config.yaml").write_text("")
    with pytest.raises(InputError, match=r"empty is not an empty folder; choose another --run_dir"):
        choose_folder("digits", tmp_path / "empty")


def test_values_of_one_step_share_a_row_and_new_columns_keep_the_rows_before(tmp_path):
    log = MetricsCsv(tmp_path / "metrics.csv")
    log.log_metrics({"a": 1.0}, step=1)
    log.log_metrics({"a": 2.0}, step=2)
    log.log_metrics({"b": 2.5}, step=2)
    log.log_metrics({"a": 3.0, "c, d": 3.5}, step=3)
    assert read_csv(tmp_path / "metrics.csv") == [
        {"step": "1", "a": "1.0", "b": "", "c, d": ""},
        {"step": "2", "a": "2.0", "b": "2.5", "c, d": ""},
        {"step": "3", "a": "3.0", "b": "", "c, d": "3.5"},
    ]


def test_a_shorter_row_leaves_nothing_of_the_longer_one(tmp_path):
    log = MetricsCsv(tmp_path / "metrics.csv")
    log.log_metrics({"a": 1.2345678901234}, step=1)
    log.log_metrics({"a": 1.0}, step=1)
    assert (tmp_path / "metrics.csv").read_text().split() == ["step,a", "1,1.0"]


def test_an_existing_metrics_csv_is_continued(tmp_path):
    MetricsCsv(tmp_path / "metrics.csv").log_metrics({"a": 1.0}, step=1)
    later = MetricsCsv(tmp_path / "metrics.csv")
    later.log_metrics({"a": 2.0}, step=2)
    later.log_metrics({"b": 3.0}, step=3)
    assert [(row["step"], row["a"], row["b"]) for row in read_csv(tmp_path / "metrics.csv")] == [
        ("1", "1.0", ""),
        ("2", "2.0", ""),
        ("3", "", "3.0"),
    ]


def test_a_write_that_fails_leaves_the_file_that_was_there(tmp_path, monkeypatch):
    write_whole(tmp_path / "config.yaml", "seed: 1\n")
    monkeypatch.setattr(os, "replace", lambda *paths: (_ for _ in ()).throw(OSError("no space left")))
    with pytest.raises(OSError, match="no space left"):
        write_whole(tmp_path / "config.yaml", "seed: 2\n")
    assert (tmp_path / "config.yaml").read_text() == "seed: 1\n"


def test_the_log_ends_with_the_traceback_of_an_error_that_nobody_foresaw(tmp_path):
    with pytest.raises(ZeroDivisionError), text_log(tmp_path / "train.log"):
        1 / 0  # noqa: B018
    assert "ERROR ZeroDivisionError('division by zero')\nTraceback" in (tmp_path / "train.log").read_text()
