"""Settings that contradict each other or the data: warmup, monitor, batch sizes, batch statistics, disk, account."""

import os
from collections.abc import Iterator

import torch
from torch import nn

from template.checks.bench import Bench
from template.checks.page import Line
from template.checks.speed import steps_in_run
from template.errors import did_you_mean
from template.run_folder import WandbMode, wandb_mode

_BATCH_NORM = nn.modules.batchnorm._BatchNorm


def schedule(bench: Bench, warmup_epochs: float) -> Iterator[Line]:
    """Steps of the run, and of its warmup."""
    total, each = steps_in_run(bench)
    warmup = round(warmup_epochs * each)
    found = f"{total} steps, {each} an epoch, {warmup} of warmup"
    if total == 0:
        what = "no step" if bench.trainer.max_epochs == 0 else "no end that is known"
        yield Line("FAIL", "schedule", f"the run has {what}", "set trainer.max_epochs or trainer.max_steps")
    elif warmup >= total:
        yield Line("FAIL", "schedule", found, "shorten warmup_cosine.warmup_epochs or raise trainer.max_epochs")
    elif warmup > 0.5 * total:
        yield Line("WARN", "schedule", found, "more than half of the run is warmup")
    else:
        yield Line("PASS", "schedule", found)


def monitor(bench: Bench, name: str) -> Iterator[Line]:
    """The monitored metric is one that validation reports."""
    reported = bench.module.metric_names("val")
    if name in reported:
        yield Line("PASS", "monitor", name)
    else:
        advice = f"validation reports {', '.join(reported)}{did_you_mean(name, reported)}"
        yield Line("FAIL", "monitor", f"checkpoints.monitor is {name!r}", advice)


def batches(bench: Bench) -> Iterator[Line]:
    """The global batch against devices, accumulation and the number of samples."""
    n, size = len(bench.data.splits["train"]), bench.data.global_batch_size
    ranks, accumulation = bench.trainer.world_size, bench.trainer.accumulate_grad_batches
    found = f"{size} = {ranks} processes x {accumulation} accumulated x up to {bench.batch_size}; {n} training samples"
    dropped = bench.sampler.dropped
    if size > n:
        yield Line("WARN", "batch size", found, "an epoch is one step on all samples: lower data.global_batch_size")
    elif dropped:
        yield Line("WARN", "batch size", found, f"the last {dropped} samples of an epoch are left out")
    else:
        yield Line("PASS", "batch size", found)


def batch_statistics(bench: Bench) -> Iterator[Line]:
    """Batch norms need more than a few samples at a time, in the smallest batch of an epoch too."""
    norms = sum(1 for module in bench.module.network.modules() if isinstance(module, _BATCH_NORM))
    if not norms:
        return
    pieces = bench.trainer.world_size * bench.trainer.accumulate_grad_batches
    tail = (len(bench.data.splits["train"]) - bench.sampler.dropped) % bench.data.global_batch_size
    smallest = min(bench.batch_size, tail // pieces) if tail else bench.batch_size
    found = f"{norms} batch norms; batches of {bench.batch_size}, the smallest has {smallest}"
    remedy = "set model.norm to group, or raise data.max_batch_per_device"
    if smallest == 1 and not _takes_one(bench):
        advice = "batch statistics of one sample are an error; change data.global_batch_size so that more are left over"
        yield Line("FAIL", "batch norm", found, advice)
    elif bench.batch_size < 8:
        yield Line("WARN", "batch norm", found, f"statistics of fewer than 8 samples are noise: {remedy}")
    else:
        yield Line("PASS", "batch norm", found)


def account(mode: WandbMode) -> Iterator[Line]:
    """Weights & Biases: whether the run can be watched."""
    resolved = wandb_mode(mode)
    found = f"mode {mode}{f', which is {resolved}' if resolved != mode else ''}"
    if mode == "online" and "WANDB_MODE" not in os.environ and wandb_mode("auto") == "offline":
        yield Line("FAIL", "wandb", found, "no account is configured: run wandb login, or set wandb.mode to offline")
    elif mode == "auto" and resolved == "offline":
        yield Line(
            "PASS", "wandb", f"{found}: no account is configured; wandb login makes one, wandb sync uploads later"
        )
    else:
        yield Line("PASS", "wandb", found)


def precision(bench: Bench) -> Iterator[Line]:
    """Half precision on a device that does not have it."""
    chosen = str(bench.trainer.precision)
    if bench.device.type == "cpu" and chosen.startswith("16"):
        yield Line(
            "WARN", "precision", f"{chosen} on a CPU", "Lightning makes bf16 of it: set trainer.precision to 32-true"
        )
    elif bench.device.type == "cuda" and chosen.startswith("bf16") and not torch.cuda.is_bf16_supported():
        yield Line("WARN", "precision", f"{chosen} on {torch.cuda.get_device_name()}", "it has none: use 16-mixed")
    else:
        yield Line("PASS", "precision", f"{chosen} on {bench.device}")


def _takes_one(bench: Bench) -> bool:
    module = bench.copy()
    batch = bench.batch(bench.keys(1))
    try:
        with torch.no_grad():
            module(batch["image"])
    except ValueError:  # "Expected more than 1 value per channel when training"
        return False
    return True
