"""README.md repeats what files say of themselves: pytest tests/test_readme.py, or to write it, python that file."""

import ast
import json
import re
import subprocess
from pathlib import Path

import yaml

from template import __file__ as package

ROOT = Path(__file__).parents[1]
PACKAGE = Path(package).parent
README = ROOT / "README.md"


def first_sentence(path: Path) -> str:
    """What a file says it is for: a module's docstring, a config's first comment, a notebook's title."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        text = (ast.get_docstring(ast.parse(text)) or "").split("\n\n")[0]
    elif path.suffix == ".ipynb":
        text = "".join(json.loads(text)["cells"][0]["source"]).splitlines()[0].lstrip("# ")
    else:
        text = text.splitlines()[0].lstrip("# ")
    return re.split(r"(?<=\.)\s", " ".join(text.split()))[0].rstrip(".:")


def tree() -> str:
    """The tree of the files a reader is to see, a line each."""
    shown = (PACKAGE.name, "configs", "notebooks")
    listed = subprocess.run(["git", "ls-files", *shown], cwd=ROOT, capture_output=True, text=True, check=True)
    lines, folder = [], ""
    for name in sorted(listed.stdout.split(), key=lambda name: (name.count("/") > 1, name)):
        path = Path(name)
        if path.suffix not in (".py", ".yaml", ".ipynb"):
            continue
        if str(path.parent) != folder:
            folder = str(path.parent)
            init = ROOT / folder / "__init__.py"
            lines.append(f"    {folder + '/':<28}{first_sentence(init) if init.exists() else ''}")
        if path.name != "__init__.py":
            lines.append(f"      {path.name:<26}{first_sentence(ROOT / path)}")
    return "\n".join(line.rstrip() for line in lines)


def between(mark: str) -> str:
    return README.read_text(encoding="utf-8").split(f"<!-- {mark} -->\n")[1].split(f"<!-- /{mark} -->")[0]


def test_the_tree_has_each_file_with_the_sentence_that_opens_it():
    assert between("tree").strip("\n") == tree(), "write it with: python tests/test_readme.py"


def test_every_file_that_is_said_to_guard_against_a_pitfall_exists():
    files = re.findall(r"`(\w+(?:/\w+)*\.py)`", between("pitfalls"))
    assert len(files) > 20
    assert [file for file in files if not (PACKAGE / file).exists()] == []


def test_every_config_opens_with_its_command_and_parses():
    for path in (ROOT / "configs").glob("*.yaml"):
        text = path.read_text(encoding="utf-8")
        assert f"configs/{path.name}" in text[:600] or "make train" in text[:600]
        assert set(yaml.safe_load(text)) >= {"data", "model", "trainer"}


if __name__ == "__main__":
    text = README.read_text(encoding="utf-8")
    start, end = text.index("<!-- tree -->\n") + len("<!-- tree -->\n"), text.index("<!-- /tree -->")
    README.write_text(f"{text[:start]}{tree()}\n{text[end:]}", encoding="utf-8")
