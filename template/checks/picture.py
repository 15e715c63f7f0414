"""A picture of one training batch as the network sees it."""

from collections.abc import Iterator
from pathlib import Path

from template.checks.bench import Bench
from template.checks.page import Line


def draw(bench: Bench, path: Path, most: int = 24) -> Iterator[Line]:
    """Write a PNG of the first images of an epoch after augmentation, normalisation undone, with their labels."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    batch = bench.batch(bench.keys(min(most, bench.batch_size)))
    preprocessing, names = bench.data.preprocessing, bench.module.class_names
    mean, std = (batch["image"].new_tensor(value)[:, None, None] for value in (preprocessing.mean, preprocessing.std))
    images = (batch["image"] * std + mean).clamp(0, 1).permute(0, 2, 3, 1).float().cpu().numpy()
    rows = -(-len(images) // 6)
    figure = Figure(figsize=(9, 1.7 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    axes = list(figure.subplots(rows, 6, squeeze=False).flat)
    for axis in axes:
        axis.set_axis_off()
    for axis, image, target in zip(axes, images, batch["target"].cpu(), strict=False):
        axis.imshow(image)
        shares = [target.item()] if target.ndim == 0 else target.nonzero()[:, 0].tolist()
        axis.set_title(", ".join(names[int(number)] for number in shares[:3]), fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    figure.savefig(partial, format="png", dpi=100)
    partial.replace(path)
    yield Line("PASS", "picture", f"{path}: a batch as the network sees it")
