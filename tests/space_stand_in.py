"""A `spaces` package whose decorator runs a generator in another process, forked or spawned.

Arguments and yields go through pickle, as on a Space whose GPU is lent call by call. With `spawn` the worker
itself does too, so nothing it holds may be of this process only.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import pickle
import types


def far_side(worker, connection, arguments):
    """What the other process does."""
    with contextlib.suppress(BrokenPipeError):
        for value in worker(*pickle.loads(arguments)):
            connection.send_bytes(pickle.dumps(value))
        connection.send_bytes(pickle.dumps(StopIteration))


class StandIn(types.ModuleType):
    """`method` is how processes are started; `refusal` is raised in place of lending the GPU."""

    def __init__(self, method="fork"):
        super().__init__("spaces")
        self.method = method
        self.refusal = None
        self.durations = []
        self.processes = []

    def GPU(self, duration):
        def decorate(worker):
            def call(*arguments):
                self.durations.append(duration(*arguments))
                if self.refusal is not None:
                    raise self.refusal
                yield from self._values(worker, arguments)

            return call

        return decorate

    def _values(self, worker, arguments):
        here, there = multiprocessing.Pipe()
        context = multiprocessing.get_context(self.method)
        process = context.Process(target=far_side, args=(worker, there, pickle.dumps(arguments)), daemon=True)
        process.start()
        there.close()
        self.processes.append(process)
        try:
            while (value := pickle.loads(here.recv_bytes())) is not StopIteration:
                yield value
        finally:
            here.close()
            process.join(20)
