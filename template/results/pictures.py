"""Pictures for the README, made from a real run of the digits: the report in a browser, and the terminal.

    python -m template.results.pictures .github/pictures

It trains for about half a minute, and needs Chromium or Chrome, which it runs without a window.
"""

import datetime
import html
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

from template.errors import InputError

_FIT = ("fit", "--config", "configs/digits.yaml", "--wandb.mode", "disabled")
_TERMINAL = """<!doctype html><meta charset="utf-8"><style>
body { margin: 0; background: #161b22; } pre { margin: 0; padding: 18px 22px; color: #d6dde6;
font: 13.5px/1.2 "DejaVu Sans Mono", Menlo, Consolas, monospace; } b { color: #8cc265; font-weight: normal; }
</style><pre><b>$ make train</b>\n%s</pre>"""


def make_pictures(folder: Path) -> list[Path]:
    """Train, and write report.png and terminal.png.

    Raises:
        InputError: There is no browser to take them with.
    """
    browser = find_browser()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        run = Path(scratch) / "runs" / "digits" / datetime.datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
        fit = [sys.executable, "-m", "template", *_FIT, "--run_dir", str(run)]
        printed = subprocess.run(fit, check=True, capture_output=True, encoding="utf-8").stdout
        page = Path(scratch) / "terminal.html"
        lines = shortened(printed.replace(f"{scratch}/", "").splitlines())
        page.write_text(_TERMINAL % html.escape("\n".join(lines)), encoding="utf-8")
        take(browser, run / "report" / "index.html", folder / "report.png", 1240, 1130)
        take(browser, page, folder / "terminal.png", 1240, round(36 + 16.2 * (len(lines) + 1)))
    return [folder / "report.png", folder / "terminal.png"]


def shortened(lines: list[str], first: int = 9, last: int = 20) -> list[str]:
    """The first and the last lines, cut at 150 characters."""
    if len(lines) > first + last:
        lines = [*lines[:first], "…", *lines[-last:]]
    return [line if len(line) <= 150 else f"{line[:149]}…" for line in lines]


def find_browser() -> str:
    """Path of Chromium or Chrome.

    Raises:
        InputError: Neither is on the path.
    """
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if (found := shutil.which(name)) is not None:
            return found
    raise InputError("neither chromium nor google-chrome is on the path; install one to take pictures")


def take(browser: str, page: Path, picture: Path, width: int, height: int) -> None:
    """Write a picture of a page, of so many pixels, in 256 colours so that the repository stays small."""
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-sync", "--no-first-run", "--hide-scrollbars"]
    options += ["--disable-background-networking", "--disable-component-update", "--disable-quic"]
    command = [browser, *options, f"--screenshot={picture}", f"--window-size={width},{height}", page.resolve().as_uri()]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    with Image.open(picture) as image:
        small = image.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    small.save(picture, optimize=True)


if __name__ == "__main__":
    for path in make_pictures(Path(sys.argv[1])):
        print(f"{path}: {path.stat().st_size / 1024:.0f} KiB")
