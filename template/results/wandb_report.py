"""What a finished run leaves at Weights & Biases: summary, confusion matrix, tables, pictures, and two checkpoints."""

import datetime
from pathlib import Path
from typing import Any

import numpy as np

from template.callbacks.checkpoints import LAST
from template.results import scores
from template.results.evaluate import find_checkpoint
from template.results.judge import Judged

#: The last checkpoint is only for going on with the run; Weights & Biases deletes it after this.
LAST_LIVES = datetime.timedelta(days=30)
#: Its confusion matrix is a table of K x K rows, of which it shows 10,000.
MOST_CLASSES = 100


def log_report(run: Any, judged: Judged, report: Path) -> None:
    """Log the figures of a report.

    Args:
        run: The ``wandb`` run, still open.
        judged: The predictions that the report is about.
        report: Folder of the report's pictures.
    """
    import wandb

    names, values = judged.module.class_names, judged.values
    targets, probabilities = judged.predictions.targets, judged.predictions.probabilities
    split = values["split"]
    numbers = {name: value for name, value in values.items() if isinstance(value, float)}
    run.summary.update({f"report/{split}_{name}": value for name, value in numbers.items()})
    run.summary.update({f"data/{name}": fingerprint for name, (*_, fingerprint) in values["data"].items()})

    each = scores.per_class(targets, probabilities)
    logged: dict[str, Any] = {
        "report/classes": wandb.Table(
            ["class", "precision", "recall", "f1", "support"],
            [list(row) for row in zip(names, *(array.tolist() for array in vars(each).values()), strict=True)],
        )
    }
    if targets.ndim == 1:
        predicted = probabilities.argmax(1)
        counts = scores.confusion_matrix(targets, predicted, len(names))
        logged["report/most_confused"] = wandb.Table(
            ["true", "predicted", "times"], [[names[t], names[p], n] for t, p, n in scores.most_confused(counts)]
        )
        if len(names) <= MOST_CLASSES:
            logged["report/confusion"] = wandb.plot.confusion_matrix(
                y_true=targets.tolist(), preds=predicted.tolist(), class_names=list(names)
            )
    mistakes = [
        [wandb.Image(judged.image(row)), judged.index.paths[row], *judged.name(row), _certainty(judged, row)]
        for row in scores.confident_mistakes(targets, probabilities).tolist()
    ]
    logged["report/mistakes"] = wandb.Table(["image", "file", "true", "predicted", "probability"], mistakes)
    for picture in sorted(report.glob("*.png")):
        logged[f"report/{picture.stem}_picture"] = wandb.Image(str(picture))
    run.log(logged)


def log_checkpoints(run: Any, folder: Path) -> None:
    """Upload the best and the last checkpoint, once a run: the best stays, the last is deleted after 30 days."""
    import wandb

    for alias, path, ttl in (
        ("best", find_checkpoint(folder), None),
        ("last", folder / "checkpoints" / LAST, LAST_LIVES),
    ):
        artifact = wandb.Artifact(f"{alias}-{run.id}", type="model", metadata={"file": path.name})
        artifact.add_file(str(path), name=path.name, policy="immutable")
        artifact.ttl = ttl
        run.log_artifact(artifact, aliases=[alias])


def _certainty(judged: Judged, row: int) -> float:
    """Probability of the wrong class, or for multi-label the largest distance from a label."""
    probabilities, targets = judged.predictions.probabilities[row], judged.predictions.targets[row]
    return float(probabilities.max() if targets.ndim == 0 else np.abs(probabilities - targets).max())
