"""What is wrong with an option or a config file, in one line that names the place and the nearest right key."""

import argparse
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import yaml

from template.errors import InputError, did_you_mean

#: Arguments that the template gives itself, and what to do instead.
OURS = {
    "trainer.logger": "metrics.csv and train.log are always written; set wandb.mode, or tensorboard to true",
    "trainer.default_root_dir": "set run_dir",
    "trainer.enable_checkpointing": "checkpoints are always written; set checkpoints.keep_best and the like",
    "trainer.use_distributed_sampler": "leave it out: the template's own sampler gives each process its share",
    "trainer.barebones": "leave it out: a run without checkpoints and logs is not a run",
    "data.seed": "set seed",
    "model.seed": "set seed",
    "model.class_names": "leave it out: they are the names of the data's class folders",
    "model.preprocessing": "set data.preprocessing",
    "model.data": "leave it out: it follows from data",
    "checkpoints.folder": "set run_dir: they are in its checkpoints folder",
}


def values_of(option: str, arguments: Sequence[str]) -> list[str]:
    """Values that a command line gives to an option, as ``--option value`` or ``--option=value``."""
    pairs = zip(arguments, [*arguments, ""][1:], strict=True)
    return [a.partition("=")[2] or following for a, following in pairs if a == option or a.startswith(f"{option}=")]


def config_lines(path: Path, groups: Iterable[str] = ()) -> dict[str, int]:
    """The line of each key of a config file; nested keys are joined by dots.

    Args:
        path: The file.
        groups: Keys that have to hold further keys.

    Raises:
        InputError: The file is not there or no YAML, a key is there twice, or something is no mapping.
    """
    if not path.is_file():
        near = [str(file) for file in path.parent.glob("*.yaml")]
        raise InputError(f"no config file at {path}{did_you_mean(str(path), near)}")
    try:
        top = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{path} line {mark.line + 1}" if mark else path
        since = f" ({error.context} from line {error.context_mark.line + 1})" if error.context_mark else ""
        tab = "; indent with spaces, not tabs" if "'\\t'" in str(error.problem) else ""
        raise InputError(f"{place} is not YAML: {error.problem}{since}{tab}") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(f"cannot read {path}: {error}") from None
    if not isinstance(top, yaml.MappingNode) or not top.value:
        found = "empty" if top is None or not top.value else "not a mapping"
        raise InputError(f"{path} is {found}; expected lines such as seed: 1, see configs/ for examples")

    lines: dict[str, int] = {}
    groups = set(groups)
    for key, line, value in _walk(top):
        if key in lines:
            raise InputError(f"{path} line {line}: {key} is there already, in line {lines[key]}; keep one of the two")
        if key in groups and not isinstance(value, yaml.MappingNode):
            found = repr(value.value) if isinstance(value, yaml.ScalarNode) and value.value else "empty or a list"
            raise InputError(f"{path} line {line}: {key} is {found}; expected a mapping, its options below it")
        lines[key] = line
    return lines


def _walk(mapping: yaml.MappingNode, prefix: str = "") -> Iterator[tuple[str, int, yaml.Node]]:
    for key, value in mapping.value:
        name = f"{prefix}{key.value}"
        yield name, key.start_mark.line + 1, value
        if isinstance(value, yaml.MappingNode):
            yield from _walk(value, f"{name}.")


def explained(
    error: argparse.ArgumentError,
    known: Sequence[str],
    usage: str,
    arguments: Sequence[str] = (),
    files: Mapping[Path, Mapping[str, int]] = MappingProxyType({}),
) -> argparse.ArgumentError:
    """Say in one line what a parser did not understand.

    Args:
        error: The parser's own.
        known: The options there are.
        usage: The command whose ``--help`` lists them.
        arguments: The command line; an option on it is not looked for in files.
        files: The config files and the lines of their keys.
    """
    text = " ".join(str(error).replace("Parser key ", "").split())
    if (group := re.search(r"Group '(\S+)' does not accept option '(\S+)'", text)) is not None:
        key = f"{group[1]}.{group[2]}"
    else:
        lone = re.search(r"(?:Unrecognized arguments: (?:--)?|Key '|option '|^\")([\w.]+)", text, re.IGNORECASE)
        key = lone[1] if lone else ""
    places = [f"{path} line {lines[key]}" for path, lines in files.items() if key in lines]
    place = f"{' or '.join(places)}: " if places and not values_of(f"--{key}", arguments) else ""
    if key in OURS:
        return argparse.ArgumentError(None, f"{place}{key} is the template's own; {OURS[key]}")
    if (missing := re.search(r"arguments are required: (.+)", text)) is not None:
        return argparse.ArgumentError(None, f"{missing[1]} is missing; see {usage} --help")
    if key and key not in known and "--" + key not in known:
        return argparse.ArgumentError(None, f"{place}no option {key!r}{did_you_mean(key, known)} See {usage} --help")
    return argparse.ArgumentError(None, f"{place}{_wrong_value(text)}")


def _wrong_value(text: str) -> str:
    """Shorten jsonargparse's description of a value of the wrong type."""
    if (class_path := re.search(r"Problem with given class_path '([^']+)': (.+?) - Expected", text)) is not None:
        return f"{class_path[1]}: {class_path[2]}"
    simple = re.search(r'"([\w.]+)": Expected an? (.+?)\. Got value: (.*)', text)
    union = re.search(r'"([\w.]+)": Does not validate .*?Subtypes: \[(.+?)\] Errors: .* Given value: (.*)', text)
    found = union or simple
    if found is None:
        return text
    key, expected, value = found.groups()
    expected = re.sub(r"<class '(?:[\w.]+\.)?(\w+)'>", r"\1", expected).replace("NoneType", "null")
    expected = (
        expected.replace("typing.Literal", "one of ").replace("collections.abc.", "").replace(", null", " or null")
    )
    return f"{key} is {value}; expected {expected}"
