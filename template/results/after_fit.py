"""The end of a fit: its report, here and at Weights & Biases. Whatever goes wrong here loses nothing of the run."""

import logging
from collections.abc import Sequence
from pathlib import Path

from lightning.pytorch.loggers import Logger

from template.data.datamodule import DataModule

log = logging.getLogger(__name__)


def report_fit(folder: Path, datamodule: DataModule, loggers: Sequence[Logger], upload_checkpoints: bool) -> None:
    """Write the report of a run that has just been tested, and send it to Weights & Biases where that is on.

    It is for one rank alone, and calls nothing collective. An error becomes a warning: the run is complete without it.

    Args:
        folder: The run folder, with its metrics.json.
        datamodule: The run's data.
        loggers: The run's loggers.
        upload_checkpoints: Send the best and the last checkpoint too.
    """
    try:
        from template.results.report import report

        path, judged = report(folder, datamodule=datamodule)
        log.info(f"report {path}")
    except Exception as error:
        log.warning(f"no report was made ({type(error).__name__}: {error}); try `python -m template report {folder}`")
        return
    for logger in loggers:
        if type(logger).__name__ != "WandbLogger":
            continue
        try:
            from template.results.wandb_report import log_checkpoints, log_report

            run = logger.experiment  # type: ignore[attr-defined]
            if judged is not None:
                log_report(run, judged, path.parent)
            if upload_checkpoints:
                log_checkpoints(run, folder)
        except Exception as error:
            log.warning(f"Weights & Biases has no report of this run: {type(error).__name__}: {error}")
