"""Simplify a list of torch calls: remove unused calls, and fuse MatMul and Add into one linear layer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from advibp.vnncomp.onnx.torch_program import Call, Value, reshape


def simplify_calls(calls: Sequence[Call], output: int) -> list[Call]:
    """Return the calls that the output depends on, with MatMul and Add fused.

    Some exporters write a linear layer as MatMul and Add. Bounds of margins are tighter if the last linear layer is one
    call.

    Args:
        calls: calls in the order in which they run.
        output: number of the value that the network returns.
    """
    needed = _needed_calls(_without_detours(calls), output)
    uses = Counter(number for call in needed for number in used_values(call))
    by_number = {call.number: call for call in needed}
    for call in needed:
        matrix, bias = _parts(call, by_number)
        if matrix is not None and uses[matrix.number] == 1 and matrix.number != output:
            by_number[call.number] = replace(matrix, number=call.number, operands=(*matrix.operands[:2], bias))
            del by_number[matrix.number]
    return [by_number[number] for number in sorted(by_number)]


def _without_detours(calls: Sequence[Call]) -> list[Call]:
    """Return the calls; a reshape of a reshaped value starts from the value itself."""
    by_number: dict[int, Call] = {}
    for call in calls:
        operand = call.operands[0] if call.func is reshape else None
        source = by_number.get(operand.number) if isinstance(operand, Value) else None
        if source is not None and source.func is reshape:
            call = replace(call, operands=source.operands)
        by_number[call.number] = call
    return list(by_number.values())


def used_values(call: Call) -> list[int]:
    """Return the numbers of the values that a call uses."""
    return [operand.number for operand in call.operands if isinstance(operand, Value)]


def _needed_calls(calls: Sequence[Call], output: int) -> list[Call]:
    """Return the calls that contribute to the output, in order."""
    numbers, needed = {output}, []
    for call in reversed(calls):
        if call.number in numbers:
            numbers.update(used_values(call))
            needed.append(call)
    return needed[::-1]


def _parts(call: Call, by_number: dict[int, Call]) -> tuple[Call | None, Tensor | None]:
    """If `call` adds a constant to the result of a linear layer without bias, return that layer and the bias (K,)."""
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
