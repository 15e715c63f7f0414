"""The scan of a folder is kept beside it, as .<name>.scan.npz, and reused while none of its folders has changed."""

import contextlib
import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from template.data.packed import PackedStrings

if TYPE_CHECKING:
    from template.data.index import Index

log = logging.getLogger(__name__)
_FORMAT = 1
_SETTLED_NS = 2_000_000_000  # a folder younger than this may change again within one tick of a coarse clock
Arrays = tuple[PackedStrings, np.ndarray, tuple[str, ...], None, tuple[str, ...]]


def beside(root: Path, suffix: str) -> Path:
    """A hidden file beside a folder that belongs to it: data/photos has data/.photos.<suffix>."""
    root = root.resolve()
    return root.with_name(f".{root.name}.{suffix}")


@contextlib.contextmanager
def one_at_a_time(root: Path) -> Iterator[None]:
    """Let one process of this machine scan while the others wait for its result, where such a lock can be had."""
    try:
        import fcntl

        file = beside(root, "lock").open("w")
        fcntl.flock(file, fcntl.LOCK_EX)
    except (ImportError, OSError):  # no such locks here, or the folder is read-only: each process scans
        yield
        return
    with file:
        yield


def load_scan(root: Path) -> dict[str, Arrays] | None:
    """The arguments of each split's Index behind ``root``, or None when there is no scan, or the folder has changed.

    A folder's time of change tells of names that came, went or were changed in it.
    """
    try:
        with beside(root, "scan.npz").open("rb") as file, np.load(file, allow_pickle=False) as kept:
            about = json.loads(kept["about"].tobytes())
            if about["format"] != _FORMAT or about["root"] != str(root):
                return None
            folders = PackedStrings.from_arrays(kept["folders"], kept["folder_ends"])
            for folder, changed in zip(folders, kept["changed"].tolist(), strict=True):
                if changed != os.stat(folder).st_mtime_ns or changed > about["started"] - _SETTLED_NS:
                    return None
            class_names = tuple(about["class_names"])
            return {
                split: (
                    PackedStrings.from_arrays(kept[f"{split}.paths"], kept[f"{split}.ends"]),
                    kept[f"{split}.targets"],
                    class_names,
                    None,
                    tuple(notes),
                )
                for split, notes in about["notes"].items()
            }
    except FileNotFoundError:
        return None
    except Exception as error:  # damaged, or of another version: the folder itself is the truth
        log.debug(f"{beside(root, 'scan.npz')} is not used: {error}")
        return None


def keep_scan(root: Path, folders: Sequence[str], started: int, splits: Mapping[str, "Index"]) -> None:
    """Write the scan that began at ``started`` (ns); a place that cannot be written to is left alone."""
    about = {
        "format": _FORMAT,
        "root": str(root),
        "started": started,
        "class_names": splits["train"].class_names,
        "notes": {split: index.notes for split, index in splits.items()},
    }
    packed = PackedStrings(folders)
    arrays = {
        "about": np.frombuffer(json.dumps(about).encode(), dtype=np.uint8),
        "folders": packed.bytes,
        "folder_ends": packed.ends,
        "changed": np.array([os.stat(folder).st_mtime_ns for folder in folders]),
    }
    for split, index in splits.items():
        arrays |= {f"{split}.paths": index.paths.bytes, f"{split}.ends": index.paths.ends}
        arrays[f"{split}.targets"] = index.targets
    target = beside(root, "scan.npz")
    partial = target.with_name(f"{target.name}.{os.getpid()}")
    try:
        with partial.open("wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
        os.replace(partial, target)
    except OSError:
        partial.unlink(missing_ok=True)
