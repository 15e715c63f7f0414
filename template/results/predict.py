"""Class names and probabilities for images, from a checkpoint and nothing else."""

import csv
import json
import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor

from template.data.index import IMAGE_SUFFIXES, list_images
from template.data.reading import open_image
from template.errors import InputError, did_you_mean
from template.model.module import load_classifier
from template.results.evaluate import find_checkpoint
from template.results.rows import RowFile

Row = dict[str, Any]
MANIFEST_SUFFIXES = (".csv", ".tsv", ".jsonl")


class Predictor:
    """A checkpoint, ready to be given images.

    Args:
        checkpoint: A checkpoint, or a run folder: its best one.
        flip: Average the probabilities of each image and of its mirror image.
        device: Where to compute; None is the accelerator where there is one.

    Raises:
        InputError: The checkpoint cannot be read.
    """

    def __init__(self, checkpoint: Path, flip: bool = False, device: torch.device | None = None) -> None:
        self.module, _ = load_classifier(find_checkpoint(checkpoint))
        self.class_names = self.module.class_names
        self.flip = flip
        accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        self.device = device or accelerator or torch.device("cpu")
        self.module.to(self.device)

    def read(self, path: Path) -> Tensor:
        """An image file as the network's input before normalisation, (3, S, S) uint8.

        Raises:
            InputError: The file is missing, damaged or not an image.
        """
        return self.module.preprocessing.sample(open_image(path))

    @torch.inference_mode()
    def logits(self, images: Tensor) -> Tensor:
        """(B, 3, S, S) uint8 to (B, K) float32 on the predictor's device."""
        return self.module(self.module.preprocessing.normalise(images.to(self.device))).float()

    @torch.inference_mode()
    def probabilities(self, images: Tensor) -> Tensor:
        """(B, 3, S, S) uint8 to (B, K) float32 on the CPU."""
        probabilities = self.module.probabilities(self.logits(images))
        if self.flip:
            probabilities = (probabilities + self.module.probabilities(self.logits(images.flip(-1)))) / 2
        return probabilities.cpu()

    def rows(self, files: Sequence[Path], top_k: int = 1) -> list[Row]:
        """One row a file, as ``predict`` writes it; a file that cannot be read has its reason under ``error``."""
        rows: list[Row] = [dict.fromkeys(columns(top_k)) | {"path": str(file)} for file in files]
        images, good = [], []
        for row, file in zip(rows, files, strict=True):
            try:
                images.append(self.read(file))
                good.append(row)
            except InputError as error:
                row["error"] = str(error)
        if images:
            probabilities, classes = self.probabilities(torch.stack(images)).topk(top_k, dim=1)
            for row, numbers, values in zip(good, classes.tolist(), probabilities.tolist(), strict=True):
                for rank, (number, value) in enumerate(zip(numbers, values, strict=True), start=1):
                    row[_ranked("class", rank)], row[_ranked("probability", rank)] = self.class_names[number], value
        return rows


def columns(top_k: int) -> list[str]:
    """path, class, probability, then class_2, probability_2 and so on, and error."""
    pairs = [_ranked(name, rank) for rank in range(1, top_k + 1) for name in ("class", "probability")]
    return ["path", *pairs, "error"]


def _ranked(name: str, rank: int) -> str:
    return name if rank == 1 else f"{name}_{rank}"


def predict(
    checkpoint: Path,
    paths: Sequence[Path],
    output: Path,
    top_k: int = 1,
    flip: bool = False,
    batch_size: int = 64,
    processes: int = 1,
) -> tuple[int, int]:
    """Write one row an image, in the order of the paths, to a CSV, JSON Lines or Parquet file (UTF-8).

    Args:
        checkpoint: A checkpoint, or a run folder: its best one.
        paths: Images, folders that are searched for them, or manifests: .csv, .tsv or .jsonl with a ``path`` each row.
        output: The file to write; its suffix says how.
        top_k: Classes a row, the most probable first.
        flip: Average the probabilities of each image and of its mirror image.
        batch_size: Images at a time.
        processes: Processes that read and compute, on one accelerator each where there are several.

    Returns:
        The number of rows, and how many of them are files that could not be read.

    Raises:
        InputError: The checkpoint cannot be read, there is no image, none can be read, or a value is out of range.
    """
    for name, value in (("top_k", top_k), ("batch_size", batch_size), ("processes", processes)):
        if value < 1:
            raise InputError(f"--{name} is {value}; expected 1 or more")
    files = find_images(paths)
    predictor = Predictor(checkpoint, flip)
    if top_k > len(predictor.class_names):
        raise InputError(f"--top_k is {top_k}, and the checkpoint knows {len(predictor.class_names)} classes")
    batches = [files[start : start + batch_size] for start in range(0, len(files), batch_size)]
    if (processes := min(processes, len(batches))) > 1:
        computed = _elsewhere(batches, processes, checkpoint, flip, top_k)
    else:
        computed = (predictor.rows(batch, top_k) for batch in batches)
    unreadable = 0
    with RowFile(output, columns(top_k)) as file, _bar() as bar:
        task = bar.add_task("predict", total=len(files))
        for rows in computed:
            file.write(rows)
            unreadable += sum(row["error"] is not None for row in rows)
            bar.advance(task, len(rows))
        if unreadable == len(files):
            raise InputError(f"none of the {len(files)} files can be read; the last: {rows[-1]['error']}")
    return len(files), unreadable


def _elsewhere(
    batches: Sequence[Sequence[Path]], processes: int, checkpoint: Path, flip: bool, top_k: int
) -> Iterator[list[Row]]:
    """The rows of each batch, in the batches' order, computed by several processes."""
    # Spawned: a forked process cannot use an accelerator that its parent has used.
    spawn = multiprocessing.get_context("spawn")
    numbers = spawn.SimpleQueue()
    for number in range(processes):
        numbers.put(number)
    with ProcessPoolExecutor(processes, spawn, _start, (numbers, processes, checkpoint, flip, top_k)) as pool:
        yield from pool.map(_predict_there, batches)


_there: Callable[[Sequence[Path]], list[Row]]


def _start(numbers: Any, processes: int, checkpoint: Path, flip: bool, top_k: int) -> None:
    global _there
    number = numbers.get()
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // processes))
    device = None
    if torch.accelerator.is_available():
        device = torch.device(torch.accelerator.current_accelerator().type, number % torch.accelerator.device_count())  # type: ignore[union-attr]
    _there = partial(Predictor(checkpoint, flip, device).rows, top_k=top_k)


def _predict_there(files: Sequence[Path]) -> list[Row]:
    return _there(files)


def find_images(paths: Sequence[Path]) -> list[Path]:
    """The images among the paths, below the folders and in the manifests, in order.

    Raises:
        InputError: A path does not exist, a manifest has no paths, or there is no image at all.
    """
    files: list[Path] = []
    for path in paths:
        if path.is_dir():
            files += [path / name for name in list_images(path, [])]
        elif path.suffix.lower() in MANIFEST_SUFFIXES and path.is_file():
            files += [path.parent / name for name in _manifest(path)]
        elif path.is_file():
            files.append(path)
        else:
            raise InputError(f"no image or folder at {path}")
    if not files:
        places = ", ".join(str(path) for path in paths)
        raise InputError(f"no images in {places}; looked for {', '.join(IMAGE_SUFFIXES)}")
    return files


def _manifest(path: Path) -> Iterator[str]:
    """The ``path`` of each row of a manifest; relative ones are seen from its folder."""
    with path.open(newline="", encoding="utf-8") as file:
        rows: Iterable[Any]
        if path.suffix.lower() == ".jsonl":
            rows = (json.loads(line) for line in file if line.strip())
        else:
            rows = csv.DictReader(file, delimiter="\t" if path.suffix.lower() == ".tsv" else ",")
        for number, row in enumerate(rows, start=1):
            if not isinstance(row, dict) or not row.get("path"):
                found = list(row) if isinstance(row, dict) else [type(row).__name__]
                raise InputError(
                    f"row {number} of {path} has no 'path'{did_you_mean('path', found)} It has {', '.join(found)}"
                )
            yield row["path"]


def _bar() -> Progress:
    from rich import get_console

    parts = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*parts, disable=not get_console().is_terminal)
