"""Check verifiers on networks that are robust in real arithmetic, but misclassify in float32 because of rounding.

    python checks/crafted.py [--by ibp crown ...] [--json crafted.json]

For each network there is a point of the ball and an order of summation for which another class has a strictly larger
logit in float32, so that the verdicts `robust` and `unsat` are wrong. The table shows the verdict of each verifier, and
those for ONNX and VNN-LIB files. The exit code is 1 if any of them is `robust` or `unsat`.

Zombori et al., Fooling a complete neural network verifier, ICLR 2021: a hidden unit that is active only by rounding.
Szász et al., No soundness in the real world: on the challenges of the verification of deployed neural networks, 2025:
networks whose output depends on the order of summation.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "helpers"))

from orders import MORE, ORDERS, Order, by_torch, exactly_within, into_ball, outputs

import advibp.vnncomp.onnx
from advibp import UserError, certify
from advibp.bounds.domain import UnsupportedOperation
from advibp.verify import Attack
from advibp.verify.verifiers import VERIFIERS
from advibp.vnncomp.properties import decide
from advibp.vnncomp.vnnlib import vnnlib_file

#: Ways to evaluate a network in float32; None is torch itself.
WAYS: dict[str, Order | None] = {
    "torch": None,
    **ORDERS,
    **MORE,
    "flush to zero": Order(flush=True),
    **{f"random {seed}": Order(shuffle=seed) for seed in range(10, 20)},
}


@dataclass(frozen=True)
class Crafted:
    """A network, an image x (1, 1, 1, N), its label y, and a radius for which it is robust in real arithmetic."""

    name: str
    net: nn.Module
    x: Tensor
    y: int
    eps: float
    says: str
    margin: float  # the smallest z_y - z_k over the ball in real arithmetic


@dataclass(frozen=True)
class Witness:
    """A point (1, 1, 1, N) of the ball, a way to evaluate the network there, and the resulting margin."""

    point: Tensor
    way: str
    margin: float


def run_in(net: nn.Module, points: Tensor, way: str) -> Tensor:
    """Return the float32 outputs (B, K) in one of WAYS."""
    order = WAYS[way]
    return by_torch(net, points) if order is None else outputs(net, points, order)


@cache
def find(name: str, tries: int = 400) -> Witness | None:
    """Return the point and way with the smallest margin of some points of the ball; None if no margin is negative."""
    made = CRAFTED[name]()
    dice = torch.Generator().manual_seed(0)
    eps = torch.tensor(made.eps, dtype=torch.float64)
    noise = torch.rand(tries, *made.x.shape[1:], generator=dice) * 2 - 1
    noise[: tries // 4] = noise[: tries // 4].sign()
    points = into_ball(made.x.double() + made.eps * noise.double(), made.x, eps)
    points = torch.cat([made.x, *_corners(made, eps), points])
    best: Witness | None = None
    for way in WAYS:
        if way == "flush to zero" and made.name != way:  # only one network needs it
            continue
        z = run_in(made.net, points, way).double()
        others = torch.cat([z[:, : made.y], z[:, made.y + 1 :]], 1).amax(1)
        margins = z[:, made.y] - others
        at = int(margins.argmin())
        if float(margins[at]) < 0 and (best is None or float(margins[at]) < best.margin):
            best = Witness(points[at : at + 1], way, float(margins[at]))
    return best


def _corners(made: Crafted, eps: Tensor) -> Iterator[Tensor]:
    """Yield the vertices that follow the signs of the margin's gradient, and their neighbors."""
    x = made.x.clone().requires_grad_()
    z = made.net(x)
    other = z.detach().clone().index_fill(1, torch.tensor(made.y), -torch.inf).argmax(1)
    (slope,) = torch.autograd.grad(z[0, made.y] - z[0, other[0]], x)
    vertex = into_ball(made.x.double() - eps * slope.sign(), made.x, eps)
    yield vertex
    dice = torch.Generator().manual_seed(1)
    for _ in range(200):
        some = torch.rand(vertex.shape, generator=dice) < 0.3
        yield torch.where(some, vertex.nextafter(made.x), vertex)


def checked(made: Crafted, witness: Witness) -> bool:
    """Return whether the point is exactly in the ball and another class has a strictly larger logit there."""
    inside = bool(exactly_within(witness.point, made.x, torch.tensor(made.eps, dtype=torch.float64)).all())
    inside &= bool(((witness.point >= 0) & (witness.point <= 1)).all())
    z = run_in(made.net, witness.point, witness.way)[0]
    return inside and any(float(z[k]) > float(z[made.y]) for k in range(len(z)) if k != made.y)


def _image(*pixels: float) -> Tensor:
    return torch.tensor(pixels).view(1, 1, 1, -1)


def _dense(*layers: tuple[list[list[float]], list[float]], last: type[nn.Module] = nn.ReLU) -> nn.Module:
    """Return linear layers with these weights and biases, with a ReLU (or `last`) between them."""
    modules: list[nn.Module] = [nn.Flatten()]
    for k, (weight, bias) in enumerate(layers):
        layer = nn.Linear(len(weight[0]), len(weight))
        with torch.no_grad():
            layer.weight.copy_(torch.tensor(weight))
            layer.bias.copy_(torch.tensor(bias))
        modules += [layer] if k == len(layers) - 1 else [layer, last()]
    return nn.Sequential(*modules).eval()


def _spacing(value: float) -> float:
    """Return the spacing of float32 numbers above a value."""
    at = torch.tensor(value)
    return float(at.nextafter(torch.tensor(torch.inf)) - at)


def _ball(ulp: float, near: float = 0.4, width: float = 0.125) -> tuple[Tensor, float, Fraction]:
    """Return an image, a radius, and the lower end of the ball, for sums that are rounded to multiples of ulp.

    The lower end lies 0.45 of them above a multiple, so that it is rounded down, and the middle 0.55, so that interval
    bounds in float32 move up.
    """
    eps = (round(width / ulp) + 0.1) * ulp
    x = _image((int(near / ulp) + 0.45) * ulp + eps)
    return x, eps, Fraction(x.item()) - Fraction(eps)


def large_bias(bias: float, copies: int = 64) -> Crafted:
    """z_0 = sum of (x + b) - b; each term rounds down by 0.45 spacings of b. z_1 is 0.3 spacings per term below z_0."""
    ulp = _spacing(bias)
    x, eps, low = _ball(ulp)
    # A separate bias cancels each hidden unit, so that the last sum stays small; + 2 keeps it above 0.
    eye = [[1.0 if i == j else 0.0 for j in range(copies)] for i in range(copies)]
    back = torch.tensor(2 + 4 * ulp - bias).item()
    least = copies * (low + Fraction(bias) + Fraction(back))
    net = _dense(
        ([[1.0]] * copies, [bias] * copies),
        (eye, [back] * copies),
        ([[1.0] * copies, [0.0] * copies], [0.0, float(least) - 0.3 * ulp * copies]),
    )
    real = float(least - Fraction(net[5].bias[1].item()))
    return Crafted(f"bias {bias:g}", net, x, 0, eps, f"{copies} units x + {bias:g} - {bias:g}", real)


def switched_on(bias: float = 2.0**14, gain: float = 1e6) -> Crafted:
    """A unit relu((x + b) - b - x - d) is 0 in real arithmetic; rounding makes it positive, and its weight is huge."""
    delta = 0.1 * _spacing(bias)
    # The bias -b - d is not a float32 number: a separate weight subtracts d.
    net = _dense(
        ([[1.0], [1.0], [0.0]], [bias, 0.0, 1.0]),
        ([[1.0, -1.0, -delta]], [-bias]),
        ([[0.0], [gain]], [1.0, 0.0]),
    )
    return Crafted("switched on", net, _image(0.5), 0, 0.1, "a dormant unit that rounding switches on", 1.0)


def order_of_a_sum(large: float = 1e8, places: tuple[int, int, int] = (0, 1, 2)) -> Crafted:
    """z_0 = w + x - w, which is 0 or x, depending on the order of summation; z_1 = 0.1."""
    hidden = [(0.0, large, 1.0), (1.0, 0.0, 1.0), (0.0, large, -1.0)]
    rows = [hidden[place] for place in places]
    net = _dense(
        ([[weight] for weight, _, _ in rows], [bias for _, bias, _ in rows]),
        ([[sign for _, _, sign in rows], [0.0] * 3], [0.0, 0.1]),
    )
    return Crafted(f"order {''.join(map(str, places))}", net, _image(0.5), 0, 0.1, f"{large:g} + x - {large:g}", 0.3)


def order_in_a_convolution(large: float = 1e8) -> Crafted:
    """The same over the channels of a convolution."""
    first, second = nn.Conv2d(1, 3, 1), nn.Conv2d(3, 2, 1)
    with torch.no_grad():
        first.weight.copy_(torch.tensor([0.0, 0.0, 1.0]).view(3, 1, 1, 1))
        first.bias.copy_(torch.tensor([large, large, 0.0]))
        second.weight.copy_(torch.tensor([[1.0, -1.0, 1.0], [0.0, 0.0, 0.0]]).view(2, 3, 1, 1))
        second.bias.copy_(torch.tensor([0.0, 0.1]))
    net = nn.Sequential(first, nn.ReLU(), second, nn.Flatten()).eval()
    return Crafted("order in conv", net, _image(0.5), 0, 0.1, f"{large:g} + x - {large:g} over channels", 0.3)


def tiny_margin(size: int = 200, seed: int = 0) -> Crafted:
    """A linear network whose margin at the worst vertex is above 0 by less than a spacing of its bias."""
    weight = torch.randn(2, size, generator=torch.Generator().manual_seed(seed))
    eps = 0.0625  # so that vertices are float32 numbers
    rows = [[Fraction(w) for w in row] for row in weight.tolist()]
    least = sum((a - b) / 2 - Fraction(eps) * abs(a - b) for a, b in zip(*rows, strict=True))
    bias = torch.tensor(float(least))
    bias = bias if Fraction(bias.item()) < least else bias.nextafter(torch.tensor(-torch.inf))
    net = _dense((weight.tolist(), [0.0, bias.item()]))
    margin = float(least - Fraction(bias.item()))
    x = torch.full((1, 1, 1, size), 0.5)
    return Crafted("tiny margin", net, x, 0, eps, "a margin far below the rounding errors", margin)


def underflow(flush: bool) -> Crafted:
    """x times a denormal weight, then times its inverse: few bits remain, or none."""
    x, eps, low = _ball(2.0**-9)
    net = _dense(
        ([[2.0**-140]], [0.0]),
        ([[2.0**100]], [0.0]),
        ([[2.0**40], [0.0]], [0.0, 0.1 if flush else float(low) - 0.3 * 2.0**-9]),
    )
    name, says = ("flush to zero", "a denormal weight, flushed to 0") if flush else ("underflow", "9 bits are left")
    return Crafted(name, net, x, 0, eps, says, float(low - Fraction(net[5].bias[1].item())))


def overflow(large: float = 2e38) -> Crafted:
    """z_1 = w + w - w - w is 0, or infinity if summed from left to right; z_0 = 1 + x."""
    net = _dense(
        ([[0.0]] * 4 + [[1.0]], [1.0] * 4 + [0.0]),
        ([[0.0] * 4 + [1.0], [large, -large, large, -large, 0.0]], [1.0, 0.0]),
    )
    return Crafted("overflow", net, _image(0.5), 0, 0.1, "2e38 - 2e38 + 2e38 - 2e38", 1.4)


def small_variance(pixel: float = 0.59, copies: int = 16) -> Crafted:
    """BatchNorm with a variance of 1e-12: in x a + (c - mean a), numbers of about 5e5 cancel."""
    norm, first, last = nn.BatchNorm1d(copies, eps=1e-12), nn.Linear(1, copies), nn.Linear(copies, 2)
    eps, x = 2.0**-10, _image(pixel)
    with torch.no_grad():
        first.weight.fill_(1.0)
        first.bias.fill_(0.25)
        norm.running_mean.fill_(0.6)
        norm.running_var.fill_(1e-12)
        last.weight.copy_(torch.tensor([[1.0 / copies] * copies, [0.0] * copies]))
        # In exact arithmetic, except for the square root, whose relative error is 1e-16.
        mean, var = norm.running_mean[0].item(), norm.running_var[0].item()
        least = float(Fraction(x.item()) - Fraction(eps) + Fraction(1, 4) - Fraction(mean)) / (var + norm.eps) ** 0.5
        last.bias.copy_(torch.tensor([0.0, least - 0.01]))
    net = nn.Sequential(nn.Flatten(), first, norm, last).eval()
    return Crafted("small variance", net, x, 0, eps, "BatchNorm that divides by 1e-6", least - last.bias[1].item())


def saturated(act: type[nn.Module]) -> Crafted:
    """1 - sigmoid(5 x + 13.9) is 4e-8 in real arithmetic at x = 0.6, and 0 in float32; its weight is huge."""
    slope, shift = (5.0, 13.9) if act is nn.Sigmoid else (2.5, 14.45 / 2 + 0.347)
    net = _dense(([[slope]], [shift]), ([[-1e9], [0.0]], [1e9, 0.5]), last=act)
    high = torch.tensor(0.6 * slope + shift, dtype=torch.float64)
    rest = torch.sigmoid(-high) if act is nn.Sigmoid else 2 * torch.sigmoid(-2 * high)
    name = f"saturated {act.__name__.lower()}"
    return Crafted(name, net, _image(0.5), 0, 0.1, "1 - s(x) is 0", 1e9 * float(rest) - 0.5)


CRAFTED: dict[str, Callable[[], Crafted]] = {
    **{f"bias 1e{k}": (lambda k=k: large_bias(10.0**k)) for k in range(2, 8)},  # type: ignore[misc]
    "switched on": switched_on,
    **{f"order {a}{b}{c}": (lambda p=(a, b, c): order_of_a_sum(places=p)) for a, b, c in  # type: ignore[misc]
       ((0, 1, 2), (0, 2, 1))},
    "order in conv": order_in_a_convolution,
    "tiny margin": tiny_margin,
    "underflow": lambda: underflow(flush=False),
    "flush to zero": lambda: underflow(flush=True),
    "overflow": overflow,
    "small variance": small_variance,
    "saturated sigmoid": lambda: saturated(nn.Sigmoid),
    "saturated tanh": lambda: saturated(nn.Tanh),
}  # fmt: skip


def verdict_by(made: Crafted, verifier: str) -> str:
    """Return the verdict of certify, with an attack that finds nothing; `refused` if the network is not supported."""
    attack = Attack(steps=1, step=1e-6)
    try:
        found = certify(made.net, made.x, torch.tensor([made.y]), made.eps, by=[verifier], attack=attack, budget=5)
    except UserError:
        return "refused"
    return found.records[0].verdict


def verdict_of_property(made: Crafted, net: nn.Module | None = None) -> str:
    """Return the verdict for a VNN-LIB file of the ball, for the network itself or one loaded from a file."""
    from advibp.verify.exact.question import Question

    asked = Question.robustness(made.net, made.x.double(), made.y, made.eps, 2)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "p.vnnlib"
        vnnlib_file.write(file, asked.lower, asked.upper, made.y, 2)
        read = vnnlib_file.read(file)
    try:
        return decide(net or made.net, tuple(made.x.shape[1:]), read, seconds=5).verdict
    except (UserError, UnsupportedOperation):
        return "refused"


def verdict_of_file(made: Crafted) -> str:
    """Return the verdict for an ONNX file; `not written` if the outputs of onnxruntime differ from torch's."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            advibp.vnncomp.onnx.save(made.net, Path(folder) / "net.onnx", tuple(made.x.shape[1:]))
        except UserError:
            return "not written"
        return verdict_of_property(made, advibp.vnncomp.onnx.load(Path(folder) / "net.onnx"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--by", nargs="+", choices=list(VERIFIERS), default=list(VERIFIERS), metavar="VERIFIER")
    parser.add_argument("--nets", nargs="+", choices=list(CRAFTED), default=list(CRAFTED), metavar="NET")
    parser.add_argument("--json", type=Path, help="write the figures here")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows, false = [], 0
    print(f"{'network':<19}{'real margin':>12}{'float32':>10}  {'in':<15}" + "".join(
        f"{name:<13}" for name in [*args.by, "vnnlib", "onnx"]))  # fmt: skip
    for name in args.nets:
        made, witness = CRAFTED[name](), find(name)
        verdicts = {verifier: verdict_by(made, verifier) for verifier in args.by}
        verdicts |= {"vnnlib": verdict_of_property(made), "onnx": verdict_of_file(made)}
        wrong = [verifier for verifier, verdict in verdicts.items() if verdict in ("robust", "unsat")]
        false += len(wrong)
        rows.append({"network": name, "margin": made.margin, "verdicts": verdicts, "says": made.says,
                     "witness": witness and {"way": witness.way, "margin": witness.margin}})  # fmt: skip
        found = (f"{witness.margin:>10.2g}", witness.way) if witness else (f"{'none':>10}", "")
        shown = "".join(f"{verdict.upper() if v in wrong else verdict:<13}" for v, verdict in verdicts.items())
        print(f"{name:<19}{made.margin:>12.2g}{found[0]}  {found[1]:<15}{shown}", flush=True)
    print(f"{false} false verdicts, in capitals")
    if args.json:
        result = {"command": shlex.join(["python", *sys.argv]), "false": false, "networks": rows}
        args.json.write_text(json.dumps(result, indent=2) + "\n")
    return 1 if false else 0


if __name__ == "__main__":
    sys.exit(main())
