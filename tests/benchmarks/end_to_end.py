"""Fashion-MNIST as 70,000 PNG files, a tiny network: python tests/benchmarks/end_to_end.py (some minutes)

Images a second of whole training epochs, the template's with everything on, against a hand-written loop over the same
images decoded in memory; epochs of the three alternate. Needs Debian's dataset-fashion-mnist, or --source FOLDER with
the four .gz files; --images N takes fewer.
"""

import argparse
import csv
import gzip
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from compare import Rows
from PIL import Image
from torch import nn

from template.cli import main as template
from template.data.index import read_folder
from template.model import module as module_file

BATCH = 128


def raw(folder: Path, name: str, header: int) -> np.ndarray:
    return np.frombuffer(gzip.decompress((folder / f"{name}-ubyte.gz").read_bytes()), dtype=np.uint8, offset=header)


def write_files(source: Path, root: Path, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Write train/ with up to 60,000 and val/ with up to 10,000 images; give the training images and labels."""
    for split, name, share in (("train", "train", 6 / 7), ("val", "t10k", 1 / 7)):
        pixels = raw(source, f"{name}-images-idx3", 16).reshape(-1, 28, 28)[: round(n * share)]
        labels = raw(source, f"{name}-labels-idx1", 8)[: len(pixels)]
        for k in range(10):
            (root / split / str(k)).mkdir(parents=True)
        for i, (image, label) in enumerate(zip(pixels, labels, strict=True)):
            Image.fromarray(image).save(root / split / str(label) / f"{i:05d}.png")
        if split == "train":
            kept = pixels, labels
    return kept


def tiny(width: int = 16) -> nn.Module:
    """Two convolutions, as in the overhead benchmark."""
    return nn.Sequential(
        nn.Conv2d(3, width, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(2 * width, 10),
    )


class HandWritten:
    """The loop that a person writes who has all images in memory."""

    def __init__(self, pixels: np.ndarray, labels: np.ndarray) -> None:
        self.images = torch.from_numpy(pixels.copy())[:, None].expand(-1, 3, -1, -1)
        self.labels = torch.from_numpy(labels.astype(np.int64))
        self.network = tiny()
        self.optimizer = torch.optim.AdamW(self.network.parameters())

    def epoch(self) -> float:
        """Images a second."""
        start = time.perf_counter()
        for rows in torch.randperm(len(self.images)).split(BATCH):
            images = (self.images[rows].float() / 255 - 0.286) / 0.353
            loss = nn.functional.cross_entropy(self.network(images), self.labels[rows])
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        return len(self.images) / (time.perf_counter() - start)


def template_epochs(root: Path, run: Path, epochs: int, options: list[str]) -> list[float]:
    """Images a second of each training epoch, from what the run logged every 20 steps: the harmonic mean."""
    build = module_file.build_network
    module_file.build_network = lambda *_: tiny()
    try:
        status = template(
            [
                *("fit", "--run_dir", str(run), "--data.root", str(root), "--data.preprocessing.size", "28"),
                *("--data.global_batch_size", str(BATCH), "--trainer.max_epochs", str(epochs)),
                *("--trainer.accelerator", "cpu", "--trainer.log_every_n_steps", "20", "--wandb.mode", "disabled"),
                *("--data.test_fraction", "0", *options),
            ]
        )
    finally:
        module_file.build_network = build
    if status:
        raise SystemExit(status)
    with (run / "metrics.csv").open() as file:
        logged = [row for row in csv.DictReader(file) if row["train/images_per_second"]]
    return [
        statistics.harmonic_mean(float(row["train/images_per_second"]) for row in logged if int(row["epoch"]) == epoch)
        for epoch in range(epochs)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", type=Path, default=Path("/usr/share/datasets/fashion-mnist"))
    parser.add_argument("--images", type=int, default=70_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if not options.source.is_dir():
        print(f"\nEnd to end: left out, no {options.source} (Debian: apt install dataset-fashion-mnist)")
        return
    rows = Rows(f"End to end, {options.images:,} PNG files, tiny network, batch {BATCH}")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "fashion"
        hand = HandWritten(*write_files(options.source, root, options.images))
        read_folder(root)
        plain, cached, written = [], [], []
        for i in range(options.rounds):
            written.append(hand.epoch())
            plain += template_epochs(root, Path(folder) / f"plain{i}", 1, ["--data.num_workers", "auto"])
            written.append(hand.epoch())
            _, *later = template_epochs(root, Path(folder) / f"cached{i}", 2, ["--data.cache", f"{folder}/cache"])
            cached += later
        by_hand = statistics.median(written)
        rows.plain("hand-written loop over images in memory", by_hand, "images/s")
        rows.at_least("training epoch from files / hand-written", statistics.median(plain) / by_hand, 0.45)
        rows.at_least("later epochs with data.cache / hand-written", statistics.median(cached) / by_hand, 0.80)
    rows.finish()


if __name__ == "__main__":
    main()
