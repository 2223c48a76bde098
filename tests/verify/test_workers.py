"""Workers: the same results, no lost jobs, and no processes that outlive the call."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from advibp import UserError
from advibp.verify.workers import in_workers


def doubled(job: int) -> tuple[int, int]:
    return 2 * job, os.getpid()


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_every_job_has_one_result(workers: int) -> None:
    found = dict(in_workers(doubled, iter(range(40)), workers))
    assert {job: answer for job, (answer, _) in found.items()} == {job: 2 * job for job in range(40)}
    pids = {pid for _, pid in found.values()}
    assert (os.getpid() in pids) == (workers == 1)


def test_what_is_inherited_need_not_be_picklable() -> None:
    secret = lambda job: job + 1  # noqa: E731
    assert sorted(answer for _, answer in in_workers(secret, iter(range(5)), 2)) == [1, 2, 3, 4, 5]


def test_a_user_error_of_a_worker_is_raised() -> None:
    def refuse(job: int) -> int:
        if job == 3:
            raise UserError("three is too many; take two.")
        return job

    with pytest.raises(UserError, match="three is too many; take two"):
        list(in_workers(refuse, iter(range(8)), 2))


def test_a_killed_worker_is_reported_in_one_sentence() -> None:
    def die(job: int) -> int:
        if job == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return job

    with pytest.raises(UserError, match="A worker was killed"):
        list(in_workers(die, iter(range(30)), 2))


def test_closing_the_generator_ends_the_workers() -> None:
    before = set(multiprocessing.active_children())

    def slowly(job: int) -> int:
        time.sleep(0.05 if job < 2 else 600)
        return job

    answers = in_workers(slowly, iter(range(10)), 2)
    next(answers)
    answers.close()  # type: ignore[attr-defined]
    deadline = time.perf_counter() + 3000
    while set(multiprocessing.active_children()) - before and time.perf_counter() < deadline:
        time.sleep(0.05)
    assert not set(multiprocessing.active_children()) - before


ORPHANS = """
import os, sys, time
from advibp.verify.workers import in_workers

def tell(job):
    open(os.path.join(sys.argv[1], str(os.getpid())), "w").close()
    time.sleep(900)

list(in_workers(tell, iter(range(4)), 2))
"""


def test_workers_end_with_a_parent_that_was_killed(tmp_path: Path) -> None:
    parent = subprocess.Popen([sys.executable, "-c", ORPHANS, str(tmp_path)])
    deadline = time.perf_counter() + 300
    while len(list(tmp_path.iterdir())) < 2 and time.perf_counter() < deadline:
        time.sleep(0.05)
    pids = [int(path.name) for path in tmp_path.iterdir()]
    assert len(pids) == 2
    parent.kill()
    parent.wait()
    deadline = time.perf_counter() + 3000
    while any(map(alive, pids)) and time.perf_counter() < deadline:
        time.sleep(0.1)
    assert not any(map(alive, pids))


def alive(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status")
    return status.exists() and "State:\tZ" not in status.read_text()
