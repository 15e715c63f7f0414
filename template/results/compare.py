"""Several runs side by side: one table, overlaid curves, and mean and interval over the seeds of each setting."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from template.errors import InputError
from template.results import figures, scores
from template.results.page import Page
from template.results.report import SCORES_FILE, report
from template.results.run import Run, flatten, read_run

#: What differs between two runs of one setting.
_OF_THE_RUN = ("seed", "run_dir", "wandb.name", "wandb.tags", "wandb.mode")


def compare(folders: Sequence[Path], output: Path | None = None, root: Path | None = None) -> Path:
    """Write the comparison of several runs, and the report of each that has none yet.

    Args:
        folders: Run folders.
        output: Folder to write to; None is ``comparison`` in the folder that holds them all.
        root: Where the data is now; None is where it was in training.

    Returns:
        The path of index.html.

    Raises:
        InputError: One is no run folder, or is given twice.
    """
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise InputError(f"a run is given twice: {', '.join(map(str, folders))}")
    runs = [read_run(folder) for folder in folders]
    values = [_scores(run, root) for run in runs]
    output = output or Path(os.path.commonpath([folder.resolve().parent for folder in folders])) / "comparison"
    names = short_names(runs)
    page = Page("comparison", f"of {len(runs)} runs")
    differences = differing(runs)
    header = ("run", *differences, "split", "accuracy", "95 % interval", "macro F1", "loss", "calibration error")
    rows = []
    for run, name, its in zip(runs, names, values, strict=True):
        settings = [str(flatten(run.config).get(key)) for key in differences]
        between = f"{its['accuracy_low']:.3f} to {its['accuracy_high']:.3f}" if its else "–"
        numbers = [its.get(key, "–") for key in ("accuracy", "macro_f1", "loss", "calibration_error")]
        rows.append((name, *settings, its.get("split", "–"), numbers[0], between, *numbers[1:]))
    page.table("runs", header, rows, wide=True)
    groups = by_setting(runs)
    page.table(
        "over seeds",
        ("runs of one setting", "seeds", "accuracy", "± (95 %)"),
        [_seed_row([names[i] for i in group], [values[i] for i in group]) for group in groups],
        wide=True,
    )
    judged = [i for i, its in enumerate(values) if its]
    if judged:
        bounds = [(values[i]["accuracy_low"], values[i]["accuracy_high"]) for i in judged]
        accuracies = [values[i]["accuracy"] for i in judged]
        page.picture(
            "intervals", figures.intervals([names[i] for i in judged], accuracies, bounds, "accuracy"), wide=True
        )
    curves = {name: run.curves for name, run in zip(names, runs, strict=True)}
    page.picture("curves", figures.overlaid_curves(curves, runs[0].score), wide=True)
    return page.write(output)


def _scores(run: Run, root: Path | None) -> dict[str, Any]:
    """The run's scores.json, made with its report where there is none; empty where its data is gone."""
    path = run.folder / "report" / SCORES_FILE
    if not path.is_file():
        report(run.folder, root)
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def short_names(runs: Sequence[Run]) -> list[str]:
    """The folders' paths without what they have in common at the front."""
    paths = [run.folder.resolve() for run in runs]
    common = os.path.commonpath([path.parent for path in paths])
    return [path.relative_to(common).as_posix() for path in paths]


def differing(runs: Sequence[Run]) -> list[str]:
    """Names of the settings that are not the same in all runs, the seed first."""
    flat = [flatten(run.config) for run in runs]
    names = dict.fromkeys(name for settings in flat for name in settings)
    different = [name for name in names if any(settings.get(name) != flat[0].get(name) for settings in flat)]
    return ["seed"] * ("seed" in different) + [name for name in different if name not in _OF_THE_RUN]


def by_setting(runs: Sequence[Run]) -> list[list[int]]:
    """Numbers of the runs that differ in their seed alone, group by group."""
    groups: dict[str, list[int]] = {}
    for number, run in enumerate(runs):
        settings = {name: value for name, value in flatten(run.config).items() if name not in _OF_THE_RUN}
        groups.setdefault(json.dumps(settings, sort_keys=True, default=str), []).append(number)
    return list(groups.values())


def _seed_row(names: Sequence[str], values: Sequence[dict[str, Any]]) -> tuple[Any, ...]:
    accuracies = [its["accuracy"] for its in values if its]
    if not accuracies:
        return (", ".join(names), 0, "–", "–")
    mean, half = scores.mean_interval(accuracies)
    return (", ".join(names), len(accuracies), mean, half)
