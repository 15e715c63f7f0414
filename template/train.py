"""A config becomes data, module and Trainer; the best checkpoint is tested, and a run folder tells of it."""

import itertools
import logging
import math
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import yaml
from lightning.pytorch.profilers import PassThroughProfiler
from lightning.pytorch.utilities import rank_zero_only

from template.callbacks.averaging import Ema, MovingAverage
from template.callbacks.checkpoints import Checkpoints, WholeFileIO
from template.callbacks.early_stopping import EarlyStop
from template.callbacks.fine_tuning import FineTuning
from template.callbacks.first_batch import FirstBatch
from template.callbacks.loss_scale import LossScale
from template.callbacks.nonfinite import NonFinite
from template.callbacks.progress import Bar
from template.callbacks.schedules import build_schedule
from template.callbacks.signals import Signals
from template.callbacks.step_log import StepLog, stage_values
from template.callbacks.wandb_samples import WandbSamples
from template.callbacks.watch import Watch
from template.checks.check import quick
from template.checks.labels import check_labels
from template.data.datamodule import DataModule
from template.errors import InputError, did_you_mean
from template.model.criterion import balanced_weights
from template.model.module import Classifier
from template.results.after_fit import report_fit
from template.results.evaluate import print_metrics
from template.resume import check_changes, check_fingerprint, read_last, tidy
from template.run_folder import (
    MetricsCsv,
    WandbMode,
    choose_folder,
    locked,
    nothing_left,
    sync_command,
    text_log,
    wandb_run,
    write_config,
    write_metrics,
)

log = logging.getLogger(__name__)


@dataclass
class EarlyStopOptions:
    """Stop a run whose monitored metric (``checkpoints.monitor``) stopped improving.

    Attributes:
        patience: Validations without improvement before it stops; None never stops.
        min_delta: Least change that counts as one.
    """

    patience: int | None = None
    min_delta: float = 0.0

    def __post_init__(self) -> None:
        if self.patience is not None and self.patience < 1:
            raise InputError(f"early_stopping.patience is {self.patience}; expected 1 or more validations, or null")


@dataclass
class Wandb:
    """Weights & Biases.

    Attributes:
        mode: ``auto`` is online when an account is configured (``wandb login``), else offline.
        project: Name of the project.
        name: Name of the run; None is that of the run folder.
        tags: Tags of the run.
        upload_checkpoints: Send the best checkpoint, which stays, and the last, which is deleted after 30 days.
    """

    mode: WandbMode = "auto"
    project: str = "vision"
    name: str | None = None
    tags: list[str] = field(default_factory=list)
    upload_checkpoints: bool = True


class Unprofiled(PassThroughProfiler):
    """Lightning's profiler that does nothing, in a sixth of its time: a step asks it about eighty times."""

    _nothing = nullcontext("")

    def profile(self, action_name: str) -> nullcontext[str]:  # type: ignore[override]
        return self._nothing


def fit(
    options: Any,
    config: dict[str, Any],
    config_name: str,
    command: str = "",
    resume: Path | None = None,
    accept_changes: bool = False,
) -> Path | None:
    """Train, then test the best checkpoint where the data has a test split.

    Everything that can be refused is refused before the run folder is made or touched.

    Args:
        options: Parsed options, as ``template.cli.parse_fit`` returns them.
        config: The same as plain values, for config.yaml.
        config_name: First part of the run folder's name.
        command: How the run was started, for config.yaml.
        resume: Run folder to continue.
        accept_changes: Continue it even with settings or data that make it another run.

    Returns:
        The run folder; None on ranks other than 0, and for Lightning's ``fast_dev_run``, which leaves nothing.

    Raises:
        InputError: An option or the data is wrong, or no finite score was reached.
    """
    if not 0 <= options.seed < 2**32:
        raise InputError(f"seed is {options.seed}; expected 0 to {2**32 - 1}")
    L.seed_everything(options.seed, workers=False, verbose=False)
    datamodule = DataModule(**options.data.as_dict(), seed=options.seed)
    check_labels(datamodule.splits, options.model.task)
    module = build_module(options, datamodule)
    checkpoints = Checkpoints(**options.checkpoints.as_dict())
    check_monitor(checkpoints.monitor, module)

    first = rank_zero_only.rank == 0  # type: ignore[attr-defined]
    folder, resumed = None, None
    if resume is not None:
        changed = check_changes(stored_config(resume), config, accept_changes)
        if (resume / "metrics.json").exists() and not changed:
            log.info(f"{resume} is finished: it has a metrics.json; to train on, give --trainer.max_epochs")
            if first and options.report and not (resume / "report" / "index.html").exists():  # killed while making it
                report_fit(resume, datamodule, [], upload_checkpoints=False)
            return resume
        resumed = read_last(resume)
        if resumed is not None:
            check_fingerprint(resumed[1]["DataModule"]["fingerprints"], datamodule.fingerprints(), accept_changes)
        folder = resume if first else None
    elif first and not options.trainer.fast_dev_run:
        folder = choose_folder(config_name, options.run_dir)

    trainer = _trainer(options, checkpoints, folder)
    set_batches(trainer, datamodule)
    if options.quick_check and not trainer.fast_dev_run:  # type: ignore[attr-defined]
        _quick_check(options, datamodule, module, trainer, folder)
    with ExitStack() as stack:
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            if resume is None:
                stack.enter_context(nothing_left(folder, started=lambda: trainer.global_step > 0))
            stack.enter_context(locked(folder))
            if resume is not None:
                tidy(folder, resumed)
            write_config(folder, config, command)
            (folder / "metrics.json").unlink(missing_ok=True)
            stack.enter_context(text_log(folder / "train.log"))
            trainer.loggers = _loggers(folder, options, config, stack)
            _announce(datamodule, module, folder, resumed[1]["global_step"] if resumed else None)
        trainer.fit(module, datamodule, ckpt_path=str(resumed[0]) if resumed else None)
        final = _test(trainer, module, datamodule, checkpoints)
        if folder is not None:
            for logger in trainer.loggers:
                logger.finalize("success")
            write_metrics(folder, final)
            print_metrics(final)
            if options.report and final:
                report_fit(folder, datamodule, trainer.loggers, options.wandb.upload_checkpoints)
            if (sync := sync_command(folder)) is not None:
                log.info(f"Weights & Biases is offline; to upload this run: {sync}")
    return folder


def build_module(options: Any, datamodule: DataModule) -> Classifier:
    """The classifier of the options, with what it takes from the data.

    Raises:
        InputError: An option is wrong.
    """
    model = options.model.as_dict()
    if model["class_weights"] == "balanced":
        index = datamodule.splits["train"]
        model["class_weights"] = balanced_weights(index.counts(), len(index), model["task"])
    module = Classifier(
        **model,
        class_names=datamodule.class_names,
        preprocessing=datamodule.preprocessing,
        data=datamodule.settings(),
        seed=options.seed,
    )
    module.scale_learning_rate(datamodule.global_batch_size)
    return module


def _quick_check(
    options: Any, datamodule: DataModule, module: Classifier, trainer: L.Trainer, folder: Path | None
) -> None:
    """Log what the quick part of ``check`` warns of.

    Raises:
        InputError: It found what would waste the run.
    """
    page = quick(
        datamodule,
        module,
        trainer,
        keep_best=options.checkpoints.keep_best,
        wandb=options.wandb.mode,
        folder=folder,
    )
    if trainer.is_global_zero:
        for line in page.lines("WARN"):
            log.warning(str(line))
    failed = [str(line) for line in page.lines("FAIL")]
    if failed:
        raise InputError(
            f"{'. '.join(failed)} (python -m template check tells more; --quick_check false trains anyway)"
        )


def stored_config(folder: Path) -> dict[str, Any]:
    """The config.yaml of a run folder.

    Raises:
        InputError: There is none.
    """
    path = folder / "config.yaml"
    if not path.is_file():
        raise InputError(
            f"{folder} is no run folder: it has no config.yaml; runs are in runs/<config name>/<date-time>"
        )
    config: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return config


def _trainer(options: Any, checkpoints: Checkpoints, folder: Path | None) -> L.Trainer:
    """The Trainer with the template's callbacks, and a person's own after them."""
    callbacks: list[L.Callback] = [
        FirstBatch(),
        NonFinite(**options.nonfinite.as_dict()),
        LossScale(),
        StepLog(),
        Watch(),
        build_schedule(options),
        Signals(checkpoints),
        checkpoints,
        WandbSamples(),
    ]
    ema, fine_tuning = Ema(**options.ema.as_dict()), FineTuning(**options.fine_tuning.as_dict())
    if ema.decay is not None:
        callbacks.append(MovingAverage(ema.decay))
    if fine_tuning.head_epochs or fine_tuning.freeze_norms:
        callbacks.append(fine_tuning)
    early = EarlyStopOptions(**options.early_stopping.as_dict())
    if early.patience is not None:
        callbacks.append(EarlyStop(checkpoints.monitor, checkpoints.mode, early.patience, early.min_delta))
    arguments = options.trainer.as_dict()
    if arguments["log_every_n_steps"] is not None and arguments["log_every_n_steps"] < 1:
        raise InputError(f"trainer.log_every_n_steps is {arguments['log_every_n_steps']}; expected 1 or more")
    if (arguments["gradient_clip_val"] or 0) < 0:
        raise InputError(f"trainer.gradient_clip_val is {arguments['gradient_clip_val']}; expected 0 or more, or null")
    if arguments["enable_progress_bar"] is not False and _on_a_terminal():
        callbacks.append(Bar())
    else:
        arguments["enable_progress_bar"] = False
    arguments["profiler"] = arguments["profiler"] or Unprofiled()
    arguments["callbacks"] = [*callbacks, *_listed(arguments["callbacks"])]
    arguments["plugins"] = [WholeFileIO(), *_listed(arguments["plugins"])]
    return L.Trainer(**arguments, logger=False, default_root_dir=folder, use_distributed_sampler=False)


def check_monitor(monitor: str, module: Classifier) -> None:
    """Raises InputError when the monitored metric is not one that validation reports."""
    known = module.metric_names("val")
    if monitor not in known:
        raise InputError(
            f"checkpoints.monitor is {monitor!r}, which validation does not report{did_you_mean(monitor, known)} "
            f"It reports {', '.join(known)}"
        )


def set_batches(trainer: L.Trainer, datamodule: DataModule) -> None:
    """Derive the accumulation from the global batch size and the number of processes, and say so.

    Raises:
        InputError: The batch cannot be cut so, or ``trainer.accumulate_grad_batches`` was set too, to something else.
    """
    ranks, size, most = trainer.world_size, datamodule.global_batch_size, datamodule.max_batch_per_device
    accumulation = datamodule.accumulation(ranks)
    if size < ranks * accumulation:
        raise InputError(
            f"data.global_batch_size is {size}: {ranks} processes x {accumulation} accumulated batch"
            f"{'es' * (accumulation > 1)}{f' of at most {most}' if most else ''} need at least one sample each; the "
            f"nearest that can be cut: {' or '.join(map(str, nearest_batches(size, ranks, most)))}"
        )
    if trainer.accumulate_grad_batches not in (1, accumulation):
        raise InputError(
            f"trainer.accumulate_grad_batches is {trainer.accumulate_grad_batches}; leave it out: it follows from "
            f"data.global_batch_size and data.max_batch_per_device, which give {accumulation}"
        )
    trainer.accumulate_grad_batches = accumulation
    each = math.ceil(datamodule.global_batch_size / (ranks * accumulation))
    log.info(
        f"global batch of {datamodule.global_batch_size} = {ranks} process{'es' * (ranks > 1)} x {accumulation} "
        f"accumulated batch{'es' * (accumulation > 1)} of up to {each}"
    )


def nearest_batches(size: int, ranks: int, most: int | None) -> list[int]:
    """The global batch sizes next to one, below and above, that give each of their pieces a sample.

    Args:
        size: What was asked for.
        ranks: Processes.
        most: Samples in a piece, or None for any number.
    """

    def possible(n: int) -> bool:
        return n >= ranks * (1 if most is None else -(-n // (ranks * most)))

    below = next((n for n in range(size, 0, -1) if possible(n)), None)
    above = next(n for n in itertools.count(size) if possible(n))
    return sorted({above} if below is None else {below, above})


def _test(trainer: L.Trainer, module: Classifier, datamodule: DataModule, checkpoints: Checkpoints) -> dict[str, Any]:
    """Metrics of the best checkpoint: those of its validation, and of the test split where there is one."""
    if trainer.fast_dev_run:  # type: ignore[attr-defined]
        return {}
    if not checkpoints.best and checkpoints.monitor not in trainer.callback_metrics:
        raise InputError(
            f"the run ended after {trainer.global_step} steps and before its first validation, so there is no best "
            "checkpoint; see trainer.max_epochs, .max_steps, .limit_val_batches and .check_val_every_n_epoch"
        )
    if not checkpoints.best:
        raise InputError(
            f"no validation of this run gave a finite {checkpoints.monitor}, so there is no best checkpoint; "
            "see train.log for the step at which losses stopped being finite, and lower model.learning_rate"
        )
    score, path = checkpoints.best[0]
    final: dict[str, Any] = {"best_checkpoint": path.name, checkpoints.monitor: score}
    if "test" in datamodule.splits:
        trainer.test(module, datamodule, ckpt_path=str(path), verbose=False)
        final.update(stage_values(trainer, "test"))
    return {**final, "steps": trainer.global_step}


def _announce(datamodule: DataModule, module: Classifier, folder: Path, resumed_step: int | None) -> None:
    sizes = ", ".join(f"{len(index)} {split}" for split, index in datamodule.splits.items())
    log.info(f"data {datamodule.root}: {len(datamodule.class_names)} classes; {sizes} images")
    parameters = sum(parameter.numel() for parameter in module.parameters())
    log.info(f"network {module.settings['network']}: {parameters:,} parameters")
    log.info(f"run folder {folder}" + (f", resumed at step {resumed_step}" if resumed_step is not None else ""))


def _loggers(folder: Path, options: Any, config: dict[str, Any], stack: ExitStack) -> list[Any]:
    wandb = options.wandb
    loggers: list[Any] = [MetricsCsv(folder / "metrics.csv")]
    logger = stack.enter_context(wandb_run(folder, wandb.mode, wandb.project, wandb.name, wandb.tags, config))
    if logger is not None:
        loggers.append(logger)
    if options.tensorboard:
        from lightning.pytorch.loggers import TensorBoardLogger

        loggers.append(TensorBoardLogger(str(folder), name="", version="tensorboard"))
    return loggers


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, Sequence) else [] if value is None else [value]


def _on_a_terminal() -> bool:
    from rich import get_console

    return get_console().is_terminal
