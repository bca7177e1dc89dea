"""Searches side by side: each process builds one MLP at a time on one thread, and is ended if that takes too long."""

import heapq
import logging
import multiprocessing
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

from mlpswap.cost.search import Found, Outcome

logger = logging.getLogger(__name__)

Measure = Callable[[Any, int, int], Outcome]  # one build, of a cell at a size and a seed; found by its name
Search = Generator[tuple[int, int], Outcome, Any]
Known = Mapping[tuple[str, int, int], Outcome]  # by `Cell.identity`, size and seed
TICK = 0.2  # seconds between looks at the clock


class Cell(Protocol):
    """One point of a table. Whatever its builds depend on besides size and seed stands in `identity`."""

    @property
    def identity(self) -> str: ...


class Worker:
    """One process and the build that it is at, if any."""

    def __init__(self, measure: Measure) -> None:
        context = multiprocessing.get_context("spawn")  # a fork would copy torch's locked thread pools
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, measure), daemon=True)
        self.process.start()
        theirs.close()
        self.task: tuple[int, Cell, int, int] | None = None
        self.ready = False  # has imported what it needs, and sent a first None to say so
        self.began = 0.0

    def start(self, number: int, cell: Cell, size: int, seed: int) -> None:
        self.pipe.send((cell, size, seed))
        self.task, self.began = (number, cell, size, seed), time.monotonic()

    def is_late(self, seconds: float) -> bool:
        return self.ready and time.monotonic() - self.began > seconds

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


def _serve(pipe: Connection, measure: Measure) -> None:
    """Build what comes through the pipe until it closes. Whatever goes wrong in a build is its outcome."""
    import torch

    torch.set_num_threads(1)
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    logging.disable(logging.WARNING)  # an MLP that stores too little is what a search is about
    pipe.send(None)
    while True:
        try:
            cell, size, seed = pipe.recv()
            try:
                outcome = measure(cell, size, seed)
            except Exception as error:
                text = f"{type(error).__name__}: {' '.join(str(error).split())}"
                outcome = Outcome(size, seed, None, {"error": text})
            pipe.send(outcome)
        except (EOFError, BrokenPipeError, KeyboardInterrupt):
            return


def _end_with_the_parent() -> None:
    """A parent that is killed can end nobody, and a build may take hours."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def run_searches(
    searches: Sequence[tuple[Cell, Search]],
    known: Known,
    *,
    measure: Measure,
    workers: int,
    seconds: float,
    record: Callable[[Any, Outcome], None],
    size_of: Callable[[Any], float] = lambda cell: 0.0,
) -> Iterator[tuple[int, Any]]:
    """Drive all searches and yield (number, what it returned) as each ends.

    A search goes on before a later one begins, those of large cells first: what takes longest must not be left for the end,
    when it has one process only. `size_of` a cell is any number that grows with it.

    A build that is `known` is not done again; `record` is told of every new one, in the order in which they end, and
    adds it there. A build of more than `seconds` is ended, with accuracy None. A search ends at an error with a
    `Found` of the status "error".
    """
    pending: list[tuple[float, int, Cell, int, int]] = []  # a heap; the first two say who is next
    ended: deque[tuple[int, Any]] = deque()

    def advance(number: int, outcome: Outcome | None) -> None:
        """Feed a search until it asks for a build that is not known, or ends."""
        cell, probes = searches[number]
        try:
            while True:
                if outcome is not None and "error" in outcome.figures:
                    ended.append((number, Found(None, 0, "error", (outcome,))))
                    return
                size, seed = next(probes) if outcome is None else probes.send(outcome)
                outcome = known.get((cell.identity, size, seed))
                if outcome is None:
                    heapq.heappush(pending, (-size_of(cell), number, cell, size, seed))
                    return
        except StopIteration as stop:
            ended.append((number, stop.value))

    def finish(worker: Worker, outcome: Outcome) -> None:
        assert worker.task is not None
        number, cell, *_ = worker.task
        worker.task = None
        record(cell, outcome)
        advance(number, outcome)

    for number in range(len(searches)):
        advance(number, None)
    team: list[Worker] = []
    try:
        while pending or ended or any(worker.task for worker in team):
            while ended:
                yield ended.popleft()
            while pending:
                _, number, cell, size, seed = pending[0]
                if (
                    outcome := known.get((cell.identity, size, seed))
                ) is not None:  # built for another search since
                    heapq.heappop(pending)
                    advance(number, outcome)
                    continue
                for worker in [each for each in team if each.task is None and not each.process.is_alive()]:
                    team.remove(worker)  # somebody ended it: another takes its place
                    worker.end()
                idle = next((worker for worker in team if worker.task is None), None)
                if idle is None and len(team) < workers:
                    team.append(idle := Worker(measure))
                if idle is None:
                    break
                heapq.heappop(pending)
                idle.start(number, cell, size, seed)
            busy = [worker for worker in team if worker.task]
            ready = wait([worker.pipe for worker in busy], timeout=TICK)
            for worker in busy:
                assert worker.task is not None
                _, _, size, seed = worker.task
                figures: dict[str, Any]
                if worker.pipe in ready:
                    try:
                        outcome = worker.pipe.recv()
                    except EOFError:
                        figures = {"error": "the process died; most likely its memory ran out"}
                    else:
                        if outcome is None:
                            worker.ready, worker.began = True, time.monotonic()
                        else:
                            finish(worker, outcome)
                        continue
                elif worker.is_late(seconds):
                    figures = {"capped_after": seconds}
                else:
                    continue
                team.remove(worker)
                worker.end()
                finish(worker, Outcome(size, seed, None, figures))
    finally:
        for worker in team:
            worker.end()
