"""A run ends in a report: one page that holds all, with the run's own numbers; and nothing is lost when it fails."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import numpy as np
import pytest
import yaml
from finished_run import ARGUMENTS, CLASSES, run, write_images
from lightning.pytorch.loggers import WandbLogger
from PIL import Image

import template.results.report
from template.callbacks.wandb_samples import WandbSamples
from template.cli import main
from template.data.datamodule import DataModule
from template.data.index import Index
from template.data.packed import PackedStrings
from template.data.transforms import Preprocessing
from template.errors import InputError
from template.model.module import Classifier
from template.results.compare import compare
from template.results.evaluate import Predictions
from template.results.figures import confusion, learning_curves, overlaid_curves
from template.results.judge import Judged, judge
from template.results.predict import Predictor
from template.results.report import add_judgement, report
from template.results.wandb_report import LAST_LIVES, log_checkpoints, log_report

__all__ = ["run"]


@pytest.fixture
def copied(run: Path, tmp_path: Path) -> Path:
    """A copy of the run's folder without its report."""
    shutil.copytree(run, tmp_path / "copied", ignore=shutil.ignore_patterns("report"))
    return tmp_path / "copied"


def judged(targets: np.ndarray, probabilities: np.ndarray, names: tuple[str, ...]) -> Judged:
    """Made by hand, for what small runs do not have."""
    n = len(targets)
    index = Index(Path(), PackedStrings(f"{i}.png" for i in range(n)), targets, names, np.zeros((n, 8, 8), np.uint8))
    task: Any = "multiclass" if targets.ndim == 1 else "multilabel"
    module = Classifier(names, Preprocessing(size=8), width=4, task=task)
    values = {"split": "test", "data": {}, "accuracy": 0.5}
    return Judged(Predictions("test", targets, probabilities, np.ones(n)), index, module, values)


def test_a_fit_ends_with_its_report_in_one_page_that_needs_no_other_file(run: Path) -> None:
    page = (run / "report" / "index.html").read_text(encoding="utf-8")
    assert len(re.findall(r'src="data:image/png;base64,', page)) == len(re.findall(r"src=", page)) == 4
    assert not re.search(r"https?://|<link|<script|url\(", page)
    for name in (*CLASSES, "resnet", "model.learning_rate", "0.01", "data.preprocessing.size"):
        assert (name in page) == (name != "resnet"), name
    assert json.loads((run / "report" / "scores.json").read_text())["data"]["train"][2] in page
    for picture in ("curves", "confusion", "calibration", "mistakes"):
        with Image.open(run / "report" / f"{picture}.png") as image:
            assert image.width > 500


def test_the_report_has_the_numbers_that_the_run_logged(run: Path) -> None:
    values = json.loads((run / "report" / "scores.json").read_text())
    final = json.loads((run / "metrics.json").read_text())
    assert (values["split"], values["samples"]) == ("test", 20)
    for name in ("accuracy", "loss", "macro_f1"):
        assert values[name] == pytest.approx(final[f"test/{name}"], abs=1e-5), name
    assert 0 < values["accuracy_low"] < values["accuracy"] < values["accuracy_high"] < 1


def test_the_mistakes_shown_are_mistakes_of_the_network(run: Path) -> None:
    page = (run / "report" / "index.html").read_text(encoding="utf-8")
    shown = re.findall(r"^(?:.*<pre>)?(test/\S.*\.png): (.+) → (.+?)(?:</pre>.*)?$", page, re.MULTILINE)
    assert shown
    for path, true, predicted in shown:
        (row,) = Predictor(run).rows([run.parent / "données" / path])
        assert (row["class"], path.split("/")[1]) == (predicted, true)
        assert true != predicted


def test_without_the_data_there_is_a_report_that_says_so(copied: Path, tmp_path: Path) -> None:
    path, found = report(copied, root=tmp_path / "gone")
    page = path.read_text(encoding="utf-8")
    assert found is None
    assert f"No predictions: no data folder at {tmp_path / 'gone'}" in page
    assert len(re.findall("<img", page)) == 1
    assert not (path.parent / "scores.json").exists()


def test_without_a_test_split_the_report_is_about_validation(copied: Path, tmp_path: Path) -> None:
    write_images(tmp_path / "data")
    shutil.rmtree(tmp_path / "data" / "test")
    datamodule = DataModule(tmp_path / "data", preprocessing=Preprocessing(size=16), test_fraction=0)
    values = judge(copied, datamodule=datamodule).values
    assert (values["split"], list(values["data"])) == ("val", ["train", "val"])


def test_a_broken_checkpoint_is_an_error_of_the_report(copied: Path) -> None:
    for path in (copied / "checkpoints").iterdir():
        path.write_bytes(b"broken")
    with pytest.raises(InputError, match=r"no checkpoint in .* can be read: last\.ckpt unreadable"):
        report(copied)


def test_a_folder_that_is_no_run_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path)]) == 1
    assert f"{tmp_path} is no run folder: it has no config.yaml" in capsys.readouterr().err


def test_a_report_that_fails_is_a_warning_and_the_run_is_finished(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*arguments: object, **more: object) -> None:
        raise RuntimeError("no pictures today")

    monkeypatch.setattr(template.results.report, "report", fail)
    folder = tmp_path / "run"
    assert main(["fit", "--data.root", str(run.parent / "données"), *ARGUMENTS, "--run_dir", str(folder)]) == 0
    assert (folder / "metrics.json").exists()
    printed = capsys.readouterr().out
    assert "warning: no report was made (RuntimeError: no pictures today)" in printed
    assert f"python -m template report {folder}" in printed


def test_report_false_leaves_no_report(run: Path, tmp_path: Path) -> None:
    options = [*ARGUMENTS, "--report", "false", "--run_dir", str(tmp_path / "run")]
    assert main(["fit", "--data.root", str(run.parent / "données"), *options]) == 0
    assert (tmp_path / "run" / "metrics.json").exists()
    assert not (tmp_path / "run" / "report").exists()


def test_a_multi_label_report_has_classes_and_calibration_and_no_confusion() -> None:
    page = template.results.report.Page("t")
    targets = np.array([[1, 0, 1], [0, 0, 0], [1, 1, 0]])
    add_judgement(page, judged(targets, np.array([[0.9, 0.2, 0.7], [0.6, 0.1, 0.2], [0.8, 0.9, 0.4]]), ("a", "b", "c")))
    assert list(page.pictures) == ["calibration", "mistakes"]
    assert "1.png: none → a" in "".join(page.sections)


def test_names_are_written_as_text_into_the_page() -> None:
    page = template.results.report.Page("<i>")
    add_judgement(page, judged(np.array([0, 1]), np.array([[0.9, 0.1], [0.8, 0.2]]), ("<b>&", "b")))
    html = page.head + "".join(page.sections)
    assert "&lt;b&gt;&amp;" in html
    assert "<b>&" not in html
    assert "<i>" not in html


def test_pictures_are_drawn_for_many_classes_for_any_script_and_for_a_run_of_one_step() -> None:
    many = tuple(f"class number {i}" for i in range(120))
    counts = np.random.default_rng(0).integers(0, 5, (120, 120))
    counts[7] = 0  # no sample of a class
    one = {"val/loss": (np.array([1]), np.array([2.0])), "train/loss": (np.array([1]), np.array([float("nan")]))}
    drawn = [confusion(counts, many), confusion(counts[:2, :2], ("猫", "كلب")), learning_curves(one)]
    drawn += [learning_curves({}), overlaid_curves({"a": one, "b": {}})]
    assert all(figure.png().startswith(b"\x89PNG") for figure in drawn)


def _variant(copied: Path, name: str, seed: int, accuracy: float, width: int = 4) -> Path:
    folder = copied.parent / name
    shutil.copytree(copied, folder)
    config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    config["seed"], config["model"]["width"], config["run_dir"] = seed, width, str(folder)
    (folder / "config.yaml").write_text(yaml.safe_dump(config, allow_unicode=True), encoding="utf-8")
    values = {"split": "test", "accuracy": accuracy, "accuracy_low": accuracy - 0.1, "accuracy_high": accuracy + 0.1}
    values |= {"macro_f1": 0.123, "loss": 0.456, "calibration_error": 0.05}
    (folder / "report").mkdir()
    (folder / "report" / "scores.json").write_text(json.dumps(values))
    return folder


def cells(page: str) -> list[list[str]]:
    """The table rows of a page, as texts."""
    rows = re.findall(r"<tr>(.*?)</tr>", page)
    return [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in rows]


def test_runs_are_compared_with_mean_and_interval_over_the_seeds_of_one_setting(copied: Path) -> None:
    folders = [_variant(copied, "a", 0, 0.8), _variant(copied, "b", 1, 0.9), _variant(copied, "wide", 0, 0.7, width=8)]
    path = compare(folders)
    assert path == copied.parent / "comparison" / "index.html"
    rows = cells(path.read_text(encoding="utf-8"))
    assert rows[0][:5] == ["run", "seed", "model.width", "split", "accuracy"]
    assert rows[1] == ["a", "0", "4", "test", "0.800", "0.700 to 0.900", "0.123", "0.456", "0.050"]
    assert [row[:3] for row in rows[2:4]] == [["b", "1", "4"], ["wide", "0", "8"]]
    # t(0.975, 1) = 12.706 times a standard error of 0.05
    assert rows[-2] == ["a, b", "2", "0.850", "0.635"]
    assert rows[-1] == ["wide", "1", "0.700", "–"]
    assert {picture.name for picture in path.parent.glob("*.png")} == {"curves.png", "intervals.png"}


def test_a_comparison_makes_the_reports_that_are_missing(copied: Path, tmp_path: Path) -> None:
    compare([copied, _variant(copied, "a", 0, 0.8)], tmp_path / "out")
    assert (copied / "report" / "scores.json").exists()
    assert (tmp_path / "out" / "index.html").exists()


def test_a_run_given_twice_is_refused(copied: Path) -> None:
    with pytest.raises(InputError, match="a run is given twice"):
        compare([copied, copied / ".." / copied.name])


class FakeRun:
    """Takes what would go to Weights & Biases."""

    id = "abc"

    def __init__(self) -> None:
        self.logged: dict[str, Any] = {}
        self.summary: dict[str, Any] = {}
        self.artifacts: list[tuple[Any, list[str]]] = []
        self.log = self.logged.update

    def log_artifact(self, artifact: Any, aliases: list[str]) -> None:
        self.artifacts.append((artifact, aliases))


def test_weights_and_biases_gets_the_same_figures(run: Path) -> None:
    fake, found = FakeRun(), judge(run)
    log_report(fake, found, run / "report")
    assert fake.summary["report/test_accuracy"] == found.values["accuracy"]
    assert fake.summary["report/test_accuracy_low"] == found.values["accuracy_low"]
    assert fake.summary["data/train"] == found.values["data"]["train"][2]
    classes = fake.logged["report/classes"]
    assert [row[0] for row in classes.data] == list(found.module.class_names)
    assert sum(row[-1] for row in classes.data) == 20
    wrong = round(20 * (1 - found.values["accuracy"]))
    assert sum(row[-1] for row in fake.logged["report/most_confused"].data) == wrong
    assert len(fake.logged["report/mistakes"].data) == min(12, wrong)
    assert {"report/confusion", "report/curves_picture", "report/calibration_picture"} <= set(fake.logged)


def test_of_the_checkpoints_the_best_is_kept_and_the_last_expires(run: Path) -> None:
    fake = FakeRun()
    log_checkpoints(fake, run)
    best = json.loads((run / "metrics.json").read_text())["best_checkpoint"]
    found = {aliases[0]: (list(artifact.manifest.entries), artifact.ttl) for artifact, aliases in fake.artifacts}
    assert found == {"best": ([best], None), "last": (["last.ckpt"], LAST_LIVES)}


def test_the_same_samples_are_shown_after_each_validation_with_what_the_network_says(run: Path) -> None:
    shown: list[tuple[list[np.ndarray], int, list[str]]] = []

    class Recorder(WandbLogger):
        def __init__(self) -> None:
            self._experiment, self._save_dir = None, "."

        def log_image(self, key: str, images: list[Any], step: int | None = None, **more: Any) -> None:
            assert (key, step) != ("", None)
            shown.append((images, step or 0, more["caption"]))

        def log_metrics(self, metrics: Any, step: int | None = None) -> None: ...
        def log_hyperparams(self, params: Any) -> None: ...
        def finalize(self, status: str) -> None: ...

    preprocessing = Preprocessing(size=16)
    datamodule = DataModule(run.parent / "données", preprocessing=preprocessing, global_batch_size=16)
    module = Classifier(datamodule.class_names, preprocessing, width=4)
    arguments: dict[str, Any] = {"enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    trainer = L.Trainer(
        **arguments,
        max_epochs=2,
        logger=Recorder(),
        callbacks=[WandbSamples()],
        enable_checkpointing=False,
        use_distributed_sampler=False,
        log_every_n_steps=1,
    )
    trainer.fit(module, datamodule)
    assert [step for _, step, _ in shown] == [3, 6]
    first, second = shown[0][0], shown[1][0]
    assert len(first) == 16
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
    assert len({image.tobytes() for image in first}) == 16
    true = [caption.split(" → ")[0] for caption in shown[1][2]]
    assert set(true) == set(CLASSES)
    assert all(re.fullmatch(r".+ → (2|10|猫 1) \d+%", caption) for caption in shown[1][2])
