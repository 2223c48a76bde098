"""The pool of open subproblems: no subproblem is lost or doubled, and its lowest bound is sound."""

from __future__ import annotations

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from advibp.bounds.linear.part_bounds import Parts
from advibp.verify.exact.pool import Pool


def numbered(count: int, seed: int) -> Pool[Parts]:
    """Parts with the numbers 0, 1, ... as their lowest inputs, and random bounds."""
    bounds = torch.randn(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    low = torch.arange(count, dtype=torch.float64).unsqueeze(1)
    return Pool(Parts(torch.zeros(count).long(), low, low + 1, low[:, :0], low[:, :0]), bounds)


@settings(max_examples=50, deadline=None)
@given(count=st.integers(0, 20), seed=st.integers(0, 1000), closed=st.sampled_from([math.inf, 0.0]))
def test_partition_and_join_keep_every_subproblem(count: int, seed: int, closed: float) -> None:
    pool = numbered(count, seed)
    chosen, others = pool.partition(torch.rand(count, generator=torch.Generator().manual_seed(seed + 1)) < 0.5)
    joined = others.join(chosen)
    assert len(chosen) + len(others) == len(joined) == count
    order = joined.parts.low[:, 0].argsort()
    assert torch.equal(joined.take(order).parts.low, pool.parts.low)
    assert torch.equal(joined.take(order).bounds, pool.bounds)
    assert joined.lowest(closed) == min([closed, *pool.bounds.tolist()])
