"""Random programs of unusual PyTorch operations on values (B, 8)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor, nn

Step = Callable[[Any, Any, Any], Any]  # of the network and two values; one that writes in place returns the first


def _write_some(net: Any, v: Any, w: Any) -> Any:
    v[:, :3] = 0.5
    return v


def _write_other(net: Any, v: Any, w: Any) -> Any:
    v[:, 2:5] = w[:, 1:4]
    return v


def _iadd(net: Any, v: Any, w: Any) -> Any:
    v += w
    return v


def _relu_of_view(net: Any, v: Any, w: Any) -> Any:
    F.relu(v.view(-1, 4), True)
    return v


def _relu_of_part(net: Any, v: Any, w: Any) -> Any:
    first = v[:, :4]
    first.mul_(2).relu_()
    return v


def _without_gradient(net: Any, v: Any, w: Any) -> Any:
    with torch.no_grad():
        return v * 2 + net.first(w)


def _fresh(net: Any, v: Any, w: Any) -> Any:
    out = torch.zeros(v.size(0), 8, dtype=v.dtype)
    out[:, 4:] = v[:, :4]
    return out


SETS_TOO: dict[str, Step] = {
    "layer": lambda net, v, w: net.first(v),
    "other layer": lambda net, v, w: net.second(v),
    "nested": lambda net, v, w: net.nested(v),
    "named arguments": lambda net, v, w: F.linear(input=v, weight=net.first.weight, bias=net.scale),
    "matmul": lambda net, v, w: v @ net.second.weight.t(),
    "computed weight": lambda net, v, w: F.linear(v, net.first.weight * net.scale, net.second.bias),
    "constant weight": lambda net, v, w: F.linear(v, (net.first.weight * 2).detach()),
    "conv": lambda net, v, w: net.conv(v.unflatten(1, (2, 4))).flatten(1),
    "relu": lambda net, v, w: F.relu(v),
    "relu in place": lambda net, v, w: F.relu_(v),
    "relu layer in place": lambda net, v, w: net.relu(v),
    "add in place": _iadd,
    "add": lambda net, v, w: v + w,
    "difference": lambda net, v, w: torch.sub(v, w, alpha=0.5),
    "numbers": lambda net, v, w: 2 - 0.5 * v / 3 + 1,
    "buffer": lambda net, v, w: net.buffer * v - net.buffer,
    "cat": lambda net, v, w: torch.cat((v[:, :4], w[:, 4:]), dim=1),
    "split": lambda net, v, w: torch.cat(v.split([3, 5], dim=1)[::-1], 1),
    "unbind": lambda net, v, w: torch.stack([w[:, 0], *v.unbind(1)[1:]], dim=1),
    "iterate": lambda net, v, w: torch.stack(list(v)),
    "transposed": lambda net, v, w: (v.T + w.mT).T,
    "reshape": lambda net, v, w: v.reshape(v.size(0), 2, -1).transpose(1, 2).reshape(v.shape[0], 8),
    "pool": lambda net, v, w: F.max_pool1d(v.unsqueeze(1), 3, 1, 1).squeeze(1),
    "dropout": lambda net, v, w: F.dropout(v, training=False),
    "detach": lambda net, v, w: v.detach() + w.data,
    "no gradient": _without_gradient,
    "norm": lambda net, v, w: net.norm(v),
}
TENSORS_ALONE: dict[str, Step] = {
    "setitem": _write_some,
    "setitem of a value": _write_other,
    "fresh": _fresh,
    "view written": _relu_of_view,
    "part written": _relu_of_part,
    "max": lambda net, v, w: v - w.max(1, keepdim=True).values,
    "where": lambda net, v, w: torch.where(v > 0, v, w),
    "power": lambda net, v, w: 0.5**v + (w**2) % 3,
}
STEPS = SETS_TOO | TENSORS_ALONE


class Program(nn.Module):
    """Runs the steps on a list that starts with the input; returns the last value or the sum of the last two."""

    def __init__(self, steps: list[tuple[str, int, int]], join: bool, training: bool, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.second, self.conv = nn.Linear(8, 8), nn.Linear(8, 8), nn.Conv1d(2, 2, 3, padding=1)
        self.nested = nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.ReLU(inplace=True), nn.Linear(8, 8)))
        self.relu, self.norm = nn.ReLU(inplace=True), nn.BatchNorm1d(8)
        self.scale = nn.Parameter(torch.randn(8))
        self.register_buffer("buffer", torch.randn(8))
        self.steps, self.join = steps, join
        self.double().train(training)
        assert isinstance(self.norm.running_var, Tensor)
        self.norm.running_var.uniform_(0.5, 2)

    def forward(self, x: Any) -> Any:
        values = [x]
        for name, i, j in self.steps:
            values.append(STEPS[name](self, values[i % len(values)], values[j % len(values)]))
        return values[-1] + values[-2] if self.join else values[-1]


def programs(kinds: dict[str, Step], training: bool = True) -> st.SearchStrategy[Program]:
    # Mostly the latest value, so that the network is deep; sometimes an earlier one, so that it is no chain.
    operand = st.one_of(st.just(-1), st.just(-1), st.integers(-4, -1))
    step = st.tuples(st.sampled_from(sorted(kinds)), operand, st.integers(-4, -1))
    return st.builds(
        Program,
        st.lists(step, min_size=1, max_size=8),
        st.booleans(),
        st.booleans() if training else st.just(False),
        st.integers(0, 999),
    )
