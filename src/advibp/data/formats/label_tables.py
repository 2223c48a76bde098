"""CSV files that list image files and their classes."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator
from pathlib import Path

from advibp.errors import UserError

FILE_COLUMNS = ("filename", "path", "file", "filepath", "file_name", "image")
CLASS_COLUMNS = ("classid", "class_id", "label", "class", "target")


def read(table: Path, root: Path, image_folder: Path | None = None) -> list[tuple[Path, str]]:
    """Read a table.

    Args:
        table: The CSV file. Its first line names the columns; see `FILE_COLUMNS` and `CLASS_COLUMNS`.
        root: The folder of the data set. Image files outside of it are refused.
        image_folder: Folder where image files are looked for if they are not found relative to the table.

    Returns:
        Image files and the names of their classes.

    Raises:
        UserError: If the table cannot be read, a column or a file is missing, or a path leads out of ``root``.
    """
    folders = [table.parent] + ([image_folder] if image_folder else [])
    real_root = os.path.realpath(root)
    entries = [(_find_file(name, folders, real_root, where), label) for name, label, where in _rows(table)]
    if not entries:
        raise UserError(f"{table} lists no images; expected one row for each.")
    return entries


def _rows(table: Path) -> Iterator[tuple[str, str, str]]:
    """Yield the file name, the class and the location of each row, for errors."""
    try:
        with table.open(newline="", encoding="utf-8-sig") as stream:
            delimiter = ";" if ";" in stream.readline() else ","
            stream.seek(0)
            rows = csv.reader(stream, delimiter=delimiter)
            header = [cell.strip().lower() for cell in next(rows, [])]
            file, label = (_column(header, names, table) for names in (FILE_COLUMNS, CLASS_COLUMNS))
            for row in rows:
                where = f"Line {rows.line_num} of {table}"
                if not row:
                    continue
                if len(row) <= max(file, label) or not row[file].strip() or not row[label].strip():
                    raise UserError(f"{where} lacks a file or a class; fix or remove it.")
                yield row[file].strip(), row[label].strip(), where
    except (csv.Error, UnicodeDecodeError) as error:
        raise UserError(f"{table} cannot be read as CSV ({error}); save it as UTF-8 text.") from error
    except OSError as error:
        raise UserError(
            f"Cannot read {table} ({error.strerror or error}); check the file and its permissions."
        ) from error


def _column(header: list[str], names: tuple[str, ...], table: Path) -> int:
    for name in names:
        if name in header:
            return header.index(name)
    raise UserError(f"{table} has no column {', '.join(names[:-1])} or {names[-1]}; its first line must name it.")


def _find_file(name: str, folders: list[Path], real_root: str, where: str) -> Path:
    if os.path.isabs(name) or ".." in Path(name).parts:
        raise UserError(f"{where} names '{name}', which leads out of the data set; give paths relative to the CSV.")
    for folder in folders:
        if os.path.isfile(folder / name):
            if not os.path.realpath(folder / name).startswith(real_root + os.sep):
                raise UserError(f"{where} names '{name}', a link that leads out of the data set; put the file there.")
            return folder / name
    raise UserError(f"{where} names '{name}', which is not a file in {folders[-1]}; fix the line or add the file.")
