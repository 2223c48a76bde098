"""Test errors after each stage of some runs, in percent: stages.json, and the table of README.md on stdout."""

import json
import sys
from pathlib import Path
from statistics import mean

EPS = ("0.1", "0.2", "0.3", "0.4")


def main(runs: list[Path]) -> None:
    found = []
    for run in runs:
        summary = json.loads((run / "summary.json").read_text())
        for stage in summary["stages"]:
            certified = json.loads((run / f"certify-stage-{stage['stage']}" / "summary.json").read_text())
            found.append(
                {"seed": summary["seed"], **stage, "seconds": summary["seconds"], "test": certified["percent"]}
            )
    Path(__file__).with_name("stages.json").write_text(json.dumps(found, indent=1) + "\n")
    print("| stage | seed | standard | PGD-40 at 0.3 | at 0.4 |" + "".join(f" verified at {e} |" for e in EPS))
    print("| --- " * 9 + "|")
    for stage in sorted({f["stage"] for f in found}):
        rows = [row(f["test"]) for f in found if f["stage"] == stage]
        for f, numbers in zip([f for f in found if f["stage"] == stage], rows, strict=True):
            print(f"| {stage} | {f['seed']} | " + " | ".join(f"{n:.2f}" for n in numbers) + " |")
        print(f"| {stage} | mean | " + " | ".join(f"{mean(column):.2f}" for column in zip(*rows, strict=True)) + " |")


def row(test: dict) -> list[float]:
    return [
        test["0.3"]["standard_error"],
        test["0.3"]["pgd_error"],
        test["0.4"]["pgd_error"],
        *(test[e]["verified_error"] for e in EPS),
    ]


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]])
