"""OnnxNet: the module that `load_onnx` returns."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from advibp.errors import UserError
from advibp.vnncomp.onnx.onnx_graph import Shape
from advibp.vnncomp.onnx.simplification import used_values
from advibp.vnncomp.onnx.torch_program import Call, Value


class Step(nn.Module):
    """One torch call. Floating-point constants are parameters, integer constants are buffers.

    Args:
        call: the call.
        last_used: numbers of the values that no later step uses.
    """

    def __init__(self, call: Call, last_used: Sequence[int]) -> None:
        super().__init__()
        self.func, self.options, self.number, self.last_used = call.func, call.options, call.number, tuple(last_used)
        self.operands: list[int | str | None] = []
        for i, operand in enumerate(call.operands):
            if isinstance(operand, Tensor):
                self._register(f"constant_{i}", operand)
                self.operands.append(f"constant_{i}")
            else:
                self.operands.append(operand.number if isinstance(operand, Value) else None)

    def _register(self, name: str, constant: Tensor) -> None:
        if constant.is_floating_point():
            # A contiguous copy, so that parameters share no memory with each other or with the file.
            copy = constant.clone(memory_format=torch.contiguous_format)
            self.register_parameter(name, nn.Parameter(copy, requires_grad=False))
        else:
            self.register_buffer(name, constant)

    def forward(self, values: dict[int, Any]) -> Any:
        operands = [values[o] if isinstance(o, int) else o and getattr(self, o) for o in self.operands]
        return self.func(*operands, **self.options)

    def extra_repr(self) -> str:
        return f"{getattr(self.func, '__name__', '?')}, {self.options}"


class OnnxNet(nn.Module):
    """A network that was loaded from an ONNX file by `advibp.vnncomp.load_onnx`: (B, *input_shape) -> (B, K).

    It accepts tensors and sets (`Box`, `Zonotope`), like any other module. Parameters have requires_grad=False.

    Attributes:
        input_shape: shape of one input, without the batch axis.
        output_shape: shape of one output, (K,).
        input_name: name of the input in the file.
        output_name: name of the output in the file.
        file_input_shape: input shape of the file for a batch of one, as other programs expect it.

    Examples:
        >>> import torch, advibp
        >>> saved = advibp.vnncomp.save_onnx(torch.nn.Linear(2, 3), "first.onnx", (2,))
        >>> net = advibp.vnncomp.load_onnx("first.onnx")
        >>> net(advibp.Box.ball(torch.rand(1, *net.input_shape), 0.01)).lower.shape
        torch.Size([1, 3])
    """

    def __init__(
        self,
        calls: Sequence[Call],
        output: Value,
        *,
        input_name: str,
        output_name: str,
        file_input_shape: Shape,
        input_shape: Shape,
    ) -> None:
        super().__init__()
        self.input_name, self.output_name = input_name, output_name
        self.file_input_shape = file_input_shape
        self.input_shape, self.output_shape = input_shape, output.item_shape
        self._output = output.number
        self.steps = nn.ModuleDict()
        last_user = {number: call.number for call in calls for number in used_values(call)}
        for i, call in enumerate(calls):
            last_used = [n for n, user in last_user.items() if user == call.number and n != output.number]
            self.steps[f"{i} {_module_name(call.name)}"] = Step(call, last_used)

    def forward(self, x: Any) -> Any:
        if tuple(x.shape[1:]) != self.input_shape:
            expected = ", ".join(map(str, ("B", *self.input_shape)))
            raise UserError(
                f"the network takes inputs of shape ({expected}), not {tuple(x.shape)}; reshape them first."
            )
        values = {0: x}
        for step in self.steps.values():
            assert isinstance(step, Step)
            values[step.number] = step(values)
            for number in step.last_used:  # free memory
                del values[number]
        return values[self._output]


def _module_name(name: str) -> str:
    """Return a node's name with only those characters that a module's name may have."""
    return re.sub(r"[^\w/:-]+", "_", name)[:60]
