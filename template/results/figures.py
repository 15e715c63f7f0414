"""The pictures of a report, each a matplotlib Figure that needs no display."""

import io
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from template.results.run import Curve
from template.results.scores import Calibration

BLUE, ORANGE, GREY, RED = "#2f6fb0", "#d9772b", "#8a8f98", "#b3362b"
_COLOURS = (BLUE, ORANGE, "#3a9a5b", RED, "#7a5ab5", "#8c6d4f", "#d069a8", "#5d6570")


class Picture(Figure):
    """A figure that draws itself as a PNG file, as notebooks ask of what they show."""

    def png(self) -> bytes:
        """The bytes of a PNG file; letters that no font here has become boxes."""
        buffer = io.BytesIO()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)
            self.savefig(buffer, format="png")
        return buffer.getvalue()

    def _repr_png_(self) -> bytes:
        return self.png()


def figure(width: float, height: float, layout: Literal["constrained", "compressed"] = "constrained") -> Picture:
    """An empty figure of so many inches, at 110 dots an inch."""
    made = Picture(figsize=(width, height), dpi=110, layout=layout)
    FigureCanvasAgg(made)
    return made


def _plain(axes: Axes, title: str, x: str = "", y: str = "") -> None:
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold")
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#e6e8eb", linewidth=0.8)
    axes.set_axisbelow(True)


def learning_curves(curves: Mapping[str, Curve], score: str = "val/accuracy") -> Picture:
    """Loss, a score and the learning rate over the steps of one run."""
    made = figure(12.4, 3.4)
    loss, scored, rate = made.subplots(1, 3)
    for axes, name in ((loss, "loss"), (scored, score.split("/")[-1])):
        for stage, colour in (("train", GREY), ("val", BLUE)):
            column = f"{stage}/{name}"
            means = f"train/epoch_{name}"
            if stage == "train" and means in curves and len(curves[means][0]) > 2:
                column = means
            if column in curves:
                axes.plot(*curves[column], color=colour, label=stage, marker=_marker(curves[column]))
        if axes.lines:
            axes.legend(frameon=False)
        _plain(axes, name.replace("_", " "), "step")
    values = curves["train/loss"][1] if "train/loss" in curves else np.empty(0)
    values = values[np.isfinite(values)]
    if len(values) and values.max() > 20 * values.min() > 0:
        loss.set_yscale("log")
    if "train/learning_rate" in curves:
        rate.plot(*curves["train/learning_rate"], color=ORANGE, marker=_marker(curves["train/learning_rate"]))
    rate.set_ylim(bottom=0)
    _plain(rate, "learning rate", "step")
    rate.yaxis.set_major_formatter(lambda value, _: f"{value:.3g}")
    return made


def overlaid_curves(runs: Mapping[str, Mapping[str, Curve]], score: str = "val/accuracy") -> Picture:
    """Validation loss and a score of several runs."""
    made = figure(12.4, 3.8)
    pair = made.subplots(1, 2)
    for axes, column in zip(pair, dict.fromkeys(("val/loss", score)), strict=False):
        for number, (name, curves) in enumerate(runs.items()):
            if column in curves:
                colour = _COLOURS[number % len(_COLOURS)]
                axes.plot(*curves[column], color=colour, label=name, marker=_marker(curves[column]))
        _plain(axes, column, "step")
    handles, labels = pair[0].get_legend_handles_labels()
    if handles:
        made.legend(handles, labels, loc="outside right center", frameon=False)
    return made


def _marker(curve: Curve) -> str:
    return "o" if len(curve[0]) < 3 else ""


def confusion(counts: np.ndarray, names: Sequence[str]) -> Picture:
    """Confusion matrix, coloured by the share of the true class; counts are written in while they can be read."""
    classes = len(names)
    made = figure(6.1, 5.4, "compressed")
    axes = made.subplots()
    with np.errstate(invalid="ignore"):
        shares = counts / counts.sum(axis=1, keepdims=True)
    image = axes.imshow(np.nan_to_num(shares), cmap="Blues", vmin=0, vmax=1)
    made.colorbar(image, ax=axes, fraction=0.046, format=PercentFormatter(1.0), label="share of the true class")
    if classes <= 15:
        for row, column in np.ndindex(classes, classes):
            if counts[row, column]:
                colour = "white" if shares[row, column] > 0.5 else BLUE if row == column else RED
                axes.text(column, row, f"{counts[row, column]:,}", ha="center", va="center", color=colour, fontsize=8.5)
    if classes <= 40:
        short = [name if len(name) <= 14 else f"{name[:13]}…" for name in names]
        size = 9 if classes <= 15 else 6
        axes.set_xticks(range(classes), short, rotation=0 if max(map(len, short)) <= 2 else 60, fontsize=size)
        axes.set_yticks(range(classes), short, fontsize=size)
        if max(map(len, short)) > 2:
            for label in axes.get_xticklabels():
                label.set(ha="right", rotation_mode="anchor")
    _plain(axes, "confusion", "predicted", "true")
    axes.grid(visible=False)
    return made


def reliability(values: Calibration) -> Picture:
    """Share that was right over the predicted probability, pale where it is of few, and the number of predictions."""
    made = figure(6.1, 5.4)
    top, bottom = made.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    bins = len(values.count)
    edges = np.arange(bins) / bins
    filled = values.count > 0
    top.plot([0, 1], [0, 1], color=GREY, linestyle="--", label="calibrated")
    colours = ["#bcd3ea" if count >= 10 else "#eef2f7" for count in values.count[filled]]
    top.bar(edges[filled], values.accuracy[filled], 1 / bins, align="edge", color=colours, edgecolor="white")
    top.plot(values.confidence[filled], values.accuracy[filled], "o-", color=BLUE, label="this run")
    top.legend(frameon=False, loc="upper left")
    top.set(xlim=(0, 1), ylim=(0, 1.02))
    top.yaxis.set_major_formatter(PercentFormatter(1.0))
    _plain(top, f"calibration: expected error {values.error:.1%}", "", "share that was right (pale: under 10)")
    bottom.bar(edges, values.count, 1 / bins, align="edge", color=BLUE, edgecolor="white")
    bottom.xaxis.set_major_formatter(PercentFormatter(1.0))
    bottom.yaxis.set_major_locator(MaxNLocator(3, integer=True))
    _plain(bottom, "", "predicted probability", "predictions")
    return made


def pictures(images: Sequence[np.ndarray], captions: Sequence[str], columns: int = 6) -> Picture:
    """Images, (H, W, 3) uint8 each, in a grid with a caption above each."""
    rows = max(1, math.ceil(len(images) / columns))
    made = figure(12.4, 2.35 * rows)
    for axes in made.subplots(rows, columns, squeeze=False).flat:
        axes.set_axis_off()
    for axes, image, caption in zip(made.axes, images, captions, strict=False):
        axes.imshow(image, interpolation="nearest")
        axes.set_title(caption, fontsize=9)
    return made


def intervals(names: Sequence[str], values: Sequence[float], bounds: Sequence[tuple[float, float]], x: str) -> Picture:
    """One line a run: its value and its interval."""
    made = figure(12.4, 0.9 + 0.34 * len(names))
    axes = made.subplots()
    for row, (value, (low, high)) in enumerate(zip(values, bounds, strict=True)):
        colour = _COLOURS[row % len(_COLOURS)]
        axes.plot([low, high], [row, row], color=colour, linewidth=3, alpha=0.4, solid_capstyle="butt")
        axes.plot(value, row, "o", color=colour)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    _plain(axes, f"{x}, 95 % interval")
    return made
