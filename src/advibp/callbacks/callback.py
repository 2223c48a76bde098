"""Callbacks: objects that are told about the progress of a training or a certification."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from advibp.errors import UserError

_log = logging.getLogger(__name__)


class StopTraining(Exception):
    """Raised by a callback to end the training early.

    All callbacks of the event are still called. The training then finishes as after its last epoch: `train` returns
    the Run, and `run.summary["stopped"]` has the epoch and the reason. With `out`, the weights and a checkpoint are
    saved, and `train(..., resume=True)` continues the training.

    Args:
        reason: why, in a few words.

    Examples:
        >>> import time, advibp
        >>> class OneHour:
        ...     def on_train_start(self, facts):
        ...         self.end = time.monotonic() + 3600
        ...     def on_epoch_end(self, metrics):
        ...         if time.monotonic() > self.end:
        ...             raise advibp.callbacks.StopTraining("an hour is over")
        >>> # advibp.train(net, data, eps=0.1, callbacks=[OneHour()])
    """

    def __init__(self, reason: str = "a callback stopped the training") -> None:
        super().__init__(reason)


class Callback:
    """Base class of callbacks. Every method does nothing, and every method is optional.

    A callback need not inherit from this class: an object with at least one of these methods is enough. Callbacks get
    plain data (numbers, texts, lists and dictionaries of them). Each one gets its own copy, so that it can't change
    the training. A method may raise `StopTraining`. Any other exception ends the training; what was saved before
    stays saved, and with `out` the run can be resumed.

    Examples:
        >>> import torch, advibp
        >>> class TwoEpochs(advibp.callbacks.Callback):
        ...     def on_epoch_end(self, metrics):
        ...         if metrics["epoch"] == 2:
        ...             raise advibp.callbacks.StopTraining("two are enough")
        >>> x, y = torch.rand(60, 1, 2, 2), torch.arange(60) % 2
        >>> data = advibp.data.from_tensors(x, y, x, y, validation=10)
        >>> net = advibp.nets.build("FC 4", input_shape=(1, 2, 2), classes=2, seed=0)
        >>> options = dict(eps=0.01, method="standard", epochs=9, batch_size=10)
        >>> run = advibp.train(net, data, callbacks=[TwoEpochs()], **options)
        >>> run.summary["stopped"]
        {'epoch': 2, 'reason': 'two are enough'}
    """

    def on_train_start(self, facts: dict[str, Any]) -> None:
        """Called once before the first step, also if a run is resumed.

        Args:
            facts: `recipe` (all keys), `parameters`, `epochs` (all epochs, with stages), `steps_per_epoch`, `out` (the
                folder as text, or None), `resumed`, `epoch` (finished epochs before this start) and `history` (their
                metrics).
        """

    def on_epoch_end(self, metrics: dict[str, Any]) -> None:
        """Called after each epoch. With `out`, the checkpoint of the epoch has been saved.

        A resumed training calls it only for the epochs after its checkpoint, each with its number from the start.

        Args:
            metrics: the line of metrics.jsonl: epoch, phase, losses, weights, errors on the validation images, seconds.
        """

    def on_stage_end(self, metrics: dict[str, Any]) -> None:
        """Called after the main phase (stage 0) and after each layer-wise stage; not called without stages.

        Args:
            metrics: those of the last epoch; `stage` is the number of the finished stage.
        """

    def on_train_end(self, summary: dict[str, Any]) -> None:
        """Called after the last epoch, or after `StopTraining`, when everything is saved.

        Args:
            summary: contents of summary.json; `stopped` is there after `StopTraining`.
        """

    def on_train_interrupted(self, facts: dict[str, Any]) -> None:
        """Called instead of `on_train_end` if a signal or an exception ends the training.

        Args:
            facts: `reason` (text) and `epoch` (finished epochs).
        """

    def on_certify_start(self, facts: dict[str, Any]) -> None:
        """Called before the first image is certified.

        Args:
            facts: `images` (their number), `eps` (list), `by` (list of verifiers), `attack`, `arithmetic` and `out`.
        """

    def on_certify_end(self, summary: dict[str, Any]) -> None:
        """Called after the last image.

        Args:
            summary: the summary as in summary.json of `certify`: errors in percent and counts of verdicts per eps.
        """


#: Names of the events, which are the methods of `Callback`.
EVENTS = tuple(name for name in vars(Callback) if name.startswith("on_"))


class CallbackGroup:
    """The callbacks of one call of `train` or `certify`.

    Args:
        callbacks: the callbacks, called in this order.

    Raises:
        UserError: an object has no method of a callback, or one with an unknown name.

    Examples:
        >>> from advibp.callbacks import Callback, CallbackGroup
        >>> CallbackGroup([Callback()]).notify("on_epoch_end", {"epoch": 1}) is None
        True
    """

    def __init__(self, callbacks: Sequence[object] | None) -> None:
        if callbacks is not None and not isinstance(callbacks, list | tuple):
            raise UserError(
                f"callbacks is {type(callbacks).__name__}, but must be a list of callbacks; write [callback]."
            )
        self.callbacks = list(callbacks or ())
        for callback in self.callbacks:
            names = {name for name in dir(callback) if name.startswith("on_")}
            kind = callback.__name__ if isinstance(callback, type) else type(callback).__name__
            if isinstance(callback, type):
                raise UserError(f"The callback {kind} is a class; give an object of it: {kind}().")
            if unknown := sorted(names - {*EVENTS}):
                raise UserError(f"{kind}.{unknown[0]} is no event of a callback; choose from {', '.join(EVENTS)}.")
            if not any(callable(getattr(callback, name)) for name in names):
                raise UserError(f"{kind} is no callback: it has no method of {', '.join(EVENTS)}.")

    def notify(self, event: str, facts: Mapping[str, Any]) -> StopTraining | None:
        """Call a method of every callback that has it.

        Args:
            event: name of the method.
            facts: its argument. Every callback gets a copy.

        Returns:
            The first request to stop; None if there was none.

        Raises:
            Exception: whatever a callback raises, with a note that names the callback.
        """
        stop = None
        for callback in self.callbacks:
            try:
                if method := getattr(callback, event, None):
                    method(copy.deepcopy(dict(facts)))
            except StopTraining as request:
                stop = stop or request
            except Exception as error:
                error.add_note(f"raised by the callback {type(callback).__name__} in {event}")
                raise
        return stop

    def notify_interrupted(self, facts: Mapping[str, Any]) -> None:
        """Call `on_train_interrupted` of every callback. Exceptions are logged: another one ends the training."""
        for callback in self.callbacks:
            try:
                CallbackGroup([callback]).notify("on_train_interrupted", facts)
            except Exception as error:
                _log.warning("%s failed in on_train_interrupted: %s", type(callback).__name__, error)
