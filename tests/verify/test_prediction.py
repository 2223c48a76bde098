"""Predictions with certificates: the same proofs as `certify`, for one image or many."""

from __future__ import annotations

import json
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import advibp
from advibp import CollapseWarning, Predictor, UserError, nets, predict
from advibp.bounds import Box, Rounded
from advibp.verify import Prediction

SHAPE = (1, 6, 6)
SPECS = ["FC 8", "Conv 2 3x3+2, FC 6", "Conv 2 3x3+1p1 BN, Res 3+2 BN, FC 4 BN"]
NAMES = ["ant", "bee", "cat"]


def network(spec: str = SPECS[1], seed: int = 0, dtype: torch.dtype = torch.float32) -> nn.Module:
    net = nets.build(spec, SHAPE, 3, seed=seed)
    net(torch.rand(16, *SHAPE, generator=torch.Generator().manual_seed(seed)))  # statistics of BatchNorm
    return net.to(dtype)


def images(count: int, seed: int = 0) -> Tensor:
    return torch.rand(count, *SHAPE, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def fast() -> dict[str, Predictor]:
    """Predictors with recorded bounds; recording takes time."""
    return {
        spec: Predictor(network(spec), eps=0.01, radius=True, input_shape=SHAPE, class_names=NAMES, fast=True)
        for spec in SPECS
    }


@pytest.mark.parametrize("arithmetic", [None, "real"])
@pytest.mark.parametrize("spec", SPECS)
def test_certified_is_what_certify_proves(spec: str, arithmetic: str | None) -> None:
    net, x = network(spec), images(20)
    found = predict(net, x, eps=0.01, arithmetic=arithmetic)
    y = torch.tensor([one.index for one in found])
    assert torch.equal(y, net.eval()(x).argmax(1))
    records = advibp.certify(net, x, y, 0.01, arithmetic=arithmetic, attack=advibp.Attack(steps=1)).records
    assert [one.certified for one in found] == [r.verdict == "robust" for r in records]
    assert sum(bool(one.certified) for one in found) > 0
    assert {one.arithmetic for one in found} == {arithmetic or "float32"}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("by", [["ibp"], ["ibp", "crown-ibp"]], ids=str)
def test_the_radius_is_proved_and_nearly_the_largest(seed: int, by: list[str]) -> None:
    net, x = network(seed=seed).eval(), images(4, seed)
    found = predict(net, x, by=by)
    y = torch.tensor([one.index for one in found])
    largest = advibp.largest_proved_eps(net, x, y, by=by)
    for k, one in enumerate(found):
        assert one.radius == pytest.approx(float(largest[k]), abs=1e-4, rel=1e-3)
        assert one.radius > 0
        # A single image may be bounded with sums in another order.
        assert predict(net, x[k], eps=one.radius * (1 - 1e-4), by=by).certified
        corners = torch.randn(50, *SHAPE, generator=torch.Generator().manual_seed(seed)).sign()
        assert (net((x[k] + one.radius * (1 - 1e-6) * corners).clamp(0, 1)).argmax(1) == one.index).all()


def test_a_fine_tolerance_ends() -> None:
    coarse, fine = (Predictor(network(), tolerance=tolerance)(images(3)) for tolerance in (1e-2, 1e-12))
    for a, b in zip(coarse, fine, strict=True):
        assert a.radius <= b.radius <= a.radius / (1 - 1e-2)


@pytest.mark.parametrize("tolerance", [1e-2, 1e-3, 1e-5])
@pytest.mark.parametrize("most", [None, 1000.0])
def test_the_tolerance_is_relative_to_the_radius(tolerance: float, most: float | None) -> None:
    """Also for features in large units, and for inputs that are close to the decision boundary."""
    net = nn.Sequential(nn.Linear(2, 2, bias=False))
    net[0].weight.data.copy_(torch.tensor([[0.5, 0.5], [-0.5, -0.5]]))  # the margin is x_0 + x_1 - 2 eps
    around = advibp.Perturbation(None, None)
    predictor = Predictor(net.double(), perturbation=around, most=most, tolerance=tolerance)
    for total in (1e-6, 3e-3, 0.4, 1.7):
        one = predictor(torch.tensor([total / 2, total / 2], dtype=torch.float64))
        assert (1 - tolerance) * total / 2 <= one.radius <= total / 2
    assert predictor(torch.zeros(2)).radius == 0


@pytest.mark.parametrize("spec", SPECS)
def test_recorded_bounds_are_the_same_bit_by_bit(fast: dict[str, Predictor], spec: str) -> None:
    recorded = fast[spec]
    assert recorded.fast
    plain = Predictor(network(spec), eps=0.01, radius=True, class_names=NAMES)
    for x in images(10, seed=1):
        assert recorded(x) == plain(x)
        for eps in (1e-4, 0.02, 0.3, 1.0):
            y, radii = torch.tensor([1]), torch.tensor([[eps]])
            assert torch.equal(recorded._prove(x[None], radii, y), plain._prove(x[None], radii, y))


def test_recorded_bounds_cover_overflow() -> None:
    """Sums that may overflow have infinite bounds, also if they did not overflow in the recording."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)).requires_grad_(False)
    net[1].weight.copy_(torch.tensor([[3e37, 3e37], [0.0, 1.0]]))
    net[2].weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    recorded, plain = (Predictor(net, eps=0.01, input_shape=(1, 1, 2), fast=fast) for fast in (True, False))
    assert recorded.fast
    for x in (torch.zeros(1, 1, 2), torch.full((1, 1, 2), 1e-3), torch.ones(1, 1, 2)):
        assert recorded(x) == plain(x)
    assert not recorded(torch.ones(1, 1, 2)).certified


class Branching(nn.Module):
    """A network that computes another function for bright images. A set refuses the comparison."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(36, 3)

    def forward(self, x: Any) -> Any:
        x = x.flatten(1)
        if isinstance(x, Tensor) and float(x.mean()) > 0.9:
            return -self.layer(x)
        return self.layer(x)


def test_the_class_is_that_of_the_network_itself() -> None:
    torch.manual_seed(0)
    net = Branching()
    predictor = Predictor(net, eps=0.01, input_shape=SHAPE, fast=True)
    bright = torch.ones(SHAPE)
    assert predictor(bright).index == int(net(bright[None]).argmax(1))


def test_a_predictor_keeps_its_own_copy() -> None:
    net, x = network(), images(3)
    predictor = Predictor(net, eps=0.01)
    before = predictor(x)
    for p in net.parameters():
        p.data.neg_()
    assert net.training
    assert predictor(x) == before
    assert Predictor(net, eps=0.01)(x) != before


def test_one_image_arrays_and_bytes() -> None:
    net, pixels = network(), np.random.RandomState(0).randint(0, 256, (4, *SHAPE)).astype(np.uint8)
    predictor = Predictor(net, eps=0.01, class_names=NAMES)
    batch = predictor(pixels)
    assert isinstance(batch, list)
    assert all(one.name == NAMES[one.index] for one in batch)
    assert predictor(pixels[0]) == predictor(torch.tensor(pixels[0])) == batch[0]
    assert predictor(torch.tensor(pixels) / 255) == batch == predictor(pixels.astype(np.float32) / np.float32(255))
    assert predictor(torch.zeros(0, *SHAPE)) == []
    assert [one.index for one in predictor(images(101))] == network().eval()(images(101)).argmax(1).tolist()


@pytest.mark.parametrize(
    "array", [images(2).numpy()[..., ::-1], images(2).numpy().astype(">f4")], ids=["reversed", "other byte order"]
)
def test_arrays_that_torch_does_not_read(array: np.ndarray) -> None:
    predictor = Predictor(network(), eps=0.001)
    assert predictor(array) == predictor(torch.tensor(array.astype("=f4", order="C")))


def test_abstention() -> None:
    x = images(40)
    at_eps = predict(network("FC 8"), x, eps=0.02)
    assert {one.abstains for one in at_eps} == {True, False}
    assert all(one.abstains != one.certified for one in at_eps)
    assert all(one.radius is None for one in at_eps)
    both = predict(network("FC 8"), x, eps=0.02, radius=True)
    assert [one.certified for one in both] == [one.radius >= 0.02 for one in both]
    assert not any(one.abstains for one in predict(network(), x) if one.radius > 0)


def test_logits_that_are_not_finite_abstain() -> None:
    net = network("FC 8")
    next(net.parameters()).data.fill_(3e38)
    (one,) = predict(net, images(1), eps=0.1, radius=True)
    assert (one.index, one.certified, one.abstains, one.radius, one.name) == (-1, False, True, 0, "")
    json.dumps(one.as_dict(), allow_nan=False)


def test_float64() -> None:
    net = network(dtype=torch.float64)
    found = predict(net, images(5).double(), eps=0.01)
    assert {one.arithmetic for one in found} == {"float64"}


def test_json() -> None:
    one = predict(network(), images(1)[0], eps="8/255", class_names=NAMES)
    assert isinstance(one, Prediction)
    fields = json.loads(json.dumps(one.as_dict()))
    assert list(fields) == ["class", "name", "score", "eps", "certified", "abstains", "radius", "arithmetic"]
    assert fields["class"] == one.index
    assert fields["eps"] == 8 / 255


def test_threads_share_a_predictor(fast: dict[str, Predictor]) -> None:
    predictor, x = fast[SPECS[1]], images(40)
    expected = [predictor(one) for one in x]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(predictor, x)) == expected


def test_under_inference_mode_and_reduced_precision() -> None:
    predictor, x = Predictor(network(), eps=0.01), images(3)
    expected = predictor(x)
    with torch.inference_mode():
        assert predictor(x.clone()) == expected
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        assert predictor(x) == expected
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(UserError, match="autocast"):
        predictor(x)


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(36, 3)

    def forward(self, x: Any) -> Any:
        return self.layer(x.flatten(1)) + torch.rand(1)


MISTAKES: dict[str, tuple[Any, str]] = {
    "list": (lambda: predict(network(), [0.1]), "must be a tensor or an array"),
    "no network": (lambda: predict(3, images(1)), "must be an nn.Module"),  # type: ignore[arg-type]
    "eps": (lambda: predict(network(), images(1), eps=2), "eps is 2"),
    "verifier": (lambda: predict(network(), images(1), by="milp"), "milp"),
    "tolerance": (lambda: predict(network(), images(1), tolerance=0), "tolerance is 0"),
    "bright": (lambda: predict(network(), images(1) + 1), "leave [0, 1]"),
    "nan": (lambda: predict(network(), images(1) * torch.nan), "NaN"),
    "integers": (lambda: predict(network(), torch.ones(1, *SHAPE, dtype=torch.int64)), "torch.int64"),
    "objects": (lambda: predict(network(), np.array([None])), "object"),
    "masked": (lambda: predict(network(), np.ma.masked_less(images(1).numpy(), 0.5)), "masked values"),
    "sparse": (lambda: predict(network(), images(1).to_sparse()), "give a dense one"),
    "meta": (lambda: predict(network(), images(1).to("meta")), "give a dense one"),
    "one number": (lambda: predict(network(), torch.tensor(0.5)), "single number"),
    "shape": (lambda: predict(network(), torch.rand(2, 1, 5, 5), input_shape=SHAPE), "(B, 1, 6, 6)"),
    "other shape": (lambda: predict(network(), torch.rand(2, 1, 9, 9)), "can't take"),
    "random": (lambda: predict(Noisy(), images(1), eps=0.1), "draws random numbers"),
    "half": (lambda: predict(network().half(), images(1), eps=0.1), "float16"),
    "fast": (lambda: Predictor(network(), fast=True), "input_shape"),
    "radius": (lambda: Predictor(network(), radius="yes"), "radius is 'yes'"),  # type: ignore[arg-type]
    "fast is a text": (lambda: Predictor(network(), fast="yes"), "fast is 'yes'"),  # type: ignore[arg-type]
    "class names": (lambda: Predictor(network(), class_names=3), "class_names is 3"),  # type: ignore[arg-type]
    "one name": (lambda: Predictor(network(), class_names="ant"), "list of names"),
    "input shape": (lambda: Predictor(network(), input_shape=28), "input_shape is 28"),  # type: ignore[arg-type]
    "sizes": (lambda: Predictor(network(), input_shape=(1, "a", 2)), "whole number"),  # type: ignore[list-item]
    "perturbation": (lambda: Predictor(network(), perturbation=0.1), "advibp.Perturbation"),  # type: ignore[arg-type]
    "most": (lambda: Predictor(network(), most="1"), "most is '1'"),  # type: ignore[arg-type]
    "arithmetic": (lambda: predict(network(), images(1), arithmetic="float64"), "float32"),
}


@pytest.mark.parametrize("kind", MISTAKES)
def test_mistakes_have_one_sentence(kind: str) -> None:
    call, word = MISTAKES[kind]
    with pytest.raises(UserError) as raised:
        call()
    assert word in str(raised.value)
    assert "\n" not in str(raised.value)


def test_the_box_includes_rounding() -> None:
    """At the largest eps that real arithmetic proves, the bounds with rounding are smaller."""
    net, x = network("FC 8").eval(), images(1)
    y = net(x).argmax(1)
    real, rounded = (predict(net, x, tolerance=1e-9, arithmetic=kind)[0].radius for kind in ("real", None))
    assert rounded < real
    assert bool(net(Box.ball(x, real * 0.9999)).proved(y))
    # The search bounds several radii in one batch, whose sums have another order than those of one radius.
    assert bool(net(Rounded.ball(x, rounded * (1 - 1e-5))).proved(y))


def test_inputs_of_another_shape_are_refused() -> None:
    predictor = Predictor(network("FC 8").eval(), eps=0.01)
    predictor(images(1))
    with pytest.raises(UserError, match=r"The images have shape \(1, 7, 7\), but the earlier ones \(1, 6, 6\)"):
        predictor(torch.zeros(1, 7, 7))
    with pytest.raises(UserError, match="most is 1e\\+39"):
        Predictor(network("FC 8").eval(), most=1e39)


@pytest.mark.parametrize("scale", [0.0, 1e-6])
def test_a_constant_network_gives_a_warning(scale: float) -> None:
    net = network("FC 8").eval()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Predictor(net, eps=0.1)(images(1)[0])
    with torch.no_grad():
        next(net.parameters()).mul_(scale)
        list(net.parameters())[-1].copy_(torch.tensor([0.0, 3.0, 0.0]))
    with pytest.warns(CollapseWarning, match="it predicts class 1 for every input"):
        assert Predictor(net, eps=0.1)(images(1)[0]).certified


def test_a_wide_range_does_not_hide_a_small_radius() -> None:
    net, x = network("FC 8").eval(), images(1)[0]
    narrow, wide = (predict(net, x, most=most).radius for most in (1.0, 1e30))
    assert abs(wide - narrow) <= 2e-3 * narrow


def test_the_number_of_names_is_checked() -> None:
    with pytest.raises(UserError, match="class_names has 1 names, but the network has 3 classes"):
        predict(network("FC 8").eval(), images(1)[0], class_names=["a"])
