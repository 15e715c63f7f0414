"""What one step does besides learning: mix samples, keep memory, wait for the device."""

import gc
from collections.abc import Iterator

import torch
from torch import Tensor

from template.checks.bench import Bench
from template.checks.page import Line
from template.checks.synchronisation import host_reads


def rows_apart(bench: Bench) -> Iterator[Line]:
    """A single sample gives the row that it has in a batch, in eval mode."""
    module = bench.copy().eval()
    images = bench.batch(bench.keys(8, "val"), "val", training=False)["image"]
    together = bench.logits(module, images)
    alone = torch.cat([bench.logits(module, image[None]) for image in images])
    difference = float((together - alone).abs().max())
    found = f"a sample alone and in a batch of {len(images)} differ by {difference:.1e}"
    largest, spread = float(together.abs().max()), float((together.amax(0) - together.amin(0)).max())
    # An untrained network's outputs differ little from image to image: their spread is the measure, not their size.
    whole = bench.trainer.precision == "32-true"
    tolerance = 0.01 * spread + 1e-5 * largest if whole else 0.03 * largest
    if difference <= tolerance:
        yield Line("PASS", "rows apart", found)
    else:
        advice = "samples of a batch mix in eval mode: a view or reshape over the batch, or statistics of the batch"
        yield Line("FAIL", "rows apart", found, advice)


def growth(bench: Bench) -> Iterator[Line]:
    """Tensors that each step leaves behind."""
    module = bench.copy()
    optimizer = module.configure_optimizers()
    batch = bench.batch(bench.keys(bench.few))
    counts: list[int] = []
    graphs: list[int] = []
    memory: list[int] = []
    gc.collect()
    gc.freeze()  # what is there already is neither collected nor listed again: 7 s become 0.2
    for _ in range(6):
        bench.step(module, optimizer, batch)
        module.train_totals.settle()  # as each line of the log does
        gc.collect()
        tensors = [thing for thing in gc.get_objects() if issubclass(type(thing), Tensor)]
        counts.append(len(tensors))
        graphs.append(sum(1 for tensor in tensors if tensor.grad_fn is not None))
        memory.append(torch.cuda.memory_allocated(bench.device) if bench.device.type == "cuda" else 0)
        del tensors
    gc.unfreeze()
    more, more_graphs = _each(counts), _each(graphs)
    if more_graphs > 0:
        advice = "each keeps the graph of its step, and its memory: detach what is kept, such as a list of losses"
        yield Line("FAIL", "memory", f"{more_graphs} tensors with a graph more after each step", advice)
    elif more > 0:
        yield Line(
            "WARN", "memory", f"{more} tensors more after each step", "add numbers up instead of keeping tensors"
        )
    elif _each(memory) > 0:
        yield Line(
            "WARN", "memory", f"{_each(memory)} bytes more after each step", "something is kept from step to step"
        )
    else:
        yield Line("PASS", "memory", "the same after each step")


def synchronisation(bench: Bench) -> Iterator[Line]:
    """Reads of the device's values by the host in the step."""
    module = bench.copy()
    optimizer = module.configure_optimizers()
    batch = bench.batch(bench.keys(bench.few))
    bench.step(module, optimizer, batch)
    with host_reads() as reads:
        bench.step(module, optimizer, batch)
    if reads:
        shown = "; ".join(f"{read} ({count}x)" for read, count in reads.most_common(3))
        advice = "each makes an accelerator wait; keep values on the device and read them in logged steps"
        yield Line("WARN", "synchronisation", shown, advice)
    else:
        yield Line("PASS", "synchronisation", "the step reads nothing from the device")


def _each(values: list[int]) -> int:
    """By how much the last values grow from one to the next, if each of the last three steps grew; else 0."""
    differences = [after - before for before, after in zip(values[-4:], values[-3:], strict=False)]
    return min(differences) if min(differences) > 0 else 0
