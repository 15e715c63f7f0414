"""How many processes read samples, chosen from a short measurement, and what they need of the machine."""

import logging
import math
import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from torch import nn

from template.data.sampler import Key, TrainSampler
from template.errors import InputError
from template.randomness import preserved

log = logging.getLogger(__name__)
SHARED_MEMORY = Path("/dev/shm")
PREFETCH = 2  # batches that each worker holds ready, as torch's default
_SHORT_MS = 5.0  # handing a batch from a worker to the training process takes about as long as reading this much


def cores(ranks_here: int = 1) -> int:
    """Cores that this process may use, of those that the operating system gives to all ranks of the machine."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, available // ranks_here)


def choose_workers(
    read: Callable[[Sequence[Key]], object], n: int, batch_size: int, cores: int, on_cpu: bool, budget_s: float = 0.5
) -> tuple[int, str]:
    """Number of workers, and why, from reading a few batches in this process.

    Args:
        read: Reads the samples of some keys.
        n: Samples there are.
        batch_size: Samples in a batch.
        cores: That may be used.
        on_cpu: Whether the network is trained on them too. It needs no core of its own: workers with a network slower
            than they are wait, and where reading is slower, the network does.
        budget_s: About how long to measure.
    """
    piece = max(1, min(batch_size, n, 16))
    samples, start, elapsed = 0, 0.0, 0.0
    with preserved():
        read([(0, 0)])  # what the first sample alone pays for, such as imports
        start = time.perf_counter()
        while elapsed < budget_s and samples < min(n, 4 * batch_size):
            read([(0, (samples + i) % n) for i in range(piece)])
            samples += piece
            elapsed = time.perf_counter() - start
    batch_ms = 1000 * elapsed / samples * batch_size
    measured = f"reading a batch of {batch_size} takes {batch_ms:.1f} ms in one process"
    if batch_ms < _SHORT_MS:
        return 0, f"{measured}, less than handing it over from a worker would"
    if on_cpu and cores == 1:
        return 0, f"{measured}, and the one core is the network's"
    workers = min(cores, math.ceil(batch_ms / _SHORT_MS))
    these = f"{cores} core{'s' * (cores > 1)}{', which the network shares' if on_cpu else ''}"
    return workers, f"{measured}; {these}: about {batch_ms / workers:.1f} ms with workers"


def warn_of_small_shared_memory(workers: int, batch_bytes: int) -> None:
    """Warn before training when /dev/shm cannot hold the batches that workers have ready."""
    if not workers or not SHARED_MEMORY.is_dir():
        return
    need, free = workers * PREFETCH * batch_bytes, shutil.disk_usage(SHARED_MEMORY).free
    if need > free:
        log.warning(
            f"{SHARED_MEMORY} has {free / 1e6:,.0f} MB free, and {workers} workers x {PREFETCH} batches x "
            f"{batch_bytes / 1e6:,.1f} MB need {need / 1e6:,.0f} MB: enlarge it (docker run --shm-size="
            f"{math.ceil(2 * need / 1e9)}g), or lower data.num_workers to {int(free // (PREFETCH * batch_bytes))}"
        )


def check_lone_samples(sampler: TrainSampler, network: nn.Module | None) -> None:
    """Refuse, or where it may work warn of, a last batch of one sample under batch statistics.

    Raises:
        InputError: A BatchNorm1d would be given one value a channel.
    """
    if network is None:  # a loader alone, without the network that it will serve
        return
    norms = [(name, m) for name, m in network.named_modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    size, pieces = sampler.global_batch_size, sampler.ranks * sampler.accumulation
    if not norms or sampler.smallest_batch > 1 or size < 2 * pieces:
        return
    larger = (
        TrainSampler(sampler.n, more, 0, sampler.ranks, 0, sampler.accumulation) for more in range(size + 1, 2 * size)
    )
    better = next((other.global_batch_size for other in larger if other.smallest_batch > 1), sampler.n)
    found = (
        f"the last batch of each epoch is one sample ({sampler.n} samples, data.global_batch_size {size}, {pieces} "
        f"piece{'s' * (pieces > 1)} a step)"
    )
    remedy = f"set data.global_batch_size to {better}, or use a norm without batch statistics"
    for name, norm in norms:
        if isinstance(norm, nn.BatchNorm1d):
            raise InputError(f"{found}, and {name} is a BatchNorm1d, which needs two or more; {remedy}")
    log.warning(f"{found}: its batch statistics are those of one image; {remedy}")
