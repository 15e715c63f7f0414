"""The report of a run: what was trained on what, how it went, how good it is, and what it gets wrong."""

import json
import logging
import re
from pathlib import Path
from typing import Any

import numpy as np

from template.data.datamodule import DataModule
from template.errors import InputError
from template.model.module import load_classifier
from template.results import figures, scores
from template.results.evaluate import find_checkpoint
from template.results.judge import Judged, judge
from template.results.page import Page
from template.results.run import Run, flatten, read_run
from template.run_folder import write_whole

log = logging.getLogger(__name__)
SCORES_FILE = "scores.json"
_FIRST = (
    *("seed", "trainer.max_epochs", "trainer.precision", "data.root", "data.preprocessing.size"),
    *("data.global_batch_size", "model.network", "model.pretrained", "model.width", "model.dropout"),
    *("model.optimizer", "model.learning_rate", "model.weight_decay", "warmup_cosine.warmup_epochs"),
)


def report(folder: Path, root: Path | None = None, datamodule: DataModule | None = None) -> tuple[Path, Judged | None]:
    """Write the report of one run to ``report/`` in its folder: index.html, its pictures as PNG, and scores.json.

    It makes predictions with the best checkpoint for the test split, or where there is none for the validation split.
    Where the data is gone the report says so, and holds what the folder alone can tell.

    Args:
        folder: The run folder.
        root: Where the data is now; None is where it was in training.
        datamodule: The run's own, where it is at hand, so that nothing is indexed twice.

    Returns:
        The path of index.html, and the predictions, or None without data.

    Raises:
        InputError: It is no run folder, or its checkpoint cannot be read.
    """
    run = read_run(folder)
    judged, trouble = None, ""
    try:
        judged = judge(folder, root, datamodule)
    except InputError as error:
        load_classifier(find_checkpoint(folder))  # an error of the checkpoint's is one of the report's
        trouble = f"No predictions: {error}"
        log.warning(f"the report of {folder} has no predictions: {error}")
    page = Page(run.name, f"{run.config['model']['network']} on {run.config['data']['source']} data")
    page.cards(_cards(run, judged))
    if trouble:
        page.note(trouble)
    page.picture("curves", figures.learning_curves(run.curves, run.score), wide=True)
    if judged is not None:
        add_judgement(page, judged)
    page.table("data", ("split", "samples", "classes", "fingerprint"), _data_rows(run, judged), text=True)
    page.table("settings", ("setting", "value"), _setting_rows(run), text=True)
    page.details("config.yaml", (run.folder / "config.yaml").read_text(encoding="utf-8"))
    path = page.write(folder / "report")
    if judged is not None:
        write_whole(path.with_name(SCORES_FILE), json.dumps(judged.values, indent=2, ensure_ascii=False) + "\n")
    return path, judged


def _cards(run: Run, judged: Judged | None) -> dict[str, tuple[str, str]]:
    cards = {}
    if judged is not None:
        values, split = judged.values, judged.values["split"]
        between = f"95 %: {values['accuracy_low']:.1%} to {values['accuracy_high']:.1%}"
        cards[f"{split} accuracy"] = (f"{values['accuracy']:.2%}", f"{between}, n = {values['samples']:,}")
        cards[f"{split} macro F1"] = (f"{values['macro_f1']:.3f}", "mean over classes")
        cards[f"{split} loss"] = (f"{values['loss']:.4f}", "mean over samples")
        cards["calibration error"] = (f"{values['calibration_error']:.1%}", "10 bins")
    elif run.final:
        name = next((name for name in run.final if name.startswith("test/accuracy")), run.monitor)
        cards[name] = (f"{run.final[name]:.4f}", "as the run logged it")
    if run.monitor in run.final:
        cards[f"best {run.monitor}"] = (f"{run.final[run.monitor]:.4f}", _step(run.final["best_checkpoint"]))
    if "train/images_per_second" in run.curves:
        waiting = run.curves.get("train/data_wait", (None, np.array([np.nan])))[1]
        speed = np.median(run.curves["train/images_per_second"][1])
        cards["throughput"] = (f"{speed:,.0f}/s", f"images; {np.median(waiting):.0%} of the time waiting for data")
    epochs = run.config["trainer"].get("max_epochs")
    if run.final:
        cards["length"] = (f"{run.final['steps']:,} steps", f"max_epochs {epochs}" if epochs else "")
    else:
        cards["length"] = ("unfinished", "no metrics.json")
    return cards


def add_judgement(page: Page, judged: Judged) -> None:
    """Confusion, calibration, classes and mistakes."""
    names, predictions = judged.module.class_names, judged.predictions
    targets, probabilities = predictions.targets, predictions.probabilities
    calibrated = figures.reliability(scores.calibration(targets, probabilities))
    each = scores.per_class(targets, probabilities)
    values = zip(names, each.precision, each.recall, each.f1, each.support.tolist(), strict=True)
    rows = [(name, *map(float, three), support) for name, *three, support in values]
    bars = ("precision", "recall", "F1")
    if targets.ndim == 1:
        counts = scores.confusion_matrix(targets, probabilities.argmax(1), len(names))
        page.picture("confusion", figures.confusion(counts, names))
        page.picture("calibration", calibrated)
        page.table("classes", ("class", *bars, "support"), rows, bars)
        pairs = scores.most_confused(counts)
        support = counts.sum(axis=1)
        page.table(
            "most confused pairs",
            ("true", "predicted", "times", "share of the true class"),
            [(names[t], names[p], count, f"{count / support[t]:.1%}") for t, p, count in pairs],
        )
    else:
        page.picture("calibration", calibrated)
        page.table("classes", ("class", *bars, "support"), rows, bars)
    worst = scores.confident_mistakes(targets, probabilities).tolist()
    if worst:
        captions = [judged.caption(row) for row in worst]
        drawn = figures.pictures([judged.image(row) for row in worst], captions)
        page.picture("mistakes", drawn, "most confident mistakes: true → predicted", wide=True)
        files = (f"{judged.index.paths[row]}: {' → '.join(judged.name(row))}" for row in worst)
        page.details("files of these mistakes", "\n".join(files))


def _step(checkpoint: str) -> str:
    found = re.match(r"step0*(\d+)", checkpoint)
    return f"at step {int(found[1]):,}" if found else checkpoint


def _data_rows(run: Run, judged: Judged | None) -> list[tuple[Any, ...]]:
    if judged is None:
        return [(run.config["data"]["root"], "–", "–", "–")]
    return [(split, *values) for split, values in judged.values["data"].items()]


def _setting_rows(run: Run) -> list[tuple[str, str]]:
    """The settings that a reader asks for first; config.yaml below has all."""
    flat = flatten(run.config)
    augmented = [name for name, value in flat.items() if name.startswith("data.augmentation.") and value]
    return [(name, str(flat[name])) for name in (*_FIRST, *augmented) if flat.get(name) is not None]
