"""The Trainer loop with all logging, bar, guards and callbacks on: python tests/benchmarks/overhead.py (five minutes)

A tiny network at two sizes of step, against a plain Lightning module that logs nothing and a bare loop: the fastest 50
steps of alternating runs, because whatever else the machine does only adds time. Then the same without parts of the
template, which says where the rest goes.
"""

import contextlib
import ctypes
import logging
import os
import tempfile
import time
import warnings
from contextlib import ExitStack, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

import lightning.pytorch as L
import numpy as np
import torch
from compare import Rows, alternate
from end_to_end import tiny
from torch import Tensor, nn
from torch.utils.data import DataLoader

from template import train as train_file
from template.callbacks.checkpoints import Checkpoints
from template.callbacks.nonfinite import NonFinite
from template.cli import parse_fit
from template.data.datamodule import DataModule
from template.data.index import Index
from template.data.packed import PackedStrings
from template.data.transforms import Preprocessing
from template.model import module as module_file
from template.model.module import Classifier

FIRST, WINDOW, STEPS = 20, 50, 420  # a window holds one line of the log
BATCHES = (56, 176)  # about 3 and about 8 ms a step


class Plain(L.LightningModule):
    """What a person writes who logs nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.network = tiny()

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        images, targets = batch
        return nn.functional.cross_entropy(self.network((images.float() / 255 - 0.286) / 0.353), targets)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters())


class Clock(L.Callback):
    """Times at the ends of the windows of steps."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_train_batch_end(self, trainer: L.Trainer, *_: object) -> None:
        if trainer.global_step >= FIRST and (trainer.global_step - FIRST) % WINDOW == 0:
            self.times.append(time.perf_counter())

    @property
    def seconds(self) -> float:
        """Of the fastest window."""
        return min(np.diff(self.times))


def plain(images: Tensor, targets: Tensor, batch: int) -> float:
    """Seconds of a Lightning module that logs nothing, fed with batches that are ready."""
    batches = list(zip(images.split(batch), targets.split(batch), strict=True))
    loader: DataLoader[object] = DataLoader(batches, batch_size=None)  # type: ignore[arg-type]
    clock = Clock()
    trainer = L.Trainer(
        max_epochs=1,
        accelerator="cpu",
        callbacks=clock,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Plain(), loader)
    return clock.seconds


def bare(images: Tensor, targets: Tensor, batch: int) -> float:
    """Seconds of a loop in plain PyTorch."""
    module, clock = Plain(), Clock()
    optimizer = module.configure_optimizers()
    for i, part in enumerate(zip(images.split(batch), targets.split(batch), strict=True)):
        if i >= FIRST and (i - FIRST) % WINDOW == 0:
            clock.times.append(time.perf_counter())
        loss = module.training_step(part, i)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return clock.seconds


def template(index: Index, batch: int, *, callbacks: bool = True, loggers: bool = True) -> float:
    """Seconds of the template's module and data, with all that ``fit`` adds to a run, or without some of it."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "runs" / "run"
        folder.mkdir(parents=True)
        arguments = f"--data.root {folder} --wandb.mode {'offline' if loggers else 'disabled'} --trainer.max_epochs 1"
        arguments += " --trainer.accelerator cpu --trainer.limit_val_batches 0 --trainer.enable_model_summary false"
        options, config, _ = parse_fit(arguments.split())
        checkpoints, clock = Checkpoints(), Clock()
        stack.enter_context(patch.object(train_file, "_on_a_terminal", lambda: loggers))
        stack.enter_context(patch.dict(os.environ, {"FORCE_COLOR": "1"}))  # rich draws the bar, and for nobody
        stack.enter_context(redirect_stdout(stack.enter_context(open(os.devnull, "w"))))
        trainer = train_file._trainer(options, checkpoints, folder)
        if not callbacks:
            trainer.callbacks = [c for c in trainer.callbacks if isinstance(c, Checkpoints)]  # type: ignore[attr-defined]
        trainer.callbacks.append(clock)  # type: ignore[attr-defined]
        if loggers:
            stack.enter_context(train_file.text_log(folder / "train.log"))
            trainer.loggers = train_file._loggers(folder, options, config, stack)
        data = DataModule(folder, preprocessing=Preprocessing(size=28), global_batch_size=batch)
        data.splits = {"train": index, "val": index}
        with patch.object(module_file, "build_network", lambda *_: tiny()):
            module = Classifier(index.class_names, data.preprocessing)
        trainer.fit(module, data)
    return clock.seconds


def keep_freed_memory() -> None:
    """Let glibc hand no memory back: else each run draws another number of page faults, up to 3 ms a step of them."""
    with contextlib.suppress(AttributeError, OSError, TypeError):  # other C libraries have no such call
        c = ctypes.CDLL(None)
        c.mallopt(-1, 2**30)  # M_TRIM_THRESHOLD
        c.mallopt(-3, 2**25)  # M_MMAP_THRESHOLD, the largest there is


def nothing(*_: Any, **__: Any) -> None:
    pass


def main() -> None:
    for name in ("lightning.pytorch", "template"):  # what a person's terminal would show; train.log still gets it
        logging.getLogger(name).propagate = False
        logging.getLogger(name).handlers = [logging.NullHandler()]
    warnings.filterwarnings("ignore")
    keep_freed_memory()
    rows = Rows("Loop overhead, tiny network, everything on, fastest 50 steps of seven alternating runs")
    random = np.random.default_rng(0)
    for batch in BATCHES:
        n = STEPS * batch
        pixels = random.integers(0, 256, (n, 28, 28, 3), dtype=np.uint8)
        names = PackedStrings(str(i) for i in range(n))
        index = Index(Path(), names, np.arange(n) % 10, tuple("0123456789"), pixels=pixels)
        images, targets = torch.from_numpy(pixels).permute(0, 3, 1, 2), torch.from_numpy(index.targets)

        def without_guard(batch: int = batch, index: Index = index) -> float:
            hooks = ("on_train_batch_start", "on_before_backward", "on_before_optimizer_step", "on_train_batch_end")
            with ExitStack() as stack:
                for hook in hooks:
                    stack.enter_context(patch.object(NonFinite, hook, nothing))
                return template(index, batch, loggers=False)

        seconds = alternate(
            {
                "bare": lambda: bare(images, targets, batch),  # noqa: B023  called in this turn of the loop
                "plain": lambda: plain(images, targets, batch),  # noqa: B023
                "all": lambda: template(index, batch),  # noqa: B023
                "quiet": lambda: template(index, batch, loggers=False),  # noqa: B023
                "unguarded": without_guard,
                "alone": lambda: template(index, batch, callbacks=False, loggers=False),  # noqa: B023
            }
        )
        least = {name: 1000 * min(runs) / WINDOW for name, runs in seconds.items()}
        step = f"{least['bare']:.1f} ms a step:"
        rows.at_most(f"{step} template / plain Lightning", least["all"] / least["plain"], 1.15)
        rows.plain(f"{step} template / bare loop", least["all"] / least["bare"])
        rows.plain(f"{step} plain Lightning / bare loop", least["plain"] / least["bare"])
        for what, more, less in (
            ("all of the template over plain Lightning", "all", "plain"),
            ("of it loggers, text log and bar", "all", "quiet"),
            ("of it the non-finite guard", "quiet", "unguarded"),
            ("of it the other callbacks", "unguarded", "alone"),
            ("of it keys, transforms, seeds, sums", "alone", "plain"),
        ):
            rows.plain(f"{step} {what}", least[more] - least[less], "ms")
    rows.finish()


if __name__ == "__main__":
    main()
