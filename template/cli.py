"""The command line: commands, config files and errors. Torch is imported only once a command is chosen."""

import argparse
import importlib
import logging
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from template.errors import InputError, did_you_mean
from template.options import config_lines, explained, values_of

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser

PROG = "python -m template"
COMMANDS = {
    "fit": "train from a config, then test the best checkpoint",
    "check": "find trouble before a run",
    "evaluate": "print the metrics of a checkpoint",
    "predict": "write class names and probabilities for images",
    "report": "write a run's report, or compare several runs: pictures and tables",
    "export": "write a checked deployment file: uint8 images in, probabilities out",
    "replay": "explain the step of a run that was not finite",
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
        known = f"Commands: {', '.join(COMMANDS)}"
        print(f"error: no command {command!r}{did_you_mean(command, COMMANDS)} {known}", file=sys.stderr)
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
        more = "" if isinstance(error, InputError) else "; --debug shows where"
        print(f"error: {_one_line(error)}{more}", file=sys.stderr)
        return 1
    return 0


def _for_a_person(error: Exception) -> bool:
    """Whether the message says enough: ours, the system's about a file, and Lightning's about an argument."""
    from lightning.pytorch.utilities.exceptions import MisconfigurationException

    if isinstance(error, InputError | MisconfigurationException | OSError):
        return True
    raised_in = traceback.extract_tb(error.__traceback__)[-1].filename
    return isinstance(error, ValueError) and "lightning" in Path(raised_in).parts


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

    from template.callbacks.averaging import Ema
    from template.callbacks.checkpoints import Checkpoints
    from template.callbacks.fine_tuning import FineTuning
    from template.callbacks.nonfinite import NonFinite
    from template.callbacks.schedules import Schedule
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
    parser.add_argument("--report", type=bool, default=True, help="end with the report: some seconds")
    parser.add_argument("--quick_check", type=bool, default=True, help="look for trouble first, in under 3 s")
    parser.add_argument(
        "--tensorboard", type=bool, default=False, help="also write TensorBoard files to the run folder"
    )
    ours = {"logger", "default_root_dir", "enable_checkpointing", "use_distributed_sampler", "barebones"}
    parser.add_class_arguments(Trainer, "trainer", instantiate=False, skip=ours)
    parser.add_class_arguments(DataModule, "data", instantiate=False, skip={"seed"})
    from_data = {"class_names", "preprocessing", "data", "seed"}
    parser.add_class_arguments(Classifier, "model", instantiate=False, skip=from_data)
    parser.add_class_arguments(WarmupCosine, "warmup_cosine", instantiate=False)
    parser.add_class_arguments(Schedule, "schedule", instantiate=False)
    parser.add_class_arguments(FineTuning, "fine_tuning", instantiate=False)
    parser.add_class_arguments(Ema, "ema", instantiate=False)
    parser.add_class_arguments(Checkpoints, "checkpoints", instantiate=False, skip={"folder"})
    parser.add_class_arguments(NonFinite, "nonfinite", instantiate=False)
    parser.add_class_arguments(EarlyStopOptions, "early_stopping", instantiate=False)
    parser.add_class_arguments(Wandb, "wandb", instantiate=False)
    parser.set_defaults({"trainer.max_epochs": 10, "trainer.enable_model_summary": False})
    return parser


def parse_fit(arguments: Sequence[str]) -> tuple[Any, dict[str, Any], str]:
    """Parse the options of ``fit``.

    Returns:
        The options with their objects made, the same as plain values for config.yaml, and the config's name.

    Raises:
        InputError: A config file cannot be read.
        argparse.ArgumentError: A key is unknown, with the nearest known one, or a value has the wrong type.
    """
    import yaml

    parser = fit_parser()
    resumed = values_of("--resume", arguments)
    if resumed:
        from template.train import stored_config

        stored_config(Path(resumed[-1]))
        arguments = ["--config", str(Path(resumed[-1]) / "config.yaml"), *arguments]
    known = list(parser.get_defaults().keys())
    groups = {key[:end] for key in known for end, letter in enumerate(key) if letter == "."}
    paths = [Path(value) for value in values_of("--config", arguments)]
    lines = {path: config_lines(path, groups) for path in paths}
    try:
        options = parser.parse_args(list(arguments))
    except argparse.ArgumentError as error:
        raise explained(error, [*known, *groups], f"{PROG} fit", arguments, lines) from error
    del options["config"]
    # jsonargparse leaves a default that is an enum as it is, such as that of lightning.pytorch.callbacks.Timer
    yaml.SafeDumper.add_multi_representer(Enum, lambda dumper, value: dumper.represent_str(value.name))
    config = yaml.safe_load(parser.dump(options, skip_unset=False))
    for own in ("resume", "accept_changes", "run_dir"):  # where a run went is not what it is
        del config[own]
    return parser.instantiate(options), config, paths[0].stem if paths else "unnamed"


def _fit(arguments: list[str]) -> None:
    options, config, name = parse_fit(arguments)
    from template.train import fit

    command = f"{PROG} fit {' '.join(arguments)}"
    folder = fit(options, config, name, command, options.resume, options.accept_changes)
    if folder is not None:
        print(folder)


def _check(arguments: list[str]) -> None:
    """As fit, but nothing is trained: a page of findings, and exit status 1 where one is a FAIL."""
    own = argparse.ArgumentParser(
        prog=f"{PROG} check",
        description=COMMANDS["check"],
        exit_on_error=False,
        allow_abbrev=False,
        epilog=f"All other options are those of {PROG} fit.",
    )
    own.add_argument("--json", type=Path, metavar="FILE", help="also write the page as JSON")
    own.add_argument("--picture", type=Path, metavar="FILE", help="where to draw a batch (runs/<config>/check.png)")
    chosen, rest = own.parse_known_args(arguments)
    options, _, name = parse_fit(rest)
    from template.checks.check import check
    from template.run_folder import write_whole

    page = check(options, chosen.picture or Path("runs") / name / "check.png")
    print(page.text())
    if chosen.json is not None:
        write_whole(chosen.json, page.json())
    if page.failed:
        raise InputError("a check failed; see the lines above that begin with FAIL")


# --- evaluate and predict ----------------------------------------------------------------------------------------


_PATHS = "images, folders of images, or manifests: .csv, .tsv or .jsonl with a path each row"


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are exceptions, all of them."""

    def error(self, message: str) -> NoReturn:
        known = [option.lstrip("-") for option in self._option_string_actions]
        raise explained(argparse.ArgumentError(None, message), known, self.prog)


def _parser(command: str) -> _Parser:
    parser = _Parser(prog=f"{PROG} {command}", description=COMMANDS[command], allow_abbrev=False)
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT|RUN", help="a .ckpt file, or a run: its best one")
    return parser


def _evaluate(arguments: list[str]) -> None:
    parser = _parser("evaluate")
    parser.add_argument("--split", choices=("val", "test"), default="test", help="which images (default: test)")
    parser.add_argument("--data.root", dest="root", type=Path, metavar="DIR", help="where the data is now")
    options = parser.parse_args(list(arguments))
    from template.results.evaluate import evaluate, print_metrics

    print_metrics(evaluate(options.checkpoint, options.split, options.root))


def _predict(arguments: list[str]) -> None:
    parser = _parser("predict")
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH", help=_PATHS)
    parser.add_argument(
        "--output", type=Path, default=Path("predictions.csv"), help=".csv, .jsonl or .parquet file (predictions.csv)"
    )
    parser.add_argument("--top_k", type=int, default=1, help="classes a row, the most probable first (1)")
    parser.add_argument("--flip", action="store_true", help="average each image with its mirror image")
    parser.add_argument("--batch_size", type=int, default=64, help="images at a time (64)")
    parser.add_argument("--processes", type=int, default=1, help="that read and compute, writing one file (1)")
    options = parser.parse_args(list(arguments))
    from template.results.predict import predict

    given = (options.top_k, options.flip, options.batch_size, options.processes)
    rows, unreadable = predict(options.checkpoint, options.paths, options.output, *given)
    print(
        f"{rows} rows in {options.output}"
        + (f"; {unreadable} file{'s' * (unreadable > 1)} could not be read" if unreadable else "")
    )


def _report(arguments: list[str]) -> None:
    parser = _Parser(prog=f"{PROG} report", description=COMMANDS["report"], allow_abbrev=False)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run folders; several are compared")
    parser.add_argument("--output", type=Path, metavar="DIR", help="of a comparison (comparison/ beside the runs)")
    parser.add_argument("--data.root", dest="root", type=Path, metavar="DIR", help="where the data is now")
    options = parser.parse_args(list(arguments))
    if len(options.runs) == 1:
        from template.results.report import report

        print(report(options.runs[0], options.root)[0])
    else:
        from template.results.compare import compare

        print(compare(options.runs, options.output, options.root))


def _export(arguments: list[str]) -> None:
    parser = _parser("export")
    parser.add_argument("--format", choices=("onnx", "pt2", "torchscript"), required=True, help="kind of file")
    parser.add_argument("--output", type=Path, help="file to write (model.onnx, .pt2 or .pt beside the checkpoint)")
    parser.add_argument("--dynamic_size", action="store_true", help="leave height and width open, not only the batch")
    parser.add_argument("--data.root", dest="root", type=Path, metavar="DIR", help="where the data is now")
    parser.add_argument("--skip_timing", action="store_true", help="do not compare speeds, which compiles the network")
    options = parser.parse_args(list(arguments))
    from template.results.export import export, print_comparisons

    exported = export(options.checkpoint, options.format, options.output, options.dynamic_size, options.root)
    print_comparisons(exported)
    if not options.skip_timing:
        from template.results.speed import measure, print_speeds

        print_speeds(measure(options.checkpoint, options.format, exported.path))
    print(exported.path)


# --- when a run went wrong --------------------------------------------------------------------------------------


def _replay(arguments: list[str]) -> None:
    parser = _Parser(prog=f"{PROG} replay", description=COMMANDS["replay"], allow_abbrev=False)
    parser.add_argument("folder", type=Path, metavar="RUN/nonfinite_step<N>", help="what the run left when it stopped")
    folder = parser.parse_args(list(arguments)).folder
    from template.checks.replay import read_step, replay

    step = read_step(folder)
    options, _, _ = parse_fit(["--config", str(folder.parent / "config.yaml")])
    print(replay(options, folder, step))


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


#: Warnings about what the template measures and prints itself, or has done; the last is between two libraries.
SETTLED = (
    ".*does not have many workers.*",
    ".*using `DistributedSampler` with.*",
    ".*sync_dist=True.*",
    ".*smaller than the logging interval.*",
    ".*LeafSpec",
)


class _Logging:
    """While a command runs, its log goes to the console: ours from INFO, Lightning's and warnings from WARNING."""

    def __enter__(self) -> None:
        # Lightning sets up a handler of its own, which is set aside below.
        rank = importlib.import_module("lightning.pytorch").utilities.rank_zero_only.rank

        handler = _Console()
        handler.setLevel(logging.INFO if rank == 0 else logging.ERROR)
        self.loggers = [logging.getLogger(name) for name in ("template", "lightning.pytorch", "py.warnings")]
        self.before = [(logger, logger.handlers, logger.level, logger.propagate) for logger in self.loggers]
        for logger in self.loggers:
            logger.handlers, logger.propagate = [handler], False
            logger.setLevel(handler.level)
        logging.captureWarnings(True)
        for text in SETTLED:
            warnings.filterwarnings("ignore", message=text)

    def __exit__(self, *error: object) -> None:
        logging.captureWarnings(False)
        for logger, handlers, level, propagate in self.before:
            logger.handlers, logger.propagate = handlers, propagate
            logger.setLevel(level)
