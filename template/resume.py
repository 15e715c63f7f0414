"""Continuing a run folder: which checkpoint, which settings may differ, and what the folder holds beyond that point."""

import csv
import io
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from template.callbacks.checkpoints import LAST, PREVIOUS, Checkpoints, link
from template.errors import InputError
from template.model.module import CHECKPOINT_KEY
from template.run_folder import write_whole

log = logging.getLogger(__name__)

#: Settings that may change without making it another run: where and how fast it runs, how long, what is kept of it.
#: The rest of ``trainer`` may change too, but for those that are named below.
_FREE = (
    *("trainer.", "checkpoints.", "early_stopping.", "wandb.", "tensorboard", "report", "run_dir"),
    *("nonfinite.", "quick_check"),
    *("data.root", "data.num_workers", "data.max_batch_per_device", "data.cache"),
    *("model.compile", "model.checkpoint_activations"),
)
_BOUND = (
    *("trainer.precision", "trainer.gradient_clip_val", "trainer.gradient_clip_algorithm"),
    *("trainer.limit_train_batches", "trainer.overfit_batches"),
)


def differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> dict[str, tuple[Any, Any]]:
    """Settings that differ between two nested configs: {dotted key: (old value, new value)}."""
    found: dict[str, tuple[Any, Any]] = {}
    for key in [*old, *(key for key in new if key not in old)]:
        before, after = old.get(key), new.get(key)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            found |= differences(before, after, f"{prefix}{key}.")
        elif before != after:
            found[f"{prefix}{key}"] = (before, after)
    return found


def check_changes(old: Mapping[str, Any], new: Mapping[str, Any], accept: bool) -> bool:
    """Log each setting that differs from the stored run's.

    Returns:
        Whether any differs.

    Raises:
        InputError: One would make it another run, and ``accept`` is false.
    """
    changed = differences(old, new)
    for key, (before, after) in changed.items():
        log.info(f"{key}: {before} -> {after}")
    bound = [key for key in changed if key in _BOUND or not key.startswith(_FREE)]
    if bound and not accept:
        raise InputError(
            f"{', '.join(bound)} differ{'s' * (len(bound) == 1)} from the stored run: continued with it, the result is "
            "that of neither setting; leave it out, start a new run, or add --accept_changes true"
        )
    return bool(changed)


def read_last(folder: Path) -> tuple[Path, dict[str, Any]] | None:
    """The newest checkpoint of a run that can be read, or None where nothing was saved yet.

    Raises:
        InputError: There are checkpoints, and none can be read, or the newest is of another version of the template.
    """
    checkpoints = folder / "checkpoints"
    best = sorted(checkpoints.glob("step*.ckpt"), reverse=True)
    candidates = [path for path in (checkpoints / LAST, checkpoints / PREVIOUS, *best) if path.exists()]
    unreadable = []
    for path in candidates:
        try:
            checkpoint = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # torch raises many kinds for a damaged file
            unreadable.append(f"{path.name} unreadable ({str(error).splitlines()[0][:80]})")
            continue
        if unreadable:
            log.warning(f"{'; '.join(unreadable)}: using step {checkpoint['global_step']}, from {path.name}")
        own = checkpoint.get(CHECKPOINT_KEY, {})
        if "train_totals" not in own:
            raise InputError(
                f"{path} was written by another version of this template ({own.get('version', 'unknown')}), and cannot "
                f"be continued by this one; continue it with that, or start a new run with --model.weights {path}"
            )
        return path, checkpoint
    if unreadable:
        raise InputError(f"no checkpoint in {checkpoints} can be read: {'; '.join(unreadable)}; start a new run")
    return None


def check_fingerprint(stored: Mapping[str, str], now: Mapping[str, str], accept: bool) -> None:
    """Raises InputError when the images, labels or classes of a split changed, unless ``accept`` is true."""
    changed = [split for split in {**stored, **now} if stored.get(split) != now.get(split)]
    if changed:
        text = f"the files or labels of {' and '.join(changed)} changed since the run was started"
        if not accept:
            raise InputError(f"{text}; restore them, start a new run, or add --accept_changes true")
        log.warning(text)


def tidy(folder: Path, resumed: tuple[Path, Mapping[str, Any]] | None) -> None:
    """Take out of the folder what a resume would write again: log lines and rows past its step, orphan checkpoints."""
    step = resumed[1]["global_step"] if resumed else -1
    _cut_csv(folder / "metrics.csv", step)
    _cut_log(folder / "train.log", step)
    if resumed is None:
        return
    path, checkpoint = resumed
    state = checkpoint["callbacks"].get(Checkpoints.__qualname__, {"best": []})
    kept = {path.name, LAST, PREVIOUS, *(name for _, name in state["best"])}
    for file in path.parent.iterdir():
        if file.name not in kept or (file.name == LAST and path.name != LAST):
            file.unlink()
            if file.suffix == ".ckpt":
                log.info(f"removed {file.name}: it is of a later step than the one resumed, {step}")
    if path.name != LAST:
        link(path, path.with_name(LAST))


def _cut_csv(path: Path, step: int) -> None:
    if not path.exists():
        return
    with path.open(newline="", encoding="utf-8") as file:
        header, *rows = list(csv.reader(file)) or [["step"]]
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows([header, *(row for row in rows if row and int(row[0]) <= step)])
    write_whole(path, text.getvalue())


def _cut_log(path: Path, step: int) -> None:
    if not path.exists():
        return
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    numbers = (re.search(r" step (\d+)/", line) for line in lines)
    write_whole(path, "".join(line for line, n in zip(lines, numbers, strict=True) if n is None or int(n[1]) <= step))
