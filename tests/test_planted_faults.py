"""Mistakes that cost people weeks, planted one by one: each is named by the check or guard that is to catch it.

`python -m pytest tests/test_planted_faults.py -s` prints the table.
"""

import io
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from template.callbacks import watch
from template.callbacks.first_batch import FirstBatch
from template.callbacks.nonfinite import NonFinite
from template.callbacks.step_log import StepLog
from template.callbacks.watch import Watch
from template.checks import batches, check, learning, settings, speed, step
from template.checks.bench import Bench
from template.checks.page import Line, Page
from template.data import datamodule as loading
from template.data.datamodule import DataModule
from template.data.index import Index
from template.data.packed import PackedStrings
from template.data.sources import write_digits
from template.data.transforms import Augmentation, Preprocessing
from template.errors import InputError
from template.model.criterion import CrossEntropy
from template.model.module import Classifier

IMAGES = ("labels", "labels tell", "leaks", "near leaks", "conflicts", "files", "classes")
CHECKS: dict[str, Callable[..., Iterator[Line]]] = {
    "batch": batches.first_batch,
    "input range": batches.input_range,
    "val input": batches.input_range,
    "val fixed": batches.validation_is_fixed,
    "outputs": learning.outputs,
    "initial loss": learning.initial_loss,
    "criterion": learning.initial_loss,
    "gradients": learning.gradients,
    "frozen": learning.gradients,
    "optimizer": learning.gradients,
    "one batch": learning.one_batch,
    "rows apart": step.rows_apart,
    "memory": step.growth,
    "synchronisation": step.synchronisation,
    "batch norm": settings.batch_statistics,
}


@dataclass
class Project:
    """A healthy project on 500 digits; a fault changes one thing of it."""

    data: DataModule
    options: dict[str, Any] = field(default_factory=dict)
    trainer_options: dict[str, Any] = field(default_factory=dict)
    examined: dict[str, Any] = field(default_factory=dict)
    change: Callable[[Any], object] = lambda module: None

    def made(self, **trainer: Any) -> tuple[Classifier, L.Trainer]:
        data = self.data
        options = {"width": 8, "learning_rate": 3e-3, **self.options}
        module = Classifier(data.class_names, data.preprocessing, data.settings(), **options)
        self.change(module)
        own = {"max_epochs": 10, "accelerator": "cpu", "logger": False, "enable_checkpointing": False}
        quiet = {"enable_progress_bar": False, "enable_model_summary": False, "use_distributed_sampler": False}
        return module, L.Trainer(**{**own, **quiet, **self.trainer_options, **trainer})

    def page(self) -> Page:
        module, trainer = self.made()
        return check.examine(self.data, module, trainer, **self.examined)

    def part_of_page(self, line: str) -> Page:
        """Only the checks that print a line of the given name: the whole page takes some seconds."""
        module, trainer = self.made()
        page = Page()
        if line in IMAGES:
            check.examine_images(page, self.data, module)
            return page
        bench, examined = Bench(self.data, module, trainer), self.examined
        with_settings = {
            "schedule": partial(settings.schedule, bench, examined.get("warmup_epochs", 0.0)),
            "monitor": partial(settings.monitor, bench, examined.get("monitor", "val/accuracy")),
            "disk": partial(speed.disk, bench, examined["folder"], 1),
            "wandb": partial(settings.account, examined.get("wandb", "disabled")),
        }
        page.run("part", [with_settings[line] if line in with_settings else partial(CHECKS[line], bench)])
        return page

    def relabel(self, change: Callable[[Index], np.ndarray], *splits: str) -> None:
        for split in splits or tuple(self.data.splits):
            index = self.data.splits[split]
            self.data.splits[split] = replace(index, targets=change(index))


@pytest.fixture(scope="module")
def digits(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("planted") / "digits"
    write_digits(root)
    return root


@pytest.fixture
def project(digits, tmp_path) -> Project:
    data = DataModule(
        digits,
        preprocessing=Preprocessing(8, None, (0.3,) * 3, (0.38,) * 3),
        global_batch_size=32,
    )
    generator = np.random.default_rng(0)
    for split, n in {"train": 320, "val": 120, "test": 60}.items():
        index = data.splits[split]
        data.splits[split] = index.take(np.sort(generator.permutation(len(index))[:n]))
    return Project(data, examined={"folder": tmp_path})


# --- faults ---------------------------------------------------------------------------------------------------------

FAULTS: dict[str, tuple[Callable[..., None], str, str]] = {}


def fault(name: str, status: str, caught_by: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a function that plants a fault into a project, and the line that is to name it."""

    def register(plant: Callable[..., None]) -> Callable[..., None]:
        FAULTS[name] = plant, status, caught_by
        return plant

    return register


@fault("labels from 1", "FAIL", "labels")
def _(project: Project) -> None:
    project.relabel(lambda index: index.targets + 1)


@fault("a label of -1", "FAIL", "labels")
def _(project: Project) -> None:
    project.relabel(lambda index: np.where(np.arange(len(index)) == 7, -1, index.targets), "train")


@fault("several classes an image, and a softmax loss", "FAIL", "labels")
def _(project: Project) -> None:
    project.relabel(lambda index: np.eye(10, dtype=np.uint8)[index.targets])


@fault("a 2 among multi-label targets", "FAIL", "labels")
def _(project: Project) -> None:
    project.options["task"] = "multilabel"
    project.relabel(lambda index: 2 * np.eye(10, dtype=np.uint8)[index.targets])


@fault("labels shuffled against images", "WARN", "labels tell")
def _(project: Project) -> None:
    project.relabel(lambda index: np.random.default_rng(0).permutation(index.targets), "train")


def with_files(project: Project, folder: Path, files: dict[str, list[tuple[str, int, bytes]]]) -> None:
    """Add files to the splits: (name, label, content)."""
    for split, new in files.items():
        index = project.data.splits[split]
        for name, _, content in new:
            (folder / name).write_bytes(content)
        paths = [str(index.root / path) for path in index.paths] + [str(folder / name) for name, *_ in new]
        targets = np.concatenate([index.targets, [label for _, label, _ in new]])
        project.data.splits[split] = replace(index, paths=PackedStrings(paths), targets=targets)


def contents(project: Project, split: str, row: int) -> tuple[int, bytes]:
    index = project.data.splits[split]
    return int(index.targets[row]), (index.root / index.paths[row]).read_bytes()


@fault("validation images among the training images", "FAIL", "leaks")
def _(project: Project, tmp_path: Path) -> None:
    copies = [contents(project, "val", row) for row in range(5)]
    with_files(project, tmp_path, {"train": [(f"c{n}.png", *copy) for n, copy in enumerate(copies)]})


@fault("training images in validation, compressed again", "WARN", "near leaks")
def _(project: Project, tmp_path: Path) -> None:
    copies = []
    for n in range(5):
        label, content = contents(project, "train", n)
        pixels = np.asarray(Image.open(io.BytesIO(content)).convert("RGB")).astype(int)
        pixels = np.clip(pixels + np.random.default_rng(n).integers(-1, 2, pixels.shape), 0, 255).astype(np.uint8)
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "png")
        copies.append((f"n{n}.png", label, file.getvalue()))
    with_files(project, tmp_path, {"val": copies})


@fault("one image under two labels", "FAIL", "conflicts")
def _(project: Project, tmp_path: Path) -> None:
    copies = [contents(project, "train", row) for row in range(10)]
    files = [(f"x{n}.png", (label + 1) % 10, content) for n, (label, content) in enumerate(copies)]
    with_files(project, tmp_path, {"train": files})


@fault("a file cut to half its bytes", "FAIL", "files")
def _(project: Project, tmp_path: Path) -> None:
    label, content = contents(project, "train", 0)
    with_files(project, tmp_path, {"train": [("half.png", label, content[: len(content) // 2])]})


@fault("one class twenty times rarer, unweighted", "WARN", "classes")
def _(project: Project) -> None:
    index = project.data.splits["train"]
    rare = np.flatnonzero(index.targets == 3)
    project.data.splits["train"] = index.take(np.setdiff1d(np.arange(len(index)), rare[2:]))


@fault("a class that validation lacks", "WARN", "classes")
def _(project: Project) -> None:
    index = project.data.splits["val"]
    project.data.splits["val"] = index.take(np.flatnonzero(index.targets != 3))


class NormalisesToo(nn.Module):
    def __init__(self, network: nn.Module, mean: float, std: float) -> None:
        super().__init__()
        self.network, self.mean, self.std = network, mean, std

    def forward(self, images: Tensor) -> Tensor:
        return self.network((images - self.mean) / self.std)


@fault("normalised twice, as ImageNet", "FAIL", "input range")
def _(project: Project) -> None:
    project.change = lambda module: setattr(module, "network", NormalisesToo(module.network, 0.45, 0.225))


@fault("divided by 255 twice", "FAIL", "input range")
def _(project: Project) -> None:
    project.change = lambda module: setattr(module, "network", NormalisesToo(module.network, 0.0, 255.0))


@fault("a data set that returns floats", "FAIL", "batch")
def _(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading.TrainTransform, "__call__", lambda self, picture: picture.pixels().float() / 255)


@fault("augmentation on validation", "FAIL", "val fixed")
def _(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    data = project.data
    data.augmentation = Augmentation(flip=0.5, shift=1)

    def after(batch: dict[str, Tensor], dataloader_idx: int) -> dict[str, Tensor]:
        image, target = data.device_transform(batch["image"], batch["target"], batch["key"])
        return {**batch, "image": image, "target": target}

    monkeypatch.setattr(data, "on_after_batch_transfer", after)


@fault("validation not normalised", "FAIL", "val input")
def _(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    data = project.data
    right = data.on_after_batch_transfer

    def after(batch: dict[str, Tensor], dataloader_idx: int) -> dict[str, Tensor]:
        assert data.trainer is not None
        return right(batch, 0) if data.trainer.training else {**batch, "image": batch["image"].float()}

    monkeypatch.setattr(data, "on_after_batch_transfer", after)


def appended(module: Classifier, layer: nn.Module) -> None:
    module.network = nn.Sequential(module.network, layer)


@fault("softmax before cross-entropy", "FAIL", "outputs")
def _(project: Project) -> None:
    project.change = lambda module: appended(module, nn.Softmax(dim=1))


@fault("sigmoid before binary cross-entropy", "FAIL", "outputs")
def _(project: Project) -> None:
    project.options["task"] = "multilabel"
    project.relabel(lambda index: np.eye(10, dtype=np.uint8)[index.targets])
    project.change = lambda module: appended(module, nn.Sigmoid())


@fault("a ReLU after the last layer", "FAIL", "outputs")
def _(project: Project) -> None:
    project.change = lambda module: appended(module, nn.ReLU())


@fault("a network that does not look at its input", "FAIL", "outputs")
def _(project: Project) -> None:
    project.change = lambda module: nn.init.zeros_(module.network.head.weight)


@fault("logits a hundred times too large", "WARN", "initial loss")
def _(project: Project) -> None:
    project.change = lambda module: appended(module, Times(100.0))


class Times(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, values: Tensor) -> Tensor:
        return self.factor * values


@fault("the loss with the wrong sign", "FAIL", "initial loss")
def _(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    right = CrossEntropy.forward
    monkeypatch.setattr(CrossEntropy, "forward", lambda self, *inputs: {"loss": -right(self, *inputs)["loss"]})


@fault("a criterion that returns a mean", "FAIL", "criterion")
def _(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    right = CrossEntropy.forward
    monkeypatch.setattr(CrossEntropy, "forward", lambda self, *inputs: {"loss": right(self, *inputs)["loss"].mean()})


@fault("a frozen trunk, initialised at random", "FAIL", "frozen")
def _(project: Project) -> None:
    project.change = lambda module: module.network.features.requires_grad_(False)


@fault("a dead head", "FAIL", "gradients")
def _(project: Project) -> None:
    def change(module: Classifier) -> None:
        network: Any = module.network
        network.head = nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 10))
        nn.init.constant_(network.head[0].bias, -100.0)

    project.change = change


class Detached(nn.Module):
    def __init__(self, network: Any) -> None:
        super().__init__()
        self.features, self.head = network.features, network.head

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.features(images).detach().mean(dim=(2, 3)))


@fault("a detached branch", "FAIL", "gradients")
def _(project: Project) -> None:
    project.change = lambda module: setattr(module, "network", Detached(module.network))


@fault("parameters that the optimizer does not have", "FAIL", "optimizer")
def _(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    def only_head(self: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.network.head.parameters(), lr=3e-3)

    monkeypatch.setattr(Classifier, "configure_optimizers", only_head)


@fault("a learning rate of 1e3", "FAIL", "one batch")
def _(project: Project) -> None:
    project.options |= {"learning_rate": 1e3, "optimizer": "SGD"}


@fault("a learning rate of 1e-8", "WARN", "one batch")
def _(project: Project) -> None:
    project.options["learning_rate"] = 1e-8


class Mixes(nn.Module):
    """Takes each sample's features from the batch seen as (C, B) instead of transposing it."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.features, self.head = network.features, network.head

    def forward(self, images: Tensor) -> Tensor:
        features = self.features(images).mean(dim=(2, 3))
        return self.head(features.t().reshape(features.shape))


@fault("a reshape that mixes the samples of a batch", "FAIL", "rows apart")
def _(project: Project) -> None:
    project.change = lambda module: setattr(module, "network", Mixes(module.network))


@fault("statistics of the batch in evaluation too", "FAIL", "rows apart")
def _(project: Project) -> None:
    def change(module: Classifier) -> None:
        for part in module.modules():
            if isinstance(part, nn.BatchNorm2d):
                part.track_running_stats, part.running_mean, part.running_var = False, None, None

    project.change = change


def stepping(monkeypatch: pytest.MonkeyPatch, also: Callable[[Any, Tensor], object]) -> None:
    """Do something with each loss of the training step."""
    right = Classifier.training_step

    def step(self: Classifier, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        loss = right(self, batch, batch_idx)
        also(self, loss)
        return loss

    monkeypatch.setattr(Classifier, "training_step", step)


@fault("losses kept in a list with their graphs", "FAIL", "memory")
def _(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Tensor] = []
    stepping(monkeypatch, lambda module, loss: kept.append(loss * 1))


@fault(".item() in every step", "WARN", "synchronisation")
def _(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    stepping(monkeypatch, lambda module, loss: loss.item())


@fault("a warmup longer than the run", "FAIL", "schedule")
def _(project: Project) -> None:
    project.examined["warmup_epochs"] = 20.0


@fault("a monitored metric that nothing reports", "FAIL", "monitor")
def _(project: Project) -> None:
    project.examined["monitor"] = "val_acc"


@fault("batch norm over batches of two", "WARN", "batch norm")
def _(project: Project) -> None:
    project.data.max_batch_per_device = 2
    project.trainer_options["accumulate_grad_batches"] = 16


@fault("no space for the checkpoints", "FAIL", "disk")
def _(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "free_bytes", lambda folder: 10_000)


@fault("Weights & Biases online without an account", "FAIL", "wandb")
def _(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_MODE")
    monkeypatch.setattr(settings, "wandb_mode", lambda mode: "offline" if mode == "auto" else mode)
    project.examined["wandb"] = "online"


# --- faults that only training shows ----------------------------------------------------------------------------------

IN_TRAINING: dict[str, tuple[Callable[[Project, pytest.MonkeyPatch], None], str]] = {}


def in_training(name: str, message: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    def register(plant: Callable[..., None]) -> Callable[..., None]:
        IN_TRAINING[name] = plant, message
        return plant

    return register


@in_training("the logarithm of zero", "non-finite guard: the loss or a gradient is NaN or infinite")
def _(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    def forward(self: Any, logits: Tensor, targets: Tensor) -> dict[str, Tensor]:
        return {"loss": -(40 * logits).softmax(1).gather(1, targets[:, None])[:, 0].log()}

    project.options |= {"learning_rate": 1.0, "optimizer": "SGD"}
    monkeypatch.setattr(CrossEntropy, "forward", forward)


@in_training("a gradient that explodes", "non-finite guard: the loss or a gradient is NaN or infinite")
def _(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.options |= {"learning_rate": 1e6, "optimizer": "SGD", "weight_decay": 1.0}


@in_training("a NaN among the pixels", "first batch: the first batch's image holds NaN or infinity")
def _(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    right = loading.DeviceTransform.__call__

    def call(self: Any, images: Tensor, targets: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        images, targets = right(self, images, targets, keys)
        images[0, 0, 0, 0] = math.nan
        return images, targets

    monkeypatch.setattr(loading.DeviceTransform, "__call__", call)


@in_training("a learning rate of 0", "watch: guessing by class frequency")
def _(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "_GUESSING_STEPS", 20)
    project.options["learning_rate"] = 0.0
    project.change = lambda module: nn.init.zeros_(module.network.head.weight)


@in_training("a gradient lost on the way", "watch: it vanishes; are units dead?")
def _(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    right = Classifier.training_step
    monkeypatch.setattr(Classifier, "training_step", lambda self, *arguments: right(self, *arguments) * 0.0)


def trained(project: Project, tmp_path: Path, caplog: pytest.LogCaptureFixture, epochs: int) -> str:
    """Train with the guards; everything that they said."""
    module, trainer = project.made(
        max_epochs=epochs,
        default_root_dir=tmp_path,
        log_every_n_steps=5,
        num_sanity_val_steps=0,
        limit_val_batches=0,
        callbacks=[FirstBatch(), NonFinite(), StepLog(), Watch()],
    )
    caplog.clear()
    error = ""
    try:
        trainer.fit(module, project.data)
    except InputError as refused:
        error = str(refused)
    told = [record for record in caplog.records if record.name.startswith("template") and record.levelname == "WARNING"]
    return "\n".join([*(f"{record.name.rsplit('.', 1)[-1]}: {record.getMessage()}" for record in told), error])


# --- tests -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def table() -> Iterator[list[tuple[str, str, str]]]:
    """Collects what caught what and prints it in the end."""
    rows: list[tuple[str, str, str]] = []
    yield rows
    if rows:
        print("\n| planted fault | caught by | what it said |\n|---|---|---|")
        print("\n".join("| " + " | ".join(row) + " |" for row in rows))


def said(text: str, folder: Path) -> str:
    """The start of a line, for a table."""
    return text.replace(f"{folder}/", "").replace(f"{Path(__file__).parent}/", "").replace("|", "/")[:110]


def planted(name: str, project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """Plant a fault; the status and the name of the line that is to catch it."""
    plant, status, caught_by = FAULTS[name]
    wanted = plant.__code__.co_varnames[: plant.__code__.co_argcount]
    offered = {"project": project, "tmp_path": tmp_path, "monkeypatch": monkeypatch}
    plant(**{argument: offered[argument] for argument in wanted})
    return status, caught_by


def assert_caught(page: Page, status: str, caught_by: str) -> Line:
    found = [line for line in page.lines("WARN", "FAIL") if line.name == caught_by]
    assert found, page.text()
    assert found[0].status == status
    return found[0]


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_named_by_its_check(name, project, tmp_path, monkeypatch, table):
    status, caught_by = planted(name, project, tmp_path, monkeypatch)
    line = assert_caught(project.part_of_page(caught_by), status, caught_by)
    table.append((name, f"check: {caught_by} {status}", said(str(line), tmp_path)))


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_on_the_whole_page(name, project, tmp_path, monkeypatch):
    status, caught_by = planted(name, project, tmp_path, monkeypatch)
    assert_caught(project.page(), status, caught_by)


@pytest.mark.parametrize("name", IN_TRAINING)
def test_a_planted_fault_of_training_is_named_by_its_guard(name, project, tmp_path, monkeypatch, caplog, table):
    plant, message = IN_TRAINING[name]
    plant(project, monkeypatch)
    guard, _, words = message.partition(": ")
    told = trained(project, tmp_path, caplog, epochs=4)
    (line,) = [line for line in told.splitlines() if words in line][:1]
    table.append((name, guard, said(line.split(": ", 1)[-1], tmp_path)))


HEALTHY: dict[str, Callable[[Project, Path], None]] = {}


def healthy(name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    def register(make: Callable[..., None]) -> Callable[..., None]:
        HEALTHY[name] = make
        return make

    return register


@healthy("small")
def _(project: Project, tmp_path: Path) -> None:
    project.data.augmentation = Augmentation(shift=1)


@healthy("large")
def _(project: Project, tmp_path: Path) -> None:
    project.options |= {"network": "resnet18", "stem": "small", "learning_rate": 1e-3, "label_smoothing": 0.1}
    project.data.augmentation = Augmentation(mixup=0.2, cutmix=1.0)


@healthy("imbalanced but weighted")
def _(project: Project, tmp_path: Path) -> None:
    index = project.data.splits["train"]
    rare = np.flatnonzero(index.targets == 3)
    project.data.splits["train"] = index.take(np.setdiff1d(np.arange(len(index)), rare[5:]))
    project.options["class_weights"] = [1.0, 1.0, 1.0, 8.0, *[1.0] * 6]


@healthy("multi-label")
def _(project: Project, tmp_path: Path) -> None:
    def targets(index: Index) -> np.ndarray:
        digit = index.targets
        return np.stack([digit % 2 == 0, digit > 4, np.isin(digit, (2, 3, 5, 7))], axis=1).astype(np.uint8)

    for split, index in project.data.splits.items():
        project.data.splits[split] = replace(index, targets=targets(index), class_names=("even", "large", "prime"))
    project.options["task"] = "multilabel"


@healthy("fine-tuned, its trunk frozen")
def _(project: Project, tmp_path: Path) -> None:
    other = Classifier(("odd", "even"), width=8)
    torch.save(other.state_dict(), tmp_path / "weights.pt")
    project.options |= {"weights": tmp_path / "weights.pt", "learning_rate": 1e-2}
    project.change = lambda module: module.network.features[:4].requires_grad_(False)


def test_classes_of_unlike_brightness_are_no_fault_of_validation_even_for_a_slow_network(tmp_path, monkeypatch):
    def split(n: int, seed: int) -> Index:
        targets = np.arange(n) * 10 // n  # sorted, as folders are
        noise = np.random.default_rng(seed).integers(0, 30, (n, 8, 8))
        pixels = (24 * targets[:, None, None] + noise).astype(np.uint8)
        return Index(tmp_path, PackedStrings(map(str, range(n))), targets, tuple("0123456789"), pixels=pixels)

    data = DataModule(tmp_path, preprocessing=Preprocessing(8, None, (0.3,) * 3, (0.38,) * 3), global_batch_size=64)
    data.splits = {"train": split(800, 0), "val": split(100, 1)}
    monkeypatch.setattr(Bench, "few", 2)  # what a step of seconds leaves
    page = Project(data, examined={"folder": tmp_path}).part_of_page("val input")
    assert [line.name for line in page.lines("PASS")] == ["input range"]
    assert not list(page.lines("WARN", "FAIL")), page.text()


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n == "large" else n for n in HEALTHY])
def test_a_healthy_project_passes_without_a_false_alarm(name, project, tmp_path, caplog, table):
    HEALTHY[name](project, tmp_path)
    page = project.page()
    alarms = [line for line in page.lines("WARN", "FAIL") if line.name != "loader"]  # a loaded machine is slow to read
    assert alarms == [], page.text()
    told = [
        line for line in trained(project, tmp_path, caplog, epochs=2).splitlines() if "waiting for data" not in line
    ]
    assert "".join(told) == ""
    table.append((f"none: healthy, {name}", "nothing", f"{sum(1 for _ in page.lines('PASS'))} PASS"))
