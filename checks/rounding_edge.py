"""Attack images at their largest certified eps, and evaluate the network in many orders of summation.

    python checks/rounding_edge.py --net linear --proof rounded --images 1000 --json edge.json

The largest certified eps is found by bisection over float32 numbers. The points are vertices of the ball (per class:
the one that minimizes the margin of a linear network, or that follows the signs of the input gradient), neighbors of
the worst ones, and results of PGD. Each point is exactly in the ball. The network is evaluated in float32 in 8 orders
of summation, in more with fused multiply-add, and in float64. `broken` counts images for which another class has a
strictly larger logit, `tied` those for which another class has an equal one. The exit code is 1 if any image is broken.

    --proof box        interval bounds of the real network (Box), as papers report them
    --proof rounded    interval bounds of the network as it runs (Rounded)
    --proof largest    advibp.verify.largest_proved_eps, with --by and --arithmetic
"""

from __future__ import annotations

import argparse
import copy
import json
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "helpers"))

from orders import evaluations, into_ball

from advibp import data, open_run
from advibp.attacks import linf_pgd
from advibp.bounds.box import Box
from advibp.verify import largest_proved_eps

ROOT = Path(__file__).parents[1]
DM_SMALL = ROOT / "results/runs/mnist-dm-small-advibp-0.4-60e-s0"

Proof = Callable[[nn.Module, Tensor, Tensor, Tensor], Tensor]  # net, x, y, eps (B,) -> proved (B,)


def linear(images: data.Data, epochs: int = 3, seed: int = 0) -> nn.Module:
    """Train a linear network on MNIST with cross-entropy, in a few seconds."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    x, y = images.train.x, images.train.y
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(128):
            loss = F.cross_entropy(net(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return net.eval()


def per_image(eps: Tensor, x: Tensor) -> Tensor:
    return eps.view(-1, *[1] * (x.dim() - 1))


def by_box(net: nn.Module, x: Tensor, y: Tensor, eps: Tensor) -> Tensor:
    return _worst(net(Box.ball(x, per_image(eps, x))).lower_margins(y), y) > 0


def by_rounded(net: nn.Module, x: Tensor, y: Tensor, eps: Tensor) -> Tensor:
    from advibp.bounds.rounded import Rounded

    ball = Rounded.ball(x, per_image(eps, x), arithmetic=torch.float32)
    return _worst(net(ball).lower_margins(y), y) > 0


def _worst(margins: Tensor, y: Tensor) -> Tensor:
    return margins.scatter(1, y[:, None], torch.inf).amin(1)


@torch.no_grad()
def largest(proof: Proof, net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return a certified float32 eps (B,) whose successor is not certified; -1 if 0 is not certified."""
    low, high = torch.zeros(len(x)), torch.ones(len(x))
    # Positive float32 numbers have the same order as the integers of their bits.
    low_bits, high_bits = low.view(torch.int32).clone(), high.view(torch.int32).clone()
    some = proof(net, x, y, low)
    while bool((high_bits - low_bits > 1).any()):
        middle = low_bits + (high_bits - low_bits) // 2
        holds = proof(net, x, y, middle.view(torch.float32))
        low_bits, high_bits = torch.where(holds, middle, low_bits), torch.where(holds, high_bits, middle)
    return torch.where(some, low_bits.view(torch.float32), torch.tensor(-1.0))


def margins(outputs: Tensor, y: Tensor) -> Tensor:
    """Return z_y - z_k, (..., K), with infinity for y itself."""
    index = y.view(-1, 1).expand(*outputs.shape[:-1], 1)
    return (outputs.gather(-1, index) - outputs).scatter(-1, index, torch.inf)


def vertices(double: nn.Module, x: Tensor, y: Tensor, eps: Tensor, steps: int) -> Tensor:
    """Return points (P, B, ...) of the ball: per class, vertices along the signs of its margin's gradient."""
    found, radius = [], per_image(eps, x).double()
    for k in range(1, 10):
        other, at = (y + k) % 10, x.double()
        for _ in range(steps):
            at = at.detach().requires_grad_()
            z = double(at.clone())
            margin = z.gather(1, y[:, None]) - z.gather(1, other[:, None])
            (slope,) = torch.autograd.grad(margin.sum(), at)
            vertex = into_ball(x.double() - radius * slope.sign(), x, radius)
            found.append(vertex)
            at = vertex.double()
    return torch.stack(found)


def neighbors(points: Tensor, x: Tensor, eps: Tensor, count: int, seed: int) -> Tensor:
    """Return points (C, B, ...) that differ by a few float32 numbers in some pixels, so that sums round differently."""
    dice, found = torch.Generator().manual_seed(seed), []
    for _ in range(count):
        moved = points.clone()
        for _ in range(3):
            some = torch.rand(points.shape, generator=dice) < 0.2
            moved = torch.where(some, moved.nextafter(x.expand_as(moved)), moved)
        found.append(into_ball(moved, x, per_image(eps, x).double()))
    return torch.stack(found)


def dangerous(net: nn.Module, double: nn.Module, x: Tensor, y: Tensor, eps: Tensor, args: argparse.Namespace) -> Tensor:
    """Return the points (P, B, ...) with the smallest margins in float64, and neighbors of the worst one."""
    radius = per_image(eps, x)
    points = [vertices(double, x, y, eps, args.vertex_steps)]
    for loss in ("ce", "margin"):
        attacked = linf_pgd(net, x, y, radius, steps=args.pgd_steps, rel_stepsize=0.2, loss=loss)
        points.append(into_ball(attacked.x_adv.detach(), x, radius.double())[None])
    every = torch.cat(points)
    with torch.no_grad():
        worst = torch.stack([margins(double(some.double()), y).amin(1) for some in every])  # (P, B)
    rows = worst.topk(min(args.points, len(every)), 0, largest=False).indices
    chosen = every[rows, torch.arange(len(x))]
    return torch.cat([chosen, neighbors(chosen[0], x, eps, args.neighbors, args.seed)])


def run(net: nn.Module, x: Tensor, y: Tensor, eps: Tensor, args: argparse.Namespace) -> dict[str, Any]:
    double = copy.deepcopy(net).double()
    broken, tied = dict[str, Tensor](), dict[str, Tensor]()
    least = torch.inf
    began = time.monotonic()
    for at in torch.arange(len(x)).split(args.batch):
        points = dangerous(net, double, x[at], y[at], eps[at], args)
        for name, z in evaluations(net, double, points.flatten(0, 1)):
            worst = margins(z.view(*points.shape[:2], -1), y[at]).amin((0, 2))
            broken.setdefault(name, torch.zeros(len(x), dtype=torch.bool))[at] = (worst < 0) | worst.isnan()
            tied.setdefault(name, torch.zeros(len(x), dtype=torch.bool))[at] = worst == 0
            least = min(least, float(worst.min()))
        done, seconds = int(at[-1]) + 1, time.monotonic() - began
        print(f"{done} of {len(x)} images, {seconds:.0f} s", file=sys.stderr, flush=True)
        if seconds > 60 * args.minutes:
            x = x[:done]
            break
    n = len(x)
    everywhere = torch.stack([b[:n] for b in broken.values()]).any(0)
    in_float = torch.stack([b[:n] for name, b in broken.items() if name != "float64"]).any(0)
    return {
        "images": n,
        "points": n * len(points),
        "least_margin": least,
        "broken": {name: int(b[:n].sum()) for name, b in broken.items()},
        "tied": {name: int((t[:n] & ~broken[name][:n]).sum()) for name, t in tied.items()},
        "broken_by_any_order": int(in_float.sum()),
        "broken_by_any": int(everywhere.sum()),
        "seconds": round(time.monotonic() - began, 1),
    }


def proved_eps(net: nn.Module, x: Tensor, y: Tensor, args: argparse.Namespace) -> Tensor:
    parts = []
    for at in torch.arange(len(x)).split(250):
        if args.proof == "largest":
            options = {} if args.arithmetic is None else {"arithmetic": args.arithmetic}
            parts.append(largest_proved_eps(net, x[at], y[at], by=args.by, tolerance=1.2e-7, **options))
        else:
            parts.append(largest({"box": by_box, "rounded": by_rounded}[args.proof], net, x[at], y[at]))
        print(f"bisected {int(at[-1]) + 1} of {len(x)} images", file=sys.stderr, flush=True)
    return torch.cat(parts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--net", default="linear", help="linear (trained here), dm-small, or the folder of a run")
    parser.add_argument("--proof", choices=["box", "rounded", "largest"], default="rounded")
    parser.add_argument("--by", nargs="+", default=["ibp"], help="verifiers, for --proof largest")
    parser.add_argument("--arithmetic", help="real, float32 or float64, for --proof largest (default: the network's)")
    parser.add_argument("--images", type=int, default=1000, help="number of test images, from the first on")
    parser.add_argument("--points", type=int, default=3, help="most dangerous points per image to evaluate")
    parser.add_argument("--neighbors", type=int, default=5, help="neighbors of the worst point to evaluate")
    parser.add_argument("--vertex-steps", type=int, default=3, help="steps from vertex to vertex, per class")
    parser.add_argument("--pgd-steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=100, help="images at once")
    parser.add_argument("--minutes", type=float, default=30, help="start no further batch after this time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the figures here")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    images = data.load("mnist", validation=1)
    if args.net == "linear":
        net = linear(images, seed=args.seed)
    else:
        net = open_run(DM_SMALL if args.net == "dm-small" else args.net).net
    x, y = images.test.x[: args.images], images.test.y[: args.images]
    with torch.no_grad():
        right = torch.cat([net(part.clone()).argmax(1) for part in x.split(500)]) == y
    eps = torch.full((len(x),), -1.0)
    eps[right] = proved_eps(net, x[right], y[right], args)
    kept = eps > 0
    found = run(net, x[kept], y[kept], eps[kept], args)
    result = {
        "command": shlex.join(["python", *sys.argv]),
        "net": args.net,
        "proof": args.proof,
        "asked": len(x),
        "classified": int(right.sum()),
        "certified": int(kept.sum()),
        "median_eps": float(eps[kept].median()),
        **found,
    }
    certified = f"{result['certified']} of {len(x)} images certified at an eps above 0"
    print(f"{args.net}, proof {args.proof}: {certified}, median {result['median_eps']:.5f}")
    print(f"{found['points']} points, least margin {found['least_margin']:.2g}")
    print(f"{'evaluation':<18}{'broken':>8}{'tied':>8}")
    for name, count in found["broken"].items():
        print(f"{name:<18}{count:>8}{found['tied'][name]:>8}")
    print(f"{'any':<18}{found['broken_by_any']:>8}")
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + "\n")
    return 1 if found["broken_by_any"] else 0


if __name__ == "__main__":
    sys.exit(main())
