"""Folders of images become packed paths, labels and class names; every problem found is listed."""

import hashlib
import os
import time
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from template.data.packed import PackedStrings
from template.data.scan import keep_scan, load_scan, one_at_a_time
from template.errors import InputError

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff")
SPLIT_FOLDERS = {"train": ("train", "training"), "val": ("val", "valid", "validation"), "test": ("test", "testing")}
_COMMON = {".jpg", ".png", ".JPG"}  # a folder of these alone is listed without looking at each name further


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


def read_folder(root: Path) -> dict[str, Index]:
    """Index a folder of images into the splits that it has.

    ``root`` holds either split folders (train/, and optionally val/ and test/), each with one folder a class, or the
    class folders themselves, which are train. Class names are the training folders' names, sorted, and number the
    classes of every split. The scan is kept beside the folder and serves every process until the folder changes.

    Raises:
        InputError: The folder is missing or empty, has fewer than two classes, or a split has a class train has not.
    """
    if not root.is_dir():
        raise InputError(f"no data folder at {root}; create it, or point data.root at your images (--data.root DIR)")
    with one_at_a_time(root):
        kept = load_scan(root)
        if kept is not None:
            return {split: Index(root, *arrays) for split, arrays in kept.items()}
        scan, started = _Scan(), time.time_ns()
        splits = _scan_splits(root, scan)
        keep_scan(root, scan.folders, started, splits)
    return splits


def _scan_splits(root: Path, scan: "_Scan") -> dict[str, Index]:
    folders = {split: found for split in SPLIT_FOLDERS if (found := _split_folder(root, split)) is not None}
    if "train" not in folders:
        if folders:
            raise InputError(f"{root} has {', '.join(p.name for p in folders.values())}/ but no train/ folder")
        folders = {"train": root}
    else:
        scan.folders.append(str(root))
    splits = {"train": _read_split(root, folders.pop("train"), scan, class_names=None)}
    for split, folder in folders.items():
        splits[split] = _read_split(root, folder, scan, splits["train"].class_names)
    return splits


def list_images(folder: Path, skipped: list[str]) -> list[str]:
    """The image files below a folder, as paths relative to it, sorted; what is left out is added to ``skipped``.

    Hidden files and folders and the clutter of desktops (``.DS_Store``, ``Thumbs.db``, ``._a.jpg``) are left out.
    """
    scan = _Scan()
    found = scan.images(str(folder))
    skipped += scan.skipped
    return found


class _Scan:
    """Folders that were looked into, and what was left out there."""

    def __init__(self) -> None:
        self.folders: list[str] = []
        self.skipped: list[str] = []

    def images(self, folder: str, prefix: str = "") -> list[str]:
        """Paths of the images below ``folder``, sorted, each behind the prefix."""
        self.folders.append(folder)
        names = os.listdir(folder)  # half the time of os.scandir, whose entries would not be looked at
        names.sort()
        if all(name[-4:] in _COMMON for name in names) and not any(name[0] == "." for name in names):
            return [prefix + name for name in names] if prefix else names
        paths = []
        for name in names:
            path = os.path.join(folder, name)
            if name[0] == ".":
                self.skipped.append(path)
            elif name.lower().endswith(IMAGE_SUFFIXES):
                paths.append(prefix + name)
            elif os.path.isdir(path):
                paths += self.images(path, f"{prefix}{name}/")
            else:
                self.skipped.append(path)
        return paths


def _split_folder(root: Path, split: str) -> Path | None:
    return next((root / name for name in SPLIT_FOLDERS[split] if (root / name).is_dir()), None)


def _read_split(root: Path, folder: Path, scan: _Scan, class_names: tuple[str, ...] | None) -> Index:
    """Index one folder of class folders; ``class_names`` None means that this is train and names the classes."""
    prefix = "" if folder == root else f"{folder.relative_to(root).as_posix()}/"
    scan.folders.append(str(folder))
    scan.skipped.clear()
    found: dict[str, PackedStrings] = {}
    with os.scandir(folder) as scandir:
        entries = sorted(scandir, key=lambda entry: entry.name)
    for entry in entries:
        if entry.name[0] == "." or not entry.is_dir():
            scan.skipped.append(entry.path)
        else:
            found[entry.name] = PackedStrings(scan.images(entry.path, f"{prefix}{entry.name}/"))

    notes = []
    if scan.skipped:
        shown = ", ".join(os.path.relpath(path, root) for path in scan.skipped[:3])
        more = ", …" if len(scan.skipped) > 3 else ""
        notes.append(f"{folder}: skipped {len(scan.skipped)} that are no images: {shown}{more}")
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
        for name, files in found.items():
            if name not in class_names and files:
                raise InputError(f"class {name!r} in {folder.name} is not in train; classes: {', '.join(class_names)}")
        absent = [name for name in class_names if not found.get(name)]
        if absent:
            notes.append(f"{folder.name}: support 0 for class{'es' * (len(absent) > 1)} {', '.join(absent)}")

    paths = PackedStrings()
    for files in found.values():
        paths.extend(files)
    numbers = {name: number for number, name in enumerate(class_names)}
    targets = np.repeat(
        np.array([numbers.get(name, -1) for name in found], dtype=np.int64), [len(files) for files in found.values()]
    )
    if not len(targets):
        raise InputError(f"no images in {folder}; looked for {', '.join(IMAGE_SUFFIXES)}")
    return Index(root, paths, targets, class_names, notes=tuple(notes))
