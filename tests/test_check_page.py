"""`check` prints a page, writes it as JSON, draws a batch, and its exit status says whether a run would be wasted."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from template.checks.page import Line, Page
from template.cli import main
from template.errors import InputError


@pytest.fixture
def options(tmp_path, class_folders, monkeypatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    return [
        *("--data.root", str(class_folders), "--data.preprocessing.size", "8", "--data.global_batch_size", "8"),
        *("--data.val_fraction", "0.3", "--model.width", "4", "--trainer.accelerator", "cpu", "--seed", "1"),
    ]


def test_a_page_of_a_healthy_project_ends_well_and_is_the_same_as_json_with_a_picture(options, tmp_path, capsys):
    json_file, picture = tmp_path / "page.json", tmp_path / "deep" / "batch.png"
    assert main(["check", *options, "--json", str(json_file), "--picture", str(picture)]) == 0
    printed = capsys.readouterr().out
    groups = json.loads(json_file.read_text())
    assert list(groups) == ["data", "learning", "speed", "settings"]
    for lines in groups.values():
        for line in lines:
            assert line["status"] in ("PASS", "WARN")
            assert f"{line['status']}  {line['name']}" in printed
            assert line["found"] in printed
    pixels = np.asarray(Image.open(picture))
    assert len(np.unique(pixels.reshape(-1, pixels.shape[-1]), axis=0)) > 50


def test_check_leaves_nothing_else_behind_and_trains_nothing(options, tmp_path, capsys):
    assert main(["check", *options]) == 0
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()) == [
        "runs/unnamed/check.png"
    ]


def test_a_fail_makes_the_exit_status_one(options, capsys):
    assert main(["check", *options, "--warmup_cosine.warmup_epochs", "99"]) == 1
    printed = capsys.readouterr()
    assert "FAIL  schedule" in printed.out
    assert "a check failed" in printed.err


def test_what_cannot_be_built_is_a_line_of_the_page(options, tmp_path, capsys):
    assert main(["check", *options, "--data.root", str(tmp_path / "nowhere")]) == 1
    assert f"no data folder at {tmp_path / 'nowhere'}" in capsys.readouterr().out


def test_a_wrong_option_of_check_is_named_as_of_fit(options, capsys):
    assert main(["check", *options, "--model.widht", "4"]) == 2
    assert "did you mean 'model.width'?" in capsys.readouterr().err


def test_a_check_that_raises_is_a_fail_and_the_others_still_run():
    def broken():
        raise RuntimeError("shape mismatch\nmore")

    def refused():
        raise InputError("labels are wrong")

    page = Page()
    page.run("learning", [broken, refused, lambda: [Line("PASS", "outputs", "fine")]])
    assert [str(line) for line in page.lines("FAIL")] == [
        "broken: RuntimeError: shape mismatch; run fit with --debug",
        "refused: labels are wrong",
    ]
    assert page.failed
    assert page.text().splitlines()[-1].startswith("1 PASS, 0 WARN, 2 FAIL in ")


def test_a_fit_refuses_what_the_quick_check_finds_unless_it_is_turned_off(tmp_path, capsys, class_folders, monkeypatch):
    import shutil

    monkeypatch.chdir(tmp_path)
    root = tmp_path / "data"
    for split in ("train", "val"):
        shutil.copytree(class_folders, root / split)
    options = [
        *("fit", "--data.root", str(root), "--data.preprocessing.size", "8", "--model.width", "4"),
        *("--data.test_fraction", "0", "--trainer.accelerator", "cpu", "--trainer.max_epochs", "1"),
        *("--trainer.log_every_n_steps", "1", "--wandb.mode", "disabled", "--report", "false"),
    ]
    assert main([*options, "--run_dir", "one"]) == 1
    error = capsys.readouterr().err
    assert "leaks: 40 images are in two splits: train/dark/" in error
    assert "--quick_check false trains anyway" in error
    assert not (tmp_path / "one").exists()
    assert main([*options, "--run_dir", "two", "--quick_check", "false"]) == 0
    assert (tmp_path / "two" / "metrics.json").exists()


def test_the_module_is_as_it_was_after_the_checks(options, class_folders):
    import lightning.pytorch as L

    from template.checks.check import examine
    from template.data.datamodule import DataModule
    from template.data.transforms import Preprocessing
    from template.model.module import Classifier

    data = DataModule(class_folders, preprocessing=Preprocessing(8), global_batch_size=8)
    module = Classifier(data.class_names, data.preprocessing, data.settings(), width=4)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    trainer = L.Trainer(accelerator="cpu", max_epochs=1, logger=False, enable_checkpointing=False)
    examine(data, module, trainer)
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    assert module.training
