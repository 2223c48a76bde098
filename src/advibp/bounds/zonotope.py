"""Zonotope: a set of tensors that tracks linear dependencies between its elements.

`net(Zonotope.ball(x, eps))` runs the user's module on a zonotope: DeepZ (Singh et al. 2018). A zonotope is the set of

    z = c + sum_s e_s g_s + d,     |e_s| <= 1,   |d| <= r       center c, generators g_s, noise symbols e_s, rest r

All elements share the noise symbols, so affine layers are exact, and x - x is zero up to the rest. The rest is an error
term of each element without dependencies. Center and rest form a Box and follow Box's rules. Symbols have names
(integers), by which the generators of two zonotopes are aligned when they are added.

The images of a batch share names and memory, but not symbols: g_s of image b belongs to the s-th symbol *of b*. Axis 0
is therefore always the axis of images. Operations that would move elements between images raise an error.

The rules of the operations are in rules/zonotope_rules.py. Bounds are computed in floating-point arithmetic without
outward rounding, so they hold up to rounding errors. `Rounded` has bounds that include rounding errors.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from advibp.bounds.box import Box, Range
from advibp.bounds.domain import Domain, Rules
from advibp.bounds.labels import checked_labels
from advibp.display.object_summary import Summarized
from advibp.errors import UserError
from advibp.moved import renamed_keywords

#: Maps the input of a ReLU to bounds (lower, upper) of that shape, or to None.
ReluBounds: TypeAlias = Callable[["Zonotope"], tuple[Tensor, Tensor] | None]

_NAMES = itertools.count()


class Zonotope(Summarized, Domain):
    """The set of all center + sum_s e_s generators_s + d with |e_s| <= 1 and |d| <= rest.

    A zonotope can be passed to any `nn.Module` in place of a tensor. An operation without a rule raises
    `UnsupportedOperation`. In-place operations replace the tensors of this zonotope, and views of it become out of
    date, as for a `Box`.

    Args:
        center: (B, ...), floating point.
        generators: (S, B, ...) for S new symbols, of the same dtype.
        rest: a number, or a tensor that broadcasts to `center`; not negative. Default: 0.

    Attributes:
        max_symbols: the maximal number of symbols, or None for no limit. If there are more, those with the smallest
            sum of magnitudes become part of the rest. The sum is over the batch, so the result for an image then
            depends on the other images. With 0 only the rest remains. All zonotopes computed from this one have the
            same limit.
        relu_bounds: a function that each ReLU calls with its input zonotope, or None. It returns bounds (lower, upper)
            of the input's shape, or None. The ReLU uses them where they are tighter than the zonotope's bounds. They
            must be sound bounds of the network's pre-activations. All zonotopes computed from this one have the same
            function.

    Examples:
        >>> import torch
        >>> from advibp.bounds import Box, Zonotope
        >>> x = torch.tensor([[0.5, 0.5]])
        >>> zonotope, box = Zonotope.ball(x, 0.25), Box.ball(x, 0.25)
        >>> (zonotope - zonotope).radius, (box - box).radius
        (tensor([[0., 0.]]), tensor([[0.5000, 0.5000]]))
    """

    __slots__ = ("__weakref__", "_box", "_changes", "_generators", "_symbols", "max_symbols", "relu_bounds")

    max_symbols: int | None
    relu_bounds: ReluBounds | None

    def __init__(self, center: Tensor, generators: Tensor, rest: Tensor | float = 0.0) -> None:
        box = Box(center=center, radius=rest)
        if generators.shape[1:] != center.shape or generators.dtype != center.dtype or center.ndim == 0:
            shapes = f"{tuple(center.shape)} {center.dtype} and {tuple(generators.shape)} {generators.dtype}"
            raise UserError(
                f"a Zonotope needs a center (B, ...) and generators (S, B, ...) of its dtype, not {shapes}."
            )
        self._fill(box, generators, fresh_names(len(generators)))
        self.max_symbols = self.relu_bounds = None

    @classmethod
    @renamed_keywords(most_symbols="max_symbols")
    def ball(
        cls,
        x: Tensor,
        eps: float | Tensor,
        within: Range = (0.0, 1.0),
        *,
        max_symbols: int | None = None,
        relu_bounds: ReluBounds | None = None,
    ) -> Zonotope:
        """The zonotope of all points within eps of x in the maximum norm, intersected with a range.

        It has one symbol for each pixel that can vary in some image.

        Args:
            x: centers (B, ...), floating point.
            eps: radius, a number or a tensor that broadcasts to x; finite and not negative.
            within: (lowest, highest) value of the inputs, or None for no range. Default: (0, 1).
            max_symbols: maximal number of symbols; see the class.
            relu_bounds: bounds of pre-activations; see the class.

        Returns:
            A zonotope (B, ...).
        """
        return cls.from_box(Box.ball(x, eps, within), max_symbols=max_symbols, relu_bounds=relu_bounds)

    @classmethod
    @renamed_keywords(most_symbols="max_symbols")
    def from_box(cls, box: Box, *, max_symbols: int | None = None, relu_bounds: ReluBounds | None = None) -> Zonotope:
        """The same set as a box, with one symbol for each element that can vary in some image.

        Args:
            box: (B, ...).
            max_symbols: maximal number of symbols; see the class.
            relu_bounds: bounds of pre-activations; see the class.
        """
        if max_symbols is not None and max_symbols < 0:
            raise UserError(f"max_symbols must not be negative, got {max_symbols}; use None for no limit.")
        point = cls(box.center, box.center.new_zeros(0, *box.shape), torch.zeros_like(box.center))
        point.max_symbols, point.relu_bounds = max_symbols, relu_bounds
        return point._widened(box.radius)

    def _fill(self, box: Box, generators: Tensor, symbols: Tensor) -> Zonotope:
        self._box, self._changes = box, box._changes
        self._generators, self._symbols = generators, symbols
        return self

    def _with(self, box: Box, generators: Tensor, symbols: Tensor | None = None) -> Zonotope:
        """Return a zonotope that was computed from this one, without checks. The rules use this."""
        new = object.__new__(Zonotope)._fill(box, generators, self._symbols if symbols is None else symbols)
        new.max_symbols, new.relu_bounds = self.max_symbols, self.relu_bounds
        return new

    def _mapped(self, box: Box, linear: Callable[[Tensor], Tensor]) -> Zonotope:
        """Return a zonotope with the same symbols.

        Args:
            box: the new center and rest.
            linear: maps the generators (S, B, ...) to a shape that broadcasts to (S, *box.shape).
        """
        if not len(self._symbols):  # some torch functions do not accept an empty batch
            return self._with(box, box.center.new_zeros(0, *box.shape))
        return self._with(box, linear(self.generators).to(box.dtype).expand(-1, *box.shape))

    def __copy__(self) -> Zonotope:
        """Return a zonotope with the same tensors and symbols. In-place operations on one do not change the other."""
        return self._with(copy.copy(self._box), self.generators)

    def _become(self, other: Zonotope) -> Zonotope:
        """Change this zonotope in place."""
        return self._fill(self._box._become(other._box), other.generators.to(self.dtype), other.symbols)

    def _widened(self, errors: Tensor) -> Zonotope:
        """Return this zonotope plus [-errors, errors], errors (B, ...) >= 0.

        Each element that has an error in some image gets a new symbol. If there are more symbols than allowed, the
        least important of all symbols become part of the rest. The generators of new symbols among them are never
        built.
        """
        generators, symbols, rest = self.generators, self._symbols, self.rest
        flat = errors.reshape(len(errors), -1)  # (B, N)
        sizes = flat.detach().sum(0)
        where = sizes.nonzero().squeeze(1)  # the elements that get a symbol
        if self.max_symbols is not None and len(symbols) + len(where) > self.max_symbols:
            importance = torch.cat([generators.detach().abs().flatten(1).sum(1), sizes[where]])
            keep = torch.zeros_like(importance, dtype=torch.bool)
            keep[importance.topk(self.max_symbols).indices] = True
            old, fresh = keep.split([len(symbols), len(where)])
            without_symbol = torch.ones_like(sizes, dtype=torch.bool)
            where = where[fresh]
            without_symbol[where] = False
            rest = rest + generators[~old].abs().sum(0) + (flat * without_symbol).view_as(rest)
            generators, symbols = generators[old], symbols[old.to(symbols.device)]
        column = flat[:, where].T.unsqueeze(2)  # (K, B, 1), for a generator (B, N) that is zero elsewhere
        fresh = flat.new_zeros(len(where), *flat.shape).scatter_(2, where.view(-1, 1, 1).expand_as(column), column)
        generators = torch.cat([generators, fresh.reshape(len(where), *self.shape)])
        return self._with(Box._of(self.center, rest), generators, torch.cat([symbols, fresh_names(len(where))]))

    def _limited(self) -> Zonotope:
        """Return this zonotope with at most `max_symbols` symbols, after two zonotopes were combined."""
        few = self.max_symbols is None or len(self._symbols) <= self.max_symbols
        return self if few else self._widened(torch.zeros_like(self.center))

    @property
    def _center(self) -> Tensor:
        return self._box._center

    @property
    def box(self) -> Box:
        """Center and rest, (B, ...)."""
        return self._box

    @property
    def center(self) -> Tensor:
        """The midpoint of the bounds, (B, ...)."""
        return self._box.center

    @property
    def rest(self) -> Tensor:
        """The radius of the error term without symbols, (B, ...)."""
        return self._box.radius

    @property
    def generators(self) -> Tensor:
        """The coefficients of each symbol, (S, B, ...)."""
        self._box._check_current()
        return self._generators

    @property
    def symbols(self) -> Tensor:
        """The names of the symbols, (S,), int64 on the CPU, increasing."""
        return self._symbols

    @property
    def radius(self) -> Tensor:
        """Half the distance between the bounds, (B, ...)."""
        return torch.linalg.vector_norm(self.generators, 1, 0) + self.rest

    @property
    def lower(self) -> Tensor:
        """The lower bounds, (B, ...)."""
        return self.center - self.radius

    @property
    def upper(self) -> Tensor:
        """The upper bounds, (B, ...)."""
        return self.center + self.radius

    def to_box(self) -> Box:
        """Return the smallest box that contains this set."""
        return Box._of(self.center, self.radius)

    def margins(self, y: Tensor) -> Zonotope:
        """Bound the margins m_k = z_y - z_k of outputs z.

        The difference keeps the symbols, so it is exact. The rest is subtracted as in `Box.margins`.

        Args:
            y: labels (B,).

        Returns:
            A zonotope (B, K) of margins. The margin of the label itself is exactly 0.
        """
        y = checked_labels(y, self.shape)
        box, generators = self._box.margins(y), self.generators
        label = y.view(1, -1, 1).expand(len(generators), -1, 1)
        return self._with(box, generators.gather(2, label) - generators)

    def lower_margins(self, y: Tensor) -> Tensor:
        """Compute lower bounds of the margins z_y - z_k.

        Args:
            y: labels (B,).

        Returns:
            Lower bounds (B, K). An image is robust if all of them except the label's are above 0.
        """
        return self.margins(y).lower

    @property
    def requires_grad(self) -> bool:
        return self._box.requires_grad or self._generators.requires_grad

    def _summary(self) -> dict[str, object]:
        kind = {"dtype": self.dtype, "device": str(self.device)}
        return {"shape": tuple(self.shape), "symbols": len(self._symbols), **kind}


RULES = Zonotope.rules = Rules(Zonotope)


def fresh_names(count: int) -> Tensor:
    """Return names (count,) that no symbol has had before."""
    return torch.tensor(list(itertools.islice(_NAMES, count)), dtype=torch.int64)


def aligned(zonotopes: list[Zonotope], dtype: torch.dtype) -> tuple[list[Tensor], Tensor]:
    """Return the generators (S, B, ...) of each zonotope for the union of all symbols, and their names (S,)."""
    names = [z.symbols for z in zonotopes]
    if all(torch.equal(name, names[0]) for name in names):
        return [z.generators.to(dtype) for z in zonotopes], names[0]
    union, where = torch.unique(torch.cat(names), return_inverse=True)
    aligned_generators = []
    for z, index in zip(zonotopes, where.split([len(name) for name in names]), strict=True):
        generators = z.generators.to(dtype)
        if len(index) < len(union):  # otherwise the order is already right, since names increase
            zeros = generators.new_zeros(len(union), *z.shape)
            generators = zeros.index_copy_(0, index.to(z.device), generators)
        aligned_generators.append(generators)
    return aligned_generators, union


from advibp.bounds.rules import zonotope_rules  # noqa: E402, F401  (last: the rules need Zonotope)
