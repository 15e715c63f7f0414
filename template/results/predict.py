"""Class names and probabilities for images, from a checkpoint and nothing else."""

import csv
from collections.abc import Sequence
from pathlib import Path

import torch

from template.data.dataset import read_image
from template.data.index import list_images
from template.errors import InputError
from template.model.module import load_classifier
from template.results.evaluate import find_checkpoint


def predict(checkpoint: Path, paths: Sequence[Path], output: Path, batch_size: int = 64) -> int:
    """Write one row an image to a CSV file (UTF-8): path, class, probability, in the order of the paths.

    Args:
        checkpoint: A checkpoint, or a run folder: its best one.
        paths: Images, or folders that are searched for them.
        output: The file to write.
        batch_size: Images at a time.

    Returns:
        The number of rows.

    Raises:
        InputError: The checkpoint or an image cannot be read, or there is no image.
    """
    if output.suffix != ".csv":
        raise InputError(f"--output is {output}; expected a name that ends in .csv")
    files = find_images(paths)
    module, _ = load_classifier(find_checkpoint(checkpoint))
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else torch.device("cpu")
    module.to(device)
    rows: list[tuple[str, str, str]] = []
    for start in range(0, len(files), batch_size):
        batch = files[start : start + batch_size]
        images = torch.stack([module.preprocessing.sample(read_image(file)) for file in batch])
        with torch.inference_mode():
            logits = module(module.preprocessing.normalise(images.to(device)))
            probabilities, classes = module.probabilities(logits).max(dim=1)
        for file, number, probability in zip(batch, classes.tolist(), probabilities.tolist(), strict=True):
            rows.append((str(file), module.class_names[number], f"{probability:.6f}"))
    partial = output.with_name(f".{output.name}.partial")
    with partial.open("w", newline="", encoding="utf-8") as file_out:
        writer = csv.writer(file_out)
        writer.writerow(["path", "class", "probability"])
        writer.writerows(rows)
    partial.replace(output)
    return len(rows)


def find_images(paths: Sequence[Path]) -> list[Path]:
    """The images among the paths and below the folders, in order.

    Raises:
        InputError: A path does not exist, or there is no image at all.
    """
    files: list[Path] = []
    for path in paths:
        if path.is_dir():
            files += [path / name for name in list_images(path, [])]
        elif path.is_file():
            files.append(path)
        else:
            raise InputError(f"no image or folder at {path}")
    if not files:
        raise InputError(f"no images in {', '.join(str(path) for path in paths)}")
    return files
