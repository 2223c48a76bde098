"""A program made shorter: biases join their matrices, and what nobody asks for is left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from advibp.vnncomp.onnx.torch_program import Call, Value


def arranged(calls: Sequence[Call], output: int) -> list[Call]:
    """The calls that the output's number depends on.

    MatMul and Add become one linear layer, as they were before an exporter took it apart: bounds of margins are tighter
    where the last layer is known as a whole.
    """
    needed = _needed(calls, output)
    uses = Counter(number for call in needed for number in used(call))
    by_number = {call.number: call for call in needed}
    for call in needed:
        matrix, bias = _parts(call, by_number)
        if matrix is not None and uses[matrix.number] == 1 and matrix.number != output:
            whole = (*matrix.operands[:2], bias)
            by_number[call.number] = replace(matrix, number=call.number, operands=whole)
            del by_number[matrix.number]
    return [by_number[number] for number in sorted(by_number)]


def used(call: Call) -> list[int]:
    """The numbers of the values that a call uses."""
    return [operand.number for operand in call.operands if isinstance(operand, Value)]


def _needed(calls: Sequence[Call], output: int) -> list[Call]:
    wanted, kept = {output}, []
    for call in reversed(calls):
        if call.number in wanted:
            wanted.update(used(call))
            kept.append(call)
    return kept[::-1]


def _parts(call: Call, by_number: dict[int, Call]) -> tuple[Call | None, Tensor | None]:
    """The linear layer without bias whose result a call adds a constant to, and that constant as a bias (K,)."""
    if call.func is torch.add:
        for value, constant in (call.operands, call.operands[::-1]):
            if isinstance(value, Value) and isinstance(constant, Tensor):
                matrix = by_number.get(value.number)
                if matrix is None or matrix.func is not F.linear or matrix.operands[2] is not None:
                    continue
                weight = matrix.operands[1]
                if isinstance(weight, Tensor) and constant.numel() == constant.shape[-1:].numel() == len(weight):
                    return matrix, constant.reshape(-1)
    return None, None
