"""Zonotope: DeepZ (Singh et al. 2018) as a value. `net(Zonotope.ball(x, eps))` runs the user's own module on a set that
remembers how its elements depend on each other.

    z = c + sum_s e_s g_s + d,     |e_s| <= 1,   |d| <= r       centre c, generators g_s, noise symbols e_s, rest r

All elements share the symbols, so affine layers are exact and x - x is zero, but for its rest. That is a remainder
without relations: centre and rest are a Box, and go by Box's rules. Symbols have names, by which zonotopes that meet
again are aligned.

The images of a batch share names and memory, not symbols: g_s of image b belongs to the s-th symbol *of b*. Axis 0 is
therefore the axis of images, wherever a zonotope goes, and operations that would move elements between images raise.

The rules of the operations are in zonotope_rules.py. Bounds are computed in the usual floating-point arithmetic,
without outward rounding: they hold up to rounding errors.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from advibp.bounds.box import Box
from advibp.bounds.domain import Domain, Rules
from advibp.bounds.labels import checked_labels
from advibp.errors import UserError

#: Asked at each ReLU with its input; bounds (lower, upper) of that input's shape, or None if it knows none.
ReluBounds: TypeAlias = Callable[["Zonotope"], tuple[Tensor, Tensor] | None]

_NAMES = itertools.count()


class Zonotope(Domain):
    """The set of all center + sum_s e_s generators_s + d with |e_s| <= 1 and |d| <= rest.

    A zonotope can be given to any `nn.Module` in place of a tensor; what has no rule raises `UnsupportedOperation`.
    In-place operations rebind the tensors of this very zonotope, and make its views stale, as they do for a `Box`.

    Two options travel with it, to all that is computed from it:

    most_symbols: the most symbols to keep, None for no limit. Beyond it those with the smallest summed magnitude (over
    the batch, so that images then depend on their batch mates) become part of the rest. At 0 there is only the rest.

    relu_bounds: a function that a ReLU calls with its input before it is relaxed. Where the bounds it returns are
    tighter than the zonotope's own, the ReLU uses them; it must return bounds of what the network really computes.
    """

    __slots__ = ("__weakref__", "_box", "_changes", "_generators", "_symbols", "most_symbols", "relu_bounds")

    most_symbols: int | None
    relu_bounds: ReluBounds | None

    def __init__(self, center: Tensor, generators: Tensor, rest: Tensor | float = 0.0) -> None:
        """center: (B, ...); generators: (S, B, ...), for S fresh symbols; rest: broadcasts to center, not negative."""
        box = Box(center, rest)
        if generators.shape[1:] != center.shape or generators.dtype != center.dtype or center.ndim == 0:
            found = f"{tuple(center.shape)} {center.dtype} and {tuple(generators.shape)} {generators.dtype}"
            raise UserError(f"a Zonotope needs a centre (B, ...) and generators (S, B, ...) of its type, not {found}.")
        self._fill(box, generators, fresh_names(len(generators)))
        self.most_symbols = self.relu_bounds = None

    @classmethod
    def ball(
        cls,
        x: Tensor,
        eps: float | Tensor,
        within: tuple[float | Tensor, float | Tensor] | None = (0.0, 1.0),
        *,
        most_symbols: int | None = None,
        relu_bounds: ReluBounds | None = None,
    ) -> Zonotope:
        """All points within eps of x (B, ...) in the maximum norm, intersected with [within[0], within[1]].

        A symbol for each pixel that can vary in some image. See the class for the options.
        """
        return cls.from_box(Box.ball(x, eps, within), most_symbols=most_symbols, relu_bounds=relu_bounds)

    @classmethod
    def from_box(cls, box: Box, *, most_symbols: int | None = None, relu_bounds: ReluBounds | None = None) -> Zonotope:
        """The same set as a box (B, ...), with a symbol for each element that can vary in some image."""
        if most_symbols is not None and most_symbols < 0:
            raise UserError(f"most_symbols must not be negative, got {most_symbols}; None is for no limit.")
        point = cls(box.center, box.center.new_zeros(0, *box.shape), torch.zeros_like(box.center))
        point.most_symbols, point.relu_bounds = most_symbols, relu_bounds
        return point._widened(box.radius)

    def _fill(self, box: Box, generators: Tensor, symbols: Tensor) -> Zonotope:
        self._box, self._changes = box, box._changes
        self._generators, self._symbols = generators, symbols
        return self

    def _with(self, box: Box, generators: Tensor, symbols: Tensor | None = None) -> Zonotope:
        """A zonotope computed from this one; unchecked: what the rules return."""
        new = object.__new__(Zonotope)._fill(box, generators, self._symbols if symbols is None else symbols)
        new.most_symbols, new.relu_bounds = self.most_symbols, self.relu_bounds
        return new

    def _mapped(self, box: Box, linear: Callable[[Tensor], Tensor]) -> Zonotope:
        """A zonotope with this one's symbols: `box` is the new centre and rest, `linear` takes the generators along,
        (S, B, ...) -> a shape that broadcasts to (S, *box.shape)."""
        if not len(self._symbols):  # some of torch's functions take no empty batch
            return self._with(box, box.center.new_zeros(0, *box.shape))
        return self._with(box, linear(self.generators).to(box.dtype).expand(-1, *box.shape))

    def __copy__(self) -> Zonotope:
        """A zonotope of its own, of the same tensors and symbols."""
        return self._with(copy.copy(self._box), self.generators)

    def _become(self, other: Zonotope) -> Zonotope:
        """Change this zonotope in place."""
        return self._fill(self._box._become(other._box), other.generators.to(self.dtype), other.symbols)

    def _widened(self, errors: Tensor) -> Zonotope:
        """This zonotope plus [-errors, errors], errors (B, ...) >= 0.

        Each element that has an error in some image gets a fresh symbol. Beyond the limit the least of all symbols,
        old and fresh, become part of the rest, the fresh ones without ever having been laid out.
        """
        generators, symbols, rest = self.generators, self._symbols, self.rest
        flat = errors.reshape(len(errors), -1)  # (B, N)
        sizes = flat.detach().sum(0)
        where = sizes.nonzero().squeeze(1)  # the elements that get a symbol
        if self.most_symbols is not None and len(symbols) + len(where) > self.most_symbols:
            importance = torch.cat([generators.detach().abs().flatten(1).sum(1), sizes[where]])
            kept = torch.zeros_like(importance, dtype=torch.bool)
            kept[importance.topk(self.most_symbols).indices] = True
            old, fresh = kept.split([len(symbols), len(where)])
            loose = torch.ones_like(sizes, dtype=torch.bool)
            where = where[fresh]
            loose[where] = False
            rest = rest + generators[~old].abs().sum(0) + (flat * loose).view_as(rest)
            generators, symbols = generators[old], symbols[old.to(symbols.device)]
        column = flat[:, where].T.unsqueeze(2)  # (K, B, 1), for a generator (B, N) that is zero elsewhere
        fresh = flat.new_zeros(len(where), *flat.shape).scatter_(2, where.view(-1, 1, 1).expand_as(column), column)
        generators = torch.cat([generators, fresh.reshape(len(where), *self.shape)])
        return self._with(Box._of(self.center, rest), generators, torch.cat([symbols, fresh_names(len(where))]))

    def _limited(self) -> Zonotope:
        """Without what exceeds `most_symbols`, after two zonotopes met."""
        few = self.most_symbols is None or len(self._symbols) <= self.most_symbols
        return self if few else self._widened(torch.zeros_like(self.center))

    @property
    def _center(self) -> Tensor:
        return self._box._center

    @property
    def box(self) -> Box:
        """Centre and rest, (B, ...)."""
        return self._box

    @property
    def center(self) -> Tensor:
        """The midpoint of the bounds, (B, ...)."""
        return self._box.center

    @property
    def rest(self) -> Tensor:
        """The size of the part that shares no symbols, (B, ...)."""
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
        """The lower bound, (B, ...)."""
        return self.center - self.radius

    @property
    def upper(self) -> Tensor:
        """The upper bound, (B, ...)."""
        return self.center + self.radius

    def to_box(self) -> Box:
        """The smallest box around this set."""
        return Box._of(self.center, self.radius)

    def margins(self, y: Tensor) -> Zonotope:
        """Margins m_k = z_y - z_k (B, K) of these outputs z (B, K) for the labels y (B,); m_y is exactly 0.

        The difference keeps the symbols, so it loses nothing; that of the rest goes as in `Box.margins`.
        """
        y = checked_labels(y, self.shape)
        box, generators = self._box.margins(y), self.generators
        label = y.view(1, -1, 1).expand(len(generators), -1, 1)
        return self._with(box, generators.gather(2, label) - generators)

    def lower_margins(self, y: Tensor) -> Tensor:
        """Lower bounds (B, K) of the margins z_y - z_k; an image is proved robust when all but that of y are > 0."""
        return self.margins(y).lower

    @property
    def requires_grad(self) -> bool:
        return self._box.requires_grad or self._generators.requires_grad

    def __repr__(self) -> str:
        kind = f"dtype={self.dtype}, device='{self.device}'"
        return f"Zonotope(shape={tuple(self.shape)}, symbols={len(self._symbols)}, {kind})"


RULES = Zonotope.rules = Rules(Zonotope)


def fresh_names(count: int) -> Tensor:
    """Names that no symbol ever had, (count,)."""
    return torch.tensor(list(itertools.islice(_NAMES, count)), dtype=torch.int64)


def aligned(zonotopes: list[Zonotope], dtype: torch.dtype) -> tuple[list[Tensor], Tensor]:
    """The generators of each, laid out for the symbols of all: (S, B, ...) each, and their names (S,)."""
    names = [z.symbols for z in zonotopes]
    if all(torch.equal(name, names[0]) for name in names):
        return [z.generators.to(dtype) for z in zonotopes], names[0]
    union, where = torch.unique(torch.cat(names), return_inverse=True)
    laid = []
    for z, index in zip(zonotopes, where.split([len(name) for name in names]), strict=True):
        generators = z.generators.to(dtype)
        if len(index) < len(union):  # else they are laid out so, names being in order
            zeros = generators.new_zeros(len(union), *z.shape)
            generators = zeros.index_copy_(0, index.to(z.device), generators)
        laid.append(generators)
    return laid, union


from advibp.bounds.rules import zonotope_rules  # noqa: E402, F401  (last: the rules need Zonotope)
