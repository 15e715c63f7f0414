"""A message to the person whose run is in trouble, by way of Weights & Biases where there is an account."""

from collections.abc import Sequence

from lightning.pytorch.loggers import Logger, WandbLogger
from lightning.pytorch.utilities import rank_zero_only


@rank_zero_only
def alert(loggers: Sequence[Logger], title: str, text: str) -> None:
    """Send an alert (mail or Slack, as the account has it); nothing happens offline or without Weights & Biases."""
    for logger in loggers:
        if isinstance(logger, WandbLogger) and logger.experiment.settings.mode == "online":
            logger.experiment.alert(title, text)
