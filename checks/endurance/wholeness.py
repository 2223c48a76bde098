"""Checks of a run's folder at any moment, and comparisons of a finished run with an undisturbed one.

Each check returns a list of messages about problems.
"""

from __future__ import annotations

import json
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from advibp import data, open_run
from advibp.errors import UserError
from advibp.storage import checkpoint

TOLD = ("verdict", "by", "lower_margin", "label", "prediction")  # fields of a record that must be reproducible
ROUNDING = 1e-5  # a continued batch has another size, which can change the last bits

Lines = dict[tuple[int, float], bytes]


def is_temporary(path: Path) -> bool:
    """Return whether a file is the temporary file of an interrupted write, which is never read."""
    return path.name.startswith(".")


# At any moment


def broken_files(folder: Path) -> list[str]:
    """Return a message for each incomplete file."""
    files = (p for p in sorted(folder.rglob("*")) if p.is_file() and not is_temporary(p))
    return [f"{path}: {problem}" for path in files if (problem := _problem(path))]


def _problem(path: Path) -> str | None:
    try:
        if path.suffix == ".safetensors":
            checkpoint.load(path)
        elif path.suffix == ".jsonl":
            lines(path)
        elif path.suffix == ".json":
            json.loads(path.read_text())
        elif path.suffix == ".yaml":
            return None if isinstance(yaml.safe_load(path.read_text()), dict) else "no mapping"
        elif ".tfevents." in path.name:
            _events(path.read_bytes())
        else:
            return "a file of no known kind"
    except (UserError, ValueError, yaml.YAMLError) as error:
        return str(error)
    return None


def lines(path: Path) -> list[dict[str, Any]]:
    """Return the complete lines of a JSON lines file."""
    whole = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in whole]


def _events(raw: bytes) -> None:
    """Raise a ValueError unless all events but the last are complete; TensorBoard stops at the first incomplete one."""
    at = 0
    while at + 12 <= len(raw):
        (length,) = struct.unpack_from("<Q", raw, at)
        if length > 2**20:
            raise ValueError(f"an event of {length} bytes at {at}")
        at += 16 + length


def _checkpoints(folder: Path) -> list[dict[str, Any]]:
    """Return the facts of all complete checkpoints. Files of best weights are not checkpoints."""
    found = []
    for path in (folder / "checkpoints").glob("*.safetensors"):
        with suppress(UserError):  # reported by `broken_files`
            found.append(checkpoint.load(path)[1])
    return [facts for facts in found if "steps" in facts]


def position(folder: Path) -> int:
    """Return the training steps of the newest checkpoint."""
    return max((facts["steps"] for facts in _checkpoints(folder)), default=0)


def unlogged(folder: Path) -> list[str]:
    """Return a message for each epoch that has a checkpoint but no line of metrics."""
    logged = sum(metrics["steps"] for metrics in lines(folder / "metrics.jsonl"))
    # A checkpoint within an epoch has the means of its first steps.
    saved = max((facts["steps"] for facts in _checkpoints(folder) if "means" not in facts), default=0)
    return [f"{folder}: {saved} steps are saved, but {logged} are in metrics.jsonl"] if saved > logged else []


def records(folder: Path) -> Lines:
    """Return the complete lines of records by image and eps."""
    file = folder / "certify" / "records.jsonl"
    whole = file.read_bytes().split(b"\n")[:-1] if file.exists() else []
    return {(r["index"], r["eps"]): line for line in whole for r in [json.loads(line)]}


# At the end


def other_training(folder: Path, reference: Path) -> list[str]:
    """Return the differences of a finished training from the undisturbed one."""
    found = []
    for name in ("model.safetensors", f"checkpoints/{checkpoint.newest(reference / 'checkpoints')[0].name}"):
        mine, its = (_tensors(f / name) for f in (folder, reference))
        found += [
            f"{folder / name}: {k} differs" for k in sorted(mine.keys() | its.keys()) if mine.get(k) != its.get(k)
        ]
    mine_told, its_told = ([_timeless(m) for m in lines(f / "metrics.jsonl")] for f in (folder, reference))
    if mine_told != its_told:
        found.append(f"{folder}/metrics.jsonl: other epochs or other numbers than the undisturbed run's")
    return found


def _tensors(path: Path) -> dict[str, tuple[str, bytes]]:
    if not path.exists():
        return {}
    return {k: (f"{v.dtype} {tuple(v.shape)}", _bits(v)) for k, v in checkpoint.load(path)[0].items()}


def _bits(tensor: Tensor) -> bytes:
    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).tolist())


def _timeless(metrics: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in metrics.items() if "seconds" not in k}


def other_records(folder: Path, reference: Path) -> tuple[list[str], int]:
    """Return the differences of records from the undisturbed ones, and how many margins differ only by rounding."""
    file = folder / "certify" / "records.jsonl"
    mine, its = lines(file), {(r["index"], r["eps"]): r for r in lines(reference / "certify" / "records.jsonl")}
    keys = [(r["index"], r["eps"]) for r in mine]
    found = [f"{file}: {len(keys) - len(set(keys))} records are there twice"] if len(set(keys)) < len(keys) else []
    if set(keys) != its.keys():
        found.append(f"{file}: {len(its.keys() - set(keys))} are missing, {len(set(keys) - its.keys())} too many")
    rounded = 0
    for record in mine:
        other = its.get((record["index"], record["eps"]), record)
        for name in TOLD:
            if record[name] == other[name]:
                continue
            if name == "lower_margin" and abs(record[name] - other[name]) <= ROUNDING * max(1, abs(other[name])):
                rounded += 1
                continue
            found.append(f"{file}: {name} of {record['index']} at {record['eps']}: {record[name]}, not {other[name]}")
    return found, rounded


def false_counterexamples(folder: Path) -> list[str]:
    """Return a message for each counterexample that is missing or is classified correctly."""
    run = open_run(folder)
    net, recipe = run.net, run.recipe
    test = data.load(recipe.data, validation=recipe.validation).test
    found, loaded = [], dict[str, dict[str, Tensor]]()
    for record in lines(folder / "certify" / "records.jsonl"):
        if record["verdict"] != "falsified":
            continue
        where, index, eps = record["counterexample"], record["index"], record["eps"]
        name, _, row = where.partition("#")
        try:
            tensors = loaded.setdefault(name, checkpoint.load(folder / "certify" / name)[0])
            x_adv = tensors["x_adv"][int(row)]
            right = int(tensors["index"][int(row)]) == index
        except (UserError, IndexError, KeyError) as error:
            found.append(f"{folder}/certify/{where}: {error}")
            continue
        inside = bool(((x_adv - test.x[index]).abs() <= eps + 1e-6).all() and (x_adv >= 0).all() and (x_adv <= 1).all())
        with torch.no_grad():
            fools = int(net(x_adv[None]).argmax()) != int(test.y[index])
        if not (right and inside and fools):
            found.append(f"{folder}/certify/{where} is no counterexample for image {index} at eps {eps}")
    return found
