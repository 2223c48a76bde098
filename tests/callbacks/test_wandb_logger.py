"""Trainings are logged by the real wandb, offline."""

from __future__ import annotations

import json
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from callback_runs import tiny_data, tiny_train

import advibp
from advibp.callbacks import Callback, StopTraining, WandbLogger
from advibp.errors import UserError

pytestmark = pytest.mark.filterwarnings("ignore")


class StopAfterTwo(Callback):
    def on_epoch_end(self, metrics: dict[str, Any]) -> None:
        if metrics["epoch"] == 2:
            raise StopTraining


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, value in {"WANDB_MODE": "offline", "WANDB_ERROR_REPORTING": "false", "WANDB_SILENT": "true"}.items():
        monkeypatch.setenv(name, value)
    for name in ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "wandb-home"))
    return tmp_path / "logs"


def parts(content: bytes) -> Iterator[bytes]:
    """Yield the records of a .wandb file: blocks of 32 KiB, and chunks of (checksum, length, type)."""
    at, record = 7, b""
    while at + 7 <= len(content):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        length, kind = struct.unpack_from("<HB", content, at + 4)
        if at + 7 + length > len(content):  # not written completely yet
            return
        record += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or last chunk
            yield record
            record = b""


def records(file: Path) -> list[Any]:
    """Return the records of a .wandb file. The service of wandb writes the last ones after `finish` has returned."""
    from wandb.proto import wandb_internal_pb2

    deadline = time.monotonic() + 30
    while True:
        found = [wandb_internal_pb2.Record.FromString(part) for part in parts(file.read_bytes())]
        if any(record.WhichOneof("record_type") == "exit" for record in found):
            return found
        assert time.monotonic() < deadline, f"{file} has no end"
        time.sleep(0.05)


def stored(folder: Path) -> list[list[dict[str, Any]]]:
    """Return the logged history of each start, oldest first."""
    files = sorted(folder.rglob("run-*.wandb"), key=lambda file: file.parent.name)
    histories = [[r.history.item for r in records(file) if r.WhichOneof("record_type") == "history"] for file in files]
    return [
        [{(i.key or "/".join(i.nested_key)): json.loads(i.value_json) for i in items} for items in history]
        for history in histories
    ]


def test_a_resumed_training_has_the_same_id(offline: Path, tmp_path: Path) -> None:
    offline.mkdir()
    first = WandbLogger("digits", dir=str(offline))
    tiny_train(tmp_path / "run", [first, StopAfterTwo()])
    second = WandbLogger("digits", dir=str(offline))
    run = tiny_train(tmp_path / "run", [second], resume=True)
    assert first.id == second.id
    before, after = stored(offline)
    assert [row["_step"] for row in before + after] == [1, 2, 3, 4]
    assert [row["verified_error"] for row in before + after] == [m["verified_error"] for m in run.history]
    advibp.certify(run.net, tiny_data().test, 0.01, callbacks=[second])
    assert len({file.name.rpartition("-")[2] for file in offline.rglob("run-*.wandb")}) == 1


def test_without_wandb_there_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UserError, match=r"needs wandb, which is not installed; run pip install 'advibp\[wandb\]'"):
        tiny_train(None, [WandbLogger()])
