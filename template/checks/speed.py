"""How fast and how large a run will be: loader against step, workers, the batch that fits, hours, memory, disk."""

import itertools
import math
import os
import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from template.checks.bench import Bench
from template.checks.page import Line
from template.data.workers import cores


def steps_in_run(bench: Bench) -> tuple[int, int]:
    """Optimizer steps of the run and of one epoch; the run's are 0 where its length is not known."""
    trainer = bench.trainer
    batches, limit = len(bench.sampler), trainer.limit_train_batches
    batches = min(batches, limit) if isinstance(limit, int) else int(batches * limit)
    each = math.ceil(batches / trainer.accumulate_grad_batches)
    total = each * trainer.max_epochs if (trainer.max_epochs or -1) > 0 else 0  # type: ignore[operator]
    if trainer.max_steps > 0:
        total = min(total, trainer.max_steps) if total else trainer.max_steps
    return total, each


def loader_and_step(bench: Bench) -> Iterator[Line]:
    """Time to load a batch against time to train on it, the workers that it takes, and the hours of the run."""
    module = bench.copy()
    optimizer = module.configure_optimizers()
    keys = bench.keys(bench.batch_size)
    batch = bench.batch(keys)
    few = {name: value[: bench.few] for name, value in batch.items()}
    step = bench.seconds(lambda: bench.step(module, optimizer, few), most=3, limit=3) * len(keys) / bench.few
    if step < 1:  # else it is taken to grow with the number of samples
        step = bench.seconds(lambda: bench.step(module, optimizer, batch), most=5, limit=4)
    load = bench.seconds(lambda: bench.train_loader.dataset.__getitems__(keys), most=5, limit=4)
    workers, own_cores = bench.data.num_workers, cores()
    on_cpu = bench.device.type == "cpu"
    wait = load if workers == 0 else max(0.0, load / workers - step)
    share = wait / (wait + step)
    best = min(max(1, math.ceil(1.2 * load / step)), own_cores)
    found = (
        f"step {_time(step)}, loading a batch {_time(load)}, {workers} workers: {share:.0%} of the time spent waiting"
    )
    if share < 0.1 or (workers == 0 and on_cpu and share < 0.3):
        yield Line("PASS", "loader", found)
    elif workers >= best:
        advice = f"{own_cores} cores are not enough: store images smaller, or augment on the device"
        yield Line("WARN", "loader", found, advice)
    else:
        yield Line("WARN", "loader", found, f"set data.num_workers to {best} ({own_cores} cores)")

    images = len(keys) * bench.trainer.world_size / (step + wait)
    total, each = steps_in_run(bench)
    epochs = total / max(each, 1)
    # Forward alone is about a third of a step.
    validation = len(bench.data.splits["val"]) / len(keys) / bench.trainer.world_size * (step / 3 + wait)
    hours = (total * bench.trainer.accumulate_grad_batches * (step + wait) + epochs * validation) / 3600
    length = f"{hours:.1f} hours" if hours >= 1 else f"{60 * hours:.1f} minutes"
    yield Line("PASS", "forecast", f"{images:,.0f} images/s; {total} steps, {epochs:.0f} epochs: about {length}")
    if workers:
        yield from _worker_start(bench)


def memory(bench: Bench) -> Iterator[Line]:
    """Peak memory of a step and the largest batch that fits, from the tensors that the forward pass keeps."""
    module = bench.copy()
    optimizer = module.configure_optimizers()
    batch = bench.batch(bench.keys(bench.few))
    n = len(batch["image"])
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    bench.trainer.training = True
    with torch.autograd.graph.saved_tensors_hooks(pack, _as_it_is), bench.trainer.precision_plugin.forward_context():
        loss = module.training_step(batch, 0)
    loss.backward()
    optimizer.step()
    own = {p.untyped_storage().data_ptr() for p in module.parameters()}
    activations = sum(size for pointer, size in kept.items() if pointer not in own) / n
    weights = _bytes(module.state_dict().values())
    state = _bytes(v for values in optimizer.state.values() for v in values.values())
    fixed = 2 * weights + state  # the second time as gradients
    peak = fixed + activations * bench.batch_size
    free = _free_memory(bench.device)
    found = f"about {peak / 2**30:.2f} GiB for batches of {bench.batch_size}"
    if free is None:
        yield Line("PASS", "memory peak", found)
        return
    largest = int((0.8 * free - fixed) / max(activations, 1))
    found += f"; {free / 2**30:.1f} GiB are free, for about {largest} images at a time"
    if largest < bench.batch_size:
        advice = f"set data.max_batch_per_device to {max(1, largest)}: the rest is accumulated, the result is the same"
        yield Line("FAIL", "memory peak", found, advice)
    else:
        yield Line("PASS", "memory peak", found)


def disk(bench: Bench, folder: Path, keep_best: int) -> Iterator[Line]:
    """Space of the checkpoints: the best ones, the last, the one before it and the one being written."""
    trained = sum(p.nbytes for p in bench.module.parameters() if p.requires_grad)
    adaptive = "Adam" in bench.module.settings["optimizer"]
    one = _bytes(bench.module.state_dict().values()) + (2 if adaptive else 1) * trained
    need = one * (keep_best + 3)
    free = free_bytes(folder)
    found = f"{keep_best + 3} checkpoints of about {one / 1e6:.1f} MB; {free / 1e9:.1f} GB are free at {folder}"
    if need > free:
        yield Line("FAIL", "disk", found, "free space, set --run_dir to another disk, or lower checkpoints.keep_best")
    elif need > 0.5 * free:
        yield Line("WARN", "disk", found, "more than half of what is free")
    else:
        yield Line("PASS", "disk", found)


def free_bytes(folder: Path) -> int:
    """Free space of the disk that a folder is on, or will be."""
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    return shutil.disk_usage(existing).free


def _worker_start(bench: Bench) -> Iterator[Line]:
    start = time.perf_counter()
    for _ in itertools.islice(iter(bench.train_loader), 1):
        pass
    seconds = time.perf_counter() - start
    yield Line("PASS", "workers", f"{bench.data.num_workers} start and load a batch in {seconds:.1f} s")


def _bytes(values: Iterable[object]) -> int:
    return sum(int(value.nbytes) for value in values if isinstance(value, Tensor))


def _free_memory(device: torch.device) -> int | None:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return None


def _time(seconds: float) -> str:
    return f"{1000 * seconds:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _as_it_is(tensor: Tensor) -> Tensor:
    return tensor
