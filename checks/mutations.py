"""Check `certify --onnx` on damaged and modified ONNX and VNN-LIB files: no crash, no hang, no wrong verdict.

    python checks/mutations.py --files 2000 --seed 0 --json counts.json

Small networks (fully connected, convolutional, residual, with sigmoid, with max pooling) and properties of them are
mutated: bytes are flipped, removed and repeated; weights, attributes, names and connections are changed in valid files;
numbers, operators and parentheses of properties are changed. Each pair is certified in a process of a pool with a limit
of 5 seconds, like `advibp certify --onnx NET --vnnlib PROPERTY --timeout 5`. The result counts crashes (no verdict, a
traceback, a dead process), hangs (no verdict long after the limit) and contradictions: `unsat` although a sampled point
is unsafe in onnxruntime, or `sat` with a point that is safe. The exit code is 1 if there is any of them.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import multiprocessing
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import numpy_helper

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "helpers"))

from graphs import model, node, weights

from advibp.cli import main as advibp
from advibp.vnncomp.vnnlib import vnnlib_file

LIMIT = 5.0  # seconds for a verdict
GRACE = 300.0  # seconds after the limit until it counts as a hang
SAMPLES = 300
TOLERANCE = 1e-4  # onnxruntime adds in another order
VERDICTS = {"sat": 0, "unsat": 0, "unknown": 0, "timeout": 1, "error": 2}


# ---- original files


def networks() -> list[tuple[onnx.ModelProto, int]]:
    """Return models and their numbers of inputs. All have two outputs."""
    dense = {"a": weights(4, 8), "b": weights(8), "c": weights(8, 2), "d": weights(2)}
    fc = [node("MatMul", "x a", "1"), node("Add", "1 b", "2"), node("Relu", "2", "3"), node("Gemm", "3 c d", "y")]
    curved = [*fc[:2], node("Sigmoid", "2", "3"), fc[3]]
    square = {**dense, "e": weights(8, 8, seed=1)}
    skip = [
        *fc[:3],
        node("MatMul", "3 e", "4"),
        node("Add", "3 4", "5"),
        node("Relu", "5", "6"),
        node("Gemm", "6 c d", "y"),
    ]
    conv = {"k": weights(2, 1, 2, 2), "a": weights(8, 2), "shape": [1, -1]}
    image = [
        node("Conv", "x k", "1", strides=[1, 1], pads=[0, 0, 0, 0], kernel_shape=[2, 2]),
        node("Relu", "1", "2"),
        node("Reshape", "2 shape", "3"),
        node("MatMul", "3 a", "y"),
    ]
    pooled = [
        node("Conv", "x k", "1", strides=[1, 1], pads=[1, 1, 1, 1], kernel_shape=[2, 2]),
        node("MaxPool", "1", "2", kernel_shape=[2, 2], strides=[2, 2]),
        node("Relu", "2", "3"),
        node("Flatten", "3", "4"),
        node("MatMul", "4 a", "y"),
    ]
    return [
        (model([1, 4], fc, dense), 4),
        (model([1, 4], curved, dense), 4),
        (model([1, 4], skip, square), 4),
        (model([1, 1, 3, 3], image, conv), 9),
        (model([1, 1, 3, 3], pooled, conv), 9),
    ]


def property_text(dice: random.Random, inputs: int) -> str:
    lines = [f"(declare-const X_{i} Real)" for i in range(inputs)] + [f"(declare-const Y_{i} Real)" for i in range(2)]
    for i in range(inputs):
        middle, width = dice.random(), dice.choice([0.01, 0.1, 0.5])
        lines += [f"(assert (>= X_{i} {middle - width:.4f}))", f"(assert (<= X_{i} {middle + width:.4f}))"]
    shift = dice.uniform(-1, 1)
    rows = ["(<= Y_0 Y_1)", f"(>= Y_0 {shift:.3f})", f"(<= (+ Y_0 (* 2.0 Y_1)) {shift:.3f})", "(>= Y_1 Y_0)"]
    one, other = dice.sample(rows, 2)
    lines.append(f"(assert {dice.choice([one, f'(and {one} {other})', f'(or {one} (and {one} {other}))'])})")
    return "\n".join(lines) + "\n"


# ---- mutations


def damaged(dice: random.Random, raw: bytes) -> bytes:
    data = bytearray(raw)
    for _ in range(dice.choice([1, 1, 2, 8])):
        place = dice.randrange(max(1, len(data)))
        kind = dice.choice(["flip", "cut", "double", "drop", "noise"])
        if kind == "flip" and data:
            data[place] ^= 1 << dice.randrange(8)
        elif kind == "cut" and dice.random() < 0.3:
            del data[place:]
        elif kind == "double":
            data[place:place] = data[place : place + dice.randrange(1, 20)]
        elif kind == "drop":
            del data[place : place + dice.randrange(1, 6)]
        elif data:
            data[place] = dice.randrange(256)
    return bytes(data)


def changed(dice: random.Random, made: onnx.ModelProto) -> bytes:
    """Return a valid file with another network."""
    net = onnx.ModelProto()
    net.CopyFrom(made)
    for _ in range(dice.choice([1, 1, 2])):
        kinds = ["weights", "number", "shape", "operator", "wiring", "attribute", "remove", "type", "input"]
        kind = dice.choices(kinds, [5, 5, 1, 2, 2, 3, 1, 1, 1])[0]
        nodes, constants = net.graph.node, net.graph.initializer
        which = dice.choice(constants)
        try:
            array = numpy_helper.to_array(which).copy()
        except (ValueError, TypeError):  # its shape or type was changed before
            break
        if kind == "weights" and array.dtype == np.float32:
            array *= dice.choice([-1, 0, 0.5, 2, 5, 1e20])
            which.CopyFrom(numpy_helper.from_array(array, which.name))
        elif kind == "number" and array.size:
            array.flat[dice.randrange(array.size)] = dice.choice([0, -1, 5, 10**6])
            if array.dtype == np.float32 and dice.random() < 0.3:
                array.flat[0] = dice.choice([np.nan, np.inf, 1e38])
            which.CopyFrom(numpy_helper.from_array(array, which.name))
        elif kind == "shape" and which.dims:
            which.dims[dice.randrange(len(which.dims))] = dice.choice([0, 1, 3, -1, 2**40])
        elif kind == "operator":
            dice.choice(nodes).op_type = dice.choice(
                ["Relu", "Tanh", "Neg", "Add", "Softmax", "Identity", "Mul", "Sub"]
            )
        elif kind == "wiring":
            at, source = dice.choice(nodes), dice.choice(nodes)
            at.input[dice.randrange(len(at.input))] = dice.choice([*source.input, *source.output, "nobody"])
        elif kind == "attribute":
            with_some = [n for n in nodes if n.attribute]
            if with_some:
                attribute = dice.choice(dice.choice(with_some).attribute)
                for i in range(len(attribute.ints)):
                    attribute.ints[i] = dice.choice([-1, 0, 1, 2, 3, 10**9])
                attribute.i = dice.choice([-1, 0, 1, 7])
        elif kind == "remove":
            del nodes[dice.randrange(len(nodes))]
            if not nodes:
                break
        elif kind == "type":
            which.data_type = dice.choice([1, 2, 6, 7, 9, 10, 11, 99])
        else:
            dims = net.graph.input[0].type.tensor_type.shape.dim
            dims[dice.randrange(len(dims))].dim_value = dice.choice([0, 1, 2, 5, 1000, -3])
    return net.SerializeToString()


def reworded(dice: random.Random, text: str) -> str:
    words = text.replace("(", " ( ").replace(")", " ) ").split(" ")
    for _ in range(dice.choice([1, 2, 4])):
        place = dice.randrange(len(words))
        kind = dice.choice(["number", "number", "number", "number", "swap", "drop", "double", "word"])
        numbers = [i for i, word in enumerate(words) if "." in word]
        if kind == "number" and numbers:
            place = dice.choice(numbers)
            words[place] = f"{float(words[place]) + dice.choice([-1, -0.1, 0.1, 1]):.4f}"
        elif kind == "swap":
            other = dice.randrange(len(words))
            words[place], words[other] = words[other], words[place]
        elif kind == "drop":
            del words[place]
        elif kind == "double":
            words.insert(place, words[place])
        else:
            words[place] = dice.choice(["and", "or", "<=", ">=", "X_0", "Y_1", "1e3", "-1", "(", ")", "not", "nan"])
    return " ".join(words)


def pair(seed: int) -> tuple[bytes, bytes]:
    """Return a network and a property, at least one of them mutated."""
    dice = random.Random(seed)
    made, inputs = dice.choice(networks())
    net, text = made.SerializeToString(), property_text(dice, inputs)
    kind = dice.choice(["bytes", "net", "net", "net", "text", "text", "text bytes", "both"])
    if kind == "bytes":
        net = damaged(dice, net)
    if kind in ("net", "both"):
        net = changed(dice, made)
    if kind in ("text", "both"):
        text = reworded(dice, text)
    raw = text.encode()
    return net, damaged(dice, raw) if kind == "text bytes" else raw


# ---- a process of the pool


def certify(net: Path, prop: Path) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = advibp(["certify", "--onnx", str(net), "--vnnlib", str(prop), "--timeout", str(LIMIT), "--threads", "1"])
    return code, out.getvalue(), err.getvalue()


def judged(net: Path, prop: Path, verdict: str, lines: list[str]) -> str | None:
    """Return a message if onnxruntime contradicts the verdict."""
    asked = vnnlib_file.read(prop)
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    try:
        session = onnxruntime.InferenceSession(net, options, providers=["CPUExecutionProvider"])
        entry = session.get_inputs()[0]
        shape = [d if isinstance(d, int) and d > 0 else 1 for d in entry.shape]
        kind = np.float64 if "double" in entry.type else np.float32

        def run(x: torch.Tensor) -> torch.Tensor:
            found = session.run(None, {entry.name: x.numpy().astype(kind).reshape(shape)})[0]
            return torch.from_numpy(np.asarray(found, np.float64).ravel())

        run(asked.cases[0].lower if asked.cases else torch.zeros(asked.inputs))
    except Exception:  # onnxruntime does not support the file or the shape
        return "not judged"
    if verdict == "sat":
        numbers = [float(line.strip("() ").split(" ")[1]) for line in lines if "X_" in line]
        x = torch.tensor(numbers, dtype=torch.float64)
        return None if _holds(asked, x, run(x), TOLERANCE) else f"sat, but not at {numbers}"
    for case in asked.cases:
        for _ in range(SAMPLES):
            x = case.lower + (case.upper - case.lower) * torch.rand(asked.inputs, dtype=torch.float64)
            if _holds(asked, x, run(x), -TOLERANCE):
                return f"unsat, but it holds at {x.tolist()}"
    return None


def _holds(asked: vnnlib_file.Property, x: torch.Tensor, y: torch.Tensor, slack: float) -> bool:
    """Return whether the property holds at x; approximately with slack > 0, clearly with slack < 0."""
    if y.numel() != asked.outputs or not bool(y.isfinite().all()):
        return False
    room = slack * (1 + float(y.abs().max()))
    for case in asked.cases:
        inside = bool((x >= case.lower - 1e-6).all() and (x <= case.upper + 1e-6).all())
        if inside and any(bool((rows @ y + offsets <= room).all()) for rows, offsets in case.disjuncts):
            return True
    return False


def work(tasks: Connection, folder: str) -> None:
    torch.set_num_threads(1)
    net, prop = Path(folder, "net.onnx"), Path(folder, "prop.vnnlib")
    _written(0, net, prop)
    certify(net, prop)  # a warm-up: on a busy machine, the imports of the first call take longer than the limit
    tasks.send("ready")
    while True:
        _written(tasks.recv(), net, prop)
        try:
            code, out, err = certify(net, prop)
            lines = out.strip().splitlines()
            verdict = lines[-1] if lines else ""
            wrong = None
            if VERDICTS.get(verdict) != code or "Traceback" in err or (verdict == "error" and err.count("\n") != 1):
                wrong = f"crash: exit code {code}, last line {verdict!r}, {err[-200:]!r}"
            elif verdict in ("sat", "unsat"):
                tasks.send(("judging", verdict, None))  # later crashes are onnxruntime's
                against = judged(net, prop, verdict, lines)
                if against == "not judged":
                    verdict += ", not judged"
                elif against:
                    wrong = f"contradiction: {against}"
        except BaseException:
            verdict, wrong = "", f"crash: {traceback.format_exc()[-600:]}"
        tasks.send(("done", verdict, wrong))


def _written(seed: int, net: Path, prop: Path) -> None:
    for file, content in zip((net, prop), pair(seed), strict=True):
        file.write_bytes(content)


class Worker:
    """A process with one task at a time. It is replaced if it dies or hangs."""

    def __init__(self, folder: str) -> None:
        self.folder, self.seed = folder, None
        self._begin()

    def _begin(self) -> None:
        self.pipe, theirs = multiprocessing.Pipe()
        self.process = multiprocessing.Process(target=work, args=(theirs, self.folder), daemon=True)
        self.process.start()
        theirs.close()
        self.pipe.recv()

    def give(self, seed: int) -> None:
        self.seed, self.since, self.stage = seed, time.monotonic(), "certifying"
        self.pipe.send(seed)

    def look(self) -> tuple[str, str | None] | None:
        """Return the verdict and a message if something is wrong, once the task is done."""
        try:
            while self.pipe.poll():
                self.stage, verdict, wrong = self.pipe.recv()
                if self.stage == "done":
                    return verdict, wrong
        except EOFError:
            return self._replace("crash: the process died")
        if time.monotonic() - self.since > LIMIT + GRACE:
            return self._replace(f"hang: {self.stage}")
        return None

    def _replace(self, wrong: str) -> tuple[str, str | None]:
        self.process.kill()
        self.process.join()
        self._begin()
        return ("not judged", None) if self.stage == "judging" else ("", wrong)


def run(files: int, seed: int, workers: int, tell: Callable[[str], None]) -> dict[str, Any]:
    counts, wrong, began = Counter[str](), list[str](), time.monotonic()
    seeds = iter(range(seed, seed + files))
    with tempfile.TemporaryDirectory() as folder:
        busy: list[Worker] = []
        for k in range(workers):
            place = Path(folder, str(k))
            place.mkdir()
            busy.append(Worker(str(place)))
        idle = list(busy)
        done = 0
        while done < files:
            while idle and (seed := next(seeds, None)) is not None:  # type: ignore[assignment]
                idle.pop().give(seed)
            for worker in busy:
                if worker in idle or (found := worker.look()) is None:
                    continue
                idle.append(worker)
                done += 1
                counts[found[0] or "no verdict"] += 1
                if found[1]:
                    wrong.append(f"seed {worker.seed}: {found[1]}")
                if done % 100 == 0:
                    tell(f"{done} files, {len(wrong)} wrong, {time.monotonic() - began:.0f} s")
            time.sleep(0.002)
        for worker in busy:
            worker.process.kill()
    return {"files": files, "verdicts": counts, "wrong": wrong, "seconds": round(time.monotonic() - began)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    found = run(args.files, args.seed, args.workers, lambda line: print(line, flush=True))
    print(json.dumps(found, indent=2))
    if args.json:
        args.json.write_text(json.dumps(found, indent=2) + "\n")
    return 1 if found["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
