"""Tables: CSV files, folders with train.csv and test.csv, and arrays (N, F)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from samples import refused
from torch.utils.data import DataLoader, TensorDataset

from advibp import data

ROWS = "\n".join(f"{k},{k / 10},{'cat' if k % 3 else 'dog'}" for k in range(30))


def write(path: Path, text: str) -> Path:
    path.write_text(text, "utf-8")
    return path


def test_a_csv_file(tmp_path: Path) -> None:
    table = data.load(write(tmp_path / "pets.csv", f"age, weight ,kind\n{ROWS}\n"))
    assert table.feature_names == ("age", "weight")
    assert table.class_names == ("cat", "dog")
    assert table.input_shape == (2,)
    assert table.input_range is None
    assert (len(table.train), len(table.validation), len(table.test)) == (22, 2, 6)
    x = torch.cat([table.train.x, table.validation.x, table.test.x])
    y = torch.cat([table.train.y, table.validation.y, table.test.y])
    assert torch.equal(x[:, 0].sort().values, torch.arange(30.0))
    assert torch.equal(y, (x[:, 0] % 3 == 0).long())
    again = data.load(tmp_path / "pets.csv")
    assert torch.equal(again.test.x, table.test.x)
    assert table.mean == pytest.approx(table.train.x.double().mean(0).tolist())
    assert table.std == pytest.approx(table.train.x.double().std(0, correction=0).tolist())


def test_the_label_column_delimiter_and_range(tmp_path: Path) -> None:
    rows = "\n".join(f"{k % 2 + 1};{k};{-k}" for k in range(20))
    file = write(tmp_path / "a.csv", f"\ufeffclass;a;b\r\n{rows}\n")
    table = data.load(file, label="class", input_range={"a": (0, None), "*": (None, 0)})
    assert table.class_names == ("1", "2")
    low, high = table.input_range or (None, None)
    assert torch.as_tensor(low).tolist() == [0.0, -torch.inf]
    assert torch.as_tensor(high).tolist() == [torch.inf, 0.0]


def test_a_folder_with_its_own_test_set(tmp_path: Path) -> None:
    write(tmp_path / "train.csv", f"age,weight,kind\n{ROWS}\n")
    write(tmp_path / "test.csv", "kind,weight,age\ndog,1,100\n")
    table = data.load(tmp_path)
    assert table.test.x.tolist() == [[100.0, 1.0]]
    assert table.test.y.tolist() == [1]


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ("", {}, "0 columns"),
        ("a\n1\n", {}, "1 columns"),
        ("1,2\n3,4\n", {}, "must name the columns"),
        ("a,a,y\n1,2,0\n", {}, "two columns 'a'"),
        ("a,,y\n1,2,0\n", {}, "without a name"),
        ("a,b,y\n", {}, "no rows"),
        ("a,b,y\n1,2\n", {}, "Line 2"),
        ("a,b,y\n1,,x\n", {}, "no value in the column 'b'"),
        ("a,b,y\n1,red,x\n", {}, "'red' in the column 'b'"),
        ("a,b,y\n1,nan,x\n", {}, "finite"),
        ("a,b,y\n1,1e39,x\n", {}, "finite"),
        ("a,b,y\n1,2,\n", {}, "no class"),
        ("a,b,kind\n1,2,x\n", {"label": "kinds"}, "did you mean 'kind'"),
        ("a,b,y\n1,2,x\n", {}, "at least 10"),
        ("a,y,b\n" + "\n".join(f"{k},0,{k}" for k in range(20)), {}, "too many for classes"),
        ("a,y\n" + "\n".join(f"{k},same" for k in range(20)), {}, "single class"),
        ("a,y\n" + "\n".join(f"{k},{k % 2}" for k in range(20)), {"input_range": (0, 5)}, "outside of input_range"),
        ("a,y\n" + "\n".join(f"{k},{k % 2}" for k in range(20)), {"input_range": {"b": (0, 5)}}, "'b'"),
        ("a,y\n" + "\n".join(f"{k},{k % 2}" for k in range(20)), {"size": 3}, "size is 3"),
    ],
)
def test_bad_tables(tmp_path: Path, text: str, options: dict[str, object], words: str) -> None:
    file = write(tmp_path / "bad.csv", text)
    refused(lambda: data.load(file, **options), words)


def test_a_label_needs_a_table() -> None:
    refused(lambda: data.load("mnist", label="y"), "label is 'y'")


def test_npz_with_names_and_a_range(tmp_path: Path) -> None:
    x, y = np.arange(40.0).reshape(20, 2), np.arange(20) % 2
    names = {"feature_names": np.array(["a", "b"]), "class_names": np.array(["no", "yes"])}
    np.savez(tmp_path / "t.npz", x_train=x, y_train=y, x_test=x, y_test=y, input_range=np.array([0, 50]), **names)
    table = data.load(tmp_path / "t.npz")
    assert (table.feature_names, table.class_names, table.input_range) == (("a", "b"), ("no", "yes"), (0.0, 50.0))
    np.savez(tmp_path / "u.npz", x_train=x, y_train=y, x_test=x, y_test=y, feature_names=np.array([1, 2]))
    refused(lambda: data.load(tmp_path / "u.npz"), "feature_names in")


def test_signals_keep_their_shape() -> None:
    x, y = torch.randn(20, 2, 7), torch.arange(20) % 2
    signals = data.from_tensors(x, y, x, y, images=False)
    assert signals.input_shape == (2, 7)
    assert signals.input_range is None
    assert torch.equal(signals.test.x, x)
    assert len(signals.mean) == 2


def test_wrong_names() -> None:
    x, y = torch.randn(20, 2), torch.arange(20) % 2
    refused(lambda: data.from_tensors(x, y, x, y, feature_names=["a"]), "1 feature names for the 2 features")
    refused(lambda: data.from_tensors(x, y, x, y, feature_names=["a", "a"]), "feature names")
    refused(lambda: data.from_tensors(x, y, x, y, class_names=["a", "b", "c"], classes=2), "3 class names")
    refused(lambda: data.from_tensors(x, y, x, y, input_range=([0, 0, 0], [1, 1, 1])), "shape (3,)")
    refused(lambda: data.from_tensors(x, y, x, y, input_range=5), "input_range is 5")
    images = torch.rand(20, 1, 2, 2)
    refused(lambda: data.from_tensors(images, y, images, y, input_range=(-1, 1)), "images=False")


def test_datasets_and_loaders_of_rows() -> None:
    x, y = 100 * torch.randn(30, 4), torch.arange(30) % 3
    rows = TensorDataset(x, y)
    table = data.from_datasets(rows, rows, validation=5, input_range=(None, 1e4), feature_names=list("abcd"))
    assert table.input_shape == (4,)
    assert table.feature_names == ("a", "b", "c", "d")
    assert table.test.input_range == (-torch.inf, 1e4)
    assert torch.equal(table.test.batch(torch.arange(30))[0], x)
    loader = data.from_datasets(DataLoader(rows, batch_size=10), rows, validation=5)
    assert loader.input_range is None
    outside = data.from_datasets(rows, rows, validation=5, input_range=(0, 2))
    refused(lambda: outside.test.batch(torch.arange(30)), "outside of input_range")
