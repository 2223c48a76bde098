"""The command line, end to end on a tiny problem; and mistakes: exit code 2, one line, nothing changed on disk."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import call, halves
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from advibp import Recipe, cli, data, nets, open_run
from advibp.methods import METHODS
from advibp.recipe import shipped
from advibp.storage import checkpoint
from advibp.verify import ibp_margins

torch.set_num_threads(1)

OPTIONS = "--epochs 4 --warmup-natural 1 --warmup-adversarial 0.5 --ramp 1 --eps 0.1 --lr 0.02 --batch-size 20"
OPTIONS += " --validation 30 --threads 1"
TRAIN = f"train data.npz 'FC 8' {OPTIONS}"

OWN = """
import torch
from torch import nn

class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.last = nn.LSTM(4, 8, batch_first=True), nn.Linear(8, 2)

    def forward(self, x):
        return self.last(self.lstm(x[:, 0])[0][:, -1])

class Pair(nn.Linear):
    def forward(self, x):
        return super().forward(x.flatten(1)), None

class Moody(nn.Linear):
    def forward(self, x):
        raise KeyError("not today")

class Noisy(nn.Sequential):
    def forward(self, x):
        return super().forward(x + 0.5 * torch.randn(x.shape))

class Writing(nn.Sequential):
    def forward(self, x):
        x *= 1.5
        return super().forward(x)

class Scaled(nn.Sequential):
    def forward(self, x):
        return super().forward(x * 1.5)

def noisy(): return Noisy(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 2))
def writing(): return Writing(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 2))
def scaled(): return Scaled(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 2))
def good(): return nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 2))
def lstm(): return Recurrent()
def softmax(): return nn.Sequential(nn.Flatten(), nn.Linear(16, 2), nn.Softmax(1))
def narrow(): return nn.Sequential(nn.Flatten(), nn.Linear(9, 2))
def pair(): return Pair(16, 2)
def moody(): return Moody(16, 2)
def number(): return 5
def fails(): raise RuntimeError("first line\\nsecond line")
"""


def save_npz(path: Path, x: np.ndarray, y: np.ndarray, labels: int | None = None) -> None:
    np.savez(path, x_train=x, y_train=y[:labels], x_test=x[:40], y_test=y[:40])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data, a finished run, and many kinds of wrong input."""
    here = tmp_path_factory.mktemp("place")
    x, y = halves(150)
    save_npz(here / "data.npz", x, y)
    save_npz(here / "wide.npz", *halves(150, 6))
    save_npz(here / "labels.npz", x, y, labels=149)
    nan = x.astype(np.float32) / 255
    nan[7, 1, 1] = np.nan
    save_npz(here / "nan.npz", nan, y)
    (here / "torn.npz").write_bytes((here / "data.npz").read_bytes()[:-200])
    (here / "idx").mkdir()
    for name, part in (("train", slice(None)), ("t10k", slice(0, 40))):
        images, labels = x[part], y[part].astype(np.uint8)
        head = struct.pack(">4I", 0x803, *images.shape)
        (here / "idx" / f"{name}-images-idx3-ubyte").write_bytes(head + images.tobytes()[:-3])
        (here / "idx" / f"{name}-labels-idx1-ubyte").write_bytes(
            struct.pack(">2I", 0x801, len(labels)) + labels.tobytes()
        )
    (here / "own.py").write_text(OWN)
    (here / "unknown.yaml").write_text("lr: 0.1\nlearning_speed: 3\n")
    (here / "broken.yaml").write_text("lr: [1\n  : x")
    (here / "list.yaml").write_text("- 1\n")
    (here / "file").write_text("in the way")
    (here / "text.png").write_text("no image")
    Image.fromarray(x[0]).save(here / "first.png")
    Image.fromarray(halves(1, 6)[0][0]).save(here / "wide.png")
    (here / "torn.png").write_bytes((here / "first.png").read_bytes()[:40])
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(here)
        assert call(f"{TRAIN} --out run") == 0
    for name in ("damaged", "torn", "unfinished", "garbled"):
        shutil.copytree(here / "run", here / name)
    flipped = bytearray((here / "run" / "model.safetensors").read_bytes())
    flipped[-5] ^= 4
    (here / "damaged" / "model.safetensors").write_bytes(flipped)
    for path in checkpoint.newest(here / "torn" / "checkpoints"):
        path.write_bytes(path.read_bytes()[:100])
    (here / "unfinished" / "model.safetensors").unlink()
    (here / "garbled" / "recipe.yaml").write_text("\0")
    return here


@pytest.fixture
def here(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(place)
    return place


@pytest.fixture
def own_run(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A writable copy of the data and a finished run."""
    monkeypatch.chdir(tmp_path)
    for name in ("data.npz", "own.py", "first.png"):
        shutil.copy(place / name, tmp_path)
    shutil.copytree(place / "run", tmp_path / "run")
    return tmp_path


def model(run: str) -> tuple[dict[str, bytes], dict[str, object]]:
    """Return the weights of a run and its facts."""
    tensors, facts = checkpoint.load(Path(run) / "model.safetensors")
    return {k: v.numpy().tobytes() for k, v in tensors.items()}, facts


# What works


def test_training_prints_one_plain_line_per_epoch(own_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(f"{TRAIN} --out runs/new") == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", out)  # no colors, no carriage returns
    assert [int(n) for n in re.findall(r"^ *(\d+)/4 ", out, re.MULTILINE)] == [1, 2, 3, 4]
    assert "advibp certify runs/new --eps 0.1" in out
    files = {p.name for p in Path("runs/new").iterdir()}
    assert files == {
        "recipe.yaml",
        "sources.json",
        "metrics.jsonl",
        "events",
        "checkpoints",
        "model.safetensors",
        "summary.json",
    }


def test_training_again_gives_the_same_weights(own_run: Path) -> None:
    assert call(f"{TRAIN} --out again") == 0
    assert model("again") == model("run")


def test_command_of_the_summary_reproduces_the_run(own_run: Path) -> None:
    summary = json.loads(Path("run/summary.json").read_text())
    assert call(f"{summary['command'].removeprefix('advibp ')} --out again") == 0
    assert model("again") == model("run")


@pytest.mark.parametrize("again", ["", "--lr 0.02", "--recipe same.yaml", "data.npz 'FC 8' --eps 1/10"])
def test_resuming_a_finished_run_changes_nothing(again: str, own_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also with options of its recipe."""
    before = model("run")
    Path("same.yaml").write_text("lr: 0.02\nramp: 1\n")
    assert call(f"train {again} --resume --out run") == 0
    assert model("run") == before
    assert capsys.readouterr().err == ""


def test_deleted_model_is_restored_from_the_last_checkpoint(own_run: Path) -> None:
    before = model("run")
    Path("run/model.safetensors").unlink()
    assert call("train --resume --out run") == 0
    assert model("run") == before


def test_table_of_several_verifiers(own_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    every = "ibp crown-ibp crown deepz alpha-crown"
    options = f"--eps 0.05 --by {every} --attack apgd --attack-steps 5 --sample 12 --workers 2 --threads 1"
    assert call(f"certify run {options}") == 0
    out = capsys.readouterr().out
    assert "decisions by check" in out
    assert "12 test images, apgd steps=5" in out
    records = [json.loads(line) for line in Path("run/certify/records.jsonl").read_text().splitlines()]
    assert len(records) == 12
    assert {r["provers"] for r in records} == {every}
    assert {r["verdict"] for r in records} <= {"robust", "falsified", "misclassified", "unknown"}
    said = json.loads(Path("run/certify/summary.json").read_text())
    assert sum(decided["images"] for decided in said["flow"]["0.05"]) == 12


def test_radii(own_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("certify run --radius --by ibp crown-ibp --attack-steps 5 --limit 6 --threads 1") == 0
    assert "certified accuracy" in capsys.readouterr().out
    lines = [json.loads(line) for line in Path("run/certify/radii.jsonl").read_text().splitlines()]
    assert [line["index"] for line in lines] == list(range(6))
    assert call("certify run --radius --sample 3") == 2


def test_certifying_twice_reuses_the_verdicts(own_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = []
    for _ in range(2):
        assert call("certify run --eps 0.05 8/255 --attack-steps 10 --limit 30 --threads 1") == 0
        said.append(capsys.readouterr())
        said_now = Path("run/certify/records.jsonl").read_bytes()
        assert said[0] == said[-1]
        assert len(said_now.splitlines()) == 60
    assert said[0].err == ""
    assert "verified error" in said[0].out
    assert call("certify run --attack-steps 10") == 0  # at the run's own eps
    assert "0.1" in capsys.readouterr().out


def test_the_attack_is_never_weaker_than_no_attack(own_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("attack run --eps 0.1 0.5 --attack-steps 5 --attack-restarts 2 --attack-loss margin --threads 1") == 0
    out, err = capsys.readouterr()
    assert err == ""
    rows = re.findall(r"([\d.]+) %[^\d]+([\d.]+) %", out)
    assert len(rows) == 2
    assert all(float(standard) <= float(attacked) for standard, attacked in rows)
    net = open_run("run").net
    test = data.load("data.npz", validation=30).test
    for eps in (0.1, 0.5):
        tensors, facts = checkpoint.load(Path(f"run/attack/eps-{eps:g}.safetensors"))
        assert facts["eps"] == eps
        assert (tensors["x_adv"] - test.x).abs().max() <= eps + 1e-6
        assert torch.equal(net(tensors["x_adv"]).argmax(1) != test.y, tensors["broken"])


def test_image_file_is_predicted_like_the_test_image(own_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("predict run test:0 first.png test:1") == 0
    out, err = capsys.readouterr()
    assert err == ""
    first, file, second = out.splitlines()
    tail = first.split(": class")[1]
    assert re.sub(r" \(label \d\)", "", tail) == file.split(": class")[1]
    assert "(label" in first
    assert "(label" in second
    assert re.search(r"proved for every change of up to eps 0\.\d+|not proved", first)


def test_printed_radius_is_certified(own_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Radii are rounded down; rounding to nearest could print radii that are not certified."""
    assert call("predict run " + " ".join(f"test:{i}" for i in range(8))) == 0
    run = open_run("run")
    net = run.net
    x = data.load(run.recipe.data, validation=run.recipe.validation).test.x
    for i, line in enumerate(capsys.readouterr().out.splitlines()):
        found = re.search(r"eps (0\.\d+)", line)
        if found:
            label = net(x[i : i + 1]).argmax(1)
            assert float(ibp_margins.lower_margin(net, x[i : i + 1], label, float(found[1]))) > 0


def test_user_network(own_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(f"train data.npz own.py:good {OPTIONS} --out own") == 0
    assert call("certify own --net own.py:good --attack-steps 5 --limit 5") == 0
    assert call("predict own test:3 --net own.py:good") == 0
    capsys.readouterr()
    assert call("certify own --attack-steps 5") == 2
    assert "--net" in capsys.readouterr().err
    assert call("certify own --net own.py:narrow --attack-steps 5") == 2
    capsys.readouterr()
    for command in ("certify own --attack-steps 5", "certify own --radius --attack-steps 5", "predict own test:3"):
        assert call(f"{command} --net own.py:noisy") == 2
        out, err = capsys.readouterr()
        assert "draws random numbers" in err
        assert "class" not in out
    told = []
    for name in ("writing", "scaled"):
        assert call(f"predict own test:3 test:4 --net own.py:{name}") == 0
        told.append(capsys.readouterr().out)
    assert told[0] == told[1]


@pytest.mark.parametrize("command", ["", "train", "certify", "attack", "predict", "nets", "methods", "recipes"])
def test_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(f"{command} --help") == 0
    out, err = capsys.readouterr()
    assert out.startswith("usage: advibp")
    assert err == ""


def test_every_recipe_key_is_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    call("train --help")
    said = capsys.readouterr().out
    for key in Recipe().as_dict():
        assert key in ("data", "net", "published") or f"--{key.replace('_', '-')}" in said


def test_lists(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("methods") == 0
    said = capsys.readouterr().out
    assert all(name in said for name in METHODS)
    assert call("recipes") == 0
    assert capsys.readouterr().out.split() == list(shipped())
    for name in shipped():
        assert call(f"recipes {name}") == 0
        assert "lr: " in capsys.readouterr().out
    assert call("nets") == 0
    assert "dm-small" in capsys.readouterr().out
    assert call("nets 'Conv 4 3x3+1, FC 9' --shape 3x8x8 --classes 4") == 0
    assert "FC 9" in capsys.readouterr().out
    assert call("--version") == 0


def test_special_characters_in_paths_are_printed(own_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = "[bold] and [/odd] " + 30 * "long"
    assert call(f"{TRAIN} --out '{name}'") == 0
    assert f"-> {name}\n" in capsys.readouterr().out
    assert call(f"certify '{name}' --attack-steps 2 --limit 3") == 0
    assert f"records: {name}/certify/records.jsonl\n" in capsys.readouterr().out


@settings(max_examples=30)
@given(
    method=st.sampled_from(sorted(METHODS)),
    eps=st.floats(1e-3, 1),
    lr=st.floats(1e-6, 10),
    c_max=st.just("auto") | st.floats(0, 5),
    clip=st.none() | st.floats(0.1, 100),
    milestones=st.lists(st.sampled_from(["5%", "50%", 3.5]), max_size=2),
    normalize=st.booleans(),
    net=st.sampled_from(["dm-small", "Conv 3 2x2+1, FC 4", "a folder/own.py:make"]),
)
def test_command_of_a_recipe_is_complete(milestones: list[str | float], **options: object) -> None:
    recipe = Recipe.load(**options, lr_milestones=milestones)
    args = vars(cli.parser().parse_args(shlex.split(recipe.command())[1:]))
    assert Recipe.load(**{k: args[k] for k in recipe.as_dict() if args[k] is not None}) == recipe


def test_ctrl_c(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("advibp.cli.certify_command.open_with_facts", interrupt)
    assert call("certify run") == 130
    assert "Traceback" not in capsys.readouterr().err


# What does not


# By name of the problem: the command, and a part of the error message.
MISTAKES = {
    "truncated idx file": (f"train idx 'FC 8' {OPTIONS} --out new", "truncated"),
    "labels that do not fit": (f"train labels.npz 'FC 8' {OPTIONS} --out new", "149 labels"),
    "NaN in the data": (f"train nan.npz 'FC 8' {OPTIONS} --out new", "NaN"),
    "truncated npz": (f"train torn.npz 'FC 8' {OPTIONS} --out new", "torn.npz"),
    "no such data": (f"train nowhere.npz 'FC 8' {OPTIONS} --out new", "nowhere.npz"),
    "unknown data set": (f"train mnits 'FC 8' {OPTIONS} --out new", "mnist"),
    "negative eps": (f"{TRAIN} --eps -1 --out new", "eps is '-1'"),
    "eps beyond the images": (f"{TRAIN} --eps 2 --out new", "eps is 2"),
    "eps zero": (f"{TRAIN} --eps 0 --out new", "eps is '0'"),
    "unknown net": (f"train data.npz dm-smal {OPTIONS} --out new", "did you mean 'dm-small'"),
    "malformed grammar": (f"train data.npz 'Conv 16 4x4, FC' {OPTIONS} --out new", "Conv 16 4x4"),
    "kernel larger than the image": (f"train data.npz 'Conv 4 9x9+1' {OPTIONS} --out new", "does not fit"),
    "unknown method": (f"{TRAIN} --method magic --out new", "method is 'magic'"),
    "unknown recipe key": (f"{TRAIN} --recipe unknown.yaml --out new", "learning_speed"),
    "unknown recipe": (f"{TRAIN} --recipe paper/mnist-9 --out new", "paper/mnist-9"),
    "recipe that is no YAML": (f"{TRAIN} --recipe broken.yaml --out new", "no valid YAML"),
    "recipe that is a list": (f"{TRAIN} --recipe list.yaml --out new", "holds no recipe"),
    "recipe that is a folder": (f"{TRAIN} --recipe run --out new", "no recipe 'run'"),
    "phases that do not fit": (f"{TRAIN} --ramp 5 --out new", "6.5 epochs"),
    "too many validation images": (f"{TRAIN} --validation 150 --out new", "validation is 150"),
    "training limit below one": (f"{TRAIN} --limit 0 --out new", "limit is '0'"),
    "lr that is no number": (f"{TRAIN} --lr fast --out new", "lr is 'fast'"),
    "epochs that are no number": (f"{TRAIN} --epochs nan --out new", "epochs is 'nan'"),
    "negative threads": (f"{TRAIN} --threads -1 --out new", "threads is '-1'"),
    "unknown device": (f"{TRAIN} --device abacus --out new", "Device 'abacus'"),
    "device that is not here": (f"{TRAIN} --device cuda:99 --out new", "Device 'cuda:99'"),
    "file in the way": (f"{TRAIN} --out file", "is a file"),
    "file above": (f"{TRAIN} --out file/new", "is a file"),
    "unwritable folder": (f"{TRAIN} --out /proc/new", "can't be written"),
    "another run": (f"{TRAIN} --out run", "--resume"),
    "resume with another lr": (f"{TRAIN} --resume --out run --lr 0.5", "lr = 0.02, not 0.5"),
    "resume with another recipe": ("train --resume --out run --recipe demo", "eps = 0.1, not 0.12"),
    "resume from torn checkpoints": ("train --resume --out torn", "All checkpoints of torn"),
    "resume with a garbled recipe": ("train --resume --out garbled", "garbled/recipe.yaml is damaged"),
    "recurrent network": (f"train data.npz own.py:lstm {OPTIONS} --out new", "layer 'lstm'"),
    "softmax": (f"train data.npz own.py:softmax {OPTIONS} --out new", "layer '2' (Softmax)"),
    "softmax, only watched": (f"train data.npz own.py:softmax {OPTIONS} --method standard --out new", "Softmax"),
    "network for other images": (f"train data.npz own.py:narrow {OPTIONS} --out new", "can't take images"),
    "network that returns a pair": (f"train data.npz own.py:pair {OPTIONS} --out new", "returns a tuple"),
    "network that fails": (f"train data.npz own.py:moody {OPTIONS} --out new", "not today"),
    "function that returns no network": (f"train data.npz own.py:number {OPTIONS} --out new", "returned int"),
    "function that fails": (f"train data.npz own.py:fails {OPTIONS} --out new", "first line second line"),
    "no such function": (f"train data.npz own.py:nothing {OPTIONS} --out new", "nothing"),
    "no such file": (f"train data.npz nowhere.py:net {OPTIONS} --out new", "nowhere.py"),
    "no run": ("certify idx", "is not a run"),
    "no folder": ("certify nowhere", "is not a run"),
    "damaged model": ("certify damaged", "is damaged"),
    "damaged model, predicted": ("predict damaged test:0", "is damaged"),
    "run that is not finished": ("certify unfinished", "not finished"),
    "attack on a run that is not finished": ("attack unfinished", "not finished"),
    "negative radius": ("certify run --eps 0.1 -1", "eps is -1"),
    "radius beyond the images": ("attack run --eps 2", "eps is 2"),
    "negative limit": ("certify run --limit -1", "--limit"),
    "no images": ("attack run --limit 0", "--limit"),
    "no steps": ("certify run --attack-steps 0", "--attack-steps"),
    "unknown prover": ("certify run --by ibp magic", "no verifier 'magic'"),
    "no time": ("certify run --budget 0", "budget is 0"),
    "a budget that nothing would use": ("certify run --budget 5", "budget limits verifiers that run after the attack"),
    "a step that apgd does not take": ("certify run --attack apgd --attack-step-size 0.1", "leave step out"),
    "radii for a radius": ("certify run --radius --eps 0.1 --workers 2", "--eps, --workers would be ignored"),
    "a file for a property without one": ("certify run --result file", "--result would be ignored without --onnx"),
    "empty sample": ("certify run --sample 0", "--sample"),
    "a loss that pgd has not": ("certify run --attack-loss dlr", "is not an attack"),
    "no restarts": ("attack run --attack-restarts 0", "--attack-restarts"),
    "no step size": ("attack run --attack-step-size 0", "step=0"),
    "no threads": ("certify run --threads 0", "--threads"),
    "device that is not here, certifying": ("certify run --device cuda:99", "Device 'cuda:99'"),
    "unknown verifier": ("certify run --by magic", "no verifier 'magic'"),
    "other images": ("certify run --data wide.npz", "[1, 6, 6]"),
    "other network": ("certify run --net own.py:lstm", "do not match this network"),
    "image of another size": ("predict run wide.png", "6x6 pixels"),
    "text as image": ("predict run text.png", "text.png cannot be read as an image"),
    "truncated image": ("predict run torn.png", "torn.png cannot be read as an image"),
    "no such image": ("predict run nowhere.png", "does not exist"),
    "no such test image": ("predict run test:40", "test:0 to test:39"),
    "no number of a test image": ("predict run test:²", "is not a test image"),
    "steps that are no number": ("certify run --attack-steps many", "'many'"),
    "radius that is no number": ("attack run --eps wide", "'wide' is not a number"),
    "unknown loss": ("attack run --attack-loss l2", "l2"),
    "unknown option": ("certify run --fast", "--fast"),
    "unknown command": ("prove run", "prove"),
    "no command": ("", "COMMAND"),
    "unknown shape": ("nets dm-small --shape 28x28", "28x28"),
    "one class": ("nets dm-small --classes 1", "2 classes"),
    "two lists of verifiers": ("certify RUN --by ibp --complete", "not allowed with"),
    "net too large for the shape": ("nets cnn-large --shape 1x2x2", "does not fit"),
    "no such recipe": ("recipes nowhere", "no recipe 'nowhere'"),
}


def snapshot(folder: Path) -> dict[Path, bytes]:
    return {
        path: path.read_bytes() if path.is_file() else b""
        for path in folder.rglob("*")
        if "__pycache__" not in str(path)
    }


def is_one_plain_sentence(said: str) -> bool:
    return said.startswith("error: ") and said.count("\n") == 1 and said.endswith("\n") and "Traceback" not in said


@pytest.mark.parametrize("mistake", MISTAKES)
def test_error_message_is_one_line(mistake: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command, word = MISTAKES[mistake]
    before = snapshot(here)
    assert call(command) == 2
    said = capsys.readouterr().err
    assert is_one_plain_sentence(said)
    assert word in said
    assert snapshot(here) == before


def test_error_message_of_a_process_is_one_line(here: Path) -> None:
    command, word = MISTAKES["labels that do not fit"]
    argv = [sys.executable, "-m", "advibp.cli", *shlex.split(command)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert is_one_plain_sentence(done.stderr)
    assert word in done.stderr


def test_a_collapsed_network_is_reported_by_every_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, weights = str(tmp_path / "run"), tmp_path / "constant.safetensors"
    net = nets.build("FC 5")
    net[-1].weight.data.zero_()
    net[-1].bias.data.copy_(torch.arange(10.0))
    checkpoint.save(weights, net.state_dict(), {})
    options = ["--method", "standard", "--epochs", "1", "--lr", "1e-9", "--limit", "200", "--validation", "50"]
    options += ["--weights", str(weights), "--eps", "0.1", "--out", run]
    assert cli.main(["train", "mnist", "FC 5", *options]) == 0
    assert "warning: The network" in capsys.readouterr().out
    assert cli.main(["certify", run, "--eps", "0.1", "--limit", "50", "--attack-steps", "1"]) == 0
    assert "warning: The network" in capsys.readouterr().out
    assert cli.main(["predict", run, "test:0"]) == 0
    assert "warning: The network" in capsys.readouterr().out
