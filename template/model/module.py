"""The LightningModule: one step for every stage, per-sample losses over a known window, optimizer groups."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast

import lightning.pytorch as L
import torch
from torch import Tensor, nn
from torchmetrics import MeanMetric, MetricCollection

from template import __version__
from template.data.sampler import TrainSampler
from template.data.transforms import Preprocessing
from template.errors import InputError
from template.model.activation_checkpointing import checkpoint_activations as checkpoint_network
from template.model.criterion import BinaryCrossEntropy, CrossEntropy, Task
from template.model.metrics import build_metrics
from template.model.network import Stem, build_network, load_weights
from template.model.norms import Norm, use_group_norms, use_synchronised_norms
from template.model.optimizer import check_optimizer, parameter_groups
from template.model.totals import Totals
from template.plain import plain
from template.randomness import mix, seed_libraries

log = logging.getLogger(__name__)
#: Where a checkpoint keeps what is needed to use it without a config or the data.
CHECKPOINT_KEY = "template"


class Classifier(L.LightningModule):
    """Image classifier.

    Args:
        class_names: K names; class ``k`` of the logits is ``class_names[k]``. Comes from the data.
        preprocessing: What was done to the images; kept for prediction and export. Comes from the data.
        data: Settings of the DataModule, plain types, kept so that ``evaluate`` needs nothing but a checkpoint.
        seed: The run's seed: dropout depends on (seed, epoch, batch, rank).
        network: ``small``, the name of a torchvision classification network, or ``timm:`` and the name of one of timm.
        pretrained: Start from its ImageNet weights.
        weights: Start from the weights in this checkpoint, by name; to continue a run is something else (``--resume``).
        stem: ``small`` keeps the resolution in a ResNet's first layers, for images under about 64 pixels.
        width: Channels of ``small``'s first stage.
        dropout: Probability of dropping a feature before ``small``'s head.
        norm: ``group`` makes group norms of the batch norms, keeping their affine weights; ``sync`` takes batch
            statistics over all processes.
        checkpoint_activations: Names of parts of the network, such as [layer1, layer2], whose activations are computed
            again in the backward pass instead of kept: less memory, more time.
        compile: Compile the network; worth it for runs of more than some minutes. Checkpoints are the same either way.
        task: ``multiclass`` for one class an image, ``multilabel`` for any number of them.
        label_smoothing: Share of the target spread over all classes.
        class_weights: K factors of the loss, in the order of the class names: of each class, or for multi-label
            of its presence. ``balanced`` takes them from the training split: every class weighs the same in total.
        focal_gamma: Power of the focal loss, which makes less of what is right already; 0 is off, 2 is usual.
        optimizer: Name of a class of torch.optim, such as AdamW or SGD.
        learning_rate: Peak learning rate, for ``base_batch_size`` samples a step.
        base_batch_size: What the learning rate was chosen for; with another data.global_batch_size it is scaled.
            None: it is not.
        batch_scaling: By the batch sizes' quotient (``linear``, arXiv:1706.02677, usual with SGD), or its root
            (``sqrt``, usual with Adam).
        layer_decay: Each layer further from the logits learns this many times as fast; below 1 for fine-tuning.
        weight_decay: Of the weights that decay.
        decay_norms_and_biases: Whether parameters of one dimension (norms, biases) decay too.
        optimizer_options: Other arguments of the optimizer, such as {betas: [0.9, 0.95], eps: 1e-8}.

    Raises:
        InputError: A name is unknown or a value out of range.
    """

    def __init__(
        self,
        class_names: Sequence[str],
        preprocessing: Preprocessing = Preprocessing(),
        data: Mapping[str, Any] | None = None,
        seed: int = 0,
        network: str = "small",
        pretrained: bool = False,
        weights: Path | None = None,
        stem: Stem = "default",
        width: int = 32,
        dropout: float = 0.0,
        norm: Norm = "batch",
        checkpoint_activations: Sequence[str] | None = None,
        compile: bool = False,
        task: Task = "multiclass",
        label_smoothing: float = 0.0,
        class_weights: Sequence[float] | Literal["balanced"] | None = None,
        focal_gamma: float = 0.0,
        optimizer: str = "AdamW",
        learning_rate: float = 1e-3,
        base_batch_size: int | None = None,
        batch_scaling: Literal["linear", "sqrt"] = "linear",
        layer_decay: float = 1.0,
        weight_decay: float = 0.05,
        decay_norms_and_biases: bool = False,
        optimizer_options: Mapping[str, Any] | None = None,
    ) -> None:
        # All that the constructor was given but what comes from the data: a checkpoint rebuilds the module from it.
        settings = dict(locals())  # first of all: any local made before it would be among them
        for name in ("self", "__class__", "class_names", "preprocessing", "data", "seed"):
            settings.pop(name, None)
        super().__init__()
        if len(class_names) < 2:
            raise InputError(f"there must be at least 2 classes; found {len(class_names)}: {list(class_names)}")
        if isinstance(class_weights, str):
            raise InputError("model.class_weights balanced needs the training split; give K numbers here")
        if class_weights is not None and len(class_weights) != len(class_names):
            raise InputError(f"model.class_weights has {len(class_weights)} numbers for {len(class_names)} classes")
        for name, value in (
            *(("learning_rate", learning_rate), ("weight_decay", weight_decay)),
            *(("focal_gamma", focal_gamma), ("layer_decay", layer_decay)),
        ):
            if value < 0:
                raise InputError(f"model.{name} is {value}; expected 0 or more")
        for name, value in (("dropout", dropout), ("label_smoothing", label_smoothing)):
            if not 0 <= value < 1:
                raise InputError(f"model.{name} is {value}; expected 0 to 1, 1 excluded")
        for name, size in (("width", width), ("base_batch_size", base_batch_size)):
            if size is not None and size < 1:
                raise InputError(f"model.{name} is {size}; expected 1 or more")
        for argument, own in (("lr", "learning_rate"), ("weight_decay", "weight_decay")):
            if argument in (optimizer_options or {}):
                raise InputError(f"model.optimizer_options has {argument!r}; set model.{own} instead")
        self.class_names = tuple(class_names)
        self.preprocessing = preprocessing
        self.data = dict(data or {})
        self.seed = seed
        self.task: Task = task
        self.settings: dict[str, Any] = plain(settings)
        self.optimizer_class, self.optimizer_arguments = check_optimizer(
            optimizer, {**(optimizer_options or {}), "lr": learning_rate, "weight_decay": weight_decay}
        )
        self.decay_norms_and_biases = decay_norms_and_biases
        self.layer_decay = layer_decay

        self.network = build_network(network, len(class_names), pretrained, stem, width, dropout)
        if norm == "group":
            use_group_norms(self.network)
        if weights is not None:
            load_weights(self.network, weights)
        checkpoint_network(self.network, checkpoint_activations or ())
        if compile:
            self.network.compile()  # in place: a wrapper's _orig_mod would be in the names of the weights
        self.criterion: nn.Module = (
            CrossEntropy(label_smoothing, class_weights, focal_gamma)
            if task == "multiclass"
            else BinaryCrossEntropy(class_weights, focal_gamma)
        )
        self.losses = cast("dict[str, MeanMetric]", nn.ModuleDict({stage: MeanMetric() for stage in ("val", "test")}))
        metrics = nn.ModuleDict({stage: build_metrics(task, len(class_names)) for stage in ("val", "test")})
        self.metrics = cast("dict[str, MetricCollection]", metrics)
        self.train_totals = Totals()
        self._stored_totals: dict[str, Any] | None = None

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "_current_fx_name":  # Lightning sets it forty times a step; Module would see if it is a weight
            self.__dict__[name] = value
        else:
            super().__setattr__(name, value)

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) normalised float to (B, K) logits."""
        return self.network(images)

    def probabilities(self, logits: Tensor) -> Tensor:
        """(B, K) logits to (B, K) float32 probabilities: of a softmax, or for multi-label of a sigmoid each."""
        return logits.float().softmax(1) if self.task == "multiclass" else logits.float().sigmoid()

    def setup(self, stage: str) -> None:
        if stage == "fit" and self.settings["norm"] == "sync":
            device = self.trainer.strategy.root_device.type
            self.network = use_synchronised_norms(self.network, device, self.trainer.world_size)

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        logits, parts = self._step(batch)
        self.train_totals.add(self._train_parts(logits, batch["target"], parts), len(logits))
        # Lightning divides by the accumulation and DDP by the ranks, both as if every piece were of one size.
        scale = self.trainer.accumulate_grad_batches * self.trainer.world_size
        return parts["loss"].sum() * (scale / self._window_size(batch_idx, len(logits)))

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        self._evaluate("val", batch)

    def test_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        self._evaluate("test", batch)

    def _step(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """The one step of every stage: (B, K) logits and the named (B,) losses."""
        logits = self(batch["image"])
        return logits, self.criterion(logits, batch["target"])

    def _evaluate(self, stage: str, batch: dict[str, Tensor]) -> None:
        logits, parts = self._step(batch)
        self.losses[stage].update(parts["loss"])
        target = batch["target"]
        self.metrics[stage].update(self.probabilities(logits), target.long())

    def _train_parts(self, logits: Tensor, target: Tensor, parts: dict[str, Tensor]) -> dict[str, Tensor]:
        if self.task != "multiclass":
            return parts
        hard = target if target.ndim == 1 else target.argmax(1)
        return {**parts, "accuracy": logits.detach().argmax(1) == hard}

    def _window_size(self, batch_idx: int, batch_size: int) -> int:
        """Samples that share this optimizer step, over all ranks and accumulated batches."""
        sampler = getattr(self.trainer.train_dataloader, "batch_sampler", None)
        if not isinstance(sampler, TrainSampler):  # a person's own loader: its batches have to be of one size
            return batch_size * self.trainer.accumulate_grad_batches * self.trainer.world_size
        return sampler.window_size(batch_idx, int(self.trainer.num_training_batches))

    def on_train_batch_start(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        seed_libraries(mix(self.seed, self.trainer.current_epoch, batch_idx, self.trainer.global_rank))

    def on_train_start(self) -> None:
        if self._stored_totals is not None:
            self.train_totals.restore(self._stored_totals, self.trainer.is_global_zero)
            self._stored_totals = None

    def on_validation_epoch_end(self) -> None:
        self._log_stage("val")

    def on_test_epoch_end(self) -> None:
        self._log_stage("test")

    def _log_stage(self, stage: str) -> None:
        values = {"loss": self.losses[stage].compute(), **self.metrics[stage].compute()}
        self.losses[stage].reset()
        self.metrics[stage].reset()
        self.log_dict({f"{stage}/{name}": value for name, value in values.items()}, logger=False)

    def metric_names(self, stage: str) -> list[str]:
        """Names that a stage reports, known before the first step: what can be monitored."""
        return [f"{stage}/{name}" for name in ("loss", *self.metrics[stage].keys())]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        groups = parameter_groups(
            self.network,
            self.optimizer_arguments["lr"],
            self.optimizer_arguments["weight_decay"],
            self.decay_norms_and_biases,
            self.layer_decay,
        )
        return self.optimizer_class(groups, **self.optimizer_arguments)

    def scale_learning_rate(self, global_batch_size: int) -> None:
        """Scale the learning rate from the batch size that it was chosen for, and log the arithmetic."""
        base, rule = self.settings["base_batch_size"], self.settings["batch_scaling"]
        if base is None:
            return
        power = {"linear": 1.0, "sqrt": 0.5}[rule]
        rate = self.settings["learning_rate"] * (global_batch_size / base) ** power
        self.optimizer_arguments["lr"] = rate
        quotient = f"{global_batch_size} / {base}"
        log.info(
            f"learning rate {self.settings['learning_rate']:g} x "
            f"{quotient if rule == 'linear' else f'sqrt({quotient})'} = {rate:g}"
        )

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint[CHECKPOINT_KEY] = {
            "version": __version__,
            "class_names": list(self.class_names),
            "preprocessing": self.preprocessing.to_dict(),
            "model": dict(self.settings),
            "data": plain(self.data),
            "seed": self.seed,
            "train_totals": self.train_totals.state(self.trainer),
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self._stored_totals = checkpoint[CHECKPOINT_KEY]["train_totals"]


def load_classifier(path: Path) -> tuple[Classifier, dict[str, Any]]:
    """Build the classifier of a checkpoint, in eval mode on the CPU, from nothing but the file.

    Returns:
        The classifier and the whole checkpoint.

    Raises:
        InputError: The file is missing, damaged, or not a checkpoint of this template.
    """
    if not path.is_file():
        raise InputError(f"no checkpoint at {path}")
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds for a damaged file, none of them documented
        raise InputError(f"cannot read the checkpoint {path}: {str(error).splitlines()[0]}") from error
    if not isinstance(checkpoint, dict) or CHECKPOINT_KEY not in checkpoint:
        raise InputError(f"{path} was not written by this template: it has no {CHECKPOINT_KEY!r} entry")
    own = checkpoint[CHECKPOINT_KEY]
    classifier = Classifier(
        class_names=own["class_names"],
        preprocessing=Preprocessing(**own["preprocessing"]),
        data=own["data"],
        seed=own["seed"],
        **{**own["model"], "pretrained": False, "weights": None, "compile": False, "checkpoint_activations": None},
    )
    if "averaging_state" in checkpoint:
        log.info(f"{path}: the weights are the moving average (ema.decay) of those that were trained")
    classifier.load_state_dict(checkpoint["state_dict"])
    return classifier.eval(), checkpoint
