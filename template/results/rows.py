"""Rows to a CSV, JSON Lines or Parquet file, as they come, in a file that appears when it is whole."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from template.errors import InputError

ROW_SUFFIXES = (".csv", ".jsonl", ".parquet")


class RowFile:
    """A context that takes rows; the file gets its name when the context ends without an error.

    Args:
        path: The file; its suffix says which of the three it is.
        columns: Names of the columns; those named ``probability…`` hold numbers, the others text.

    Raises:
        InputError: The suffix is another, the folder is missing, or pyarrow is, for Parquet.
    """

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        if path.suffix.lower() not in ROW_SUFFIXES:
            raise InputError(f"--output is {path}; expected a name that ends in {', '.join(ROW_SUFFIXES)}")
        if not path.parent.is_dir():
            raise InputError(f"--output is {path}, and there is no folder {path.parent}; make it first")
        self.path = path
        self.columns = list(columns)
        self.partial = path.with_name(f".{path.name}.partial")
        self.kind = path.suffix.lower()
        if self.kind == ".parquet":
            self._arrow_schema()

    def __enter__(self) -> "RowFile":
        self.parquet: Any = None
        self.file: IO[str] | None = None
        if self.kind == ".parquet":
            import pyarrow.parquet

            self.parquet = pyarrow.parquet.ParquetWriter(self.partial, self._arrow_schema())
        else:
            # A path that is no UTF-8 keeps its bytes.
            self.file = self.partial.open("w", newline="", encoding="utf-8", errors="surrogateescape")
            if self.kind == ".csv":
                csv.writer(self.file).writerow(self.columns)
        return self

    def write(self, rows: Sequence[dict[str, Any]]) -> None:
        """Append rows; a value that is None is an empty cell, or a null."""
        if self.parquet is not None:
            import pyarrow

            self.parquet.write_table(pyarrow.Table.from_pylist(_utf8(rows), self._arrow_schema()))
            return
        assert self.file is not None
        if self.kind == ".csv":
            writer = csv.DictWriter(self.file, self.columns)
            writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
        else:
            self.file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)

    def __exit__(self, kind: object, *error: object) -> None:
        for writer in (self.parquet, self.file):
            if writer is not None:
                writer.close()
        if kind is None:
            self.partial.replace(self.path)
        else:
            self.partial.unlink(missing_ok=True)

    def _arrow_schema(self) -> Any:
        try:
            import pyarrow
        except ImportError:
            raise InputError(
                f"--output is {self.path}, and pyarrow is not installed; pip install pyarrow, or write .csv or .jsonl"
            ) from None
        numbers = pyarrow.float32()
        return pyarrow.schema(
            [(name, numbers if name.startswith("probability") else pyarrow.string()) for name in self.columns]
        )


def _cell(value: Any) -> Any:
    return f"{value:.6f}" if isinstance(value, float) else value


def _utf8(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Parquet's text has to be UTF-8: bytes of a path that are not are written as their escapes."""
    return [{**row, "path": row["path"].encode("utf-8", "backslashreplace").decode()} for row in rows]
