"""Evaluation needs a checkpoint and nothing else, and agrees with what the run itself logged."""

import json
import shutil
from pathlib import Path

import pytest
from finished_run import run, write_images

from template.cli import main
from template.errors import InputError
from template.results.evaluate import evaluate, find_checkpoint

__all__ = ["run"]


@pytest.mark.parametrize("split", ["val", "test"])
def test_evaluate_gives_the_numbers_that_the_run_gave_for_its_best_checkpoint(run: Path, split: str) -> None:
    final = json.loads((run / "metrics.json").read_text())
    values = evaluate(run, split)  # type: ignore[arg-type]
    logged = {name: value for name, value in final.items() if name.startswith(f"{split}/")}
    assert logged, final
    for name, value in logged.items():
        assert values[name] == pytest.approx(value, abs=1e-6), name


def test_a_run_folder_stands_for_its_best_checkpoint_and_for_its_last_where_no_best_is_left(
    run: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    best = json.loads((run / "metrics.json").read_text())["best_checkpoint"]
    assert find_checkpoint(copy) == copy / "checkpoints" / best
    (copy / "checkpoints" / best).unlink()
    assert find_checkpoint(copy) == copy / "checkpoints" / "last.ckpt"


def test_data_that_has_moved_is_found_with_data_root(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_images(tmp_path / "moved")
    checkpoint = tmp_path / "alone.ckpt"
    shutil.copy(find_checkpoint(run), checkpoint)
    assert main(["evaluate", str(checkpoint), "--split", "val", "--data.root", str(tmp_path / "moved")]) == 0
    assert f"{json.loads((run / 'metrics.json').read_text())['val/accuracy']:.4f}" in capsys.readouterr().out


def test_data_with_other_classes_is_refused_by_name(run: Path, tmp_path: Path) -> None:
    write_images(tmp_path / "other")
    for split in ("train", "val", "test"):
        (tmp_path / "other" / split / "2").rename(tmp_path / "other" / split / "two")
    with pytest.raises(InputError, match=r"has classes 10, two, 猫 1, and .* was trained on 10, 2, 猫 1"):
        evaluate(run, "val", tmp_path / "other")


def test_a_folder_without_checkpoints_says_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"neither a checkpoint nor a run folder with checkpoints/last\.ckpt"):
        find_checkpoint(tmp_path)
