"""The step of a run that was not finite, done again from the last good checkpoint: which operation, in which module."""

import json
import sys
import traceback
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from template.callbacks.nonfinite import CHECKPOINT, STEP, NonFinite, non_finite_names
from template.callbacks.schedules import build_schedule
from template.data.datamodule import DataModule
from template.errors import InputError

#: Operations that place infinities on purpose, or hand out memory that holds anything until it is written.
_MEANT = ("empty", "fill", "full", "scalar_tensor", "where")


def read_step(folder: Path) -> dict[str, Any]:
    """What a run wrote about the step at which it stopped.

    Raises:
        InputError: The folder is not one of those.
    """
    if not (folder / STEP).is_file():
        raise InputError(f"{folder} has no {STEP}; a run that met NaN or infinity leaves RUN/nonfinite_step<N>/")
    step: dict[str, Any] = json.loads((folder / STEP).read_text(encoding="utf-8"))
    return step


def replay(options: Any, folder: Path, step: dict[str, Any]) -> str:
    """Train from the folder's checkpoint, or from the start where it has none, up to and including the bad step.

    Args:
        options: Parsed options of the run, as ``template.cli.parse_fit`` returns them for its config.yaml.
        folder: ``RUN/nonfinite_step<N>``.
        step: What :func:`read_step` returns for it.

    Returns:
        What was found, in a few lines.
    """
    from template.train import build_module, set_batches

    L.seed_everything(options.seed, workers=False, verbose=False)
    data = DataModule(**options.data.as_dict(), seed=options.seed)
    module = build_module(options, data)
    watch = Watch(step)
    callbacks: list[L.Callback] = [build_schedule(options), watch]
    if options.nonfinite.tolerance:  # what the run skipped has to be skipped again
        callbacks.append(_Skips(tolerance=sys.maxsize))
    own = {"callbacks": callbacks, "enable_progress_bar": False, "limit_val_batches": 0, "num_sanity_val_steps": 0}
    trainer = L.Trainer(
        **{**options.trainer.as_dict(), **own}, logger=False, enable_checkpointing=False, use_distributed_sampler=False
    )
    set_batches(trainer, data)
    checkpoint = folder / CHECKPOINT if (folder / CHECKPOINT).exists() else None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            trainer.fit(module, data, ckpt_path=checkpoint)
        except _Done:
            pass
        except RuntimeError as error:  # anomaly detection's own; any other is a person's
            if "returned nan values" not in str(error):
                raise
            watch.anomaly = str(error)
        finally:
            watch.end()
    start = f"from {checkpoint}" if checkpoint else "from the start of the run"
    head = f"step {step['step']} (epoch {step['epoch']}), replayed {start}: {step['what']}"
    return "\n  ".join([head, *watch.explain(data, [str(warning.message) for warning in caught])])


class Watch(L.Callback):
    """Looks at one optimizer step: its samples, its weights, and every operation forward and backward.

    Args:
        step: ``epoch`` and ``batches`` of the step.
    """

    def __init__(self, step: dict[str, Any]) -> None:
        self.step = step
        self.found: list[str] = []
        self.bad_samples: list[int] = []
        self.anomaly: str | None = None
        self.operations: FirstOperation | None = None
        self.hooks: list[Any] = []
        self.outputs: list[tuple[str, Node]] = []
        self.stack: list[str] = []

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if trainer.current_epoch != self.step["epoch"] or batch_idx not in self.step["batches"]:
            return
        if batch_idx == self.step["batches"][0]:
            bad = non_finite_names(pl_module.named_parameters())
            if bad:
                self.found.append(
                    f"the weights were not finite before this step: {', '.join(bad[:3])}; the step before was too large"
                )
        for name in non_finite_names(batch.items()):
            self.found.append(f"the batch's {name} is not finite: look at preprocessing, augmentation and the data set")
        self._hook(pl_module, batch)
        torch.autograd.set_detect_anomaly(True)
        self.operations = FirstOperation(self.stack)
        self.operations.__enter__()

    def on_before_backward(self, trainer: L.Trainer, pl_module: L.LightningModule, loss: Tensor) -> None:
        if self.operations is None:
            return
        self._leave()
        for node, module in name_nodes([*self.outputs, ("training_step", loss.grad_fn)]).items():
            self.hooks.append(node.register_hook(self._backward_hook(node.name(), module)))

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.current_epoch == self.step["epoch"] and batch_idx == self.step["batches"][-1]:
            bad = non_finite_names(pl_module.named_parameters())
            if bad and not self.found:
                rate = trainer.optimizers[0].param_groups[0]["lr"]
                self.found.append(f"the optimizer's step made {bad[0]} not finite, with learning rate {rate:g}")
            raise _Done

    def end(self) -> None:
        """Take away every hook."""
        self._leave()
        torch.autograd.set_detect_anomaly(False)
        for hook in self.hooks:
            hook.remove()

    def explain(self, data: DataModule, messages: list[str]) -> list[str]:
        """What was found, one line each, first cause first."""
        lines = self.found or ["every value of this step was finite this time: the cause is not in the run's own draws"]
        if self.anomaly is not None:
            where = next((line for message in messages if (line := _own_line(message))), None)
            lines.append(f"anomaly detection: {self.anomaly}{f' Its forward call: {where}' if where else ''}")
        if self.bad_samples:
            names = [data.splits["train"].paths[index] for index in self.bad_samples]
            lines.append(f"samples with a loss that is not finite: {len(names)}: {', '.join(names[:5])}")
        return lines

    def _leave(self) -> None:
        if self.operations is not None:
            self.operations.__exit__(None, None, None)
            if self.operations.found is not None:
                self.found.append(self.operations.found)
            self.operations = None

    def _hook(self, module: L.LightningModule, batch: Any) -> None:
        for name, part in module.named_modules():
            self.hooks.append(part.register_forward_pre_hook(self._enter(name)))
            self.hooks.append(part.register_forward_hook(self._exit(name), always_call=True))
        criterion = getattr(module, "criterion", None)
        if isinstance(criterion, nn.Module) and "key" in batch:
            self.hooks.append(criterion.register_forward_hook(self._losses(batch["key"])))

    def _enter(self, name: str) -> Any:
        def hook(module: nn.Module, inputs: Any) -> None:
            self.stack.append(name or "the module")

        return hook

    def _exit(self, name: str) -> Any:
        def hook(module: nn.Module, inputs: Any, outputs: Any) -> None:
            self.stack.pop()
            nodes = [leaf.grad_fn for leaf in tree_leaves(outputs) if isinstance(leaf, Tensor)]
            self.outputs += [(name, node) for node in nodes if node is not None]

        return hook

    def _losses(self, keys: Tensor) -> Any:
        def hook(module: nn.Module, inputs: Any, outputs: Any) -> None:
            bad = ~torch.isfinite(outputs["loss"].detach())
            self.bad_samples += keys[bad][:, 1].tolist()

        return hook

    def _backward_hook(self, operation: str, module: str) -> Any:
        def hook(into: tuple[Tensor | None, ...], out_of: tuple[Tensor | None, ...]) -> None:
            if not self.found and not finite(into) and finite(out_of):
                self.found.append(
                    f"first in the backward pass: {operation} in {module}, whose incoming gradient was finite"
                )

        return hook


class FirstOperation(TorchDispatchMode):
    """Finds the first operation with finite tensors in and one that is not finite out.

    Args:
        stack: Names of the modules that are running, the innermost last; kept up to date by the caller.
    """

    def __init__(self, stack: list[str]) -> None:
        super().__init__()
        self.stack = stack
        self.found: str | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        leaves = tree_leaves((args, kwargs))
        looked_at = self.found is None and not any(word in func.__name__ for word in _MEANT)
        looked_at = looked_at and any(isinstance(leaf, Tensor) for leaf in leaves) and finite(leaves)
        largest = _largest(leaves) if looked_at else 0.0
        result = func(*args, **(kwargs or {}))
        if looked_at and not finite(tree_leaves(result)):
            kind = "NaN" if any(_has_nan(leaf) for leaf in tree_leaves(result)) else "infinity"
            where = _own_frame(traceback.extract_stack())
            self.found = (
                f"first in the forward pass: {func.__name__} in {self.stack[-1] if self.stack else 'training_step'} "
                f"made {kind} of finite numbers up to {largest:.3g}{f', at {where}' if where else ''}"
            )
        return result


class _Done(Exception):  # noqa: N818  it says that all went as planned
    """Ends the replay after its step."""


class _Skips(NonFinite):
    """Skips the steps that the run skipped, without a folder for each."""

    def _settle(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._pending = None


def name_nodes(outputs: Iterable[tuple[str, Node | None]]) -> dict[Node, str]:
    """The module that each node of the graph was made in.

    Args:
        outputs: (module's name, node of its output), in the order in which the modules returned, inner ones first.
    """
    names: dict[Node, str] = {}
    for name, output in outputs:
        todo = [output]
        while todo:
            node = todo.pop()
            if node is not None and node not in names:
                names[node] = name
                todo += [before for before, _ in node.next_functions]
    return names


def finite(values: Iterable[Any]) -> bool:
    """Whether every floating-point tensor among the values is finite."""
    with torch.no_grad():
        return all(bool(torch.isfinite(v).all()) for v in values if isinstance(v, Tensor) and v.is_floating_point())


def _has_nan(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and bool(torch.isnan(value).any())


def _largest(values: Iterable[Any]) -> float:
    tensors = [v for v in values if isinstance(v, Tensor) and v.is_floating_point() and v.numel()]
    return max((float(tensor.abs().max()) for tensor in tensors), default=0.0)


def _own_frame(frames: Iterable[traceback.FrameSummary]) -> str | None:
    """File and line of the innermost frame that is neither a library's nor this file's."""
    own = [f for f in frames if "site-packages" not in f.filename and f.filename != __file__ and f.filename[0] != "<"]
    return f"{own[-1].filename}:{own[-1].lineno}" if own else None


def _own_line(message: str) -> str | None:
    """The same of the traceback in a warning of anomaly detection."""
    if "Traceback of forward call" not in message:
        return None
    lines = [line.strip() for line in message.splitlines()]
    own = [line for line in lines if line.startswith("File ") and "site-packages" not in line]
    return own[-1].removeprefix("File ") if own else None
