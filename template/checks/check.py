"""The checks in their order: the whole page before a run, and the quick part that every fit begins with."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as L

from template.checks import batches, data, learning, settings, speed, step
from template.checks.bench import Bench
from template.checks.labels import check_labels
from template.checks.page import Line, Page
from template.checks.picture import draw
from template.data.datamodule import DataModule
from template.model.module import Classifier
from template.run_folder import WandbMode

_READING = 40.0  # seconds for reading images, of all splits together; about 10,000 photographs on two cores
Check = Callable[[Bench], Iterator[Line]]
OF_BATCHES: list[Check] = [batches.first_batch, batches.input_range, batches.validation_is_fixed]
OF_LEARNING: list[Check] = [
    *(learning.outputs, learning.initial_loss, learning.gradients, learning.one_batch),
    *(step.rows_apart, step.growth, step.synchronisation),
]
OF_SETTINGS: list[Check] = [settings.batches, settings.batch_statistics, settings.precision]


def examine(
    datamodule: DataModule,
    module: Classifier,
    trainer: L.Trainer,
    warmup_epochs: float = 0.0,
    monitor: str = "val/accuracy",
    keep_best: int = 1,
    wandb: WandbMode = "disabled",
    folder: Path = Path("runs"),
    picture: Path | None = None,
) -> Page:
    """Look for everything that is known to waste a run.

    Args:
        datamodule: The data.
        module: The module; its weights stay as they are.
        trainer: Made, not run.
        warmup_epochs: Of ``warmup_cosine``.
        monitor: Of ``checkpoints``.
        keep_best: Of ``checkpoints``.
        wandb: Mode of Weights & Biases.
        folder: Where checkpoints will be written.
        picture: Where to draw a batch as the network sees it; None draws none.
    """
    page = Page()
    examine_images(page, datamodule, module)
    if any(line.name in ("labels", "files") for line in page.lines("FAIL")):
        return page  # steps on such data would only fail too
    benches: list[Bench] = []

    def loaders() -> Iterator[Line]:
        datamodule.trainer = trainer
        datamodule.setup("fit")  # chooses the workers where they are automatic
        benches.append(Bench(datamodule, module, trainer))
        return iter(())

    page.run("data", [loaders])
    for bench in benches:
        page.run("data", [partial(check, bench) for check in OF_BATCHES])
        if picture is not None:
            page.run("data", [partial(draw, bench, picture)])
        page.run("learning", [partial(check, bench) for check in OF_LEARNING])
        of_speed: list[Check] = [
            speed.loader_and_step,
            speed.memory,
            partial(speed.disk, folder=folder, keep_best=keep_best),
        ]
        page.run("speed", [partial(check, bench) for check in of_speed])
        first: list[Check] = [
            partial(settings.schedule, warmup_epochs=warmup_epochs),
            partial(settings.monitor, name=monitor),
        ]
        page.run("settings", [partial(check, bench) for check in [*first, *OF_SETTINGS]])
        page.run("settings", [partial(settings.account, wandb)])
    return page


def examine_images(page: Page, datamodule: DataModule, module: Classifier, seconds: float = _READING) -> None:
    """Look at labels and images, for up to so many seconds."""
    splits = datamodule.splits
    seen: dict[str, data.Seen] = {}

    def labels() -> Iterator[Line]:
        check_labels(splits, module.task)
        found = f"{module.task}, as {len(module.class_names)} classes ask for, in {', '.join(splits)}"
        yield Line("PASS", "labels", found)

    def read() -> Iterator[Line]:
        total = sum(len(index) for index in splits.values())
        for split, index in splits.items():
            seen[split] = data.look(index, seconds * len(index) / total)
        yield from data.files(splits, seen)

    page.run("data", [labels, read, partial(data.sizes, seen, datamodule.preprocessing.size)])
    if any(line.name == "labels" for line in page.lines("FAIL")):
        return
    page.run("data", [partial(data.classes, splits, module.settings["class_weights"] is not None)])
    page.run(
        "data", [partial(check, splits, seen) for check in (data.duplicates, data.near_duplicates, data.labels_tell)]
    )


def quick(
    datamodule: DataModule,
    module: Classifier,
    trainer: L.Trainer,
    keep_best: int = 1,
    wandb: WandbMode = "disabled",
    folder: Path | None = None,
    seconds: float = 1.0,
) -> Page:
    """The part of :func:`examine` that takes under 3 s: labels, classes, some files, one batch, settings, disk."""
    page = Page()
    splits = datamodule.splits
    seen: dict[str, data.Seen] = {}

    def read() -> Iterator[Line]:
        for split, index in splits.items():
            seen[split] = data.look(index, seconds / len(splits), most=256)
        yield from (line for line in data.files(splits, seen) if line.status == "FAIL")

    page.run("data", [partial(data.classes, splits, module.settings["class_weights"] is not None), read])
    page.run("data", [partial(data.duplicates, splits, seen)])
    if page.failed:
        return page
    # What fit says or refuses by itself, such as a warmup as long as the run, is left to it.
    with _silent():
        bench = Bench(datamodule, module, trainer)
    of_settings = [settings.batch_statistics, settings.precision]
    page.run("settings", [*(partial(check, bench) for check in of_settings), partial(settings.account, wandb)])
    if folder is not None:
        page.run("speed", [partial(speed.disk, bench, folder, keep_best)])
    return page


def check(options: Any, picture: Path) -> Page:
    """The page for the options of a fit; what cannot even be built is its only line.

    Args:
        options: As ``template.cli.parse_fit`` returns them.
        picture: Where to draw a batch.
    """
    from template.train import build_module, set_batches

    page = Page()
    made: list[tuple[DataModule, Classifier, L.Trainer]] = []

    def build() -> Iterator[Line]:
        datamodule = DataModule(**options.data.as_dict(), seed=options.seed)
        module = build_module(options, datamodule)
        own = {"enable_progress_bar": False, "logger": False, "enable_checkpointing": False}
        trainer = L.Trainer(**{**options.trainer.as_dict(), **own}, use_distributed_sampler=False)
        set_batches(trainer, datamodule)
        made.append((datamodule, module, trainer))
        return iter(())

    with _silent():  # what building them says is on the page
        L.seed_everything(options.seed, workers=False, verbose=False)
        page.run("settings", [build])
        if not made:
            return page
        return examine(
            *made[0],
            warmup_epochs=options.warmup_cosine.warmup_epochs,
            monitor=options.checkpoints.monitor,
            keep_best=options.checkpoints.keep_best,
            wandb=options.wandb.mode,
            folder=options.run_dir or picture.parent,
            picture=picture,
        )


@contextmanager
def _silent() -> Iterator[None]:
    """Let the template log errors only."""
    log = logging.getLogger("template")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)
