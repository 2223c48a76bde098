"""Files of a run's folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from advibp.errors import UserError
from advibp.storage.run_folder import RunFolder


def test_metrics_of_release_0_1_have_the_current_names(tmp_path: Path) -> None:
    old = {"epoch": 1, "loss_adv": 1.0, "loss_ibp": 2.0, "kappa_adv": 0.1, "branch_ibp": 0.5, "angle": 3.0}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(old) + "\n")
    (epoch,) = RunFolder(tmp_path).history()
    assert epoch == {
        "epoch": 1, "loss_lower": 1.0, "loss_upper": 2.0, "kappa_lower": 0.1, "branch_upper": 0.5, "angle": 3.0
    }  # fmt: skip


@pytest.mark.parametrize("line", ["[]", "3", "{}", '{"epoch": null}', "{"])
def test_damaged_metrics_are_refused_in_one_sentence(tmp_path: Path, line: str) -> None:
    (tmp_path / "metrics.jsonl").write_text(line + "\n")
    with pytest.raises(UserError, match="is damaged"):
        RunFolder(tmp_path).history()
