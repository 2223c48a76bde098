"""The backward pass through activations equals the plain formula, in values and gradients."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from advibp.bounds.linear.activations import backward_relaxation
from advibp.bounds.linear.relaxation import LinearRelaxation

torch.set_num_threads(1)


def plain(lines: LinearRelaxation, a: Tensor) -> tuple[Tensor, Tensor]:
    """Positive coefficients take the lower line, negative ones the upper line."""
    positive, negative = a.clamp(min=0), a.clamp(max=0)
    constant = (negative * lines.upper_intercept).flatten(2).sum(2)
    if lines.lower_intercept is not None:
        constant = constant + (positive * lines.lower_intercept).flatten(2).sum(2)
    return positive * lines.lower_slope + negative * lines.upper_slope, constant


@settings(max_examples=20)
@given(st.integers(0, 10_000), st.booleans(), st.booleans(), st.sampled_from([(5,), (2, 3), ()]))
def test_values_and_gradients(seed: int, shared: bool, shifted: bool, shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(seed)

    def some(rows: int) -> Tensor:
        return torch.randn(3, rows, *(shape or (1,)), generator=generator, dtype=torch.float64).requires_grad_()

    a, k = some(4), 1 if shared else 4
    lines = LinearRelaxation(some(k), some(k) if shifted else None, some(k), some(k))
    inputs = [a, *(v for v in lines[:4] if v is not None)]
    found, want = backward_relaxation(lines, a), plain(lines, a)
    weights = [torch.randn(v.shape, generator=generator, dtype=torch.float64) for v in want]
    for f, w in zip(found, want, strict=True):
        torch.testing.assert_close(f, w)
    grads = [
        torch.autograd.grad([(v * w).sum() for v, w in zip(values, weights, strict=True)], inputs)
        for values in (found, want)
    ]
    for f, w in zip(*grads, strict=True):
        torch.testing.assert_close(f, w)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_nan_stays_nan(sign: float) -> None:
    a = torch.full((1, 1, 2), sign)
    bad = torch.tensor([[[torch.nan, 1.0]]])
    before, constant = backward_relaxation(LinearRelaxation(bad, None, bad, bad), a)
    assert before[0, 0].isnan().tolist() == [True, False]
    assert constant.isnan().all()
