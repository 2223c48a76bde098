"""advibp export, and certify --onnx --vnnlib: what is written is what is proved, and the last line is the verdict."""

from __future__ import annotations

import csv
import json
import signal
import time
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from commands import call, halves

from advibp import open_run
from advibp.vnncomp.vnnlib import vnnlib_file


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, exported with properties of its test images."""
    here = tmp_path_factory.mktemp("elsewhere")
    x, y = halves(150)
    np.savez(here / "data.npz", x_train=x, y_train=y, x_test=x[:12], y_test=y[:12])
    train = f"train {here}/data.npz 'FC 8' --epochs 4 --warmup-natural 1 --warmup-adversarial 0.5 --ramp 1 --eps 0.1"
    assert call(f"{train} --lr 0.02 --batch-size 20 --validation 30 --threads 1 --out {here}/run") == 0
    assert call(f"export {here}/run --onnx {here}/net.onnx --vnnlib {here}/props --eps 0.3 --limit 8") == 0
    return here


def instances(place: Path) -> list[list[str]]:
    return list(csv.reader((place / "props" / "instances.csv").open()))


def test_the_exported_network_is_the_run(place: Path) -> None:
    run = open_run(place / "run")
    assert run.recipe.eps == 0.1
    session = onnxruntime.InferenceSession(place / "net.onnx", providers=["CPUExecutionProvider"])
    x = torch.rand(5, 1, 4, 4)
    (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    with torch.no_grad():
        assert np.allclose(found, run.net(x).numpy(), atol=1e-5)


def test_verdicts_are_those_of_certify(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(f"certify {place}/run --eps 0.3 --complete --budget 600 --limit 8 --threads 1") == 0
    records = [json.loads(line) for line in (place / "run" / "certify" / "records.jsonl").open()]
    verdicts = {r["index"]: r["verdict"] for r in records if r["eps"] == 0.3}
    capsys.readouterr()
    listed = instances(place)
    assert len(listed) == 8
    for i, (net, prop, _) in enumerate(listed):
        assert call(f"certify --onnx {net} --vnnlib {prop} --timeout 600 --threads 1") == 0
        lines = capsys.readouterr().out.strip().splitlines()
        assert lines[-1] == {"robust": "unsat", "falsified": "sat", "misclassified": "sat"}[verdicts[i]]
        if lines[-1] == "sat":
            assert lines[0].startswith("((X_0 ")
            point = [float(line.strip("()").split()[1]) for line in lines if "X_" in line]
            case = vnnlib_file.read(prop).cases[0]
            x = torch.tensor(point, dtype=torch.float64)
            assert (x >= case.lower).all()
            assert (x <= case.upper).all()
            told = torch.tensor([float(line.strip("()").split()[1]) for line in lines if "Y_" in line])
            session = onnxruntime.InferenceSession(net, providers=["CPUExecutionProvider"])
            (found,) = session.run(None, {session.get_inputs()[0].name: x.float().view(1, 1, 4, 4).numpy()})
            assert np.allclose(found[0], told, atol=1e-5)
            assert any(bool((c @ told.double() + d <= 0).all()) for c, d in case.disjuncts)


def test_result_file(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    net, prop, _ = instances(place)[0]
    assert call(f"certify --onnx {net} --vnnlib {prop} --result {place}/answer.txt") == 0
    assert (place / "answer.txt").read_text().splitlines()[0] == capsys.readouterr().out.strip().splitlines()[-1]


def test_trace_as_text_and_as_page(place: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    net, prop, _ = instances(place)[0]
    assert call(f"certify --onnx {net} --vnnlib {prop} --threads 1 --trace {tmp_path}/page.html") == 0
    assert len(capsys.readouterr().out.splitlines()) > 2
    page = (tmp_path / "page.html").read_text()
    assert "Time of each method" in page
    assert "linear bounds" in page


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("certify --onnx {0}/net.onnx", "Give --onnx NET and --vnnlib"),
        ("certify --vnnlib {0}/p", "Give --onnx NET and --vnnlib"),
        ("certify {0}/run --onnx {0}/net.onnx --vnnlib {0}/p", "no run"),
        ("certify --onnx {0}/data.npz --vnnlib {1}", "not an ONNX file"),
        ("certify --onnx {0}/none.onnx --vnnlib {1}", "none.onnx"),
        ("certify --onnx {0}/net.onnx --vnnlib {0}/none", "can't be read"),
        ("certify --onnx {0}/net.onnx --vnnlib {0}/net.onnx", "net.onnx"),
        ("certify --onnx {0}/net.onnx --vnnlib {1} --timeout 0", "timeout is 0"),
        ("certify --onnx {0}/net.onnx --vnnlib {1} --timeout nan", "timeout is nan"),
        ("certify --onnx {0}/net.onnx --vnnlib {1} --device moon", "moon"),
        ("certify --onnx {0}/net.onnx --vnnlib {1} --result {0}/none/answer.txt", "none does not exist"),
        ("certify --onnx {0}/net.onnx --vnnlib {1} --result {0}", "choose another place"),
        ("certify --onnx {0}/net.onnx --vnnlib {1} --trace {0}/none/page.html", "name of an .html file"),
        ("certify --onnx {0}/net.onnx --vnnlib {1} --trace {0}/page.txt", "name of an .html file"),
    ],
)
def test_error_message_and_last_line(
    place: Path, command: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(command.format(place, instances(place)[0][1])) == 2
    out, err = capsys.readouterr()
    assert out.strip().splitlines() == ["error"]
    assert sentence in err
    assert err.count("\n") == 1


def test_bug_is_reported_as_error(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("no memory")

    monkeypatch.setattr("advibp.cli.property_command.decide", broken)
    assert call(f"certify --onnx {place}/net.onnx --vnnlib {instances(place)[0][1]}") == 2
    out, err = capsys.readouterr()
    assert out.strip() == "error"
    assert "no memory" in err


def test_timeout_of_code_that_does_not_check_the_time(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("advibp.cli.property_command.decide", lambda *_, **__: time.sleep(600))
    began = time.monotonic()
    assert call(f"certify --onnx {place}/net.onnx --vnnlib {instances(place)[0][1]} --timeout 0.5") == 1
    assert capsys.readouterr().out == "timeout\n"
    assert time.monotonic() - began < 300
    assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0


def test_contradictory_property(place: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = Path(instances(place)[0][1]).read_text()
    (tmp_path / "p.vnnlib").write_text(text + "(assert (>= X_3 5))\n")
    assert call(f"certify --onnx {place}/net.onnx --vnnlib {tmp_path}/p.vnnlib") == 0
    out, err = capsys.readouterr()
    assert out == "unsat\n"
    assert "contradict each other" in err


def test_a_radius_of_0_is_not_the_one_of_the_run(place: Path, tmp_path: Path) -> None:
    assert call(f"export {place}/run --onnx {tmp_path}/net.onnx --vnnlib {tmp_path}/props --eps 0") == 2


def test_certify_without_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("certify --eps 0.1") == 2
    assert "folder of a run, or --onnx" in capsys.readouterr().err
