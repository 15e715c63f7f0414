"""The index at a million images: python tests/benchmarks/index.py (about a minute; needs 200 MB of disk)

Memory, rows a second from a manifest, folders against a bare os.scandir, and what a worker's private memory grows by.
"""

import gc
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import sklearn.model_selection  # noqa: F401  what cutting a split imports is not the index's memory
import torch
from compare import Rows, alternate, median_ratio
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, get_worker_info

from template.data.datamodule import KeyedBatches
from template.data.index import Index, read_folder
from template.data.sampler import Key, TrainSampler
from template.data.scan import beside
from template.data.sources import read_source

N = 1_000_000


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def private() -> int:
    """Bytes of this process in memory that it shares with no other."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Private_"))


class Paths(Dataset[tuple[Tensor, Tensor]]):
    """Reads path and target of a sample, and instead of the image the private memory of the worker."""

    def __init__(self, index: Index) -> None:
        self.index = index

    def __getitem__(self, key: Key) -> tuple[Tensor, Tensor]:
        _, i = key
        assert self.index.paths[i]
        measured = private() if i % 1000 == 0 else 0
        return torch.tensor(measured), torch.tensor(int(self.index.targets[i]))


def _with_worker(batch: Any) -> tuple[int, Tensor]:
    return get_worker_info().id, batch["image"]  # type: ignore[union-attr]


def worker_growth(index: Index) -> float:
    """Most MB by which a worker's private memory grew over two epochs, from its first measurement on."""
    epoch = 0
    sampler = TrainSampler(len(index), 500, 0, position=lambda length: (epoch, 0))
    loader = DataLoader(
        KeyedBatches(Paths(index), 0),
        batch_sampler=sampler,
        num_workers=2,
        persistent_workers=True,
        collate_fn=_with_worker,
    )
    seen: dict[int, list[int]] = {0: [], 1: []}
    for epoch in range(2):  # noqa: B007  read by the sampler
        for worker, measured in loader:
            seen[worker] += measured[measured > 0].tolist()
    return max(max(values) - values[0] for values in seen.values()) / 1e6


def bare_scan(folder: str) -> int:
    count = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            count += bare_scan(entry.path) if entry.is_dir() else 1
    return count


def main() -> None:
    rows = Rows(f"Index of {N:,} images")
    with tempfile.TemporaryDirectory() as folder:
        manifest = Path(folder) / "labels.csv"
        with manifest.open("w") as file:
            file.write("path,label\n")
            file.writelines(f"some/folder/{i % 1000:04d}/{i:07d}.jpg,class {i % 1000:04d}\n" for i in range(N))
        small = Path(folder) / "small.csv"
        small.write_text("path,label\na.png,a\nb.png,b\n")
        read_source(str(small), Path(folder), (0.0, 0.0), 0)

        for fractions, what in (((0.0, 0.0), "as it is"), ((0.1, 0.1), "with val and test cut off")):
            gc.collect()
            before, start = resident(), time.perf_counter()
            splits = read_source(str(manifest), Path(folder), fractions, 0)
            seconds = time.perf_counter() - start
            gc.collect()
            path_bytes = sum(len(index.paths.bytes) for index in splits.values()) / N
            each = (resident() - before) / N
            rows.at_most(f"resident bytes a sample beside its path, {what}", each - path_bytes, 32, "bytes")
            rows.at_least(f"rows a second from a manifest, {what}", N / seconds, 200_000, "rows/s")
            if sum(fractions):
                rows.at_most(
                    "growth of a worker's private memory over two epochs", worker_growth(splits["train"]), 20, "MB"
                )
            del splits

        root = Path(folder) / "images"
        for k in range(100):
            (root / f"class {k:03d}").mkdir(parents=True)
            for i in range(1000):
                (root / f"class {k:03d}" / f"{i:06d}.jpg").touch()

        def scan() -> None:
            beside(root, "scan.npz").unlink(missing_ok=True)
            read_folder(root)

        def kept() -> None:
            read_folder(root)

        def bare() -> None:
            bare_scan(str(root))

        seconds_of = alternate({"bare": bare, "scan": scan})
        rows.at_least(
            "folders: speed of a bare os.scandir of 100,000 files kept",
            median_ratio(seconds_of["bare"], seconds_of["scan"]),
            0.5,
        )
        for path in [root, *root.iterdir()]:
            os.utime(path, (1e9, 1e9))
        read_folder(root)
        seconds_of = alternate({"bare": bare, "kept": kept})
        rows.plain("folders: the same from the kept scan", median_ratio(seconds_of["bare"], seconds_of["kept"]))
    rows.finish()


if __name__ == "__main__":
    main()
