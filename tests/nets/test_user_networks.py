"""Networks loaded from a user's function: what works, and the error messages."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from advibp import nets
from advibp.errors import UserError

NET = """
import sys
from dataclasses import dataclass
from torch import nn

@dataclass
class Widths:
    hidden: "int" = 3

class Mine(nn.Module):
    def __init__(self, widths: Widths = Widths()):
        super().__init__()
        self.widths = widths
        self.out = nn.Linear(4, widths.hidden)

    def forward(self, x):
        return self.out(x.flatten(1))

def good(): return Mine()
def loud():
    print("hello")
    return Mine()
def leaves(): sys.exit(3)
def needs(width, depth, *, classes, bias=True): return Mine()
def any_number(*args, **options): return Mine()
def a_class(): return Mine
def number(): return 7
def nothing(): pass
def fails(): raise RuntimeError("not today")
def late():
    import no_such_module_at_all
instance = Mine()
constant = 7
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a folder" / "own.py"
    path.parent.mkdir()
    path.write_text(NET)
    return path


def write_files(folder: Path, **files: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, code in files.items():
        (folder / f"{name}.py").write_text(code)
    return folder


@pytest.mark.parametrize("name", ["good", "any_number", "Mine"])
def test_functions_and_classes_make_networks(file: Path, name: str) -> None:
    net = nets.from_file(f"{file}:{name}")
    assert type(net).__name__ == "Mine"
    assert net(torch.rand(2, 1, 2, 2)).shape == (2, 3)


def test_relative_path(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    assert isinstance(nets.from_file("own.py:good"), nn.Module)


def test_the_network_can_be_pickled(file: Path) -> None:
    net = nets.from_file(f"{file}:good")
    x = torch.rand(1, 4)
    assert torch.equal(pickle.loads(pickle.dumps(net))(x), net(x))


def test_output_goes_to_stderr(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nets.from_file(f"{file}:loud")
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err == "hello\n"


def test_neighbors_can_be_imported_and_sys_path_is_restored(tmp_path: Path) -> None:
    write_files(
        tmp_path,
        net="from dataclasses import dataclass\nimport my_blocks\ndef make(): return my_blocks.block()",
        my_blocks="from torch import nn\ndef block(): return nn.Linear(2, 5)",
    )
    before = list(sys.path)
    assert nets.from_file(f"{tmp_path / 'net.py'}:make").out_features == 5
    assert sys.path == before


def test_each_file_gets_its_own_neighbors(tmp_path: Path) -> None:
    """Python caches the first file's neighbor, so the second file would silently get the wrong module."""
    for width in (3, 4):
        write_files(
            tmp_path / str(width),
            net="import my_blocks, my_package.deep\ndef make(): return my_blocks.block()",
            my_blocks=f"from torch import nn\ndef block(): return nn.Linear(2, {width})",
        )
        write_files(tmp_path / str(width) / "my_package", __init__="", deep="")
    for width in (3, 4, 3):
        assert nets.from_file(f"{tmp_path / str(width) / 'net.py'}:make").out_features == width
        assert Path(sys.modules["my_package.deep"].__file__ or "").parents[1].name == str(width)


def test_installed_modules_are_not_reloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules imported from a virtual environment in the folder are not loaded twice."""
    write_files(tmp_path / "venv" / "site-packages", installed_thing="")
    monkeypatch.syspath_prepend(str(tmp_path / "venv" / "site-packages"))
    write_files(tmp_path, net="import installed_thing\nfrom torch import nn\ndef make(): return nn.Linear(2, 2)")
    nets.from_file(f"{tmp_path / 'net.py'}:make")
    loaded = sys.modules["installed_thing"]
    nets.from_file(f"{tmp_path / 'net.py'}:make")
    assert sys.modules["installed_thing"] is loaded


def test_importable_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(tmp_path / "vision", __init__="", small="from torch import nn\ndef make(): return nn.Linear(2, 6)")
    monkeypatch.chdir(tmp_path)
    assert nets.is_user_code("vision.small:make")
    assert nets.from_file("vision.small:make").out_features == 6
    assert isinstance(nets.from_file("torch.nn:Identity"), nn.Identity)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("leaves", "ended the program (exit 3)"),
        ("needs", "needs arguments (width, depth, classes)"),
        ("a_class", "return an instance of it: Mine()"),
        ("number", "returned int"),
        ("nothing", "returned NoneType"),
        ("fails", "with RuntimeError: not today"),
        ("late", "needs the module 'no_such_module_at_all'"),
        ("instance", "is already a network"),
        ("constant", "has no function 'constant'"),
        ("god", "did you mean good?"),
    ],
)
def test_error_messages(file: Path, name: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        nets.from_file(f"{file}:{name}")
    assert message in str(caught.value)


@pytest.mark.parametrize("name", ["fails", "leaves", "late"])
def test_error_message_has_the_line(file: Path, name: str) -> None:
    with pytest.raises(UserError) as caught:
        nets.from_file(f"{file}:{name}")
    line = int(str(caught.value).partition(" in line ")[2].split()[0])
    body = NET.splitlines()[line - 1]
    assert "raise" in body or "exit" in body or "import" in body


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def make(:", "SyntaxError"),
        ("raise SystemExit('bye')", "ended the program (exit bye)"),
        ("1 / 0", "in line 1 with ZeroDivisionError"),
        ("from . import neighbor", "ImportError"),
        ("\0", "null bytes"),
    ],
)
def test_file_that_does_not_run(tmp_path: Path, code: str, message: str) -> None:
    write_files(tmp_path, broken=code)
    with pytest.raises(UserError) as caught:
        nets.from_file(f"{tmp_path / 'broken.py'}:make")
    assert message in str(caught.value)
    assert "advibp_own_broken" not in sys.modules


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("nowhere.py:net", "There is no file nowhere.py"),
        ("nowhere.py:", "There is no file nowhere.py"),
        ("nowhere", "names no Python file"),
        ("", "names no Python file"),
        ("no_such_module_at_all:net", "'no_such_module_at_all'"),
        ("torch.nn:Linear", "needs arguments (in_features, out_features)"),
    ],
)
def test_bad_specs(spec: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as caught:
        nets.from_file(spec)
    assert message in str(caught.value)


def test_keyboard_interrupt_is_raised(tmp_path: Path) -> None:
    write_files(tmp_path, slow="raise KeyboardInterrupt")
    before = list(sys.path)
    with pytest.raises(KeyboardInterrupt):
        nets.from_file(f"{tmp_path / 'slow.py'}:make")
    assert sys.path == before


@pytest.mark.parametrize("spec", [*nets.STRUCTURES, "Conv 16 4x4+2, FC 100", "MyNet", "a:b:c", "Res 1+1: no"])
def test_structures_are_not_user_networks(spec: str) -> None:
    assert not nets.is_user_code(spec)
