"""How fast an exported file runs beside the network itself, eager and compiled, on this machine's CPU."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from template.model.module import load_classifier
from template.results.evaluate import find_checkpoint
from template.results.formats import Deployed, Format, first_line, load

BATCH = 32


@dataclass(frozen=True)
class Speed:
    """Milliseconds for one image, and images a second in batches of 32; None with a reason where it cannot run."""

    name: str
    latency_ms: float | None
    images_per_second: float | None
    reason: str = ""


def measure(checkpoint: Path, kind: Format, path: Path, rounds: int = 15) -> list[Speed]:
    """Time the network eager and compiled and an exported file, in turns, and take medians.

    Args:
        checkpoint: The checkpoint, or run folder, that was exported.
        kind: The file's format.
        path: The file.
        rounds: Turns.
    """
    classifier, _ = load_classifier(find_checkpoint(checkpoint))
    model = Deployed(classifier).eval()
    size = classifier.preprocessing.size
    one = torch.randint(0, 256, (1, 3, size, size), dtype=torch.uint8)
    many = torch.randint(0, 256, (BATCH, 3, size, size), dtype=torch.uint8)
    runs: dict[str, Callable[[Tensor], Tensor]] = {
        "eager": model,
        "compiled": torch.compile(model),
        kind: load(kind, path),
    }
    failed: dict[str, str] = {}
    times: dict[tuple[str, int], list[float]] = {(name, len(images)): [] for name in runs for images in (one, many)}
    with torch.inference_mode():
        for turn in range(rounds + 2):  # the first two warm up: the compiler compiles for one size and for any
            for name, run in runs.items():
                for images in (one, many):
                    if name in failed:
                        continue
                    try:
                        start = time.perf_counter()
                        run(images)
                        seconds = time.perf_counter() - start
                    except Exception as error:  # no C++ compiler, or a network that it cannot compile
                        failed[name] = first_line(error)
                        continue
                    if turn >= 2:
                        times[name, len(images)].append(seconds)
    return [
        Speed(name, None, None, failed[name])
        if name in failed
        else Speed(name, 1000 * statistics.median(times[name, 1]), BATCH / statistics.median(times[name, BATCH]))
        for name in runs
    ]


def print_speeds(speeds: list[Speed]) -> None:
    """Print the speeds as a table."""
    from rich import get_console
    from rich.table import Table

    table = Table("CPU", "1 image, ms", f"images/s, batches of {BATCH}")
    for speed in speeds:
        if speed.latency_ms is None:
            table.add_row(speed.name, "cannot run", speed.reason)
        else:
            table.add_row(speed.name, f"{speed.latency_ms:.2f}", f"{speed.images_per_second:,.0f}")
    get_console().print(table)
