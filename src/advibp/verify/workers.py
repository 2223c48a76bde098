"""Runs jobs in several processes. They are forked, so the network and the images need not be picklable."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

import torch

from advibp.errors import UserError

Job = TypeVar("Job")
Answer = TypeVar("Answer")


def in_workers(task: Callable[[Job], Answer], jobs: Iterator[Job], workers: int) -> Iterator[tuple[Job, Answer]]:
    """Yield each job with the result of `task`, in the order in which they finish.

    One worker means this process. The workers end when the generator is closed, by an exception or Ctrl-C. Jobs and
    results are pickled, so they should be small.
    """
    if workers <= 1:
        for job in jobs:
            yield job, task(job)
        return
    if "fork" not in multiprocessing.get_all_start_methods():
        raise UserError("workers need a system that can fork; certify with workers=1.")
    before = set(multiprocessing.active_children())
    context = multiprocessing.get_context("fork")
    pool = ProcessPoolExecutor(workers, context, initializer=_begin, initargs=(task, os.getpid()))
    waiting: dict[Future[Any], Job] = {}
    try:
        for job in jobs:
            waiting[pool.submit(_run, job)] = job
            if len(waiting) > 2 * workers:
                yield from _finished(waiting)
        while waiting:
            yield from _finished(waiting)
    except BrokenProcessPool:
        raise UserError(
            "A worker was killed, perhaps for lack of memory; records on the disk are kept, so run again with fewer "
            "workers."
        ) from None
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        ours = set(multiprocessing.active_children()) - before
        for child in ours:
            child.terminate()
        for child in ours:
            child.join(5)  # they hold the locks that they inherited


def _finished(waiting: dict[Future[Any], Job]) -> Iterator[tuple[Job, Any]]:
    """Yield the finished jobs. A failure is raised after all results, so that they are not lost."""
    done = wait(waiting, return_when=FIRST_COMPLETED).done
    for future in sorted(done, key=lambda f: f.exception() is not None):
        yield waiting.pop(future), future.result()


_task: list[Callable[[Any], Any]] = []


def _begin(task: Callable[[Any], Any], parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    # The threads of the parent do not exist after a fork, but their locks may be held. One thread needs no locks.
    torch.set_num_threads(1)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    _task.append(task)


def _end_with(parent: int) -> None:
    """End this process when its parent has ended; otherwise it would wait for jobs and hold locks forever."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def _run(job: Any) -> Any:
    return _task[-1](job)
