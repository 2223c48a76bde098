"""Detect networks whose certificates mean nothing, because they predict one class for every image.

A constant network is robust at every eps. Certified training can end in such a network, most often after a short run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from torch import Tensor

from advibp.display.eps import format_eps

#: With fewer images nothing is reported.
FEWEST_IMAGES = 20
#: A class with fewer images is not reported as never predicted.
FEWEST_OF_A_CLASS = 5


class CollapseWarning(UserWarning):
    """The network ignores its input or some classes.

    Examples:
        >>> import warnings
        >>> from advibp.verify import CollapseWarning
        >>> warnings.simplefilter("error", CollapseWarning)  # stop instead
        >>> warnings.resetwarnings()
    """


#: Logits that change by less than this share of the gap between the two largest are those of a constant network.
CONSTANT = 1e-3


def collapse_messages(
    labels: Sequence[int], predictions: Sequence[int], names: Sequence[str] | None = None, what: str = "images"
) -> list[str]:
    """Return a sentence for each sign of a collapse; [] if there is none.

    Args:
        labels: classes of the images.
        predictions: predicted classes of the same images.
        names: names of the classes. Default: their numbers.
        what: what the images are called. Default: "images".
    """
    expected, predicted = Counter(labels), Counter(predictions)
    if len(expected) < 2 or len(labels) < FEWEST_IMAGES:
        return []
    if len(predicted) == 1:
        (only,) = predicted
        return [
            f"The network has collapsed: it predicts {_class(only, names)} for all {len(predictions):,} {what}. A "
            "constant network is robust at every eps, so its certificates mean nothing. Train it for more epochs, with "
            "more training data, with a longer warm-up or ramp, or with a smaller eps."
        ]
    never = sorted(k for k, images in expected.items() if images >= FEWEST_OF_A_CLASS and k not in predicted)
    if not never:
        return []
    images = sum(expected[k] for k in never)
    return [
        f"The network never predicts {_classes(never, names)}, the label of {images:,} of the {len(labels):,} {what}. "
        "It has partly collapsed; train it for more epochs, with a longer warm-up or ramp, or with a smaller eps."
    ]


def constant_message(logits: Tensor, names: Sequence[str] | None = None) -> str:
    """Return a sentence if the logits hardly depend on the input; "" otherwise.

    Args:
        logits: outputs (N, K) for inputs that differ much from each other.
        names: names of the classes. Default: their numbers.
    """
    if len(logits) < 2 or logits.shape[1] < 2 or not bool(logits.isfinite().all()):
        return ""
    first, second = logits.mean(0).topk(2).values
    if float((logits - logits.mean(0)).abs().max()) >= CONSTANT * float(first - second):
        return ""
    return (
        f"The network has collapsed: it predicts {_class(int(logits.mean(0).argmax()), names)} for every input. A "
        "constant network is robust at every eps, so its certificates mean nothing."
    )


def guessing_message(labels: Sequence[int], right: int, what: str, names: Sequence[str] | None = None) -> str:
    """Return a sentence if an accuracy is not above that of always predicting the most frequent class; "" otherwise.

    Args:
        labels: classes of the images.
        right: number of images that count as correct.
        what: name of the accuracy, such as "certified accuracy at eps 0.3".
        names: names of the classes. Default: their numbers.
    """
    expected = Counter(labels)
    if len(expected) < 2 or len(labels) < FEWEST_IMAGES:
        return ""
    ((most, images),) = expected.most_common(1)
    if right > images:
        return ""
    shares = [f"{100 * count / len(labels):.2f} %" for count in (right, images)]
    return (
        f"The {what} is {shares[0]}, not above the {shares[1]} of a network that always predicts {_class(most, names)}."
    )


def unproved_message(
    labels: Sequence[int], proved: Sequence[int], eps: float, names: Sequence[str] | None = None
) -> str:
    """Return a sentence if no image of a class is proved although images of other classes are; "" otherwise.

    Args:
        labels: classes of the images.
        proved: classes of the images that are proved.
        eps: the radius of the proofs.
        names: names of the classes. Default: their numbers.
    """
    expected = Counter(labels)
    unproved = sorted(k for k, images in expected.items() if images >= FEWEST_OF_A_CLASS and k not in set(proved))
    if not unproved or not proved:
        return ""
    images = sum(expected[k] for k in unproved)
    return (
        f"No image of {_classes(unproved, names)} is proved at eps {format_eps(eps)}: the certified accuracy of "
        f"{'this class' if len(unproved) == 1 else 'these classes'} is 0 % ({images:,} images)."
    )


def _classes(classes: Sequence[int], names: Sequence[str] | None) -> str:
    """A list of up to three classes, or their number."""
    if len(classes) > 3:
        return f"{len(classes)} of the classes"
    return " and ".join(_class(k, names) for k in classes)


def _class(k: int, names: Sequence[str] | None) -> str:
    named = names is not None and k < len(names) and names[k] != str(k)  # digits are called by their number
    return f"class {k} ({names[k]})" if names is not None and named else f"class {k}"
