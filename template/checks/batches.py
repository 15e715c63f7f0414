"""What the network is given: the first batch, the values at its first layer, validation that stays the same."""

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from template.callbacks.first_batch import check_batch, describe
from template.checks.bench import Bench
from template.checks.page import Line
from template.data.datamodule import Batch


def first_batch(bench: Bench) -> Iterator[Line]:
    """Shapes, types, ranges and labels of a training batch, against what network and criterion take."""
    batch = bench.batch(bench.keys(bench.batch_size))
    raw = bench.train_loader.dataset.__getitems__(bench.keys(2))["image"]
    check_batch(batch, bench.module)
    found = describe(batch, bench.module.class_names).removeprefix("first batch: ")
    if raw.dtype != torch.uint8:
        advice = "the data set returns uint8, 0 to 255; normalising is done on the device, and would be done twice"
        yield Line("FAIL", "batch", f"the data set's images are {raw.dtype}", advice)
    else:
        yield Line("PASS", "batch", found)


def input_range(bench: Bench) -> Iterator[Line]:
    """Values at the network's first layer, in training and in validation."""
    n = max(8, min(64, bench.batch_size))  # a few differ from a few others by chance
    raw = bench.train_loader.dataset.__getitems__(bench.keys(n))
    train = _first_input(bench, bench.transferred(raw, training=True))
    val = _first_input(bench, bench.batch(bench.keys(n, "val"), "val", training=False))
    std, mean = torch.std_mean(train)
    found = f"{float(train.min()):.2f} to {float(train.max()):.2f}, mean {float(mean):.2f}, std {float(std):.2f}"
    own = raw["image"].float() / 255
    measured = f"mean {_numbers(own.mean(dim=(0, 2, 3)))} and std {_numbers(own.std(dim=(0, 2, 3)))}"
    if not 0.1 < std < 3 or abs(mean) > 2:
        advice = f"normalised twice, or by the wrong numbers? These images have {measured}, of 1"
        yield Line("FAIL", "input range", found, advice)
    elif not 0.25 < std < 2.5 or abs(mean) > 1:
        yield Line("WARN", "input range", found, f"these images have {measured}, of 1: data.preprocessing.mean, .std")
    else:
        yield Line("PASS", "input range", found)
    if min(len(train), len(val)) < 8:
        return
    difference = abs(float(val.mean() - mean))
    by_chance = math.sqrt(sum(float(part.flatten(1).mean(dim=1).var()) / len(part) for part in (train, val)))
    ratio = float(val.std() / (std + 1e-9))
    if difference > max(0.75 * float(std), 4 * by_chance) or not 0.5 < ratio < 2:
        found = f"validation's mean is {float(val.mean()):.2f} and its std {float(val.std()):.2f}, training's as above"
        yield Line("FAIL", "val input", found, "one of the two is preprocessed differently")


def validation_is_fixed(bench: Bench) -> Iterator[Line]:
    """The same validation sample twice, in two epochs: nothing of it may be random."""
    rows = [row for _, row in bench.keys(32, "val")]
    one, other = (bench.batch([(epoch, row) for row in rows], "val", training=False)["image"] for epoch in (0, 1))
    if torch.equal(one, other):
        yield Line("PASS", "val fixed", f"{len(rows)} validation images are the same each time")
    else:
        n = int((one != other).flatten(1).any(dim=1).sum())
        advice = "augmentation is applied to validation; it belongs to training alone"
        yield Line(
            "FAIL", "val fixed", f"{n} of {len(rows)} validation images differ from one reading to the next", advice
        )


class _ReachedError(Exception):
    """The first layer has been reached: no further."""


def _first_input(bench: Bench, batch: Batch) -> Tensor:
    """What the first layer with parameters gets."""
    module = bench.copy().eval()
    first = next(m for m in module.network.modules() if next(m.parameters(recurse=False), None) is not None)
    caught: list[Tensor] = []

    def hook(layer: nn.Module, inputs: Any) -> None:
        caught.append(inputs[0].detach().float())
        raise _ReachedError

    first.register_forward_pre_hook(hook)  # the copy's: it goes with it
    with contextlib.suppress(_ReachedError):
        bench.logits(module, batch["image"])
    return caught[0] if caught else batch["image"].float()


def _numbers(values: Tensor) -> str:
    return "[" + ", ".join(f"{value:.2f}" for value in values.tolist()) + "]"
