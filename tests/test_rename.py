"""`make rename NAME=my_project`: what is renamed, what is not, and what is refused."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from template.errors import InputError
from template.rename import main, mentions, rename, without_rename

ROOT = Path(__file__).parent.parent
PACKAGE = mentions(["cli", "data", "model", "rename", "__init__"])


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=Test", "-c", "user.email=test@example.com"]
    return subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def clone(tmp_path) -> Path:
    """A small project with a word of each kind."""
    files = {
        "template/__init__.py": '"""A template for training."""\n',
        "template/cli.py": "from template.data import index\n",
        "template/data/index.py": "import template\n",
        "template/rename.py": "",
        "tests/test_rename.py": "",
        "tests/test_cli.py": "from template import cli\n",
        "configs/a.yaml": "# python -m template fit --config configs/a.yaml\n",
        "pyproject.toml": '[project]\nname = "template"\n"template/rename.py" = ["T20"]\n"template/cli.py" = ["T20"]\n',
        "README.md": "# A template\n<!-- rename -->\nmake rename\n<!-- /rename -->\n    template/\n      rename.py\n",
        "Makefile": ".PHONY: help rename clean\nrename: x  ## it\n\tpython -m template.rename\n\nclean:\n\trm\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\xff template/")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "first")
    return tmp_path


@pytest.mark.parametrize(
    "text",
    [
        "from template import cli",
        "from template.data import index",
        "import template",
        "    import template as t",
        "see ``template.cli.main`` for more",
        'monkeypatch.setattr("template.cli.print", None)',
        "Path(template.__file__).parent",
        'module = "template.*"',
        "python -m template fit",
        "$(BIN)/python -m template.rename $(NAME)",
        'command = [sys.executable, "-m", "template", "fit"]',
        'logging.getLogger("template")',
        'for name in ("template", "lightning.pytorch")]',
        'name = "template"',
        'include = ["template*"]',
        'files = ["template", "tests"]',
        "'template'",
        "    template/      the package",
        "`template/cli.py`",
        '"template/cli.py" = ["T20"]',
        "[cli](template/cli.py)",
        "ruff check template/ tests/",
        "/home/me/clone/template/cli.py",
    ],
)
def test_the_package_is_renamed(text):
    assert PACKAGE.sub("my_project", text) == text.replace("template", "my_project")


@pytest.mark.parametrize(
    "text",
    [
        "A PyTorch Lightning project template for training vision models.",
        "measured and printed by the template itself",
        "the template's own sampler",
        "not a checkpoint of this template.",
        "What this template does. The rest is up to you.",
        "Copyright (c) 2026 The template's authors",
        "nn-template/ and other-template.cli",
        "https://example.com/template/tree/main",
        "`--template`",
        "start from template files",
        "template_version, my_template.cli, templates/",
        'CHECKPOINT_KEY = "template"',
        'settings = checkpoint["template"]["data"]',
        'torch.load(file, weights_only=True)["template"]',
        'checkpoint.get("template", {})',
        'assert "template" not in checkpoint',
    ],
)
def test_the_word_in_a_sentence_and_the_key_in_a_checkpoint_are_not(text):
    expected = text.replace('weights_only=True)["template"]', 'weights_only=True)["template"]')
    assert PACKAGE.sub("my_project", text) == expected


def test_a_clone_becomes_the_project(clone):
    changed = rename(clone, "my_project")
    assert (clone / "my_project/cli.py").read_text() == "from my_project.data import index\n"
    assert (clone / "my_project/data/index.py").read_text() == "import my_project\n"
    assert (clone / "my_project/__init__.py").read_text() == '"""A template for training."""\n'
    assert (clone / "tests/test_cli.py").read_text() == "from my_project import cli\n"
    assert (clone / "configs/a.yaml").read_text() == "# python -m my_project fit --config configs/a.yaml\n"
    assert (clone / "picture.png").read_bytes() == b"\x89PNG\xff template/"
    assert not (clone / "template").exists()
    assert "my_project/cli.py" in changed
    assert "R  template/__init__.py -> my_project/__init__.py" in git(clone, "status", "--porcelain")


def test_the_rename_removes_itself(clone):
    rename(clone, "my_project")
    assert not list(clone.rglob("*rename*"))
    assert (clone / "Makefile").read_text() == ".PHONY: help clean\nclean:\n\trm\n"
    assert (clone / "README.md").read_text() == "# A template\n    my_project/\n"
    assert (clone / "pyproject.toml").read_text() == '[project]\nname = "my_project"\n"my_project/cli.py" = ["T20"]\n'


def test_the_real_makefile_keeps_every_other_target():
    before = (ROOT / "Makefile").read_text()
    after = without_rename("Makefile", before)
    targets = [{line.split(":")[0] for line in text.splitlines() if ":  ##" in line} for text in (before, after)]
    assert targets[0] - targets[1] == set()
    assert "rename" in before
    assert "rename" not in after


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("my-project", "cannot be a package's name"),
        ("3d", "cannot be a package's name"),
        ("", "cannot be a package's name"),
        ("_hidden", "cannot be a package's name"),
        ("projet_été", "cannot be a package's name"),
        ("a.b", "cannot be a package's name"),
        ("class", "is a word of Python"),
        ("None", "is a word of Python"),
        ("template", "is the name that it has"),
        ("Template", "is the name that it has"),
        ("json", "is taken by another module or folder"),
        ("torch", "is taken by another module or folder"),
        ("configs", "is taken by another module or folder"),
    ],
)
def test_names_that_cannot_be_are_refused(clone, name, why):
    with pytest.raises(InputError, match=why):
        rename(clone, name)
    assert git(clone, "status", "--porcelain") == ""


@pytest.mark.parametrize("change", ["edited", "new"])
def test_a_clone_with_uncommitted_changes_is_refused(clone, change):
    (clone / ("Makefile" if change == "edited" else "notes.txt")).write_text("mine\n")
    with pytest.raises(InputError, match=r"changes that are not committed, first (Makefile|notes.txt); commit or"):
        rename(clone, "my_project")
    assert (clone / "template/cli.py").exists()


def test_a_folder_that_is_no_clone_is_refused(tmp_path):
    with pytest.raises(InputError, match="the rename needs a git clone"):
        rename(tmp_path, "my_project")


def test_the_command_says_one_line(clone, monkeypatch, capsys):
    monkeypatch.chdir(clone)
    assert main([]) == 2
    assert main(["my-project"]) == 1
    errors = capsys.readouterr().err.splitlines()
    assert errors[0] == "error: expected one name: make rename NAME=my_project"
    assert errors[1].startswith("error: 'my-project' cannot be a package's name; expected letters")


@pytest.mark.slow
def test_the_tests_of_the_renamed_project_pass(tmp_path):
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(ROOT), str(clone))
    environment = {**os.environ, "PYTHONPATH": str(clone)}

    def python(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments], cwd=clone, env=environment, capture_output=True, text=True, check=False
        )

    renamed = python("-m", "template.rename", "my_project")
    assert renamed.returncode == 0, renamed.stderr
    for command in (["ruff", "check", "."], ["ruff", "format", "--check", "."], ["mypy"]):
        done = python("-m", *command)
        assert done.returncode == 0, done.stdout + done.stderr
    tests = ["test_cli.py", "test_run_folder.py", "test_logging.py", "test_bad_input.py", "test_makefile.py"]
    done = python("-m", "pytest", "-q", *(f"tests/{name}" for name in tests))
    assert done.returncode == 0, done.stdout[-3000:]
    imports = re.compile(r"^\s*(from|import) template\b|-m template\b", re.MULTILINE)
    texts = {file: (clone / file).read_bytes() for file in git(clone, "ls-files").splitlines()}
    assert [file for file, text in texts.items() if imports.search(text.decode(errors="replace"))] == []
