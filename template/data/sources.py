"""Where images come from: folders, manifests, scikit-learn's digits as files on disk, torchvision's data sets."""

import shutil
from pathlib import Path

import numpy as np

from template.data.index import Index, read_folder
from template.data.manifest import MANIFEST_SUFFIXES, read_manifest
from template.data.packed import PackedStrings, release_free_memory
from template.data.splits import fill_splits
from template.errors import InputError, did_you_mean

#: torchvision data sets that hold their images in memory: a train and a test half, one label an image.
TORCHVISION = ("MNIST", "FashionMNIST", "KMNIST", "QMNIST", "CIFAR10", "CIFAR100")


def read_source(source: str, root: Path, fractions: tuple[float, float], split_seed: int) -> dict[str, Index]:
    """Index the named source into its splits.

    Args:
        source: ``folder``, ``digits``, one of :data:`TORCHVISION`, or a manifest: a .csv, .tsv or .jsonl file.
        root: Where the files are, or are to be put.
        fractions: Shares cut as val and test where the source has no such split.
        split_seed: Seed of that cut.

    Raises:
        InputError: The source is unknown, or its files are not there and cannot be had.
    """
    groups = None
    if source == "digits":
        write_digits(root)
    if source in ("folder", "digits"):
        splits = read_folder(root)
    elif source in TORCHVISION:
        splits = _read_torchvision(source, root)
    elif Path(source).suffix.lower() in MANIFEST_SUFFIXES:
        splits, groups = read_manifest(_find_manifest(source, root), root)
    else:
        known = ("folder", "digits", *TORCHVISION)
        raise InputError(
            f"data.source is {source!r}{did_you_mean(source, known)} Known: {', '.join(known)}, or a manifest: a file "
            f"whose name ends in {', '.join(MANIFEST_SUFFIXES)}"
        )
    splits = fill_splits(splits, fractions, split_seed, groups)
    release_free_memory()
    return splits


def write_digits(root: Path) -> None:
    """Write scikit-learn's 1,797 handwritten digits (8x8 pixels, 16 grey levels) as PNG class folders, once.

    The splits are stratified and fixed: 1,257 train, 180 val, 360 test. Files are written to a folder beside ``root``
    that takes its name when complete, so that an interrupted call leaves nothing that looks finished.
    """
    if root.is_dir():
        return
    from PIL import Image
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    pixels = np.round(digits.images * (255 / 16)).astype(np.uint8)
    labels = digits.target
    rest, test = train_test_split(np.arange(len(labels)), test_size=360, random_state=0, stratify=labels)
    train, val = train_test_split(rest, test_size=180, random_state=0, stratify=labels[rest])

    partial = root.with_name(f"{root.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    for split, rows in {"train": train, "val": val, "test": test}.items():
        for row in rows:
            folder = partial / split / str(labels[row])
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels[row]).save(folder / f"{row:04d}.png")
    partial.rename(root)


def _find_manifest(source: str, root: Path) -> Path:
    found = next((path for path in (Path(source), root / source) if path.is_file()), None)
    if found is None:
        raise InputError(f"data.source is {source!r}, and there is no such file, neither there nor in {root}")
    return found


def _read_torchvision(name: str, root: Path) -> dict[str, Index]:
    from torchvision import datasets

    dataset_class = getattr(datasets, name)
    folder = root / ("cifar-10-python.tar.gz" if name == "CIFAR10" else "cifar-100-python.tar.gz")
    if "CIFAR" not in name:
        folder = root / name / "raw"
    splits = {}
    for split in ("train", "test"):
        try:
            images = dataset_class(root, train=split == "train", download=True)
        except (OSError, RuntimeError) as error:
            what = f"the archive at {folder}" if "CIFAR" in name else f"the four .gz files in {folder}/"
            raise InputError(
                f"{name} is not in {root} and could not be downloaded ({type(error).__name__}); put {what}"
            ) from None
        pixels = images.data.numpy() if hasattr(images.data, "numpy") else images.data
        names = PackedStrings(f"{split}/{row:05d}" for row in range(len(pixels)))
        class_names = tuple(class_name.strip() for class_name in images.classes)
        targets = np.asarray(images.targets, dtype=np.int64)
        splits[split] = Index(root, names, targets, class_names, pixels=pixels)
    return splits
