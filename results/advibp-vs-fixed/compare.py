"""Reads the six runs of run.sh and writes pairs.json and README.md beside itself."""

import json
from pathlib import Path
from statistics import mean

HERE = Path(__file__).parent
RUNS = HERE.parents[1] / "runs"
METHODS, SEEDS, RADII = ("advibp", "fixed"), (0, 1, 2), ("0.1", "0.2", "0.3", "0.4")


def read(method: str, seed: int) -> dict[str, object]:
    folder = RUNS / f"pair-{method}-{seed}"
    train = json.loads((folder / "summary.json").read_text())
    certify = json.loads((folder / "certify" / "summary.json").read_text())
    return {"method": method, "seed": seed, "train": train, "certify": certify}


def main() -> None:
    runs = [read(m, s) for s in SEEDS for m in METHODS]
    rows = []
    for run in runs:
        percent = run["certify"]["percent"]
        verified = [percent[e]["verified_error"] for e in RADII]
        rows.append(
            (run["method"], run["seed"], percent["0.4"]["standard_error"], percent["0.4"]["pgd_error"], *verified)
        )
    means = [(m, "mean", *(mean(r[i] for r in rows if r[0] == m) for i in range(2, 8))) for m in METHODS]
    (HERE / "pairs.json").write_text(
        json.dumps({"command": "bash results/advibp-vs-fixed/run.sh", "runs": runs}, indent=1)
    )
    head = ["method", "seed", "standard", "PGD-40 at 0.4", *(f"verified at {e}" for e in RADII)]
    lines = [
        "# AdvIBP against fixed weights",
        "",
        "`bash results/advibp-vs-fixed/run.sh`: dm-small on MNIST, eps_train 0.4, 20 epochs, three paired seeds (same",
        "first weights, data order and attacks). Test errors in percent on all 10,000 images, last epoch.",
        "",
        "| " + " | ".join(head) + " |",
        "|" + " --- |" * len(head),
        *(
            "| " + " | ".join(f"{c:.2f}" if isinstance(c, float) else str(c) for c in row) + " |"
            for row in rows + means
        ),
        "",
        "At the radius it was trained for AdvIBP verifies more, with every seed. At smaller radii, in standard error",
        "and under attack the fixed weights are ahead. Learning rate, batch size, schedule and beta1 were chosen on",
        "AdvIBP runs; the baseline got the same recipe and no tuning of its own, and three seeds are few. So this is a",
        "trade-off under one recipe, not a win over a baseline tuned as much.",
        "",
    ]
    (HERE / "README.md").write_text("\n".join(lines))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
