"""Values that stand in for tensors: what they share, whatever they are made of.

A `Value` can be given to any `nn.Module` in place of a tensor. Functions reach it through `__torch_function__`, Tensor
methods and properties through `__getattr__`, and operators through the table below; all end at `apply`.
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

from advibp.errors import UserError

Func = Callable[..., Any]

SUPPORTED = (
    "convolutions, linear layers, BatchNorm in evaluation, pooling, padding, monotone activations, reshaping, "
    "concatenation, sums, and products with constants"
)

FULL_PRECISION = "let the network compute in float32 or float64."


class UnsupportedOperation(UserError):
    """An operation that a value cannot do, or that has no rule."""


class UnsupportedAttribute(UnsupportedOperation, AttributeError):
    """The same for an attribute, so that `hasattr` answers False as it does for any other value."""


def _operator(func: Func) -> Callable[[Any, Any], Any]:
    """A binary operator that goes by the rule of `func`."""

    def operate(value: Value, other: Any) -> Any:
        if hasattr(other, "__torch_function__") and not isinstance(other, (type(value), Tensor)):
            unsupported(f"{name_of(func)} cannot mix a {type(value).__name__} with another kind of set")
        return value.apply(func, (value, other), {})

    return operate


class Value:
    """Something a network can run on in place of a tensor."""

    __slots__ = ()
    _changes: list[int]  # one number, how often a value was changed in place; its views share it
    __array_ufunc__ = None  # numpy's numbers leave arithmetic to us
    __hash__ = object.__hash__

    @classmethod
    def apply(cls, func: Func, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run `func`, at least one of whose arguments is of this class: the one gate."""
        raise NotImplementedError

    @classmethod
    def knows(cls, func: Func) -> bool:
        """Whether there is a rule for a Tensor method, or for the getter of a Tensor property."""
        raise NotImplementedError

    @classmethod
    def __torch_function__(
        cls, func: Func, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if not all(issubclass(kind, (cls, Tensor)) for kind in types):
            unsupported(f"{name_of(func)} cannot mix a {cls.__name__} with another kind of set")
        return cls.apply(func, args, kwargs or {})

    def __getattr__(self, name: str) -> Any:
        """Tensor methods and properties, by the same rules as functions."""
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
    """torch function, Tensor method or getter of a Tensor property -> rule(func, *args, **kwargs), for one kind of set.

    In-place rules call `_become` of the set that is changed. Watchers see every call before it is made.
    """

    watchers: ClassVar[list[Callable[[Func, tuple[Any, ...], dict[str, Any]], None]]] = []

    def __init__(self, kind: type[Any]) -> None:
        super().__init__()
        self.kind, self.name = kind, kind.__name__

    def run(self, func: Func, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """func(*args, **kwargs) by its rule; what has none raises."""
        rule = self.get(func)
        if rule is None:
            unsupported(f"{name_of(func)} has no rule for a {self.name}")
        for watch in self.watchers:
            watch(func, args, kwargs)
        if kwargs.get("out") is not None:
            unsupported(f"{name_of(func)} cannot write a {self.name} to out=")
        if any(isinstance(arg, Value) and not isinstance(arg, self.kind) for arg in args):  # a method was called
            unsupported(f"{name_of(func)} cannot mix a {self.name} with another kind of set")
        with exactly(_device_type(args or tuple(kwargs.values()))):
            result = rule(func, *args, **kwargs)
        if isinstance(result, Domain) and is_low(result.dtype):
            self._check_precision(func, args, kwargs, result.dtype)
        return result

    def _check_precision(self, func: Func, args: tuple[Any, ...], kwargs: dict[str, Any], dtype: torch.dtype) -> None:
        """Refuse to round a set to a type of low precision. One that came in that type may go on in it."""
        given = [*args, *kwargs.values()]
        given += [value for values in given if isinstance(values, (tuple, list)) for value in values]
        if not any(isinstance(value, self.kind) and value.dtype == dtype for value in given):
            unsupported(f"{name_of(func)} rounds to {dtype}, which bounds do not cover", FULL_PRECISION)

    def rule(self, names: str, *funcs: Func) -> Callable[[Func], Func]:
        """Register a rule that looks at all its arguments itself, for these names in all spellings and these
        functions."""

        def register(body: Func) -> Func:
            self.update(dict.fromkeys([*spellings(names), *funcs], body))
            return body

        return register

    def unary(self, names: str, *funcs: Func) -> Callable[[Func], Func]:
        """Register a rule for one set and constants; the function may have an option `inplace`."""

        def register(body: Func) -> Func:
            def checked(func: Func, input: Any, *args: Any, inplace: bool = False, **kwargs: Any) -> Any:
                if not isinstance(input, self.kind) or any(isinstance(v, self.kind) for v in (*args, *kwargs.values())):
                    unsupported(f"{name_of(func)} takes a {self.name} as its input alone, the rest must be constant")
                result = body(func, input, *args, **kwargs)
                return input._become(result) if inplace and result is not input else result

            checked.__name__ = body.__name__
            self.rule(names, *funcs)(checked)
            return body

        return register

    def in_place(self, views: str) -> None:
        """Give all functions but views the rules of their in-place forms: `relu_` changes its first argument."""
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


def exactly(device_type: str) -> AbstractContextManager[object]:
    """Rules keep the precision of their set; autocast would round the bounds."""
    autocast = torch.amp.is_autocast_available(device_type) and torch.is_autocast_enabled(device_type)
    return torch.autocast(device_type, enabled=False) if autocast else nullcontext()


def is_low(dtype: torch.dtype) -> bool:
    """Whether a type has less precision than float32: float16, bfloat16, float8."""
    return dtype.is_floating_point and dtype.itemsize < 4


def _device_type(args: Any) -> str:
    first = args[0] if args else None
    if isinstance(first, (list, tuple)):
        return _device_type(first)
    return first.device.type if isinstance(first, (Value, Tensor)) else "cpu"


def _refuse(name: str) -> Callable[..., NoReturn]:
    def refuse(value: Value, *args: Any) -> NoReturn:
        unsupported(f"'{name}' is undefined for a {type(value).__name__}, which holds many values")

    return refuse


# Python would find a way around some of these: bool() by len(), == by identity.
_REFUSED = "bool float int index complex array contains setitem eq ne lt le gt ge pow rpow mod floordiv"
for _name in _REFUSED.split():
    setattr(Value, f"__{_name}__", _refuse(_name))


def unsupported(what: str, advice: str = "", kind: type[UnsupportedOperation] = UnsupportedOperation) -> NoReturn:
    """Raise, saying which layer asked for what, and what to do."""
    raise kind(f"{_caller()}{what}; {advice or f'supported are {SUPPORTED}.'}")


def running_modules() -> list[nn.Module]:
    """The modules whose `forward` is running, innermost first, found by walking the frames."""
    modules: list[nn.Module] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name in ("forward", "_call_impl") and isinstance(frame.f_locals.get("self"), nn.Module):
            modules.append(frame.f_locals["self"])
        frame = frame.f_back
    return modules


def _caller() -> str:
    """Where in the user's network we are, as "layer 'features.3' (LSTM): ".

    Frames are walked only here, on the way to an error, so that the usual way pays nothing for it.
    """
    modules = running_modules()
    for root in reversed(modules):
        for path, module in root.named_modules():
            if module is modules[0]:
                kind = type(module).__name__
                return f"layer '{path}' ({kind}): " if path else f"{kind}.forward: "
    return ""


def name_of(func: Func) -> str:
    """torch.nn.functional.softmax as the user would write it."""
    return resolve_name(func) or getattr(func, "__name__", repr(func))


def spellings(names: str) -> list[Func]:
    """All functions and Tensor methods of these names, and the getters of such Tensor properties."""
    homes = (torch, torch.nn.functional, Tensor)
    found = [getattr(home, name) for name in names.split() for home in homes if hasattr(home, name)]
    return [f if callable(f) else f.__get__ for f in found if callable(f) or hasattr(f, "__get__")]


class Domain(Value):
    """A set of tensors around a centre, which has its shape, type and device."""

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

    def __len__(self) -> int:
        if self.ndim == 0:
            unsupported(f"a {type(self).__name__} of no dimensions has no length")
        return len(self._center)
