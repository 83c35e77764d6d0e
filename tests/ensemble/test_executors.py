"""Executors of others sample a store: what they finish is kept, whatever becomes of them."""

import multiprocessing
import os
import signal
import sys
import threading
import time
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor

import pytest
import torch

from feasibly import ensemble, progress
from feasibly.ensemble import Store, Summary
from feasibly.errors import SamplingError
from tests.ensemble.conftest import MEMBERS, draw, same, toy, values
from tests.ensemble.test_populations import shared, whole  # noqa: F401

pytestmark = pytest.mark.filterwarnings(
    "ignore::feasibly.errors.CalibrationWarning", "ignore::feasibly.errors.InfeasibleWarning"
)


class Slow:
    """Takes a while for each call, and can be sent to another process."""

    def __init__(self, seconds):
        self.seconds = seconds

    def __call__(self, call, rows):
        time.sleep(self.seconds)


def test_threads_sample_what_one_process_does(path, undisturbed, capsys, monkeypatch):
    monkeypatch.setattr(progress, "LINES", 0.0)
    with ThreadPoolExecutor(3) as executor:
        assert draw(path, executor=executor, progress=True).counted == MEMBERS
        assert "0 s left  sampling, 8 of 8 finished" in capsys.readouterr().err.splitlines()[-1]
        same(values(path), undisturbed)
        never = lambda call, rows: pytest.fail("a member was sampled again")  # noqa: E731
        assert draw(path, fault=never, executor=executor).counted == MEMBERS


def test_a_population_is_a_task(path, whole):  # noqa: F811
    tasks = []

    class Noted(ThreadPoolExecutor):
        def submit(self, task, members, taken):
            tasks.append(members)
            return super().submit(task, members, taken)

    with Noted(2) as executor:
        shared(path, executor=executor)
    assert tasks == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    torch.testing.assert_close(values(path), values(whole.store.path), rtol=0, atol=1e-9)
    evaluations = [
        sum(r.forward for r in one.records) for one in (whole, Summary.read(Store(path)))
    ]
    assert evaluations[0] == pytest.approx(evaluations[1])


def test_a_task_that_fails_leaves_the_others_finished(path, undisturbed):
    def fail(call, rows):
        if 4 in rows:
            raise RuntimeError("no such thing")

    with ThreadPoolExecutor(2) as executor:
        with pytest.raises(SamplingError, match="no such thing") as error:
            draw(path, fault=fail, executor=executor)
        assert "6 of 8 samples are finished and kept" in error.value.__notes__[0]
        assert Store(path).missing() == [4, 5]
        draw(path, executor=executor)
    same(values(path), undisturbed)


def test_what_pickle_does_not_know_is_sent_by_cloudpickle(path, monkeypatch):
    def work(**options):
        with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as executor:
            return draw(path, fault=lambda call, rows: None, executor=executor, **options)

    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "cloudpickle", None)
        with pytest.raises(SamplingError, match=r"ProcessPoolExecutor failed .*cloudpickle"):
            work()
    pytest.importorskip("cloudpickle")
    assert work().counted == MEMBERS


def test_ctrl_c_cancels_what_has_not_begun(path):
    cancelled = []

    class Never:
        def submit(self, task, *arguments):
            future = Future()
            future.done = self.interrupt
            future.cancel = lambda: cancelled.append(arguments)
            return future

        def interrupt(self):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        draw(path, executor=Never())
    assert len(cancelled) == MEMBERS // 2


def test_tasks_that_leave_nothing_in_the_store_are_not_taken_for_done(path):
    class Idle:
        def submit(self, *_):
            future = Future()
            future.set_result(None)
            return future

    with pytest.raises(SamplingError, match="8 samples are not in"):
        draw(path, executor=Idle())


def test_an_executor_takes_no_callback(path):
    with pytest.raises(ValueError, match="leave out callback and workers"):
        draw(path, executor=ThreadPoolExecutor(1), callback=print)


def kill_one(path, pids):
    """Kills a worker once the store has a member; waits for it at most a minute."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if path.exists() and Summary.read(Store(path)).records:
            os.kill(next(iter(pids())), signal.SIGKILL)
            return
        time.sleep(0.02)


def slow():
    return toy(Slow(0.03))


@pytest.mark.slow
def test_a_process_of_a_pool_is_killed_and_a_new_pool_goes_on(path, undisturbed):
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as executor:
        killer = threading.Thread(target=kill_one, args=(path, lambda: executor._processes))
        killer.start()
        with pytest.raises(SamplingError, match="BrokenProcessPool"):
            draw(path, kernel=slow(), executor=executor, batch_size=1)
        killer.join()
    kept = {r.member: r.worker for r in Summary.read(Store(path)).records}
    assert 0 < len(kept) < MEMBERS
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as executor:
        draw(path, kernel=slow(), executor=executor, batch_size=1)
    same(values(path), undisturbed)
    assert kept.items() <= {r.member: r.worker for r in Summary.read(Store(path)).records}.items()


def test_dask_samples_again_what_a_killed_worker_had_begun(path, undisturbed):
    distributed = pytest.importorskip("distributed")
    settings = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": ":0"}
    with distributed.LocalCluster(**settings) as cluster, distributed.Client(cluster) as client:
        pids = lambda: list(client.run(os.getpid).values())  # noqa: E731
        killer = threading.Thread(target=kill_one, args=(path, pids))
        killer.start()
        executor = client.get_executor()
        assert draw(path, kernel=slow(), executor=executor, batch_size=1).counted == MEMBERS
        killer.join()
    same(values(path), undisturbed)


def test_loky_samples_what_one_process_does(path, undisturbed):
    loky = pytest.importorskip("loky")
    executor = loky.get_reusable_executor(max_workers=2)
    assert draw(path, executor=executor).counted == MEMBERS
    same(values(path), undisturbed)


def test_submitit_samples_by_jobs_and_begins_a_preempted_one_again(path, undisturbed, tmp_path):
    submitit = pytest.importorskip("submitit")
    executor = submitit.AutoExecutor(folder=tmp_path / "jobs", cluster="local")
    assert draw(path, executor=executor, batch_size=4).counted == MEMBERS
    same(values(path), undisturbed)
    task = ensemble.worker.Task((), (), None, path, None)
    again = task.checkpoint([1], None)
    assert isinstance(again, submitit.helpers.DelayedSubmission)
    assert (again.function, again.args) == (task, ([1], None))
