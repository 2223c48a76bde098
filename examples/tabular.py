"""A table of measurements: an MLP with a radius for each feature, from a CSV file to a report.

python examples/tabular.py [OUT]

breast_cancer.csv has the ten mean values of the cell nuclei in 569 images of breast tissue, and the diagnosis. It is a
part of the data set Breast Cancer Wisconsin (Diagnostic) by W. Wolberg, O. Mangasarian, N. Street and W. Street, 1993,
UCI Machine Learning Repository, https://doi.org/10.24432/C5DW2B, license CC BY 4.0.
"""

import math
import sys
from pathlib import Path

import advibp
from advibp.report import write_page
from advibp.report.shown_images import Source

FILE = Path(__file__).parent / "breast_cancer.csv"


def main(out: Path) -> advibp.Certificate:
    # All measurements are at least 0. A fifth of the rows are the test set, a fifth of the others are for validation.
    data = advibp.data.load(FILE, label="diagnosis", input_range=(0, None))
    assert data.feature_names is not None

    # Each feature may change by a tenth of its standard deviation, in its own unit.
    radii = {name: 0.1 * std for name, std in zip(data.feature_names, data.std, strict=True)}

    # The first layer subtracts the mean and divides by the standard deviation.
    net = advibp.nets.build("FC 50, FC 50", data.input_shape, data.classes, mean=data.mean, std=data.std, seed=0)
    run = advibp.train(net, data, eps=radii, epochs=20, lr=0.01, out=out, seed=0)

    around = run.recipe.perturbation(data)
    certificate = advibp.certify(
        net, data.test, run.recipe.eps, perturbation=around, by="complete", budget=10, out=out / "certify"
    )
    for name, share in certificate.errors(run.recipe.eps).items():
        standard_error = math.sqrt(share * (1 - share) / len(data.test))
        print(f"{name}: {100 * share:.1f} % +- {100 * standard_error:.1f} % of {len(data.test)} test rows")

    source = Source(data.test, data.class_names or (), feature_names=data.feature_names, perturbation=around)
    write_page(out / "report.html", [advibp.read_run(out)], images=[source])
    print(f"report: {out / 'report.html'}")
    return certificate


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/tabular"))
