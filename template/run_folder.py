"""The folder of a run: its name, its config, its text log, its CSV and its Weights & Biases run."""

import csv
import datetime
import fcntl
import io
import json
import logging
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import yaml
from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities import rank_zero_only
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from template.errors import InputError

WandbMode = Literal["auto", "online", "offline", "disabled"]
_BEFORE_THE_FIRST_STEP = ("config.yaml", "train.log", ".lock", "checkpoints", "wandb", "tensorboard")


def choose_folder(config_name: str, run_dir: Path | None) -> Path:
    """Name the run's folder: ``run_dir``, or ``runs/<config name>/<date-time>``, numbered where that is taken.

    Raises:
        InputError: ``run_dir`` holds files already.
    """
    if run_dir is not None:
        if run_dir.exists() and (not run_dir.is_dir() or any(run_dir.iterdir())):
            raise InputError(f"{run_dir} is not an empty folder; choose another --run_dir")
        return run_dir
    name = datetime.datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    folder = Path("runs") / config_name / name
    number = 2
    while folder.exists():
        folder = folder.with_name(f"{name}_{number}")
        number += 1
    return folder


def write_whole(path: Path, text: str) -> None:
    """Write a text file so that a reader sees the old one or the new one, never a part."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text, encoding="utf-8", newline="")
    os.replace(partial, path)


def write_metrics(folder: Path, metrics: dict[str, float]) -> None:
    """Write metrics.json: the final values. A run is finished when it exists."""
    write_whole(folder / "metrics.json", json.dumps(metrics, indent=2) + "\n")


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder against a second process for as long as this one trains in it, however it ends.

    Raises:
        InputError: Another process holds it.
    """
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InputError(f"another process is training in {folder}; wait for it or stop it first") from None
        yield


@contextmanager
def nothing_left(folder: Path, started: Callable[[], bool]) -> Iterator[None]:
    """Remove a new run's folder when it is refused before its first step, so that it is not mistaken for a run.

    An error that nobody foresaw leaves it, with the traceback in train.log, and so does what a guard wrote there.
    """
    try:
        yield
    except (ValueError, OSError, MisconfigurationException):
        if not started() and all(entry.name in _BEFORE_THE_FIRST_STEP for entry in folder.iterdir()):
            shutil.rmtree(folder)
        raise


@contextmanager
def text_log(path: Path) -> Iterator[None]:
    """Append all that is logged, warnings included, to a file with the time of each line; also why it ends early."""
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%d %H:%M:%S"))
    loggers = [logging.getLogger(name) for name in (__package__, "lightning.pytorch", "py.warnings")]
    logging.captureWarnings(True)
    for logger in loggers:
        logger.addHandler(handler)
    try:
        yield
    except BaseException as error:
        record = logging.LogRecord(__name__, logging.ERROR, __file__, 0, "%r", (error,), None)
        if not isinstance(error, InputError | KeyboardInterrupt):
            record.exc_info = (type(error), error, error.__traceback__)
        handler.handle(record)
        raise
    finally:
        logging.captureWarnings(False)
        for logger in loggers:
            logger.removeHandler(handler)
        handler.close()


class MetricsCsv(Logger):
    """metrics.csv: one row a step, one column a metric, written as it comes.

    Lightning's CSVLogger deletes the file of a run that is resumed and keeps up to a hundred rows in memory.

    Args:
        path: The file; an existing one is continued.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.columns: list[str] = ["step"]
        self._row: dict[str, Any] = {}
        self._row_start = 0
        if path.exists():
            header, *lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
            self.columns = next(csv.reader([header]))
            if lines:  # the last row may still grow: by the final test, say
                last = dict(zip(self.columns, next(csv.reader(lines[-1:])), strict=True))
                self._row = {name: cell for name, cell in last.items() if cell} | {"step": int(last["step"])}
            self._row_start = path.stat().st_size - len((lines or [""])[-1].encode())

    @property
    def name(self) -> str:
        return "csv"

    @property
    def version(self) -> str:
        return ""

    @property
    def save_dir(self) -> str:
        return str(self.path.parent)

    @rank_zero_only
    def log_hyperparams(self, params: object, *args: object, **kwargs: object) -> None:
        """Nothing: config.yaml has them."""

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Add values to the row of a step; a row is rewritten until the next step begins."""
        if self._row and self._row["step"] != step:
            self._row, self._row_start = {}, self.path.stat().st_size
        self._row.update(metrics, step=step)
        new = [name for name in self._row if name not in self.columns]
        if new or not self.path.exists():
            self._widen(new)
        text = io.StringIO(newline="")
        csv.writer(text, lineterminator="\n").writerow([self._row.get(name, "") for name in self.columns])
        with self.path.open("r+b", buffering=0) as file:  # one write: a kill leaves the old row or the new one
            file.seek(self._row_start)
            file.write(text.getvalue().encode())
            file.truncate()

    def _widen(self, new: list[str]) -> None:
        """Add columns: rewrite the file up to the current row with the longer header."""
        rows: list[list[str]] = []
        if self.path.exists():
            with self.path.open(newline="", encoding="utf-8") as file:
                rows = list(csv.reader(file))[1:]
            rows = [row for row in rows if row[0] != str(self._row["step"])]
        self.columns += new
        partial = self.path.with_name(f".{self.path.name}.partial")
        with partial.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(self.columns)
            writer.writerows([*row, *[""] * (len(self.columns) - len(row))] for row in rows)
        os.replace(partial, self.path)
        self._row_start = self.path.stat().st_size


def wandb_mode(mode: WandbMode) -> Literal["online", "offline", "disabled"]:
    """Resolve ``auto``: WANDB_MODE, else online when an account is configured, else offline; there is no prompt."""
    if mode != "auto":
        return mode
    if os.environ.get("WANDB_MODE") in ("online", "offline", "disabled"):
        return os.environ["WANDB_MODE"]  # type: ignore[return-value]
    if os.environ.get("WANDB_API_KEY"):
        return "online"
    import wandb

    # also reads the key that `wandb login` stored, for whichever host is in use
    return "online" if wandb.login(prompt=False, verify=False) else "offline"


@contextmanager
def wandb_run(
    folder: Path, mode: WandbMode, project: str, name: str | None, tags: list[str], config: dict[str, Any]
) -> Iterator[Logger | None]:
    """A logger of a Weights & Biases run with its files and its id in ``folder``/wandb; None where it is disabled.

    The run ends with the context, as crashed where that ends with an error.
    """
    mode = wandb_mode(mode)
    if mode == "disabled":
        yield None
        return
    import wandb
    from lightning.pytorch.loggers import WandbLogger

    (folder / "wandb").mkdir(exist_ok=True)
    id_file = folder / "wandb" / "id.txt"
    if not id_file.exists():
        write_whole(id_file, secrets.token_hex(4) + "\n")
    try:  # not by Lightning, which warns about an argument that is gone and sets WANDB_MODE when it is too late
        run = wandb.init(
            project=project,
            name=name or f"{folder.parent.name}/{folder.name}",
            id=id_file.read_text().strip(),
            resume=None if mode == "offline" else "allow",
            dir=folder,
            mode=mode,
            tags=tags or None,
            config=config,
            settings=wandb.Settings(silent=mode == "offline"),
        )
    except wandb.Error as error:
        raise InputError(f"Weights & Biases: {error}; try `wandb login`, or --wandb.mode offline") from error
    with run:
        run.define_metric("trainer/global_step")
        run.define_metric("*", step_metric="trainer/global_step", step_sync=True)
        yield WandbLogger(experiment=run)


def sync_command(folder: Path) -> str | None:
    """The command that uploads the folder's offline Weights & Biases runs, or None if there are none."""
    runs = sorted((folder / "wandb").glob("offline-run-*"))
    return f"wandb sync {' '.join(str(run) for run in runs)}" if runs else None


def write_config(folder: Path, config: dict[str, Any], command: str) -> None:
    """Write config.yaml: everything the run was made of, to be given to ``--config`` again."""
    text = yaml.safe_dump(config, sort_keys=False, allow_unicode=True)
    write_whole(folder / "config.yaml", f"# {command}\n{text}")
