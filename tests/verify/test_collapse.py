"""Collapsed networks are reported; good ones, and too few images, are not."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

import advibp
from advibp.verify.collapse import collapse_messages, guessing_message

LABELS = [k % 4 for k in range(100)]


class Constant(nn.Module):
    """Predicts class 1 for every input."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.tensor([0.0, 1.0, 0.0, 0.0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 0 * x + self.bias


def test_a_constant_network_is_reported() -> None:
    (message,) = collapse_messages(LABELS, [2] * 100)
    assert "it predicts class 2 for all 100 images" in message
    (named,) = collapse_messages(LABELS, [2] * 100, names=["a", "b", "cat", "d"])
    assert "class 2 (cat)" in named


def test_classes_that_are_never_predicted_are_reported() -> None:
    (message,) = collapse_messages(LABELS, [min(k, 1) for k in LABELS])
    assert "never predicts class 2 and class 3, the label of 50 of the 100 images" in message


@pytest.mark.parametrize(
    ("labels", "predictions"),
    [(LABELS, LABELS), (LABELS[:10], [0] * 10), ([1] * 50, [1] * 50), ([*LABELS, 4], [*LABELS, 0])],
    ids=["right", "few images", "one class", "a rare class"],
)
def test_other_networks_are_not_reported(labels: list[int], predictions: list[int]) -> None:
    assert collapse_messages(labels, predictions) == []


def test_an_accuracy_is_compared_with_guessing() -> None:
    assert "is 25.00 %, not above the 25.00 % of a network that always predicts" in guessing_message(LABELS, 25, "it")
    assert guessing_message(LABELS, 26, "it") == ""


def test_certify_warns_about_a_constant_network() -> None:
    x, y = torch.rand(40, 4), torch.arange(40) % 4
    with pytest.warns(advibp.CollapseWarning) as caught:
        certificate = advibp.certify(Constant(), x, y, [0.1, 0.5])
    messages = [str(warning.message) for warning in caught]
    assert messages == certificate.warnings()
    assert "has collapsed: it predicts class 1" in messages[0]
    assert "certified accuracy at eps 0.1 is 25.00 %" in messages[1]
    assert "certified accuracy at eps 0.5 is 25.00 %" in messages[2]


def test_certify_does_not_warn_about_a_good_network() -> None:
    x = torch.eye(4).repeat(10, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", advibp.CollapseWarning)
        net = nn.Linear(4, 4, bias=False)
        net.weight.data.copy_(torch.eye(4))
        certificate = advibp.certify(net, x, x.argmax(1), 0.1)
    assert certificate.warnings() == []
