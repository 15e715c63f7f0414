"""Folders of images become packed paths, labels and class names; every problem found is listed."""

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from template.errors import InputError

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff")
SPLIT_FOLDERS = {"train": ("train", "training"), "val": ("val", "valid", "validation"), "test": ("test", "testing")}
_CLUTTER = ("thumbs.db", "desktop.ini")


class PackedStrings(Sequence[str]):
    """Strings in one byte array and their ends: 8 bytes each beside the text, nothing for the collector to walk."""

    def __init__(self, strings: Iterable[str]) -> None:
        chunks, lengths = [], []
        for string in strings:
            encoded = os.fsencode(string)
            chunks.append(encoded)
            lengths.append(len(encoded))
        self.bytes = np.frombuffer(b"".join(chunks), dtype=np.uint8)
        self.ends = np.cumsum(lengths, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, i):  # type: ignore[no-untyped-def]
        if isinstance(i, slice):
            return [self[j] for j in range(*i.indices(len(self)))]
        start = self.ends[i - 1] if i else 0
        return os.fsdecode(self.bytes[start : self.ends[i]].tobytes())


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
    """

    root: Path
    paths: Sequence[str]
    targets: np.ndarray
    class_names: tuple[str, ...]
    pixels: np.ndarray | None = None
    notes: tuple[str, ...] = field(default=())

    def __len__(self) -> int:
        return len(self.targets)

    def take(self, rows: np.ndarray) -> "Index":
        """The same index with the given rows only, in the given order."""
        return replace(
            self,
            paths=PackedStrings(self.paths[i] for i in rows),
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
        digest.update(np.ascontiguousarray(self.targets).tobytes())
        for path in self.paths:
            digest.update(os.fsencode(path) + b"\0")
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
    for split, fraction in zip(("test", "val"), reversed(fractions), strict=True):
        if split in splits or fraction == 0:
            continue
        train = splits["train"]
        stratify = train.targets if train.targets.ndim == 1 else None
        try:
            kept, cut = train_test_split(
                np.arange(len(train)), test_size=fraction, random_state=split_seed, stratify=stratify
            )
        except ValueError as error:
            raise InputError(f"cannot cut {fraction:g} of {len(train)} training samples as {split}: {error}") from None
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
