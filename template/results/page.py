"""The HTML of a report: one file with its pictures inside, which opens anywhere and can be sent on."""

import base64
import html
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from template.results.figures import Picture
from template.run_folder import write_whole

_STYLE = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1240px; padding: 20px 24px 40px; background: #f4f5f7; color: #1d2430;
       font: 14px/1.45 system-ui, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
h1 { font-size: 20px; margin: 0 0 12px; overflow-wrap: anywhere; } h1 small { font-weight: normal; color: #667080; }
h2 { font-size: 14px; margin: 0 0 6px; }
p { margin: 4px 0; color: #4a5361; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(145px, 1fr)); gap: 10px; margin: 12px 0; }
.card { background: white; border: 1px solid #dfe3e8; border-radius: 8px; padding: 8px 12px; min-width: 0; }
.card b { display: block; font-size: 21px; line-height: 1.25; font-variant-numeric: tabular-nums; }
.card span { color: #667080; font-size: 12px; overflow-wrap: anywhere; } .card.first { border-left: 4px solid #2f6fb0; }
.grid { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 12px; }
section { background: white; border: 1px solid #dfe3e8; border-radius: 8px; padding: 12px 14px; min-width: 0; }
section.wide { grid-column: 1 / -1; } section > img { width: 100%; height: auto; display: block; }
.scroll { max-height: 430px; overflow: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 3px 8px; border-bottom: 1px solid #edeff2; white-space: nowrap; }
th { color: #667080; font-weight: 600; font-size: 12px; position: sticky; top: 0; background: white; }
th:first-child, td:first-child, .text td { text-align: left; } .text th { text-align: left; }
.text td { white-space: normal; overflow-wrap: anywhere; }
td.bar { background: linear-gradient(90deg, #cfe0f2 var(--share), transparent var(--share)); }
pre { overflow: auto; font-size: 12px; background: #f7f8fa; padding: 10px; margin: 6px 0 0; }
summary { cursor: pointer; font-weight: 600; }
@media (max-width: 860px) { .grid { grid-template-columns: 1fr; } }
@media print { body { background: white; } .scroll { max-height: none; } section { break-inside: avoid; } }
"""


class Page:
    """Collects sections, top to bottom, and writes them with their pictures.

    Args:
        title: Title of the page.
        note: Said beside it.
    """

    def __init__(self, title: str, note: str = "") -> None:
        self.title = title
        self.head = f"<h1>{html.escape(title)} <small>{html.escape(note)}</small></h1>"
        self.sections: list[str] = []
        self.pictures: dict[str, bytes] = {}

    def cards(self, values: Mapping[str, tuple[str, str]]) -> None:
        """Large numbers in a row: {name: (value, what is said below it)}."""
        cards = [
            f'<div class="card{" first" if number == 0 else ""}"><span>{html.escape(name)}</span>'
            f"<b>{html.escape(value)}</b><span>{html.escape(below)}</span></div>"
            for number, (name, (value, below)) in enumerate(values.items())
        ]
        self.head += f'<div class="cards">{"".join(cards)}</div>'

    def note(self, text: str) -> None:
        """A line below the cards."""
        self.head += f"<p>{html.escape(text)}</p>"

    def picture(self, name: str, drawn: Picture, title: str = "", wide: bool = False) -> None:
        """A figure, which is also written as ``<name>.png``; it is closed up to a section of its own."""
        self.pictures[name] = drawn.png()
        encoded = base64.b64encode(self.pictures[name]).decode()
        image = f'<img alt="{html.escape(title or name)}" src="data:image/png;base64,{encoded}">'
        self._section(title, image, wide)

    def table(
        self,
        title: str,
        header: Sequence[str],
        rows: Iterable[Sequence[Any]],
        bars: Sequence[str] = (),
        wide: bool = False,
        text: bool = False,
    ) -> None:
        """A table that scrolls where it is long.

        Args:
            title: Above it.
            header: Column names.
            rows: Cells; floats are shown as numbers of three decimals, those of ``bars`` with a bar behind.
            bars: Columns of values in [0, 1].
            wide: Over the whole width.
            text: Whether cells hold text, which is set to the left and wrapped.
        """
        head = "".join(f"<th>{html.escape(name)}</th>" for name in header)
        body = "".join(
            f"<tr>{''.join(_cell(cell, name in bars) for name, cell in zip(header, row, strict=True))}</tr>"
            for row in rows
        )
        kind = ' class="text"' if text else ""
        table = f"<table{kind}><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        self._section(title, f'<div class="scroll">{table}</div>', wide)

    def details(self, title: str, text: str) -> None:
        """A text that is folded away."""
        self.sections.append(
            f'<section class="wide"><details><summary>{html.escape(title)}</summary>'
            f"<pre>{html.escape(text)}</pre></details></section>"
        )

    def _section(self, title: str, inside: str, wide: bool) -> None:
        heading = f"<h2>{html.escape(title)}</h2>" if title else ""
        kind = ' class="wide"' if wide else ""
        self.sections.append(f"<section{kind}>{heading}{inside}</section>")

    def write(self, folder: Path) -> Path:
        """Write index.html and the pictures into a folder, which is made."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in self.pictures.items():
            (folder / f"{name}.png").write_bytes(content)
        write_whole(
            folder / "index.html",
            '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<title>{html.escape(self.title)}</title>\n<style>{_STYLE}</style>\n<body>\n{self.head}\n"
            f'<div class="grid">\n{chr(10).join(self.sections)}\n</div>\n</body>\n</html>\n',
        )
        return folder / "index.html"


def _cell(value: Any, bar: bool) -> str:
    if isinstance(value, float):
        shown = "–" if math.isnan(value) else f"{value:.3f}"
        if bar and not math.isnan(value):
            return f'<td class="bar" style="--share: {100 * value:.0f}%">{shown}</td>'
        return f"<td>{shown}</td>"
    return f"<td>{html.escape(f'{value:,}' if isinstance(value, int) else str(value))}</td>"
