"""CSV files with one row per input: numbers, and a column with the class.

The first line names the columns. The classes may be numbers or text. A single file is split into training and test
rows at random, always in the same way. A folder may have train.csv and test.csv instead.
"""

from __future__ import annotations

import csv
import difflib
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from advibp.data import file_limits
from advibp.data.assembly import Array
from advibp.data.features import shortened_names
from advibp.data.formats import label_tables
from advibp.errors import UserError

#: Share of the rows of a single file that become test rows.
TEST_SHARE = 0.2
#: More classes than this are a sign of a wrong label column.
MAX_CLASSES = 1000

_SPLIT_SEED = 2021


@dataclass(frozen=True)
class Table:
    """The content of a CSV file.

    Attributes:
        names: names of the columns without the label.
        x: numbers, (N, F), float64.
        labels: text of the label column, N of them.
        label: name of the label column.
    """

    names: tuple[str, ...]
    x: Array
    labels: list[str]
    label: str


@dataclass(frozen=True)
class Tables:
    """A data set of tables.

    Attributes:
        arrays: the arrays x_train, y_train, x_test and y_test.
        class_names: names of the classes, in the order of their numbers.
        feature_names: names of the columns.
    """

    arrays: dict[str, Array]
    class_names: tuple[str, ...]
    feature_names: tuple[str, ...]


def read(path: Path, label: str | None = None) -> Tables:
    """Read a CSV file, of which a fifth of the rows becomes the test set.

    Args:
        path: the file.
        label: name of the label column. Default: the last column.
    """
    table = read_table(path, label)
    if len(table.labels) < 10:
        raise UserError(f"{path} has {len(table.labels)} rows; give at least 10, a fifth of which is the test set.")
    order = np.random.RandomState(_SPLIT_SEED).permutation(len(table.labels))
    tested = order[: round(TEST_SHARE * len(order))]
    train, test = np.sort(order[len(tested) :]), np.sort(tested)
    numbers, names = _numbered(table.labels, table, path)
    arrays = {"x_train": table.x[train], "y_train": numbers[train], "x_test": table.x[test], "y_test": numbers[test]}
    return Tables(arrays, names, table.names)


def recognize(folder: Path) -> bool:
    """Whether a folder has train.csv and test.csv with numbers. (A CSV may also list files of images.)"""
    files = [folder / "train.csv", folder / "test.csv"]
    return all(file.is_file() for file in files) and not any(
        {name.lower() for name in _header(file)} & {*label_tables.FILE_COLUMNS} for file in files
    )


def read_folder(folder: Path, label: str | None = None) -> Tables:
    """Read train.csv and test.csv of a folder, which have the same columns in any order."""
    train = read_table(folder / "train.csv", label)
    test = read_table(folder / "test.csv", train.label)
    if set(train.names) != set(test.names):
        name = sorted(set(train.names) ^ set(test.names))[0]
        raise UserError(
            f"train.csv and test.csv of {folder} differ in the column '{name}'; give both the same columns."
        )
    numbers, names = _numbered([*train.labels, *test.labels], train, folder)
    columns = [test.names.index(name) for name in train.names]
    arrays = {
        "x_train": train.x,
        "y_train": numbers[: len(train.labels)],
        "x_test": test.x[:, columns],
        "y_test": numbers[len(train.labels) :],
    }
    return Tables(arrays, names, train.names)


def read_table(path: Path, label: str | None = None) -> Table:
    """Read a CSV file. Values are separated by commas, semicolons or tabs.

    Raises:
        UserError: if the file cannot be read, has no header or no such column, or a value is missing or is no number.
    """
    rows: list[list[float]] = []
    labels: list[str] = []
    try:
        file_limits.check(path.stat().st_size // 2, path)
        with path.open(newline="", encoding="utf-8-sig") as stream:
            lines = csv.reader(stream, delimiter=_delimiter(path))
            header = [cell.strip() for cell in next(lines, [])]
            at = _check_header(header, label, path)
            for row in lines:
                if not row:
                    continue
                where = f"Line {lines.line_num} of {path}"
                if len(row) != len(header):
                    raise UserError(f"{where} has {len(row)} values for {len(header)} columns; correct it.")
                labels.append(row[at].strip())
                if not labels[-1]:
                    raise UserError(f"{where} has no class in the column '{header[at]}'; add it or remove the line.")
                rows.append([_number(cell, header[k], where) for k, cell in enumerate(row) if k != at])
    except (csv.Error, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read as CSV ({error}); save it as UTF-8 text.") from error
    except OSError as error:
        raise UserError(f"Cannot read {path} ({error.strerror or error}); check the file.") from error
    if not rows:
        raise UserError(f"{path} has no rows after its header; give one row for each input.")
    names = tuple(name for k, name in enumerate(header) if k != at)
    return Table(names, np.array(rows), labels, header[at])


def _delimiter(path: Path) -> str:
    with path.open(newline="", encoding="utf-8-sig") as stream:
        first = stream.readline()
    return max(",;\t", key=first.count)


def _header(path: Path) -> list[str]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            return [cell.strip() for cell in next(csv.reader(stream, delimiter=_delimiter(path)), [])]
    except (OSError, csv.Error, UnicodeDecodeError):
        return []


def _check_header(header: list[str], label: str | None, path: Path) -> int:
    """Check the names of the columns and return the position of the label column."""
    if len(header) < 2:
        raise UserError(f"{path} has {len(header)} columns; expected a header, numeric columns and a label column.")
    if all(_is_number(name) for name in header):
        raise UserError(f"The first line of {path} has numbers; it must name the columns.")
    twice = next((name for name in header if header.count(name) > 1), None)
    if twice is not None or "" in header:
        problem = "a column without a name" if not twice else f"two columns '{twice}'"
        raise UserError(f"{path} has {problem}; give each column a name of its own.")
    if label is None:
        return len(header) - 1
    if label not in header:
        close = difflib.get_close_matches(label, header, n=1)
        hint = f"did you mean '{close[0]}'?" if close else f"its columns are {shortened_names(header)}."
        raise UserError(f"{path} has no column '{label}' for the classes; {hint}")
    return header.index(label)


def _number(cell: str, name: str, where: str) -> float:
    try:
        value = float(cell)
    except ValueError:
        problem = "no value" if not cell.strip() else repr(cell)
        raise UserError(
            f"{where} has {problem} in the column '{name}', which must be a number; encode or remove the column or the "
            "line, or choose the label column with label (--label)."
        ) from None
    if not math.isfinite(value) or abs(value) > float(np.finfo(np.float32).max):
        raise UserError(f"{where} has {cell.strip()} in the column '{name}'; every value must be a finite float32.")
    return value


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _numbered(labels: list[str], table: Table, where: object) -> tuple[Array, tuple[str, ...]]:
    """Number the classes in alphabetical order, or in ascending order if they are whole numbers."""
    names = sorted(set(labels))
    if all(name.lstrip("-").isdecimal() for name in names):
        names.sort(key=int)
    if len(names) > min(MAX_CLASSES, max(2, len(labels) // 2)):
        raise UserError(
            f"The column '{table.label}' of {where} has {len(names)} different values, too many for classes; choose "
            "the label column with label (--label)."
        )
    numbers = {name: k for k, name in enumerate(names)}
    return np.array([numbers[name] for name in labels], dtype=np.int64), tuple(names)
