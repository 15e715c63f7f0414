"""The command line: commands, config files and errors. Torch is imported only once a command is chosen."""

import argparse
import importlib
import logging
import re
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from template.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser

PROG = "python -m template"
COMMANDS = {
    "fit": "train from a config, then test the best checkpoint",
    "evaluate": "print the metrics of a checkpoint",
    "predict": "write class names and probabilities for images",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        The exit status: 0 for success, 1 for a command that failed, 2 for one that was not understood.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        print(f"usage: {PROG} COMMAND [options]\n\ncommands:")
        print("\n".join(f"  {name:<10} {purpose}" for name, purpose in COMMANDS.items()))
        print(f"\n{PROG} COMMAND --help tells the options of one; --debug adds the traceback to an error.")
        return 0
    command, *rest = arguments
    debug = "--debug" in rest
    rest = [argument for argument in rest if argument != "--debug"]
    if command not in COMMANDS:
        print(f"error: no command {command!r}{did_you_mean(command, COMMANDS)} Commands: {', '.join(COMMANDS)}")
        return 2
    run: Callable[[list[str]], None] = globals()[f"_{command}"]
    try:
        with _Logging():
            run(rest)
    except KeyboardInterrupt:
        return 130
    except argparse.ArgumentError as error:
        if debug:
            raise
        print(f"error: {error}", file=sys.stderr)
        return 2
    except Exception as error:
        if debug or not _for_a_person(error):
            raise
        print(f"error: {_one_line(error)}", file=sys.stderr)
        return 1
    return 0


def _for_a_person(error: Exception) -> bool:
    from lightning.pytorch.utilities.exceptions import MisconfigurationException

    return isinstance(error, InputError | MisconfigurationException)


def _one_line(error: Exception) -> str:
    """The message alone, also of an error that a loader's worker passed on with its traceback."""
    text = str(error)
    if text.startswith("Caught "):
        text = text.rsplit(f"{type(error).__name__}: ", 1)[-1]
    return " ".join(text.split())


# --- fit ---------------------------------------------------------------------------------------------------------


def fit_parser() -> "ArgumentParser":
    """The options of ``fit``: the constructors' signatures, group by group."""
    from jsonargparse import ArgumentParser
    from lightning.pytorch import Trainer

    from template.callbacks.checkpoints import Checkpoints
    from template.callbacks.warmup_cosine import WarmupCosine
    from template.data.datamodule import DataModule
    from template.model.module import Classifier
    from template.train import EarlyStopOptions, Wandb

    parser = ArgumentParser(prog=f"{PROG} fit", description=COMMANDS["fit"], exit_on_error=False, allow_abbrev=False)
    parser.add_argument("--config", action="config", help="YAML file of options; repeatable, later ones win")
    parser.add_argument("--seed", type=int, default=0, help="seed of everything random in the run")
    parser.add_argument("--resume", type=Path | None, default=None, metavar="RUN", help="run folder to continue")
    parser.add_argument("--accept_changes", type=bool, default=False, help="resume with settings of another run")
    parser.add_argument("--run_dir", type=Path | None, default=None, help="folder of the run, empty or not there yet")
    parser.add_argument(
        "--tensorboard", type=bool, default=False, help="also write TensorBoard files to the run folder"
    )
    ours = {"logger", "default_root_dir", "enable_checkpointing", "use_distributed_sampler", "barebones"}
    parser.add_class_arguments(Trainer, "trainer", instantiate=False, skip=ours)
    parser.add_class_arguments(DataModule, "data", instantiate=False, skip={"seed"})
    from_data = {"class_names", "preprocessing", "data", "seed"}
    parser.add_class_arguments(Classifier, "model", instantiate=False, skip=from_data)
    parser.add_class_arguments(WarmupCosine, "warmup_cosine", instantiate=False)
    parser.add_class_arguments(Checkpoints, "checkpoints", instantiate=False, skip={"folder"})
    parser.add_class_arguments(EarlyStopOptions, "early_stopping", instantiate=False)
    parser.add_class_arguments(Wandb, "wandb", instantiate=False)
    parser.set_defaults({"trainer.max_epochs": 10, "trainer.enable_model_summary": False})
    return parser


def parse_fit(arguments: Sequence[str]) -> tuple[Any, dict[str, Any], str]:
    """Parse the options of ``fit``.

    Returns:
        The options with their objects made, the same as plain values for config.yaml, and the config's name.

    Raises:
        argparse.ArgumentError: A key is unknown, with the nearest known one, or a value has the wrong type.
    """
    import yaml

    parser = fit_parser()
    arguments = list(arguments)
    run = next(
        (
            a.partition("=")[2] or "".join(arguments[i + 1 : i + 2])
            for i, a in enumerate(arguments)
            if a.partition("=")[0] == "--resume"
        ),
        None,
    )
    if run is not None:
        from template.train import stored_config

        stored_config(Path(run))
        arguments = ["--config", str(Path(run) / "config.yaml"), *arguments]
    try:
        options = parser.parse_args(arguments)
    except argparse.ArgumentError as error:
        raise _explained(error, list(parser.get_defaults().keys())) from error
    files = options.pop("config") or []
    config = yaml.safe_load(parser.dump(options, skip_unset=False))
    for own in ("resume", "accept_changes"):
        config.pop(own)
    name = Path(str(files[0])).stem if files else "unnamed"
    return parser.instantiate(options), config, name


def _fit(arguments: list[str]) -> None:
    options, config, name = parse_fit(arguments)
    from template.train import fit

    command = f"{PROG} fit {' '.join(arguments)}"
    folder = fit(options, config, name, command, options.resume, options.accept_changes)
    if folder is not None:
        print(folder)


def _explained(error: argparse.ArgumentError, known: list[str]) -> argparse.ArgumentError:
    """Say one line about an option that was not understood, with the nearest key where it is unknown."""
    text = " ".join(str(error).replace("Parser key ", "").split())
    group = re.search(r"Group '(\S+)' does not accept option '(\S+)'", text)
    lone = re.search(r"(?:Unrecognized arguments: (?:--)?|Key '|option ')([\w.]+)", text, re.IGNORECASE)
    key = f"{group[1]}.{group[2]}" if group else lone[1] if lone else None
    if key is not None and key not in known:
        return argparse.ArgumentError(None, f"no option {key!r}{did_you_mean(key, known)} See {PROG} fit --help")
    return argparse.ArgumentError(None, text)


# --- evaluate and predict ----------------------------------------------------------------------------------------


def _parser(command: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"{PROG} {command}", description=COMMANDS[command], exit_on_error=False, allow_abbrev=False
    )
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT|RUN", help="a .ckpt file, or a run: its best one")
    return parser


def _evaluate(arguments: list[str]) -> None:
    parser = _parser("evaluate")
    parser.add_argument("--split", choices=("val", "test"), default="test", help="which images (default: test)")
    parser.add_argument("--data.root", dest="root", type=Path, metavar="DIR", help="where the data is now")
    options = parser.parse_args(arguments)
    from template.results.evaluate import evaluate, print_metrics

    print_metrics(evaluate(options.checkpoint, options.split, options.root))


def _predict(arguments: list[str]) -> None:
    parser = _parser("predict")
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="images, or folders of images")
    parser.add_argument("--output", type=Path, default=Path("predictions.csv"), help="file to write (predictions.csv)")
    options = parser.parse_args(arguments)
    from template.results.predict import predict

    rows = predict(options.checkpoint, options.paths, options.output)
    print(f"{rows} predictions in {options.output}")


# --- what is printed ---------------------------------------------------------------------------------------------


class _Console(logging.Handler):
    """Prints log lines, above the progress bar where there is one, and else periodic lines at most every 5 s."""

    def __init__(self) -> None:
        super().__init__()
        self.printed = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        from rich import get_console

        console = get_console()
        text = record.getMessage()
        if record.name.startswith("lightning") and record.levelno < logging.WARNING:
            return
        if getattr(record, "periodic", False):
            if console.is_terminal or time.monotonic() - self.printed < 5:
                return
            self.printed = time.monotonic()
        if record.name == "py.warnings":
            text = text.split("Warning: ", 1)[-1].splitlines()[0]
        if record.levelno >= logging.WARNING:
            text = f"warning: {text}"
        console.print(text, markup=False, highlight=False, soft_wrap=True)


class _Logging:
    """While a command runs, its log goes to the console: ours from INFO, Lightning's and warnings from WARNING."""

    def __enter__(self) -> None:
        # Lightning sets up a handler of its own, which is taken away below.
        rank = importlib.import_module("lightning.pytorch").utilities.rank_zero_only.rank

        self.handler = _Console()
        ours, lightning = logging.getLogger("template"), logging.getLogger("lightning.pytorch")
        self.loggers = [ours, lightning, logging.getLogger("py.warnings")]
        ours.propagate = False
        ours.setLevel(logging.INFO if rank == 0 else logging.ERROR)
        self.handler.setLevel(logging.INFO if rank == 0 else logging.ERROR)
        logging.captureWarnings(True)
        for name in self.loggers:
            name.addHandler(self.handler)
        lightning.handlers = [self.handler]
        # What these advise is measured and printed by the template itself, or done; the last is between two libraries.
        for text in (
            ".*does not have many workers.*",
            ".*using `DistributedSampler` with.*",
            ".*sync_dist=True.*",
            ".*LeafSpec",
        ):
            warnings.filterwarnings("ignore", message=text)

    def __exit__(self, *error: object) -> None:
        for name in self.loggers:
            name.removeHandler(self.handler)
        logging.captureWarnings(False)
