"""OnnxNet: a network that was read from a file, as a module like any other."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from advibp.errors import UserError
from advibp.vnncomp.onnx.arranging import used
from advibp.vnncomp.onnx.onnx_graph import Shape
from advibp.vnncomp.onnx.torch_program import Call, Value


class Step(nn.Module):
    """One torch call. Its weights are parameters, its indices buffers."""

    def __init__(self, call: Call, over: Sequence[int]) -> None:
        """over: numbers of the values that no later step uses."""
        super().__init__()
        self.func, self.options, self.number, self.over = call.func, call.options, call.number, tuple(over)
        self.operands: list[int | str | None] = []
        for i, operand in enumerate(call.operands):
            if isinstance(operand, Tensor):
                self._own(f"constant_{i}", operand)
                self.operands.append(f"constant_{i}")
            else:
                self.operands.append(operand.number if isinstance(operand, Value) else None)

    def _own(self, name: str, constant: Tensor) -> None:
        if constant.is_floating_point():
            # Contiguous, and memory of its own: whoever trains or saves it need not know where it came from.
            own = constant.clone(memory_format=torch.contiguous_format)
            self.register_parameter(name, nn.Parameter(own, requires_grad=False))
        else:
            self.register_buffer(name, constant)

    def forward(self, values: dict[int, Any]) -> Any:
        operands = [values[o] if isinstance(o, int) else o and getattr(self, o) for o in self.operands]
        return self.func(*operands, **self.options)

    def extra_repr(self) -> str:
        return f"{getattr(self.func, '__name__', '?')}, {self.options}"


class OnnxNet(nn.Module):
    """(B, *input_shape) -> (B, K), on tensors and on sets: what the file computes of each image by itself."""

    def __init__(
        self, calls: Sequence[Call], output: Value, *, input_name: str, output_name: str, file_input_shape: Shape
    ) -> None:
        super().__init__()
        self.input_name, self.output_name = input_name, output_name
        self.file_input_shape = file_input_shape  # for one image, as other programs that read the file want it
        self.input_shape, self.output_shape = Value(0, file_input_shape).rows, output.rows
        self._output = output.number
        self.steps = nn.ModuleDict()
        last = {number: call.number for call in calls for number in used(call)}
        for i, call in enumerate(calls):
            over = [number for number, user in last.items() if user == call.number and number != output.number]
            self.steps[f"{i} {_plain(call.name)}"] = Step(call, over)

    def forward(self, x: Any) -> Any:
        if tuple(x.shape[1:]) != self.input_shape:
            wanted = ", ".join(map(str, ("B", *self.input_shape)))
            raise UserError(f"the network takes inputs of shape ({wanted}), not {tuple(x.shape)}; reshape them first.")
        values = {0: x}
        for step in self.steps.values():
            assert isinstance(step, Step)
            values[step.number] = step(values)
            for number in step.over:  # what nobody asks for again need not stay in memory
                del values[number]
        return values[self._output]


def _plain(name: str) -> str:
    """A node's name in letters that a module's may have."""
    return re.sub(r"[^\w/:-]+", "_", name)[:60]
