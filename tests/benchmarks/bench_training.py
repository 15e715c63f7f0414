"""Memory and time of activation checkpointing, speed of bf16 and of compile, accumulation against the large batch.

python tests/benchmarks/bench_training.py (some minutes); --skip_compile leaves out the slowest row. Steps alternate,
medians are shown, on the accelerator where there is one. What others report, on their machines and networks:
activation checkpointing a third more time for the square root of the memory (arXiv:1604.06174, section 4); bf16 on an
accelerator 1.5 to 3 times as fast, on CPUs only with AMX or AVX512-BF16; torch.compile 1.4 times on average over 163
models in training on an A100 (pytorch.org, 2.0 announcement).
"""

import argparse
import contextlib
import io
import json
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from compare import Rows, alternate, median_ratio
from torch import nn

from template.cli import main as template
from template.model.activation_checkpointing import checkpoint_activations
from template.model.network import build_network

DEVICE = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
SIZE, BATCH = (224, 64) if torch.accelerator.is_available() else (64, 16)
DIGITS = "configs/digits.yaml"


def network(parts: tuple[str, ...] = ()) -> nn.Module:
    torch.manual_seed(0)
    built = build_network("resnet18", 10).to(DEVICE, memory_format=torch.channels_last)  # type: ignore[call-overload]
    checkpoint_activations(built, parts)
    return built


def step(trained: nn.Module, bf16: bool = False) -> Callable[[], None]:
    """One forward and backward pass and an update by SGD, which waits for the device."""
    images = torch.randn(BATCH, 3, SIZE, SIZE, device=DEVICE).contiguous(memory_format=torch.channels_last)
    targets = torch.arange(BATCH, device=DEVICE) % 10
    optimizer = torch.optim.SGD(trained.parameters(), lr=1e-3)

    def run() -> None:
        with torch.autocast(DEVICE.type, dtype=torch.bfloat16, enabled=bf16):
            logits = trained(images)
        nn.functional.cross_entropy(logits.float(), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
        if DEVICE.type == "cuda":
            torch.cuda.synchronize()

    run()
    return run


def kept_bytes(trained: nn.Module) -> int:
    """Bytes that a forward pass keeps for the backward one, each storage once, parameters and inputs left out."""
    images = torch.randn(BATCH, 3, SIZE, SIZE, device=DEVICE)
    own = {p.untyped_storage().data_ptr() for p in trained.parameters()} | {images.untyped_storage().data_ptr()}
    kept: dict[int, torch.Tensor] = {}  # holding the tensors keeps their addresses from being used again

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in own:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        trained(images)
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


def accuracy(folder: Path, max_batch: int | None, seed: int) -> float:
    options = ("--data.max_batch_per_device", str(max_batch)) if max_batch else ()
    run = folder / f"{max_batch}-{seed}"
    arguments = [
        "fit",
        "--config",
        DIGITS,
        "--seed",
        str(seed),
        "--run_dir",
        str(run),
        "--data.root",
        str(folder / "digits"),
    ]
    quiet = ["--report", "false", "--wandb.mode", "disabled", "--quick_check", "false", "--model.norm", "group"]
    with contextlib.redirect_stdout(io.StringIO()):
        assert template([*arguments, *quiet, *options]) == 0
    return float(json.loads((run / "metrics.json").read_text())["test/accuracy"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--skip_compile", action="store_true")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seeds", type=int, default=2)
    options = parser.parse_args()

    rows = Rows(
        f"training: ResNet-18, {BATCH} images of {SIZE} x {SIZE}, on {DEVICE}, {torch.get_num_threads()} threads"
    )
    stages = ("layer1", "layer2", "layer3", "layer4")
    memory = [kept_bytes(network(parts)) for parts in ((), stages)]
    contestants = {"plain": step(network()), "checkpointed": step(network(stages)), "bf16": step(network(), bf16=True)}
    if not options.skip_compile:
        compiled = network()
        compiled.compile()
        contestants["compiled"] = step(compiled)
    seconds = alternate(contestants, options.rounds)
    rows.plain("one step in float32", 1000 * statistics.median(seconds["plain"]), "ms")
    rows.at_most("activation checkpointing of 4 stages: kept memory", memory[1] / memory[0], 0.5, "of plain")
    rows.plain("  kept for the backward pass without it", memory[0] / 2**20, "MiB")
    rows.at_most("  time of a step", median_ratio(seconds["checkpointed"], seconds["plain"]), 1.6, "of plain")
    rows.plain("bf16: time of a step", median_ratio(seconds["bf16"], seconds["plain"]), "of float32")
    if not options.skip_compile:
        rows.plain("compiled: time of a step", median_ratio(seconds["compiled"], seconds["plain"]), "of eager")

    with tempfile.TemporaryDirectory() as folder:
        found = {most: [accuracy(Path(folder), most, seed) for seed in range(options.seeds)] for most in (None, 16)}
    large, accumulated = (statistics.mean(found[most]) for most in (None, 16))
    rows.plain("digits, batch of 64 at once: accuracy", large, "", f"of {options.seeds} seeds, group norms")
    rows.plain("digits, 4 accumulated batches of 16: accuracy", accumulated)
    rows.at_most("  largest difference of a seed", max(abs(a - b) for a, b in zip(*found.values(), strict=True)), 0.012)
    rows.finish()


if __name__ == "__main__":
    main()
