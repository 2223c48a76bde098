"""A CSV that says which image file is of which class."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator
from pathlib import Path

from advibp.errors import UserError

FILE_COLUMNS = ("filename", "path", "file", "filepath", "file_name", "image")
CLASS_COLUMNS = ("classid", "class_id", "label", "class", "target")


def read(table: Path, root: Path, elsewhere: Path | None = None) -> list[tuple[Path, str]]:
    """Files and their classes; the paths are relative to the CSV, or to ``elsewhere``, and must not leave ``root``."""
    places = [table.parent] + ([elsewhere] if elsewhere else [])
    inside = os.path.realpath(root)
    found = [(_file(name, places, inside, where), label) for name, label, where in _rows(table)]
    if not found:
        raise UserError(f"{table} lists no images; expected one row for each.")
    return found


def _rows(table: Path) -> Iterator[tuple[str, str, str]]:
    """File name, class, and where that stands."""
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
                    raise UserError(f"{where} lacks a file or a class; mend or remove it.")
                yield row[file].strip(), row[label].strip(), where
    except (csv.Error, UnicodeDecodeError) as error:
        raise UserError(f"{table} is no CSV that can be read ({error}); save it as UTF-8 text.") from error
    except OSError as error:
        raise UserError(f"Cannot read {table} ({error.strerror or error}); check the file and its rights.") from error


def _column(header: list[str], names: tuple[str, ...], table: Path) -> int:
    for name in names:
        if name in header:
            return header.index(name)
    raise UserError(f"{table} has no column {', '.join(names[:-1])} or {names[-1]}; its first line must name it.")


def _file(name: str, places: list[Path], inside: str, where: str) -> Path:
    if os.path.isabs(name) or ".." in Path(name).parts:
        raise UserError(f"{where} names '{name}', which leads out of the data set; give paths relative to the CSV.")
    for place in places:
        if os.path.isfile(place / name):
            if not os.path.realpath(place / name).startswith(inside + os.sep):
                raise UserError(f"{where} names '{name}', a link that leads out of the data set; put the file there.")
            return place / name
    raise UserError(f"{where} names '{name}', which is no file in {places[-1]}; mend the line or put the file there.")
