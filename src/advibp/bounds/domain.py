"""Base classes of values that a network can run on in place of a tensor.

A `Value` can be passed to any `nn.Module` in place of a tensor. torch functions reach it through `__torch_function__`,
Tensor methods and properties through `__getattr__`, and operators through the methods below. All of them call `apply`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from types import FrameType
from typing import Any, ClassVar, NoReturn

import torch
from torch import Tensor, nn
from torch.overrides import resolve_name

from advibp.bounds.labels import smallest_margin
from advibp.errors import UserError

Func = Callable[..., Any]

SUPPORTED = (
    "convolutions, linear layers, BatchNorm in evaluation, pooling, padding, monotone activations, reshaping, "
    "concatenation, sums, and products with constants"
)

FULL_PRECISION = "let the network compute in float32 or float64."


class UnsupportedOperation(UserError):
    """Raised for an operation that a value does not support or that has no rule."""


class UnsupportedAttribute(UnsupportedOperation, AttributeError):
    """The same for an attribute, so that `hasattr` returns False as for any other object."""


def _operator(func: Func) -> Callable[[Any, Any], Any]:
    """Return a binary operator that uses the rule of `func`."""

    def operate(value: Value, other: Any) -> Any:
        if hasattr(other, "__torch_function__") and not isinstance(other, (type(value), Tensor)):
            unsupported(f"{name_of(func)} cannot mix a {type(value).__name__} with another kind of set")
        return value.apply(func, (value, other), {})

    return operate


class Value:
    """A value that a network can run on in place of a tensor.

    Subclasses implement `apply`, which runs a torch function, and `knows`. `Domain` implements both by a table of
    rules.
    """

    __slots__ = ()
    _changes: list[int]  # one number: how often the value was changed in place; shared by its views
    __array_ufunc__ = None  # numpy scalars defer arithmetic operators to this class
    __hash__ = object.__hash__

    @classmethod
    def apply(cls, func: Func, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a torch function. Every operation on a value ends here.

        Args:
            func: the torch function, Tensor method, or getter of a Tensor property.
            args: its positional arguments.
            kwargs: its keyword arguments. At least one argument is of this class.
        """
        raise NotImplementedError

    @classmethod
    def knows(cls, func: Func) -> bool:
        """Return whether there is a rule for a Tensor method, or for the getter of a Tensor property."""
        raise NotImplementedError

    @classmethod
    def __torch_function__(
        cls, func: Func, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if not all(issubclass(kind, (cls, Tensor)) for kind in types):
            unsupported(f"{name_of(func)} cannot mix a {cls.__name__} with another kind of set")
        return cls.apply(func, args, kwargs or {})

    def __getattr__(self, name: str) -> Any:
        """Look up Tensor methods and properties, by the same rules as functions."""
        if name.startswith("_"):
            raise AttributeError(name)
        member = getattr(Tensor, name, None)
        if callable(member) and self.knows(member):
            return lambda *args, **kwargs: self.apply(member, (self, *args), kwargs)
        getter = getattr(member, "__get__", None)
        if getter is not None and not callable(member) and self.knows(getter):
            return self.apply(getter, (self,), {})
        unsupported(f"'{name}' has no rule for a {type(self).__name__}", kind=UnsupportedAttribute)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.apply(Tensor.unbind, (self, 0), {}))

    def __getitem__(self, index: Any) -> Any:
        return self.apply(Tensor.__getitem__, (self, index), {})

    def __neg__(self) -> Any:
        return self.apply(Tensor.neg, (self,), {})

    def __abs__(self) -> Any:
        return self.apply(Tensor.abs, (self,), {})

    __add__ = __radd__ = _operator(Tensor.add)
    __sub__ = _operator(Tensor.sub)
    __rsub__ = _operator(torch.rsub)
    __mul__ = __rmul__ = _operator(Tensor.mul)
    __truediv__ = _operator(Tensor.div)
    __rtruediv__ = _operator(Tensor.__rtruediv__)
    __matmul__ = _operator(Tensor.matmul)
    __iadd__ = _operator(Tensor.add_)
    __isub__ = _operator(Tensor.sub_)
    __imul__ = _operator(Tensor.mul_)
    __itruediv__ = _operator(Tensor.div_)


class Rules(dict[Func, Callable[..., Any]]):
    """The rules of one kind of set: torch function, Tensor method or getter of a Tensor property -> rule.

    A rule is called as rule(func, *args, **kwargs) and returns a set that contains all results. Rules of in-place
    operations call `_become` of the set that changes. Every function in `watchers` is called with (func, args, kwargs)
    before a rule runs.

    Args:
        kind: the class of sets.

    Examples:
        >>> import torch
        >>> from advibp.bounds import Box
        >>> torch.relu in Box.rules
        True
    """

    watchers: ClassVar[list[Callable[[Func, tuple[Any, ...], dict[str, Any]], None]]] = []

    def __init__(self, kind: type[Any]) -> None:
        super().__init__()
        self.kind, self.name = kind, kind.__name__

    def run(self, func: Func, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run func(*args, **kwargs) by its rule. Raise if there is no rule."""
        rule = self.get(func)
        if rule is None:
            unsupported(f"{name_of(func)} has no rule for a {self.name}")
        for watch in self.watchers:
            watch(func, args, kwargs)
        if kwargs.get("out") is not None:
            unsupported(f"{name_of(func)} cannot write a {self.name} to out=")
        # Calls of methods do not pass the check in __torch_function__.
        if any(isinstance(arg, Value) and not isinstance(arg, self.kind) for arg in args):
            unsupported(f"{name_of(func)} cannot mix a {self.name} with another kind of set")
        with without_autocast(_device_type(args or tuple(kwargs.values()))):
            result = rule(func, *args, **kwargs)
        if isinstance(result, Domain) and is_low_precision(result.dtype):
            self._check_precision(func, args, kwargs, result.dtype)
        return result

    def _check_precision(self, func: Func, args: tuple[Any, ...], kwargs: dict[str, Any], dtype: torch.dtype) -> None:
        """Refuse to round a set to a dtype of low precision. A set that already has this dtype may keep it."""
        operands = [*args, *kwargs.values()]
        operands += [value for values in operands if isinstance(values, (tuple, list)) for value in values]
        if not any(isinstance(value, self.kind) and value.dtype == dtype for value in operands):
            unsupported(f"{name_of(func)} rounds to {dtype}, and bounds do not cover this rounding", FULL_PRECISION)

    def rule(self, names: str, *funcs: Func) -> Callable[[Func], Func]:
        """Register a rule that handles all its arguments itself.

        Args:
            names: names separated by spaces; all functions and Tensor methods of these names get the rule.
            funcs: more functions that get it.
        """

        def register(body: Func) -> Func:
            self.update(dict.fromkeys([*spellings(names), *funcs], body))
            return body

        return register

    def unary(self, names: str, *funcs: Func) -> Callable[[Func], Func]:
        """Register a rule for one set and constants. The option `inplace` of a function is handled here.

        Args:
            names: names separated by spaces; all functions and Tensor methods of these names get the rule.
            funcs: more functions that get it.
        """

        def register(body: Func) -> Func:
            def checked(func: Func, input: Any, *args: Any, inplace: bool = False, **kwargs: Any) -> Any:
                if not isinstance(input, self.kind) or any(isinstance(v, self.kind) for v in (*args, *kwargs.values())):
                    unsupported(
                        f"{name_of(func)} takes a {self.name} only as its input; the other arguments must be constant"
                    )
                result = body(func, input, *args, **kwargs)
                return input._become(result) if inplace and result is not input else result

            checked.__name__ = body.__name__
            self.rule(names, *funcs)(checked)
            return body

        return register

    def in_place(self, views: str) -> None:
        """Register the in-place forms of all functions that have a rule: `relu_` changes its first argument.

        Args:
            views: names of functions that return views, separated by spaces; they have no in-place form.
        """
        for base in [func for func in self if func.__name__ not in views.split()]:
            self.update(dict.fromkeys(spellings(f"{base.__name__}_"), self._in_place(base)))

    def _in_place(self, base: Func) -> Func:
        def change(func: Func, input: Any, *args: Any, **kwargs: Any) -> Any:
            if not isinstance(input, self.kind):
                advice = "use an operation that is not in place."
                unsupported(f"{name_of(func)} cannot write a {self.name} into a tensor", advice)
            return input._become(self[base](base, input, *args, **kwargs))

        change.__name__ = self[base].__name__
        return change


def without_autocast(device_type: str) -> AbstractContextManager[object]:
    """Disable autocast, which would round the bounds."""
    autocast = torch.amp.is_autocast_available(device_type) and torch.is_autocast_enabled(device_type)
    return torch.autocast(device_type, enabled=False) if autocast else nullcontext()


def is_low_precision(dtype: torch.dtype) -> bool:
    """Return whether a dtype has less precision than float32: float16, bfloat16, float8."""
    return dtype.is_floating_point and dtype.itemsize < 4


def _device_type(args: Any) -> str:
    first = args[0] if args else None
    if isinstance(first, (list, tuple)):
        return _device_type(first)
    return first.device.type if isinstance(first, (Value, Tensor)) else "cpu"


def _refuse(name: str) -> Callable[..., NoReturn]:
    def refuse(value: Value, *args: Any) -> NoReturn:
        unsupported(f"'{name}' is undefined for a {type(value).__name__}, which contains many values")

    return refuse


# Without these methods Python would use a default: len() for bool(), identity for ==.
_REFUSED = "bool float int index complex array contains setitem eq ne lt le gt ge pow rpow mod floordiv"
for _name in _REFUSED.split():
    setattr(Value, f"__{_name}__", _refuse(_name))


def unsupported(what: str, advice: str = "", kind: type[UnsupportedOperation] = UnsupportedOperation) -> NoReturn:
    """Raise an error that names the running layer.

    Args:
        what: what is not supported.
        advice: what to do instead. Default: a list of the supported operations.
        kind: class of the error.

    Raises:
        UnsupportedOperation: always.
    """
    raise kind(f"{_caller()}{what}; {advice or f'supported are {SUPPORTED}.'}")


def running_modules() -> list[nn.Module]:
    """Return the modules whose `forward` is running, innermost first, from the call stack."""
    modules: list[nn.Module] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name in ("forward", "_call_impl") and isinstance(frame.f_locals.get("self"), nn.Module):
            modules.append(frame.f_locals["self"])
        frame = frame.f_back
    return modules


def _caller() -> str:
    """Return the running layer as "layer 'features.3' (LSTM): ".

    The call stack is read only when an error is raised, so other calls have no cost.
    """
    modules = running_modules()
    for root in reversed(modules):
        for path, module in root.named_modules():
            if module is modules[0]:
                kind = type(module).__name__
                return f"layer '{path}' ({kind}): " if path else f"{kind}.forward: "
    return ""


def name_of(func: Func) -> str:
    """Return the name of a function as the user would write it, such as torch.nn.functional.softmax."""
    return resolve_name(func) or getattr(func, "__name__", repr(func))


def spellings(names: str) -> list[Func]:
    """Return all functions and Tensor methods of these names, and the getters of Tensor properties."""
    homes = (torch, torch.nn.functional, Tensor)
    members = [getattr(home, name) for name in names.split() for home in homes if hasattr(home, name)]
    return [f if callable(f) else f.__get__ for f in members if callable(f) or hasattr(f, "__get__")]


class Domain(Value):
    """A set of tensors around a center. Its shape, dtype and device are those of the center.

    Subclasses set `rules` and provide `_center`. See `Box` for an example.
    """

    __slots__ = ()
    rules: ClassVar[Rules]

    @property
    def _center(self) -> Tensor:
        raise NotImplementedError

    @classmethod
    def apply(cls, func: Func, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return cls.rules.run(func, args, kwargs)

    @classmethod
    def knows(cls, func: Func) -> bool:
        return func in cls.rules

    @property
    def shape(self) -> torch.Size:
        return self._center.shape

    @property
    def ndim(self) -> int:
        return self._center.ndim

    @property
    def dtype(self) -> torch.dtype:
        return self._center.dtype

    @property
    def device(self) -> torch.device:
        return self._center.device

    def lower_margins(self, y: Tensor) -> Tensor:
        """Return lower bounds (B, K) of the margins z_y - z_k of outputs z (B, K) and labels y (B,)."""
        raise NotImplementedError

    def proved(self, y: Tensor) -> Tensor:
        """Return, for each input, whether the label has the largest logit in every output of this set.

        Proofs of a `Box` and a `Zonotope` ignore rounding errors. Proofs of a `Rounded` set cover them.

        Args:
            y: labels (B,).

        Returns:
            (B,) of bool. False means that it is not proved, not that it is wrong.

        Examples:
            >>> import torch
            >>> from advibp import Box
            >>> net = torch.nn.Identity()
            >>> net(Box.ball(torch.tensor([[0.8, 0.1], [0.5, 0.4]]), 0.1)).proved(torch.tensor([0, 0]))
            tensor([ True, False])
        """
        return smallest_margin(self.lower_margins(y), y) > 0

    def __len__(self) -> int:
        if self.ndim == 0:
            unsupported(f"a {type(self).__name__} without dimensions has no length")
        return len(self._center)
