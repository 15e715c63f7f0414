"""``make rename NAME=my_project``: the clone becomes that project, and this file removes itself."""

import importlib.util
import keyword
import re
import subprocess
import sys
from pathlib import Path

from template.errors import InputError

OLD = "template"
#: Files that serve the rename alone.
OWN = ("template/rename.py", "tests/test_rename.py")


def rename(root: Path, name: str) -> list[str]:
    """Rename the package and every mention of it, in all files that git tracks; nothing is committed.

    Args:
        root: The clone.
        name: The project's name, which is also the package's.

    Returns:
        The files that were changed, by their new paths.

    Raises:
        InputError: The name cannot be a package's, or the clone has changes that are not committed.
    """
    check_name(root, name)
    files = _git(root, "ls-files", "-z").split("\0")[:-1]
    if (changes := _git(root, "status", "--porcelain")) != "":
        raise InputError(f"{root} has changes that are not committed, first {changes.split()[1]}; commit or stash them")

    modules = sorted({Path(file).parts[1].removesuffix(".py") for file in files if file.startswith(f"{OLD}/")})
    pattern = mentions(modules)
    changed = {}
    for file in files:
        try:
            before = (root / file).read_bytes().decode()
        except (UnicodeDecodeError, IsADirectoryError):
            continue
        after = pattern.sub(name, without_rename(file, before))
        if after != before and file not in OWN:
            changed[file] = after

    for file, text in changed.items():
        (root / file).write_bytes(text.encode())
    _git(root, "rm", "-q", "-f", "--ignore-unmatch", *OWN)
    _git(root, "mv", OLD, name)
    return [re.sub(rf"^{OLD}/", f"{name}/", file) for file in changed]


def check_name(root: Path, name: str) -> None:
    """Raises InputError when the name cannot be that of a package and a project, or is taken."""
    if not re.fullmatch(r"[A-Za-z]\w*", name, re.ASCII) or name.endswith("_"):
        raise InputError(f"{name!r} cannot be a package's name; expected letters, digits and _, such as my_project")
    if keyword.iskeyword(name):
        raise InputError(f"{name!r} is a word of Python; choose another name, such as my_project")
    if name.lower() == OLD:
        raise InputError(f"{name!r} is the name that it has; choose another, such as my_project")
    if name in sys.stdlib_module_names or importlib.util.find_spec(name) is not None or (root / name).exists():
        raise InputError(f"{name!r} is taken by another module or folder; choose another name, such as my_project")


def mentions(modules: list[str]) -> re.Pattern[str]:
    """A pattern of the package's name where it means the package: imports, dotted names, paths, ``-m``, quoted.

    The word in a sentence is none of these. The quoted key under which a checkpoint keeps the template's own entry is
    left out too, so that checkpoints written before the rename still open.

    Args:
        modules: Names of the package's modules.
    """
    inside = "|".join([*map(re.escape, modules), r"__\w+__", r"\*"])
    return re.compile(
        rf"(?<=from ){OLD}(?= import )"
        rf"|(?<=import ){OLD}(?= as |\s*$)"
        rf"|(?<![\w.-]){OLD}(?=\.(?:{inside})(?!\w))"
        rf"|(?<![\w.:/-]){OLD}(?=/)|(?<=[^/]/){OLD}(?=/(?:{inside})(?!\w))"
        rf"|(?<=-m ){OLD}\b"
        rf"|(?<=[\"']){OLD}(?=\*?[\"'])(?![\"'] (?:not )?in\b)"
        r"(?<!KEY = .{9})(?<![\w)\]]\[.{9})(?<![gp][eo][tp]\(.{9})",  # nine: the quote and the word
        re.MULTILINE,
    )


def without_rename(file: str, text: str) -> str:
    """A file's text without what is there for the rename: the make target, the lines that name its files.

    In Markdown also what stands between ``<!-- rename -->`` and ``<!-- /rename -->``.
    """
    if file == "Makefile":
        text = re.sub(r"^rename:.*\n(?:\t.*\n)*\n?", "", text, flags=re.MULTILINE)
        text = re.sub(r"^(\.PHONY:.*) rename\b", r"\1", text, flags=re.MULTILINE)
    if file.endswith(".md"):
        text = re.sub(r"<!-- rename -->.*?<!-- /rename -->\n?", "", text, flags=re.DOTALL)
    if file.endswith((".md", ".toml")):
        text = re.sub(r"^.*\b(?:test_)?rename\.py\b.*\n", "", text, flags=re.MULTILINE)
    return text


def _git(root: Path, *arguments: str) -> str:
    try:
        return subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        reason = getattr(error, "stderr", "") or str(error)
        raise InputError(
            f"git {arguments[0]} failed in {root}: {reason.strip()}; the rename needs a git clone"
        ) from None


def main(arguments: list[str]) -> int:
    """Rename the clone in the current folder, and format it, as lines have changed their length."""
    if len(arguments) != 1:
        print("error: expected one name: make rename NAME=my_project", file=sys.stderr)
        return 2
    try:
        changed = rename(Path.cwd(), arguments[0])
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for command in (["check", "--fix-only", "."], ["format", "."]):
        subprocess.run([sys.executable, "-m", "ruff", "--quiet", *command], check=False)
    print(f"{len(changed)} files changed; look at `git diff HEAD`, then: make test && git add -A && git commit")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
