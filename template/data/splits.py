"""Splits that are missing are cut from train: stratified by class, and no group, where there are any, in two."""

import math
from dataclasses import replace

import numpy as np

from template.data.index import Index
from template.errors import InputError


def fill_splits(
    splits: dict[str, Index], fractions: tuple[float, float], split_seed: int, groups: np.ndarray | None = None
) -> dict[str, Index]:
    """Cut the val and test splits that are missing from train, stratified by class (multi-label: at random).

    Args:
        splits: What there is, with train.
        fractions: Shares of the training samples, or of their groups, that become val and test; 0 leaves one out.
        split_seed: Seed of the cut; it is not the run's seed, so runs of several seeds are tested on the same images.
        groups: (N,) group number of each training sample. A group, such as one patient's images, stays in one split;
            it counts as of the class that most of its samples have.

    Raises:
        InputError: A class has too few samples, or groups, to be in every split.
    """
    splits = dict(splits)
    train = splits["train"]
    unit = np.arange(len(train)) if groups is None else np.unique(groups, return_inverse=True)[1]
    total = int(unit.max()) + 1
    for split, fraction in zip(("test", "val"), reversed(fractions), strict=True):
        if split not in splits and fraction > 0:
            train = splits["train"]
            cut = _cut(train, unit, math.ceil(fraction * total), split, split_seed)
            splits["train"], unit = train.take(np.flatnonzero(~cut)), unit[~cut]
            splits[split] = replace(train.take(np.flatnonzero(cut)), notes=())
    return {split: splits[split] for split in ("train", "val", "test") if split in splits}


def _cut(train: Index, unit: np.ndarray, size: int, split: str, seed: int) -> np.ndarray:
    """(N,) whether a sample is in one of the ``size`` units that are cut off."""
    from sklearn.model_selection import train_test_split

    single = bool((np.diff(unit) > 0).all())  # each sample is a unit of its own
    units = unit if single else np.unique(unit)
    labels = None if train.targets.ndim == 2 else train.targets if single else _majority(unit, train.targets)
    try:
        _, cut = train_test_split(units, test_size=size, random_state=seed, stratify=labels)
    except ValueError as error:
        raise InputError(
            f"cannot cut {size} of {len(units)} training samples or groups as {split}: {error}; add images or a "
            f"{split} split, or change data.{split}_fraction (0 for none)"
        ) from None
    chosen = np.zeros(units[-1] + 1, dtype=bool)
    chosen[cut] = True
    return chosen[unit]


def _majority(unit: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """The most frequent target of each unit, in the order of the units' numbers."""
    pairs, counts = np.unique(np.stack([unit, targets]), axis=1, return_counts=True)
    ranked = np.lexsort((counts, pairs[0]))
    last = np.flatnonzero(np.diff(pairs[0][ranked], append=-1))
    return pairs[1][ranked][last]
