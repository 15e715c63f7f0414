"""Whether the network can learn at all: its outputs, the initial loss, the gradients, one batch by heart."""

import math
import time
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from template.callbacks.first_batch import judge_initial_loss, known, listed, untrained_loss
from template.checks.bench import Bench
from template.checks.labels import guessing_loss
from template.checks.page import Line
from template.data.datamodule import Batch
from template.model.module import Classifier

_STEPS = 150  # of learning one batch by heart; the digits' network needs about 20, a ResNet-18 about 30


def outputs(bench: Bench) -> Iterator[Line]:
    """Shape and kind of what the network returns: logits, not probabilities."""
    module = bench.copy()
    batch = bench.batch(bench.keys(bench.few))
    logits = bench.logits(module, batch["image"])
    expected = (len(batch["image"]), len(module.class_names))
    found = f"{tuple(logits.shape)}, {float(logits.min()):.2f} to {float(logits.max()):.2f}"
    if tuple(logits.shape) != expected:
        yield Line("FAIL", "outputs", found, f"expected {expected}: images x classes")
        return
    inside = bool(((logits >= 0) & (logits <= 1)).all()) and logits.numel() >= 16
    if inside and torch.allclose(logits.sum(dim=1), torch.ones_like(logits[:, 0]), atol=1e-3):
        advice = "the network ends in a softmax, and the loss applies another: return the values before it"
        yield Line("FAIL", "outputs", f"{found}, rows add up to 1", advice)
    elif inside and module.task == "multilabel":
        advice = "the network ends in a sigmoid, and the loss applies another: return the values before it"
        yield Line("FAIL", "outputs", found, advice)
    elif bool((logits >= 0).all()) and bool((logits == 0).any()):
        yield Line(
            "FAIL", "outputs", f"{found}, none below 0", "the network ends in a ReLU: return the values before it"
        )
    elif logits.std() == 0 or (torch.allclose(logits, logits[:1], rtol=1e-5, atol=1e-7) and len(logits) > 1):
        zero = not bool(logits.any())  # some networks start with a head of zeros
        if zero:
            yield Line("PASS", "outputs", f"{found}: the head starts at zero")
        else:
            yield Line(
                "FAIL", "outputs", f"{found}, the same for every image", "the network does not look at its input"
            )
    else:
        yield Line("PASS", "outputs", found)


def initial_loss(bench: Bench) -> Iterator[Line]:
    """The first loss beside that of a network which knows nothing."""
    module = bench.copy()
    batch = bench.batch(bench.keys(bench.few))
    with torch.no_grad(), bench.trainer.precision_plugin.forward_context():
        parts = module.criterion(module(batch["image"]), batch["target"])
    loss = parts.get("loss")
    if not isinstance(loss, Tensor) or loss.shape != (len(batch["image"]),):
        shape = tuple(loss.shape) if isinstance(loss, Tensor) else sorted(parts)
        yield Line("FAIL", "criterion", f"its 'loss' is {shape}", f"expected ({len(batch['image'])},): one a sample")
        return
    value, expected = float(loss.mean()), untrained_loss(module, batch["target"])
    finding = judge_initial_loss(value, expected)
    found = f"{value:.3f}; {known(expected, module)}"
    if expected <= 0:
        yield Line("FAIL", "initial loss", found, "equal logits cannot have such a loss: is a sign wrong?")
    elif finding is None:
        yield Line("PASS", "initial loss", found)
    else:
        yield Line("WARN" if math.isfinite(value) else "FAIL", "initial loss", found, finding)


def gradients(bench: Bench) -> Iterator[Line]:
    """Parameters that no gradient reaches in four steps, that no optimizer has, or that are frozen as initialised."""
    module = bench.copy()
    optimizer = module.configure_optimizers()
    for group in optimizer.param_groups:  # small steps: what is looked at is the network as initialised
        group["lr"] = min(group["lr"], 1e-3)
    moved: set[str] = set()
    reached: set[str] = set()
    for epoch in range(4):
        bench.step(module, optimizer, bench.batch(bench.keys(bench.few, epoch=epoch)))
        for name, parameter in module.named_parameters():
            if parameter.grad is not None:
                reached.add(name)
                if bool(parameter.grad.any()):
                    moved.add(name)
    trained = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
    frozen = [name for name, parameter in module.named_parameters() if not parameter.requires_grad]
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    left_out = [name for name, p in module.named_parameters() if p.requires_grad and id(p) not in held]
    unused = [name for name in trained if name not in reached]
    dead = [name for name in trained if name in reached and name not in moved]
    weights_given = bool(module.settings.get("pretrained") or module.settings.get("weights"))
    if not trained:
        yield Line("FAIL", "gradients", f"all {len(frozen)} parameters are frozen", "nothing would be learned")
        return
    if left_out:
        yield Line("FAIL", "optimizer", f"it does not have {listed(left_out)}", "add them in configure_optimizers")
    if unused:
        advice = "they are not used in the forward pass, or cut off by detach, item or no_grad"
        yield Line("FAIL", "gradients", f"none reaches {listed(unused)}", advice)
    if dead:
        advice = "dead: an activation before or after them is zero for every image, or a factor is"
        yield Line("FAIL", "gradients", f"exactly zero in 4 steps at {listed(dead)}", advice)
    if frozen and not weights_given:
        advice = "frozen as they were initialised, at random: set model.pretrained or model.weights, or let them train"
        yield Line("FAIL", "frozen", f"{len(frozen)} of {len(frozen) + len(trained)} parameters", advice)
    if not (unused or dead):
        text = f"reach all {len(trained)} parameters" + (f", {len(frozen)} are frozen" if frozen else "")
        yield Line("PASS", "gradients", text)


def one_batch(bench: Bench, seconds: float = 20.0) -> Iterator[Line]:
    """A few samples learned by heart: with the run's optimizer, and if that fails with a known good one."""
    start = time.monotonic()
    module = bench.copy()
    n = bench.few
    batch = bench.batch(bench.keys(n), training=False)
    once = bench.seconds(lambda: bench.step(bench.copy(), _sgd(module), batch), most=1)
    while n > 4 and once * _STEPS > seconds / 2:
        n, once = n // 2, once / 2
    batch = {name: value[:n] for name, value in batch.items()}

    budget = (seconds - (time.monotonic() - start)) / 2
    own = by_heart(bench, bench.copy(), None, batch, budget)
    floor, first = own.floor, own.losses[0]
    found = f"{n} images: loss {first:.3f} to {own.last:.3f} in {len(own.losses)} steps, {floor:.3f} is perfect"
    if own.learned:
        yield Line("PASS", "one batch", found)
        return
    with_known = bench.copy()
    known_good = torch.optim.AdamW([p for p in with_known.parameters() if p.requires_grad], lr=1e-3, weight_decay=0.0)
    other = by_heart(bench, with_known, known_good, batch, budget)
    if other.learned:
        settings = bench.module.settings
        rate, name = settings["learning_rate"], settings["optimizer"]
        why = f"AdamW at 1e-3 gets it to {other.last:.3f}: model.learning_rate {rate:g} of {name} is too "
        diverged = not math.isfinite(own.last) or own.last > first
        yield Line(
            "FAIL" if diverged else "WARN", "one batch", found, why + ("high" if diverged else "low, or far from it")
        )
    elif len(other.losses) < _STEPS and math.isfinite(other.last) and other.last < 0.9 * first:
        yield Line("WARN", "one batch", found, "it was still falling when the time was up")
    else:
        advice = (
            f"nor does AdamW at 1e-3 ({other.last:.3f}): the optimizer is not the cause; look at the network's "
            "outputs, the criterion and the range of the input"
        )
        yield Line("FAIL", "one batch", found, advice)


class ByHeart:
    """Losses of learning one batch by heart, and the lowest that the criterion allows."""

    def __init__(self, floor: float) -> None:
        self.floor = floor
        self.losses: list[float] = []

    @property
    def last(self) -> float:
        """Mean of the last three losses."""
        return sum(self.losses[-3:]) / len(self.losses[-3:])

    @property
    def learned(self) -> bool:
        """Whether nine tenths of the way from the first loss to perfect are done."""
        return self.last - self.floor <= 0.1 * (self.losses[0] - self.floor)


def by_heart(
    bench: Bench, module: Classifier, optimizer: torch.optim.Optimizer | None, batch: Batch, seconds: float
) -> ByHeart:
    """Train on one batch without dropout; the learning rate rises over ten steps, as a warmup would have it."""
    for part in module.modules():
        if "drop" in type(part).__name__.lower():
            part.eval()
    optimizer = optimizer or module.configure_optimizers()
    rates = [group["lr"] for group in optimizer.param_groups]
    result = ByHeart(best_loss(module, batch["target"]))
    end = time.monotonic() + seconds
    while len(result.losses) < _STEPS and (len(result.losses) < 3 or time.monotonic() < end):
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * min(1.0, (len(result.losses) + 1) / 10)
        result.losses.append(float(bench.step(module, optimizer, batch)))
        if not math.isfinite(result.losses[-1]) or (len(result.losses) > 3 and result.learned):
            break
    return result


def best_loss(module: Classifier, target: Tensor) -> float:
    """The lowest mean loss that any logits have on these targets: above 0 with label smoothing."""
    settings = module.settings
    if module.task == "multilabel" or target.ndim != 1:
        return 0.0
    classes = len(module.class_names)
    one_hot = torch.eye(classes)[target.cpu()].numpy()
    losses = [
        guessing_loss(row, "multiclass", settings["label_smoothing"], settings["class_weights"]) for row in one_hot
    ]
    return sum(losses) / len(losses)


def _sgd(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), lr=0.0)
