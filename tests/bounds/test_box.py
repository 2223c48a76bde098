"""Box: it contains sampled points, affine layers are exact, and unsupported operations raise."""

from __future__ import annotations

import math
from typing import Any

import numpy
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from small_nets import (
    AFFINE,
    CONSTANT,
    EXACT,
    INEXACT,
    TURNING,
    VIEWS,
    Forward,
    Lambda,
    Net,
    assert_inside,
    assert_sound,
    assert_zero_radius_is_concrete,
    cases,
    members,
    nets,
    random_box,
    ready,
    settled,
)
from torch import Tensor, nn

from advibp.bounds import Box, LinearBounds, Zonotope
from advibp.bounds.domain import UnsupportedOperation
from advibp.errors import UserError

# ---- random networks


@settings(max_examples=60)
@given(nets())
def test_bounds_contain_sampled_points(net: nn.Module) -> None:
    assert_sound(net, random_box(1, 2, 6, 6), count=10_000)


@settings(max_examples=60)
@given(nets())
def test_zero_radius_gives_the_concrete_output(net: nn.Module) -> None:
    assert_zero_radius_is_concrete(net, torch.randn(3, 2, 6, 6, dtype=torch.float64))


@settings(max_examples=60)
@given(nets())
def test_smaller_box_gives_smaller_bounds(net: nn.Module) -> None:
    outer = random_box(2, 2, 6, 6)
    corners = outer.center + outer.radius * (torch.rand(2, *outer.shape, dtype=torch.float64) * 2 - 1)
    inner = Box.from_bounds(corners.amin(0), corners.amax(0))
    small, large = net(inner), net(outer)
    assert_inside(small.lower, large)
    assert_inside(small.upper, large)


@settings(max_examples=30)
@given(nets())
def test_images_of_a_batch_are_independent(net: nn.Module) -> None:
    box = random_box(3, 2, 6, 6)
    whole = net(box.clone())
    for i in range(3):
        single = net(box[i : i + 1].clone())
        torch.testing.assert_close(whole.lower[i], single.lower[0])
        torch.testing.assert_close(whole.upper[i], single.upper[0])


# ---- single layers


@pytest.mark.parametrize(("net", "shape"), cases(AFFINE, EXACT, TURNING, INEXACT))
def test_every_layer_is_sound(net: Any, shape: tuple[int, ...]) -> None:
    net, box = ready(net), random_box(*shape)
    output = net(Box(center=box.center, radius=box.radius))
    assert output.shape == net(box.center.clone()).shape
    for side in torch.rand(40, *shape, dtype=torch.float64) * 2 - 1:
        for offset in (side, side.sign()):
            assert_inside(net(box.center + offset * box.radius), output)


@pytest.mark.parametrize(("net", "shape"), cases(AFFINE, EXACT, TURNING, INEXACT))
def test_every_layer_at_zero_radius(net: Any, shape: tuple[int, ...]) -> None:
    assert_zero_radius_is_concrete(ready(net), random_box(*shape).center)


@pytest.mark.parametrize(("net", "shape"), cases(AFFINE))
def test_affine_layers_attain_their_bounds_at_the_sign_vertex(net: Any, shape: tuple[int, ...]) -> None:
    """The extremes of output i are at c +- r sign(J_i), where J_i is row i of the Jacobian."""
    net, box = ready(net), random_box(*shape)
    output = net(Box(center=box.center, radius=box.radius))
    concrete = lambda x: net(x.clone())  # noqa: E731
    jacobian = torch.autograd.functional.jacobian(concrete, box.center).flatten(0, output.ndim - 1)
    for i in torch.randperm(len(jacobian))[:40].tolist():
        offset = box.radius * jacobian[i].sign()
        torch.testing.assert_close(net(box.center + offset).flatten()[i], output.upper.flatten()[i])
        torch.testing.assert_close(net(box.center - offset).flatten()[i], output.lower.flatten()[i])


@pytest.mark.parametrize(("net", "shape"), cases(EXACT))
def test_monotone_layers_map_bounds_to_bounds(net: Any, shape: tuple[int, ...]) -> None:
    net, box = ready(net), random_box(*shape)
    output = net(Box(center=box.center, radius=box.radius))
    torch.testing.assert_close(output.lower, net(box.lower))
    torch.testing.assert_close(output.upper, net(box.upper))


@pytest.mark.parametrize(("net", "shape"), cases(TURNING))
def test_turning_layers_are_exact(net: Any, shape: tuple[int, ...]) -> None:
    net, box = ready(net), random_box(*shape)
    output = net(Box(center=box.center, radius=box.radius))
    steps = torch.linspace(-1, 1, 2001, dtype=torch.float64).view(-1, *[1] * len(shape))
    values = torch.stack([net(x) for x in box.center + steps * box.radius])
    torch.testing.assert_close(output.lower, values.amin(0), atol=2e-3, rtol=0)
    torch.testing.assert_close(output.upper, values.amax(0), atol=2e-3, rtol=0)


def test_active_relu_is_bit_identical_and_inactive_relu_is_zero() -> None:
    center, radius = torch.tensor([1e6, -3.0, 0.5]), torch.tensor([1e-3, 1.0, 1.0])
    box = F.relu(Box(center=center, radius=radius))
    assert box.center.tolist() == [1e6, 0.0, 0.75]
    assert box.radius.tolist() == [radius[0].item(), 0.0, 0.75]


# ---- constructors


@given(st.integers(0, 1000), st.floats(0, 2))
def test_a_ball_is_intersected_with_its_range(seed: int, eps: float) -> None:
    x = torch.rand(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    box = Box.ball(x, eps)
    torch.testing.assert_close(box.lower, (x - eps).clamp(min=0))
    torch.testing.assert_close(box.upper, (x + eps).clamp(max=1))
    whole = Box.ball(x, eps, within=None)
    torch.testing.assert_close((whole.lower, whole.upper), (x - eps, x + eps))


def test_ball_with_eps_per_image_and_any_range() -> None:
    x = torch.zeros(2, 3)
    box = Box.ball(x, torch.tensor([[0.1], [0.5]]), within=(-0.2, torch.tensor([0.0, 0.3, 1.0])))
    torch.testing.assert_close(box.lower, torch.tensor([[-0.1] * 3, [-0.2] * 3]))
    torch.testing.assert_close(box.upper, torch.tensor([[0.0, 0.1, 0.1], [0.0, 0.3, 0.5]]))


@pytest.mark.parametrize("eps", [-0.1, math.nan, math.inf, torch.tensor(-1.0), torch.tensor([0.1, math.nan])])
def test_eps_must_be_finite_and_not_negative(eps: Any) -> None:
    with pytest.raises(UserError, match="eps must be finite and not negative"):
        Box.ball(torch.zeros(3, 2), eps)


def test_constructors_check_their_arguments() -> None:
    with pytest.raises(UserError, match="NaN or lies outside of"):
        Box.ball(torch.full((2,), 200.0), 0.1)
    with pytest.raises(UserError, match="NaN or lies outside of"):
        Box.ball(torch.tensor([math.nan]), 0.1)
    with pytest.raises(UserError, match=r"floating-point tensors, not torch.uint8"):
        Box.ball(torch.zeros(2, dtype=torch.uint8), 0.1)
    with pytest.raises(UserError, match="floating-point tensors, not list"):
        Box(center=[0.0], radius=0.1)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"write Box\(center=..., radius=...\), Box.from_bounds"):
        Box(torch.zeros(2), torch.ones(2))
    with pytest.raises(UserError, match="radius"):
        Box(center=torch.zeros(2), radius=torch.tensor([0.1, -0.1]))
    with pytest.raises(UserError, match="lower <= upper"):
        Box.from_bounds(torch.ones(2), torch.zeros(2))


def test_shape_dtype_and_device() -> None:
    box = random_box(2, 3, 4)
    assert box.shape == box.size() == (2, 3, 4)
    assert (box.size(1), box.dim(), box.ndim, box.numel(), len(box)) == (3, 3, 3, 24, 2)
    assert box.dtype == torch.float64
    assert box.is_floating_point()
    assert torch.is_floating_point(box)
    assert not box.is_cuda
    assert not box.requires_grad
    assert not hasattr(box, "grad_fn")
    assert box.device == torch.device("cpu")
    assert box[0].T.shape == (4, 3)
    assert isinstance(box.new_zeros(3), Tensor)
    assert "(2, 3, 4)" in repr(box)


def test_meta_device_and_half_precision() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3))
    output = net.to("meta")(Box._of(*torch.zeros(2, 5, 1, 4, 4, device="meta")))
    assert output.lower_margins(torch.zeros(5, dtype=torch.int64, device="meta")).shape == (5, 3)
    assert (
        nn.Linear(2, 3).bfloat16()(Box(center=torch.zeros(1, 2, dtype=torch.bfloat16), radius=0.1)).dtype
        == torch.bfloat16
    )


def test_autocast_does_not_round_the_bounds() -> None:
    net = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
    x, y = torch.rand(4, 5), torch.tensor([0, 1, 2, 0])
    plain = net(Box.ball(x, 0.1)).lower_margins(y)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        box = net(Box.ball(x, 0.1))
        assert box.dtype == torch.float32
        assert torch.equal(box.lower_margins(y), plain)


# ---- margins


@settings(max_examples=40)
@given(nets(), st.integers(0, 3))
def test_margins_are_sound_and_elision_never_loosens_them(net: nn.Module, label: int) -> None:
    if not isinstance(net[-1], nn.Linear):
        net.extend([nn.Flatten(), nn.LazyLinear(4).double()])
        net(torch.zeros(1, 2, 6, 6, dtype=torch.float64))
    box = random_box(1, 2, 6, 6)
    with torch.no_grad():
        output = net(Box(center=box.center, radius=box.radius))
        y = torch.tensor([label % output.shape[1]])
        elided, subtracted = output.margins(y), (output + 0).margins(y)
        assert output.elided
        assert elided.elided
        assert not (output + 0).elided
        assert not subtracted.elided
        assert_inside(elided.lower, subtracted)
        assert_inside(elided.upper, subtracted)
        outputs = net(members(box, 2000))
        assert_inside(outputs[:, y] - outputs, elided)
        assert torch.equal(output.lower_margins(y), elided.lower)
        for margins in (elided, subtracted):
            assert margins.lower[0, y] == margins.upper[0, y] == 0


def test_subtracted_margins_are_the_difference_of_bounds() -> None:
    box, y = random_box(5, 4), torch.tensor([0, 1, 2, 3, 0])
    margins, rows = box.margins(y), torch.arange(5)
    expected = box.lower[rows, y, None] - box.upper
    expected[rows, y] = 0
    torch.testing.assert_close(margins.lower, expected)


def test_proved_ignores_the_margin_of_the_label_and_is_false_for_nan() -> None:
    box, y = random_box(200, 3), torch.arange(200) % 3
    margins = box.lower_margins(y)
    expected = [all(margins[i, k] > 0 for k in range(3) if k != y[i]) for i in range(200)]
    assert box.proved(y).tolist() == expected
    assert any(expected)
    assert not all(expected)
    assert Zonotope.from_box(box).proved(y).tolist() == expected
    assert LinearBounds(nn.Identity(), box).proved(y).tolist() == expected
    nan = Box._of(torch.tensor([[math.nan, 0.0]]), torch.zeros(1, 2))
    assert not nan.proved(torch.tensor([1])).any()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("batch", [1, 6])
def test_elided_margins_of_one_linear_layer_are_exact(bias: bool, batch: int) -> None:
    """With fewer images than classes, and with more, margins are computed in different ways."""
    layer, box, y = nn.Linear(5, 4, bias=bias).double(), random_box(batch, 5), torch.tensor([0, 1, 2, 3, 0, 1])[:batch]
    margins = layer(box).margins(y)
    assert not margins.radius[range(batch), y].any()
    for b in range(batch):
        for k in range(4):
            vertex = box.center[b] - box.radius[b] * (layer.weight[y[b]] - layer.weight[k]).sign()
            outputs = layer(vertex)
            torch.testing.assert_close(outputs[y[b]] - outputs[k], margins.lower[b, k])


def test_last_layer_is_remembered() -> None:
    layer, box = nn.Linear(5, 4), Box(center=torch.rand(2, 5), radius=0.1)
    output = layer(box)
    assert output.last.weight is layer.weight
    assert output.last.bias is layer.bias
    assert torch.equal(output.last.input.radius, box.radius)
    box.mul_(3)  # the remembered input does not change
    assert output.last is not None
    assert output.last.input.radius.eq(0.1).all()
    for other in (
        output.relu(),
        -output,
        output + 1,
        output[:1],
        output.clone(),
        layer(Box(center=torch.rand(2, 3, 5), radius=0.1)),
    ):
        assert other.last is None
        assert not other.elided
    output.mul_(2)
    assert output.last is None
    assert not output.elided


def test_margins_after_the_weights_changed_raise() -> None:
    layer = nn.Linear(5, 4)
    output = layer(Box(center=torch.rand(2, 5), radius=0.1))
    with torch.no_grad():
        layer.weight.add_(1)
    with pytest.raises(UserError, match="weights have changed"):
        output.lower_margins(torch.tensor([0, 1]))


def test_margins_need_outputs_and_labels() -> None:
    with pytest.raises(UserError, match=r"labels \(B,\), not \(2, 3, 4\)"):
        random_box(2, 3, 4).margins(torch.tensor([0, 1]))
    with pytest.raises(UserError, match=r"not \(2, 3\) and \(3,\)"):
        random_box(2, 3).lower_margins(torch.tensor([0, 1, 2]))


def test_inference_mode_and_weights_made_in_it() -> None:
    with torch.inference_mode():
        layer = nn.Linear(5, 4)
        assert layer(Box(center=torch.rand(2, 5), radius=0.1)).lower_margins(torch.tensor([0, 1])).shape == (2, 4)


# ---- gradients


@pytest.mark.parametrize("seed", range(3))
def test_gradients_of_the_margins(seed: int) -> None:
    torch.manual_seed(seed)
    conv, norm = nn.Conv2d(1, 2, 2), nn.BatchNorm2d(2)
    net = settled(nn.Sequential(conv, norm, nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(2, 3)))
    y = torch.tensor([2, 0, 1, 2])[: 2 + seed]  # fewer images than classes, and more
    x = torch.rand(len(y), 1, 3, 3, dtype=torch.float64)
    names, values = zip(*net.named_parameters(), strict=True)

    def lower_margins(*parameters: Tensor) -> Tensor:
        arguments = dict(zip(names, parameters, strict=True))
        output: Box = torch.func.functional_call(net, arguments, (Box.ball(x, 0.1),))
        return output.lower_margins(y)

    assert torch.autograd.gradcheck(lower_margins, values)


def test_gradients_of_relu_to_second_order() -> None:
    torch.manual_seed(0)
    center = torch.randn(40, dtype=torch.float64, requires_grad=True)
    radius = torch.rand(40, dtype=torch.float64, requires_grad=True)

    def bounds(c: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
        box = F.relu(Box._of(c, r))
        return box.lower, box.upper * box.center

    assert torch.autograd.gradcheck(bounds, (center, radius))
    assert torch.autograd.gradgradcheck(bounds, (center, radius))


def test_gradient_at_zero_radius_equals_the_network() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 4)).double()
    x = torch.rand(5, 1, 4, 4, dtype=torch.float64)
    concrete = torch.autograd.grad(net(x).square().sum(), list(net.parameters()))
    abstract = torch.autograd.grad(net(Box.ball(x, 0.0)).center.square().sum(), list(net.parameters()))
    torch.testing.assert_close(abstract, concrete)


def test_detach_stops_the_gradient() -> None:
    box = nn.Linear(3, 2)(Box(center=torch.rand(1, 3), radius=0.1))
    assert box.requires_grad
    assert not box.detach().requires_grad


# ---- in place


@pytest.mark.parametrize(
    "change",
    [
        F.relu_,
        torch.relu_,
        lambda x: F.relu(x, inplace=True),
        lambda x: F.leaky_relu_(x, 0.3),
        lambda x: F.elu(x, inplace=True),
        lambda x: F.hardtanh_(x),
        lambda x: x.add_(CONSTANT, alpha=2),
        lambda x: x.clamp_(0, 1),
        lambda x: x.sigmoid_(),
        lambda x: x.__iadd__(CONSTANT),
        lambda x: x.__isub__(2),
        lambda x: x.__imul__(-CONSTANT),
        lambda x: x.__itruediv__(-3),
        lambda x: x.neg_(),
    ],
)
def test_in_place_operations_change_the_box_itself(change: Forward) -> None:
    box = random_box(2, 5)
    copy, lower = box.clone(), box.lower
    result = change(box)
    assert result is box
    assert_inside(change(lower.clone()), box)
    for side in torch.rand(50, 2, 5, dtype=torch.float64) * 2 - 1:
        assert_inside(change(copy.center + side * copy.radius), box)
    assert torch.equal(copy.lower, lower)  # a clone is not a view


@pytest.mark.parametrize("view", VIEWS)
def test_out_of_date_view_raises(view: Forward) -> None:
    box = random_box(2, 3, 4)
    part = view(box)
    F.relu_(part)
    assert part.lower.min() >= 0
    for use in (F.relu, lambda x: x + 1, lambda x: x.lower, lambda x: torch.cat([x]), lambda x: x.flatten(1)):
        with pytest.raises(UnsupportedOperation, match="changed in place through another view"):
            use(box)


@pytest.mark.parametrize("view", VIEWS)
def test_view_of_a_changed_box_raises(view: Forward) -> None:
    box = random_box(2, 3, 4)
    part = view(box)
    box += 1
    assert box.shape == (2, 3, 4)
    with pytest.raises(UnsupportedOperation, match="changed in place"):
        part.relu()
    assert_inside(view(box).center, view(box))  # a new view can be read


def test_flatten_then_relu_in_place_works() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 2), nn.Flatten(), nn.ReLU(inplace=True), nn.Linear(8, 3)).double()
    assert_sound(net, random_box(1, 1, 3, 3))


def test_contiguous_and_dropout_in_evaluation_return_the_box_itself() -> None:
    box = random_box(2, 3)
    assert box.contiguous() is box
    assert box.to(torch.float64) is box
    assert F.dropout(box, 0.5, training=False, inplace=True) is box


# ---- unsupported operations


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (nn.Softmax(1), r"torch.nn.functional.softmax has no rule"),
        (nn.LSTM(6, 3), r"torch.lstm has no rule"),
        (nn.GELU(), "gelu has no rule"),
        (nn.LayerNorm(6), "layer_norm has no rule"),
        (nn.BatchNorm1d(6), r"BatchNorm in training mode.* call net.eval\(\)"),
        (nn.Dropout(), r"dropout in training mode.* evaluation mode \(layer.eval\(\)"),
        (nn.MaxPool1d(2, return_indices=True), "return_indices"),
        (nn.AdaptiveMaxPool1d(2, return_indices=True), "return_indices"),
        (nn.Softplus(threshold=1), "softplus has a rule only for"),
        (nn.ELU(-1.0), "only for alpha > 0"),
        (Lambda(lambda x: x if x else -x), "'bool' is undefined"),
        (Lambda(lambda x: x > 0), "'gt' is undefined"),
        (Lambda(lambda x: x == 0), "'eq' is undefined"),
        (Lambda(lambda x: torch.zeros(6) < x), "undefined|lt has no rule"),
        (Lambda(lambda x: x**2), "'pow' is undefined"),
        (Lambda(lambda x: float(x)), "'float' is undefined"),
        (Lambda(lambda x: x.item()), "'item' has no rule"),
        (Lambda(lambda x: x.max(1)), "'max' has no rule"),
        (Lambda(lambda x: x.nonsense), "'nonsense' has no rule"),
        (Lambda(lambda x: numpy.asarray(x)), "'array' is undefined"),
        (Lambda(lambda x: torch.tensor(x)), "has no length"),
        (Lambda(lambda x: len(x[0, 0])), "has no length"),
        (Lambda(lambda x: x * x), "product of two Boxes"),
        (Lambda(lambda x: x @ x.T), "matrix product of two Boxes"),
        (Lambda(lambda x: 1 / x), "division by a Box"),
        (Lambda(lambda x: torch.ones(6) / x), "division by a Box"),
        (Lambda(lambda x: x.div(2, rounding_mode="floor")), "rounding mode"),
        (Lambda(lambda x: torch.exp(x, out=torch.zeros(6))), "torch.exp cannot write a Box to out="),
        (Lambda(lambda x: F.linear(torch.zeros(1, 6), x)), "the other arguments must be constant"),
        (Lambda(lambda x: torch.zeros(6)[x,]), "the other arguments must be constant"),
        (Lambda(lambda x: torch.zeros(1, 6).add_(x)), "add_ cannot write a Box into a tensor"),
        (Lambda(lambda x: torch.zeros(1, 6).copy_(x)), "copy_ has no rule"),
        (Lambda(lambda x: x.__setitem__(0, 1)), "'setitem' is undefined"),
        (Lambda(lambda x: x.add_(torch.zeros(3, 1, 6))), "cannot turn shape"),
        (Lambda(lambda x: x.to(torch.int32)), "cannot be converted to torch.int32"),
        (Lambda(lambda x: x.view(torch.int32)), "another type"),
        (Lambda(lambda x: x.detach().sum(dtype=torch.int32)), "cannot turn a Box into torch.int32"),
        (Lambda(lambda x: torch.cat(x)), "needs a list or tuple|must be tuple"),
        (Lambda(lambda x: F.interpolate(x[None, None], (3, 3), mode="bicubic")), "bicubic"),
    ],
)
def test_unsupported_operations_raise_with_the_layer(layer: nn.Module, words: str) -> None:
    with pytest.raises(UnsupportedOperation, match=rf"^layer 'features.2' \(\w+\): .*({words})") as info:
        Net(layer)(Box(center=torch.zeros(1, 6), radius=0.1))
    message = str(info.value)
    assert message.endswith(".")
    assert "\n" not in message


def test_the_root_module_is_named_by_its_class() -> None:
    with pytest.raises(UnsupportedOperation, match=r"^Lambda.forward: torch.nn.functional.softmax has no rule"):
        Lambda(lambda x: F.softmax(x, 1))(random_box(1, 2))
    with pytest.raises(UnsupportedOperation, match=r"^torch.nn.functional.softmax has no rule"):
        F.softmax(random_box(1, 2), 1)


def test_different_kinds_of_sets_do_not_mix() -> None:
    class Other:
        @classmethod
        def __torch_function__(cls, *args: Any) -> Any:
            return NotImplemented

    for mix in (lambda x: x + Other(), lambda x: torch.cat([x, Other()])):
        with pytest.raises(UnsupportedOperation, match="another kind of set"):
            mix(random_box(2))


def test_box_is_hashable_and_errors_are_value_errors() -> None:
    box = random_box(2)
    assert {box: 1}[box] == 1
    assert issubclass(UnsupportedOperation, UserError)
