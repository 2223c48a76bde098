"""Augmenting a batch at once is augmenting each image by itself."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from advibp.data.augment import augment
from advibp.errors import UserError

SHAPES = st.tuples(st.integers(1, 6), st.integers(1, 3), st.integers(1, 7), st.integers(1, 7))


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def one_by_one(image: Tensor, crop: int, flip: bool) -> list[Tensor]:
    """All that may become of an image (C, H, W): flipped or not, cropped at each place of its padded self."""
    _, height, width = image.shape
    found = []
    for mirrored in (image, image.flip(2)) if flip else (image,):
        padded = F.pad(mirrored, (crop, crop, crop, crop))
        places = range(2 * crop + 1)
        found += [padded[:, top : top + height, left : left + width] for top in places for left in places]
    return found


@given(SHAPES, st.booleans(), st.integers(0, 3), st.integers(0, 2**32))
def test_each_image_is_one_of_its_own_flips_and_crops(shape: tuple[int, ...], flip: bool, crop: int, seed: int) -> None:
    x = torch.rand(shape, generator=seeded(seed + 1))
    out = augment(x, flip=flip, crop=crop, generator=seeded(seed))
    assert out.shape == x.shape
    assert out.dtype == x.dtype
    for before, after in zip(x, out, strict=True):
        assert any(torch.equal(after, candidate) for candidate in one_by_one(before, crop, flip))


@given(SHAPES, st.booleans(), st.integers(0, 3), st.integers(0, 2**32))
def test_same_draws_as_a_loop_over_images(shape: tuple[int, ...], flip: bool, crop: int, seed: int) -> None:
    x = torch.rand(shape, generator=seeded(seed + 1))
    draws = seeded(seed)
    batch, _, height, width = shape
    tops = torch.randint(2 * crop + 1, (batch,), generator=draws).tolist()
    lefts = torch.randint(2 * crop + 1, (batch,), generator=draws).tolist()
    mirrors = (torch.rand(batch, generator=draws) < 0.5).tolist() if flip else [False] * batch
    expected = []
    for image, top, left, mirror in zip(x, tops, lefts, mirrors, strict=True):
        padded = F.pad(image.flip(2) if mirror else image, (crop, crop, crop, crop))
        expected.append(padded[:, top : top + height, left : left + width])
    assert torch.equal(augment(x, flip=flip, crop=crop, generator=seeded(seed)), torch.stack(expected))


def test_a_pure_function_of_images_and_generator() -> None:
    x = torch.rand(32, 3, 8, 8)
    before = x.clone()
    torch.manual_seed(1)
    one = augment(x, flip=True, crop=2, generator=seeded(7))
    torch.manual_seed(2)
    assert torch.equal(one, augment(x, flip=True, crop=2, generator=seeded(7)))
    assert torch.equal(x, before)
    assert not torch.equal(one, augment(x, flip=True, crop=2, generator=seeded(8)))


def test_every_place_is_equally_likely() -> None:
    n, crop = 20_000, 1
    x = torch.zeros(n, 1, 3, 3)
    x[:, 0, 1, 1] = 1
    share = augment(x, flip=False, crop=crop, generator=seeded(0)).mean(dim=0).flatten()
    assert torch.allclose(share, torch.full((9,), 1 / 9), atol=0.01)
    x = torch.zeros(n, 1, 1, 2)
    x[..., 0] = 1
    assert augment(x, flip=True, crop=0, generator=seeded(0))[..., 0].mean().item() == pytest.approx(0.5, abs=0.02)


def test_nothing_asked_nothing_done() -> None:
    x = torch.rand(3, 1, 4, 4)
    assert torch.equal(augment(x, flip=False, crop=0, generator=seeded(0)), x)
    empty = torch.zeros(0, 1, 4, 4)
    assert augment(empty, flip=True, crop=2, generator=seeded(0)).shape == empty.shape


def test_mistakes_are_told() -> None:
    with pytest.raises(UserError, match="crop is -1"):
        augment(torch.zeros(1, 1, 2, 2), flip=False, crop=-1, generator=seeded(0))
    with pytest.raises(UserError, match="expected a batch"):
        augment(torch.zeros(1, 2, 2), flip=False, crop=1, generator=seeded(0))
