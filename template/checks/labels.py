"""Labels and criterion: what a label must be, on the whole index, and the losses of a network that knows nothing."""

from collections.abc import Mapping, Sequence

import numpy as np

from template.data.index import Index
from template.errors import InputError
from template.model.criterion import Task


def check_labels(splits: Mapping[str, Index], task: Task) -> None:
    """Refuse labels that the task cannot have, before anything is trained on them.

    Args:
        splits: The index of each split.
        task: ``multiclass`` expects (N,) whole numbers in [0, K-1]; ``multilabel`` (N, K) zeros and ones.

    Raises:
        InputError: Names the split, the value, in how many rows it is and the first file that has it.
    """
    for split, index in splits.items():
        check_targets(index.targets, len(index.class_names), task, index.paths, f"{split} labels")


def check_targets(
    targets: np.ndarray, classes: int, task: Task, names: Sequence[object], where: str, mixed: bool = False
) -> None:
    """Refuse targets that are not what the task and the number of classes ask for.

    Args:
        targets: (N,) or (N, K) of any type.
        classes: K.
        task: The task.
        names: (N,) what to call each row in an error.
        where: What to call the targets in an error.
        mixed: Whether (N, K) shares of each class are right, as mixup and cutmix make them.
    """
    if task == "multilabel" or mixed:
        if targets.ndim != 2 or targets.shape[1] != classes:
            raise InputError(
                f"{where} have shape {tuple(targets.shape)}; {task} with {classes} classes expects (N, {classes})"
                + (", and one number an image is --model.task multiclass" if targets.ndim == 1 else "")
            )
        numbers = targets.astype(np.float64)
        wrong = ~((numbers >= 0) & (numbers <= 1)) if mixed else ~((numbers == 0) | (numbers == 1))
        expected = "in [0, 1]" if mixed else "0 or 1 for each class"
        hint = ""
    else:
        if targets.ndim != 1:
            both = targets.ndim == 2 and targets.shape[1] == classes
            raise InputError(
                f"{where} have shape {tuple(targets.shape)}; multiclass expects (N,), one class number an image"
                + (", and several classes an image are --model.task multilabel" if both else "")
            )
        if not np.issubdtype(targets.dtype, np.integer):
            raise InputError(f"{where} are {targets.dtype}; multiclass expects class numbers of an integer type")
        numbers = targets
        wrong = (numbers < 0) | (numbers >= classes)
        expected = f"in [0, {classes - 1}]"
        one_up = len(numbers) > 0 and numbers.min() == 1 and numbers.max() == classes
        hint = f"; do they start at 1? Then subtract 1, to have 0 to {classes - 1}" if one_up else ""
    if wrong.any():
        value = numbers[wrong][0]
        rows = np.flatnonzero((numbers == value) if np.isfinite(value) else wrong) // (wrong.size // len(wrong))
        others = int(wrong.sum()) - len(rows)
        raise InputError(
            f"{where} must be {expected}; found {value:g} in {len(set(rows.tolist()))} row(s), first "
            f"{names[int(rows[0])]}{f', and {others} other wrong value(s)' if others > 0 else ''}{hint}"
        )


def guessing_loss(
    frequencies: np.ndarray,
    task: Task,
    label_smoothing: float = 0.0,
    class_weights: Sequence[float] | None = None,
) -> float:
    """Loss of the best answer that does not look at the image: a network that is at it has learned frequencies only.

    For one class an image this is the entropy of the (weighted, smoothed) frequencies, ln K when they are even; for
    multi-label the mean of the classes' binary entropies. Both are the minimum of the expected cross-entropy over
    constant answers.

    Args:
        frequencies: (K,) share of the samples that have each class.
        task: The task.
        label_smoothing: Of the criterion.
        class_weights: Of the criterion.
    """
    weights = np.ones(len(frequencies)) if class_weights is None else np.asarray(class_weights, dtype=np.float64)
    if task == "multiclass":
        mass = weights * ((1 - label_smoothing) * frequencies + label_smoothing / len(frequencies))
        return -float(_xlogy(mass, mass / mass.sum()).sum())
    present, absent = weights * frequencies, 1 - frequencies
    total = present + absent
    return -float((_xlogy(present, present / total) + _xlogy(absent, absent / total)).mean())


def _xlogy(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """x ln y, and 0 where x is 0."""
    return x * np.log(np.where(x > 0, y, 1.0))
