"""A checkpoint becomes one deployment file: uint8 images in, probabilities out, compared with the network before it.

The graph begins after resizing and cropping: (B, 3, S, S) uint8, as ``Preprocessing.sample`` makes them. Normalisation
and softmax (or sigmoid) are inside. Class names and preprocessing are in the file's metadata.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from template.data.dataset import Images
from template.errors import InputError
from template.model.module import Classifier, load_classifier
from template.results.evaluate import find_checkpoint, load_with_data
from template.results.formats import SUFFIXES, Deployed, Format, first_line, load, metadata, write

log = logging.getLogger(__name__)
#: Largest difference of a probability from the network's own.
TOLERANCE = 1e-4
BATCH_SIZES = (1, 2, 5)


@dataclass(frozen=True)
class Comparison:
    """One comparison of the file with the network: the images' shape and the largest difference of a probability."""

    what: str
    shape: tuple[int, ...]
    difference: float


@dataclass(frozen=True)
class Exported:
    """A file that passed its comparisons.

    Attributes:
        path: The file.
        comparisons: With the network, on random images and on real ones.
        accuracies: Of the network and of the file on the real images; None where there are none, or for multi-label.
    """

    path: Path
    comparisons: list[Comparison]
    accuracies: tuple[float, float] | None


def export(
    checkpoint: Path, kind: Format, output: Path | None = None, dynamic_size: bool = False, root: Path | None = None
) -> Exported:
    """Export a checkpoint, or a run's best one, and compare the file with the network, also on validation images.

    Args:
        checkpoint: A checkpoint, or a run folder.
        kind: The file's format.
        output: The file; None is ``model`` with the format's suffix, in the run folder or beside the checkpoint.
        dynamic_size: Leave height and width open too, where the network allows it.
        root: Where the data is now; None is where it was in training.

    Raises:
        InputError: The checkpoint cannot be read, the network cannot be exported, or the file computes something else.
    """
    path = find_checkpoint(checkpoint)
    classifier, _ = load_classifier(path)
    folder = checkpoint if checkpoint.is_dir() else checkpoint.parent
    output = output or folder / f"model{SUFFIXES[kind]}"
    images: Tensor | None = None
    targets: Tensor | None = None
    try:
        images, targets = validation_images(path, root)
    except InputError as error:
        log.warning(f"compared on random images only: {error}")
    return export_classifier(classifier, kind, output, dynamic_size, images, targets)


def validation_images(checkpoint: Path, root: Path | None = None, most: int = 1000) -> tuple[Tensor, Tensor]:
    """Up to ``most`` validation images, evenly spaced, (N, 3, S, S) uint8, and their targets.

    Raises:
        InputError: The data is not there.
    """
    classifier, datamodule = load_with_data(checkpoint, root)
    samples = Images(datamodule.splits["val"], classifier.preprocessing.sample)
    rows = torch.linspace(0, len(samples) - 1, min(most, len(samples))).round().long().tolist()
    images, targets = zip(*(samples[0, row] for row in rows), strict=True)
    return torch.stack(images), torch.stack(targets)


def export_classifier(
    classifier: Classifier,
    kind: Format,
    output: Path,
    dynamic_size: bool = False,
    images: Tensor | None = None,
    targets: Tensor | None = None,
) -> Exported:
    """Write the file, open it again and compare; it gets its name only when nothing differs.

    The classifier is exported in eval mode, and is afterwards in the mode that it was in.

    Args:
        classifier: A classifier on the CPU.
        kind: The file's format.
        output: The file.
        dynamic_size: Leave height and width open too.
        images: Real images to compare on, (N, 3, S, S) uint8.
        targets: Their targets, (N,) int64, for the accuracies.

    Raises:
        InputError: The network cannot be exported, or the file computes something else.
    """
    if kind not in SUFFIXES:
        raise InputError(f"--format is {kind!r}; expected {', '.join(SUFFIXES)}")
    if not output.parent.is_dir():
        raise InputError(f"--output is {output}, and there is no folder {output.parent}; make it first")

    def itself(images: Tensor) -> Tensor:  # not what is exported, which may be wrong
        return classifier.probabilities(classifier(classifier.preprocessing.normalise(images)))

    modes = {name: module.training for name, module in classifier.named_modules()}
    partial = output.with_name(f".partial-{output.name}")
    try:
        model = Deployed(classifier.eval()).eval()
        if dynamic_size:
            _check_other_size(model)
        write(model, kind, partial, dynamic_size, metadata(classifier, dynamic_size))
        run = load(kind, partial)
        noise = _random_images(model.preprocessing.size, dynamic_size)
        comparisons = [_compare(itself, run, "random", some) for some in noise]
        accuracies = None
        if images is not None:
            comparisons.append(_compare(itself, run, "validation", images))
            if targets is not None and targets.ndim == 1:
                outputs = (_in_batches(itself, images), _in_batches(run, images))
                first, second = ((output.argmax(1) == targets).double().mean().item() for output in outputs)
                accuracies = (first, second)
        _check(comparisons, kind)
        partial.replace(output)
    finally:
        partial.unlink(missing_ok=True)
        for name, module in classifier.named_modules():
            module.training = modes[name]
    return Exported(output, comparisons, accuracies)


def print_comparisons(exported: Exported) -> None:
    """Print what was compared, as a table, and the accuracies."""
    from rich import get_console
    from rich.table import Table

    table = Table("images", "shape", "largest difference")
    for row in exported.comparisons:
        table.add_row(row.what, " x ".join(map(str, row.shape)), f"{row.difference:.1e}")
    get_console().print(table)
    if exported.accuracies is not None:
        network, file = exported.accuracies
        get_console().print(
            f"validation accuracy {network:.4f}, of the file {file:.4f}: difference {file - network:+.4f}"
        )


def _check_other_size(model: Deployed) -> None:
    """Raises InputError when the network itself takes no other size than that of its training."""
    size = model.preprocessing.size
    try:
        with torch.no_grad():
            model(torch.zeros(2, 3, size + 8, 2 * size + 8, dtype=torch.uint8))
    except (RuntimeError, AssertionError) as error:
        raise InputError(
            f"the network takes {size} x {size} pixels only ({first_line(error)}); export without --dynamic_size"
        ) from error


def _random_images(size: int, dynamic_size: bool) -> list[Tensor]:
    """Noise at each batch size, and where the size is open at two other sizes, one of them not square."""
    sizes = [(size, size), (2 * size, 2 * size), (size + 8, 2 * size + 8)] if dynamic_size else [(size, size)]
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randint(0, 256, (batch, 3, height, width), dtype=torch.uint8, generator=generator)
        for height, width in sizes
        for batch in BATCH_SIZES
    ]


def _compare(
    itself: Callable[[Tensor], Tensor], run: Callable[[Tensor], Tensor], what: str, images: Tensor
) -> Comparison:
    try:
        difference = (_in_batches(itself, images) - _in_batches(run, images)).abs().max().item()
    except Exception as error:  # each runtime raises its own kind for a shape that it does not take
        raise InputError(
            f"the exported file does not take images of shape {list(images.shape)}: {first_line(error)}"
        ) from error
    return Comparison(what, tuple(images.shape), difference)


def _check(comparisons: list[Comparison], kind: Format) -> None:
    worst = max(comparisons, key=lambda comparison: comparison.difference if comparison.difference >= 0 else 2)
    if not worst.difference <= TOLERANCE:  # not: NaN is no match either
        raise InputError(
            f"the {kind} file's probabilities differ from the network's by {worst.difference:.2g} on {worst.what} "
            f"images of shape {list(worst.shape)}; at most {TOLERANCE:g} is accepted, so no file was written"
        )


def _in_batches(run: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.cat([run(batch) for batch in images.split(64)])
