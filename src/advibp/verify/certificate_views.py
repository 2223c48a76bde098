"""A certificate as a sequence of records, as a table and as a plot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any, Self, overload

from advibp.display.eps import format_eps
from advibp.display.object_summary import html_table
from advibp.display.optional_packages import optional
from advibp.errors import UserError
from advibp.verify.accuracy_plot import plot_accuracies

if TYPE_CHECKING:
    from advibp.verify.records import Record


class CertificateViews:
    """The methods of `Certificate` that show its records."""

    if TYPE_CHECKING:  # defined by Certificate
        records: list[Record]

        def __init__(self, records: list[Record]) -> None: ...
        @property
        def eps(self) -> list[float]: ...
        def counts(self, eps: float) -> Counter[str]: ...
        def errors(self, eps: float) -> dict[str, float]: ...
        def rows(self) -> list[list[str]]: ...

    def __len__(self) -> int:
        """The number of records: images times radii."""
        return len(self.records)

    def __bool__(self) -> bool:
        """True, also without records."""
        return True

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    @overload
    def __getitem__(self, i: int) -> Record: ...
    @overload
    def __getitem__(self, i: slice) -> Self: ...
    def __getitem__(self, i: int | slice) -> Record | Self:
        """The record of the i-th image, or the certificate of several images."""
        if len(radii := self.eps) > 1:
            raise UserError(
                f"The certificate has {len(radii)} radii, so an image has several records; write "
                f"cert.at({radii[0]:g})[i] for the records at one of them, or cert.records for all."
            )
        return type(self)(self.records[i]) if isinstance(i, slice) else self.records[i]

    def at(self, eps: float) -> Self:
        """The certificate at one of its radii.

        Args:
            eps: The radius, one of `self.eps`.

        Raises:
            UserError: If there are no records at this radius.
        """
        records = [r for r in self.records if r.eps == eps]
        if not records:
            raise UserError(f"There are no records at eps {eps}; choose from {', '.join(map(str, self.eps))}.")
        return type(self)(records)

    def __repr__(self) -> str:
        parts = []
        for eps in self.eps[:5]:
            counts = self.counts(eps)
            parts.append(f"eps {format_eps(eps)}: {counts['robust']} of {counts.total()} images certified")
        more = [f"{len(self.eps) - 5} more radii"] if len(self.eps) > 5 else []
        return f"Certificate({', '.join([*parts, *more]) or 'no records'})"

    def _repr_html_(self) -> str:
        if not self.records:
            return "<p>Certificate without records</p>"
        rows = self.rows()
        shown = [i for i in range(len(rows[0])) if i < 5 or any(row[i] != "0" for row in rows[1:])]
        return html_table([[row[i] for i in shown] for row in rows])

    def to_pandas(self) -> Any:
        """The records as a pandas DataFrame: one row per image and eps, one column per field of `Record`.

        Raises:
            UserError: If pandas is not installed.

        Examples:
            ```python
            table = cert.to_pandas()
            table.groupby(["eps", "verdict"]).size()
            ```
        """
        from advibp.verify.records import Record

        columns = [f.name for f in fields(Record)]
        return optional("pandas", "cert.to_pandas()").DataFrame([asdict(r) for r in self.records], columns=columns)

    def plot(self, ax: Any = None, *, confidence: float = 0.95) -> Any:
        """Plot standard, attack and certified accuracy: curves over eps, or bars if there is one eps.

        The attack accuracy is the share of images that are classified correctly and that the attack did not break. The
        shaded areas and error bars are Wilson confidence intervals of the accuracies on new images of the same
        distribution. They do not weaken a proof: every certified image is proved.

        Args:
            ax: Matplotlib Axes to draw on. Default: new ones.
            confidence: Level of the intervals, in (0, 1). Default: 0.95.

        Returns:
            The matplotlib Axes.

        Raises:
            UserError: If matplotlib is not installed, or if there are no records.

        Examples:
            ```python
            cert = advibp.certify(net, images, [0.05, 0.1, 0.2])
            cert.plot().figure.savefig("accuracy.png")
            ```
        """
        return plot_accuracies(self, ax, confidence)
