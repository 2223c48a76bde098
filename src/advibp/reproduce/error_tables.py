"""Tables of errors, measured and published: one row per test eps, net and method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from advibp.display.eps import format_eps
from advibp.report.sections import Section, TableSection
from advibp.reproduce.carry_out import Measured
from advibp.reproduce.cells import ERRORS, HEADS, epochs, error_cells, notes, three_columns
from advibp.reproduce.plan import Plan
from advibp.reproduce.published import published
from advibp.reproduce.run_specs import CIFAR10, MNIST, Ask, RunSpec, Setting, make_task, run_spec


@dataclass(frozen=True, kw_only=True)
class ErrorTable:
    """One of the paper's tables of errors."""

    title: str
    label: str  # in `published`
    setting: Setting
    models: tuple[str, ...]
    methods: tuple[str, ...]
    tiny: tuple[float, ...]  # test radii at the scale tiny
    # (method, test radius): trained with CROWN-IBP's bounds to the end, verified by CROWN
    crown: tuple[tuple[str, float], ...] = ()

    def specs(self, ask: Ask) -> list[RunSpec]:
        radii = ask.radii(self.setting.eps, self.tiny)
        return [
            self._want(ask, net, method, eps, seed, self.setting.tested(eps, radii))
            for net in ask.nets(self.models)
            for method in ask.method_names(self.methods)
            for eps in dict.fromkeys(self.setting.trained_for[e] for e in radii)
            for seed in ask.seed_list()
        ]

    def _want(self, ask: Ask, net: str, method: str, eps: float, seed: int, tested: Sequence[float]) -> RunSpec:
        by: tuple[str, ...] = ("ibp",)
        changes: dict[str, Any] = {}
        if any((method, radius) in self.crown for radius in tested):
            by, changes = ("ibp", "crown"), {"beta": 1.0}
        tasks = [make_task(ask, tested, by=by)]
        return run_spec(ask, self.setting, net=net, method=method, eps=eps, seed=seed, tasks=tasks, **changes)

    def sections(self, ask: Ask, measured: list[Measured]) -> list[Section]:
        rows = []
        for eps in ask.radii(self.setting.eps, self.tiny):
            for net in ask.nets(self.models):
                for method in ask.method_names(self.methods):
                    runs = [one for one in measured if self._is(one, net, method, eps)]
                    cells = error_cells(runs, eps, ask, self.setting, self.label, self.models)
                    rows.append([format_eps(eps), net, method, *cells, epochs(runs)])
            rows += self._reported(eps)
        head = ["eps", "net", "method", *(c for name, _ in ERRORS for c in three_columns(name)), "epochs"]
        lines = [HEADS, *self._crown_notes(ask), *notes(ask, measured, self.setting, self.models)]
        return [TableSection(title=self.title, head=head, rows=rows, notes=lines)]

    def _is(self, one: Measured, net: str, method: str, eps: float) -> bool:
        recipe = one.spec.recipe
        return (recipe.net, recipe.method, recipe.eps) == (net, method, self.setting.trained_for[eps])

    def _crown_notes(self, ask: Ask) -> list[str]:
        radii, methods = ask.radii(self.setting.eps, self.tiny), ask.method_names(self.methods)
        return [
            f"{method} at {format_eps(eps)} is verified by CROWN, as in the paper's footnote, and trained with "
            "CROWN-IBP's bounds to the end (beta 1), as in Zhang et al. (2020) at this eps."
            for method, eps in self.crown
            if method in methods and eps in radii
        ]

    def _reported(self, eps: float) -> list[list[str]]:
        """Return the rows that the paper quotes from other papers."""
        quoted = [row for row in published(self.label) if row.model == "best reported" and row.eps == eps]
        return [
            [format_eps(eps), "best reported", row.method, "", f"{row.standard:.2f}", "",
             "", f"{row.verified:.2f} ({row.verifier})", "", "", "", "", ""]
            for row in quoted
        ]  # fmt: skip


def _plan(table: ErrorTable, description: str) -> Plan:
    return Plan(description=description, specs=table.specs, sections=table.sections)


MNIST_TABLE = _plan(
    ErrorTable(
        title="MNIST: standard, verified and PGD errors",
        label="robustness",
        setting=MNIST,
        models=("dm-small", "dm-medium", "dm-large"),
        methods=("crown-ibp", "advibp", "advcrown-ibp", "ibp", "fixed"),
        tiny=(0.1,),
    ),
    "errors on MNIST at eps 0.1 to 0.4",
)

CIFAR_TABLE = _plan(
    ErrorTable(
        title="CIFAR-10: standard, verified and PGD errors",
        label="results",
        setting=CIFAR10,
        models=("dm-small", "dm-medium", "dm-large"),
        methods=("crown-ibp", "advibp"),
        tiny=(8 / 255,),
        crown=(("crown-ibp", 2 / 255),),
    ),
    "errors on CIFAR-10 at eps 2/255, 8/255 and 16/255",
)

CNN_TABLE = _plan(
    ErrorTable(
        title="MNIST, three further nets: standard and verified errors",
        label="full_results",
        setting=MNIST,
        models=("cnn-small", "cnn-medium", "cnn-large"),
        methods=("crown-ibp", "advibp"),
        tiny=(0.1,),
    ),
    "errors of the nets cnn-* on MNIST",
)
