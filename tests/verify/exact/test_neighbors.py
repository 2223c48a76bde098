"""Groups of neighboring parts: every part is in one group, and the boxes of groups are small."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from advibp.bounds.linear.part_bounds import Parts
from advibp.verify.exact.neighbors import neighbors


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 1000), count=st.integers(0, 60), most=st.integers(1, 10), same=st.booleans())
def test_every_part_is_in_one_group(seed: int, count: int, most: int, same: bool) -> None:
    low = torch.rand(count, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    low = torch.zeros_like(low) if same else low
    parts = Parts(torch.zeros(count).long(), low, low + 0.1, low[:, :0], low[:, :0])
    groups = neighbors(parts, torch.tensor([1.0, 2.0, 0.0]).double(), most)
    assert all(0 < len(group) <= most for group in groups)
    assert sorted(torch.cat([torch.zeros(0).long(), *groups]).tolist()) == list(range(count))


def test_groups_are_separated() -> None:
    low = torch.tensor([[0.0, 0.0], [10.0, 0.0], [0.1, 0.0], [10.1, 0.0]]).double()
    parts = Parts(torch.zeros(4).long(), low, low + 0.1, low[:, :0], low[:, :0])
    groups = {tuple(sorted(group.tolist())) for group in neighbors(parts, torch.ones(2).double(), 2)}
    assert groups == {(0, 2), (1, 3)}
