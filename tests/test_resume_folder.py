"""Continuing a run folder from the command line: pytest tests/test_resume_folder.py"""

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from training import write_images

from template import train
from template.cli import main
from template.model.module import Classifier
from template.run_folder import locked


class KilledError(BaseException):
    """Stands for a kill: nothing of ours catches it."""


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("job")
    write_images(folder / "images", {"train": 29, "val": 7, "test": 4})
    settings: dict[str, Any] = {
        "trainer": {"max_epochs": 3, "log_every_n_steps": 2, "accelerator": "cpu"},
        "data": {
            "root": str(folder / "images"),
            "preprocessing": {"size": 8},
            "augmentation": {"crop_scale": 0.5, "flip": 0.5},
            "global_batch_size": 8,
        },
        "model": {"width": 4, "dropout": 0.3},
        "checkpoints": {"monitor": "val/loss", "mode": "min", "every_steps": 2},
        "wandb": {"mode": "disabled"},
        "report": False,
    }
    (folder / "job.yaml").write_text(yaml.safe_dump(settings))
    return folder / "job.yaml"


def fit(config: Path, folder: Path, *arguments: str) -> int:
    return main(["fit", "--config", str(config), "--run_dir", str(folder), *arguments])


def resume(folder: Path, *arguments: str) -> int:
    return main(["fit", "--resume", str(folder), *arguments])


@pytest.fixture(scope="module")
def whole(config: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert fit(config, folder) == 0
    return folder


@pytest.fixture
def kill(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Arrange that the n-th training step from now is never done."""

    def arrange(n: int) -> None:
        step = Classifier.training_step
        calls = iter(range(1, 1000))

        def training_step(self: Classifier, *arguments: Any) -> Any:
            if next(calls) == n:
                raise KilledError
            return step(self, *arguments)

        monkeypatch.setattr(Classifier, "training_step", training_step)

    return arrange


def rows(folder: Path) -> list[dict[str, str]]:
    """metrics.csv without what a clock decides."""
    with (folder / "metrics.csv").open(newline="") as file:
        timed = ("images_per_second", "data_wait", "step_seconds", "peak_memory_gib")
        return [{name: cell for name, cell in row.items() if not name.endswith(timed)} for row in csv.DictReader(file)]


def logged_steps(folder: Path) -> list[tuple[str, str]]:
    """(step, first metric) of each line of train.log that tells of a step."""
    return re.findall(r" step (\d+)/\d+ epoch \d+  (\S+) ", (folder / "train.log").read_text())


def state(folder: Path) -> dict[str, Any]:
    return torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)


def assert_equal(folder: Path, whole: Path) -> None:
    """Weights, optimizer, best score, metrics and logs of the two runs are the same."""
    one, other = state(folder), state(whole)
    assert all(torch.equal(tensor, other["state_dict"][name]) for name, tensor in one["state_dict"].items())
    for number, moments in one["optimizer_states"][0]["state"].items():
        for name, tensor in moments.items():
            assert torch.equal(tensor, other["optimizer_states"][0]["state"][number][name])
    assert one["callbacks"]["Checkpoints"]["best"] == other["callbacks"]["Checkpoints"]["best"]
    assert rows(folder) == rows(whole)
    assert logged_steps(folder) == logged_steps(whole)
    assert json.loads((folder / "metrics.json").read_text()) == json.loads((whole / "metrics.json").read_text())
    names = [sorted(path.name for path in (run / "checkpoints").iterdir()) for run in (folder, whole)]
    assert names[0] == names[1]


@pytest.mark.parametrize("at", [1, 2, 4, 7, 12])
def test_a_killed_run_resumed_leaves_what_an_unbroken_one_leaves(config, whole, tmp_path, kill, at):
    kill(at)
    with pytest.raises(KilledError):
        fit(config, tmp_path / "run")
    assert not (tmp_path / "run" / "metrics.json").exists()
    assert resume(tmp_path / "run") == 0
    assert_equal(tmp_path / "run", whole)


def test_a_run_killed_in_its_final_test_only_does_that(config, whole, tmp_path, monkeypatch):
    def no_test(*arguments: Any) -> None:
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(train, "_test", no_test)
        with pytest.raises(KilledError):
            fit(config, tmp_path / "run")
    monkeypatch.setattr(Classifier, "training_step", no_test)
    assert resume(tmp_path / "run") == 0
    assert_equal(tmp_path / "run", whole)


def test_a_finished_run_says_so_and_stays_as_it_is(config, whole, capsys):
    before = {path: path.stat().st_mtime_ns for path in whole.rglob("*") if path.is_file()}
    assert resume(whole) == 0
    assert "is finished" in capsys.readouterr().out
    assert before == {path: path.stat().st_mtime_ns for path in whole.rglob("*") if path.is_file()}


def test_a_run_killed_in_its_report_is_given_one(config, tmp_path, capsys):
    assert fit(config, tmp_path / "run") == 0
    assert not (tmp_path / "run" / "report").exists()
    stored = tmp_path / "run" / "config.yaml"
    stored.write_text(stored.read_text().replace("report: false", "report: true"))
    assert resume(tmp_path / "run") == 0
    assert "is finished" in capsys.readouterr().out
    assert (tmp_path / "run" / "report" / "index.html").exists()


def test_a_longer_run_prints_both_horizons_and_trains_on(config, whole, tmp_path, capsys):
    assert fit(config, tmp_path / "run") == 0
    assert resume(tmp_path / "run", "--trainer.max_epochs", "5") == 0
    output = capsys.readouterr().out
    assert "trainer.max_epochs: 3 -> 5" in output
    assert "horizon 12 -> 20 steps" in output
    assert state(tmp_path / "run")["global_step"] == 20
    assert rows(tmp_path / "run")[:5] == rows(whole)[:5]


def test_settings_that_make_it_another_run_are_refused_unless_accepted(config, tmp_path, kill, capsys):
    kill(6)
    with pytest.raises(KilledError):
        fit(config, tmp_path / "run")
    before = (tmp_path / "run" / "train.log").read_bytes()
    assert resume(tmp_path / "run", "--warmup_cosine.final", "0.1", "--trainer.log_every_n_steps", "3") == 1
    output = capsys.readouterr()
    assert "warmup_cosine.final: 0.0 -> 0.1" in output.out
    assert "trainer.log_every_n_steps: 2 -> 3" in output.out
    assert "warmup_cosine.final differs" in output.err
    assert "log_every_n_steps" not in output.err
    assert (tmp_path / "run" / "train.log").read_bytes() == before
    assert resume(tmp_path / "run", "--warmup_cosine.final", "0.1", "--accept_changes", "true") == 0
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["warmup_cosine"]["final"] == 0.1


def test_changed_data_is_refused_unless_accepted(config, tmp_path, kill, capsys):
    root = write_images(tmp_path / "images", {"train": 29, "val": 7, "test": 4})
    kill(6)
    with pytest.raises(KilledError):
        fit(config, tmp_path / "run", "--data.root", str(root))
    (root / "train" / "class0" / "000.png").rename(root / "train" / "class1" / "000.png")
    assert resume(tmp_path / "run") == 1
    assert "files or labels of train changed" in capsys.readouterr().err
    assert resume(tmp_path / "run", "--accept_changes", "true") == 0


def test_an_unreadable_last_checkpoint_falls_back_to_the_one_before(config, whole, tmp_path, kill, capsys):
    kill(8)
    with pytest.raises(KilledError):
        fit(config, tmp_path / "run")
    last = tmp_path / "run" / "checkpoints" / "last.ckpt"
    assert torch.load(last, weights_only=True)["global_step"] == 6
    last.write_bytes(last.read_bytes()[:1000])
    assert resume(tmp_path / "run") == 0
    assert "last.ckpt unreadable" in (output := capsys.readouterr().out)
    assert "using step 4" in output
    assert_equal(tmp_path / "run", whole)


def test_a_checkpoint_of_another_version_is_refused_by_name(config, tmp_path, kill, capsys):
    kill(6)
    with pytest.raises(KilledError):
        fit(config, tmp_path / "run")
    last = tmp_path / "run" / "checkpoints" / "last.ckpt"
    checkpoint = torch.load(last, weights_only=True)
    del checkpoint["template"]["train_totals"]
    torch.save(checkpoint, last)
    before = last.read_bytes()
    assert resume(tmp_path / "run") == 1
    assert f"{last} was written by another version of this template" in capsys.readouterr().err
    assert last.read_bytes() == before


def test_files_that_a_kill_between_two_saves_left_are_gone_after_the_resume(config, whole, tmp_path, kill):
    kill(8)
    with pytest.raises(KilledError):
        fit(config, tmp_path / "run")
    checkpoints = tmp_path / "run" / "checkpoints"
    (checkpoints / "step0000007_loss0.0001.ckpt").write_bytes(b"linked, but last.ckpt was never replaced")
    (checkpoints / "partial.tmp").write_bytes(b"half")
    assert resume(tmp_path / "run") == 0
    assert_equal(tmp_path / "run", whole)


def test_a_folder_that_another_process_trains_in_is_refused(config, tmp_path, kill, capsys):
    kill(6)
    with pytest.raises(KilledError):
        fit(config, tmp_path / "run")
    with locked(tmp_path / "run"):
        assert resume(tmp_path / "run") == 1
    assert "another process is training" in capsys.readouterr().err


def test_every_checkpoint_opens_with_weights_only(whole):
    files = sorted((whole / "checkpoints").glob("*.ckpt"))
    assert len(files) == 3
    for file in files:
        assert torch.load(file, weights_only=True)["template"]["class_names"] == ["class0", "class1", "class2"]
