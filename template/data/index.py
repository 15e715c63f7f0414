"""Folders of images become packed paths, labels and class names; every problem found is listed."""

import hashlib
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from pathlib import Path

import numpy as np

from template.errors import InputError

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff")
SPLIT_FOLDERS = {"train": ("train", "training"), "val": ("val", "valid", "validation"), "test": ("test", "testing")}
_CLUTTER = ("thumbs.db", "desktop.ini")
_CHUNK = 1 << 16  # strings packed at a time, so that there are never many as Python objects


class PackedStrings(Sequence[str]):
    """Strings in one byte array and their ends: 8 bytes each beside the text, nothing for the collector to walk.

    Args:
        strings: Strings without zero bytes, which no path has.
    """

    def __init__(self, strings: Iterable[str] = ()) -> None:
        chunks, lengths = [b""], [np.zeros(0, dtype=np.int64)]
        strings = iter(strings)
        while chunk := list(islice(strings, _CHUNK)):
            text = np.frombuffer(os.fsencode("\0".join(chunk) + "\0"), dtype=np.uint8)
            ends = np.flatnonzero(text == 0)
            lengths.append(np.diff(ends, prepend=-1) - 1)
            chunks.append(text[text != 0].tobytes())
        self.bytes = np.frombuffer(b"".join(chunks), dtype=np.uint8)
        self.ends = np.cumsum(np.concatenate(lengths))

    @classmethod
    def _packed(cls, text: np.ndarray, ends: np.ndarray) -> "PackedStrings":
        packed = cls()
        packed.bytes, packed.ends = text, ends
        return packed

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, i):  # type: ignore[no-untyped-def]
        if isinstance(i, slice):
            return [self[j] for j in range(*i.indices(len(self)))]
        i = range(len(self))[i]
        start = self.ends[i - 1] if i else 0
        return os.fsdecode(self.bytes[start : self.ends[i]].tobytes())

    def take(self, rows: np.ndarray) -> "PackedStrings":
        """The strings of the given rows, in the given order."""
        starts = np.concatenate([[0], self.ends[:-1]])[rows] if len(rows) else np.zeros(0, dtype=np.int64)
        lengths = self.ends[rows] - starts
        ends = np.cumsum(lengths)
        text = np.empty(int(lengths.sum()), dtype=np.uint8)
        for at in range(0, len(rows), _CHUNK):  # a part at a time: the byte positions take 8 times the text
            part = slice(at, at + _CHUNK)
            first = ends[at] - lengths[at]
            moved = starts[part] - (ends[part] - lengths[part])
            positions = np.repeat(moved, lengths[part]) + np.arange(first, ends[part][-1])
            text[first : ends[part][-1]] = self.bytes[positions]
        return self._packed(text, ends)


@dataclass(frozen=True)
class Index:
    """One split: where each sample is and what it is labelled.

    Attributes:
        root: Folder that the paths are relative to.
        paths: (N,) paths relative to ``root``, which also name samples that are held in ``pixels``.
        targets: (N,) int64 class numbers, or (N, K) uint8 zeros and ones for multi-label.
        class_names: K names; class ``k`` is ``class_names[k]``.
        pixels: (N, H, W) or (N, H, W, 3) uint8 when the images are already in memory, else None.
        notes: What was skipped or is odd, one line each.

    Raises:
        InputError: A target is of the wrong type, shape or range.
    """

    root: Path
    paths: PackedStrings
    targets: np.ndarray
    class_names: tuple[str, ...]
    pixels: np.ndarray | None = None
    notes: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        n, k, targets = len(self.paths), len(self.class_names), self.targets
        if targets.shape not in ((n,), (n, k)) or targets.dtype.kind not in "iu":
            raise InputError(
                f"the targets are {targets.dtype} {targets.shape}; expected integers, ({n},), or 0 and 1, ({n}, {k})"
            )
        if targets.ndim == 2:
            if len(wrong := np.argwhere(targets > 1)):
                row, column = wrong[0]
                raise InputError(
                    f"{self.paths[row]} has {targets[row, column]} for class {self.class_names[column]!r}; "
                    f"expected 0 or 1; the like in {len(wrong)} places"
                )
        elif n and not 0 <= (worst := targets.max() if targets.min() >= 0 else targets.min()) < k:
            rows = np.flatnonzero(targets == worst)
            raise InputError(
                f"labels must be in [0, {k - 1}]; found {worst} in {len(rows)} row{'s' * (len(rows) > 1)}, "
                f"first {self.paths[rows[0]]}{'; do they start at 1?' * bool(targets.min() == 1)}"
            )

    def __len__(self) -> int:
        return len(self.targets)

    def take(self, rows: np.ndarray) -> "Index":
        """The same index with the given rows only, in the given order."""
        return replace(
            self,
            paths=self.paths.take(rows),
            targets=self.targets[rows],
            pixels=None if self.pixels is None else self.pixels[rows],
        )

    def counts(self) -> np.ndarray:
        """(K,) samples per class."""
        if self.targets.ndim == 2:
            return self.targets.sum(axis=0, dtype=np.int64)
        return np.bincount(self.targets, minlength=len(self.class_names))

    @cached_property
    def fingerprint(self) -> str:
        """Twelve hexadecimal digits that change when a path, a label or a class name changes."""
        digest = hashlib.sha256("\0".join(self.class_names).encode())
        for array in (self.targets, self.paths.ends, self.paths.bytes):
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()[:12]


def read_folder(root: Path, fractions: tuple[float, float] = (0.1, 0.1), split_seed: int = 0) -> dict[str, Index]:
    """Index a folder of images into its splits.

    ``root`` holds either split folders (train/, and optionally val/ and test/), each with one folder a class, or the
    class folders themselves. Splits that are missing are cut from the training images, stratified by class. Class
    names are the training folders' names, sorted, and number the classes of every split.

    Args:
        root: The folder.
        fractions: Shares of the samples that become val and test where those splits are missing; 0 leaves one out.
        split_seed: Seed of the cut; it is not the run's seed, so runs of several seeds are tested on the same images.

    Raises:
        InputError: The folder is missing or empty, has fewer than two classes, or a split has a class train has not.
    """
    if not root.is_dir():
        raise InputError(f"no data folder at {root}; create it, or point data.root at your images (--data.root DIR)")
    folders = {split: found for split in SPLIT_FOLDERS if (found := _split_folder(root, split)) is not None}
    if "train" not in folders:
        if folders:
            raise InputError(f"{root} has {', '.join(p.name for p in folders.values())}/ but no train/ folder")
        folders = {"train": root}

    train = _read_split(root, folders["train"], class_names=None)
    splits = {"train": train}
    for split, folder in folders.items():
        if split != "train":
            splits[split] = _read_split(root, folder, train.class_names)
    return fill_splits(splits, fractions, split_seed)


def fill_splits(splits: dict[str, Index], fractions: tuple[float, float], split_seed: int) -> dict[str, Index]:
    """Cut the val and test splits that are missing from train, stratified by class.

    Raises:
        InputError: A class has too few samples to be in every split.
    """
    from sklearn.model_selection import train_test_split

    splits = dict(splits)
    total = len(splits["train"])
    for split, fraction in zip(("test", "val"), reversed(fractions), strict=True):
        if split in splits or fraction == 0:
            continue
        train = splits["train"]
        stratify = train.targets if train.targets.ndim == 1 else None
        try:
            kept, cut = train_test_split(
                np.arange(len(train)), test_size=math.ceil(fraction * total), random_state=split_seed, stratify=stratify
            )
        except ValueError as error:
            raise InputError(
                f"cannot cut {fraction:g} of {total} training samples as {split}: {error}; add images or a {split} "
                f"split, or set data.{split}_fraction (0 for none)"
            ) from None
        splits["train"] = train.take(np.sort(kept))
        splits[split] = replace(train.take(np.sort(cut)), notes=())
    return {split: splits[split] for split in ("train", "val", "test") if split in splits}


def list_images(folder: Path, skipped: list[str]) -> Iterator[str]:
    """Yield the image files below a folder, as paths relative to it, sorted; add what is left out to ``skipped``.

    Hidden files and folders and the clutter of desktops (``.DS_Store``, ``Thumbs.db``, ``._a.jpg``) are left out.
    """
    with os.scandir(folder) as scan:
        entries = sorted(scan, key=lambda entry: entry.name)
    for entry in entries:
        name = entry.name
        if name[0] == "." or name.lower() in _CLUTTER:
            skipped.append(os.path.join(folder, name))
        elif name.lower().endswith(IMAGE_SUFFIXES):
            yield name
        elif entry.is_dir():
            for below in list_images(Path(entry.path), skipped):
                yield f"{name}/{below}"
        else:
            skipped.append(os.path.join(folder, name))


def _split_folder(root: Path, split: str) -> Path | None:
    return next((root / name for name in SPLIT_FOLDERS[split] if (root / name).is_dir()), None)


def _read_split(root: Path, folder: Path, class_names: tuple[str, ...] | None) -> Index:
    """Index one folder of class folders; ``class_names`` None means that this is train and names the classes."""
    skipped: list[str] = []
    found: dict[str, list[str]] = {}
    with os.scandir(folder) as scan:
        entries = sorted(scan, key=lambda entry: entry.name)
    for entry in entries:
        if entry.name[0] == "." or not entry.is_dir():
            skipped.append(entry.path)
        else:
            found[entry.name] = list(list_images(Path(entry.path), skipped))

    notes = []
    if skipped:
        shown = ", ".join(os.path.relpath(path, root) for path in skipped[:3])
        notes.append(f"{folder}: skipped {len(skipped)} that are no images: {shown}{', …' if len(skipped) > 3 else ''}")
    if class_names is None:
        empty = [name for name, files in found.items() if not files]
        if empty:
            notes.append(f"{folder}: no images in class folder{'s' * (len(empty) > 1)} {', '.join(empty)}: left out")
        class_names = tuple(name for name, files in found.items() if files)
        if len(class_names) < 2:
            raise InputError(
                f"{folder} has {len(class_names)} class folder{'s' * (len(class_names) != 1)} with images "
                f"({', '.join(class_names) or 'none'}); at least 2 are needed: one folder for each class"
            )
    else:
        for name in found:
            if name not in class_names:
                raise InputError(f"class {name!r} in {folder.name} is not in train; classes: {', '.join(class_names)}")
        absent = [name for name in class_names if not found.get(name)]
        if absent:
            notes.append(f"{folder.name}: support 0 for class{'es' * (len(absent) > 1)} {', '.join(absent)}")

    prefix = f"{folder.relative_to(root).as_posix()}/" if folder != root else ""
    paths = PackedStrings(f"{prefix}{name}/{file}" for name, files in found.items() for file in files)
    numbers = {name: number for number, name in enumerate(class_names)}
    targets = np.repeat(
        np.array([numbers.get(name, -1) for name in found], dtype=np.int64), [len(files) for files in found.values()]
    )
    if not len(targets):
        raise InputError(f"no images in {folder}; looked for {', '.join(IMAGE_SUFFIXES)}")
    return Index(root, paths, targets, class_names, notes=tuple(notes))
