"""Apart: an engine whose machines are names and whose hosts are processes of their own, which can be lost.

Hosts work in the root folder, so they find no file by a relative path: other machines have no files of a run either."""

import importlib
import itertools
import multiprocessing
import os
import signal
from multiprocessing.connection import wait

from rlrun.cluster.engine import HostLost

CONTEXT = multiprocessing.get_context("forkserver")  # which imports PyTorch once for all hosts of a test run
CONTEXT.set_forkserver_preload(["rlrun.runtime.learner_host"])


def serve(pipe, kind, brief):
    os.chdir("/")
    module, _, cls = kind.partition(":")
    made = getattr(importlib.import_module(module), cls)(brief)
    while True:
        try:
            number, method, args = pipe.recv()
            pipe.send((number, getattr(made, method)(*args)))
        except (EOFError, BrokenPipeError):
            return


class _Apart:
    def __init__(self, engine, kind, name, node, brief):
        self.engine, self.name, self.node = engine, name, node
        self.pipe, child = CONTEXT.Pipe()
        self.process = CONTEXT.Process(target=serve, args=(child, kind, brief))
        self.process.start()
        child.close()
        self.silent = False

    def call(self, method, *args):
        number = next(self.engine.numbers)
        self.engine.hosts[number] = self
        self.pipe.send((number, method, args))
        return number


class Apart:
    made: list = []  # noqa: RUF012  (all engines of a test)

    def __init__(self, cfg, planned):
        self.there = list(planned)
        self.numbers, self.hosts, self.answers, self.started = itertools.count(), {}, {}, []
        self.closed = False
        Apart.made.append(self)

    def nodes(self):
        return self.there

    def address(self):
        return "127.0.0.1"

    def start(self, kind, name, node, brief, spare=False):
        self.started.append(_Apart(self, kind, name, node, brief))
        return self.started[-1]

    def silence(self, name):
        """Stops a host as a machine without power stops, which closes no connection. The engine knows it."""
        (host,) = (one for one in self.started if one.name == name)
        os.kill(host.process.pid, signal.SIGSTOP)
        host.silent = True

    def put(self, value):
        return value

    def wait(self, answers, timeout):
        waited = {self.hosts[number].pipe: self.hosts[number] for number in answers}
        lost = [number for number in answers if self.hosts[number].silent]
        for pipe in wait(list(waited), 0 if lost else timeout):
            try:
                number, value = pipe.recv()
            except (EOFError, ConnectionResetError):
                lost += [number for number in answers if self.hosts[number].pipe is pipe]
                continue
            self.answers[number] = value
        self.answers |= {number: HostLost("its process has died") for number in lost}
        return [number for number in answers if number in self.answers]

    def get(self, answer):
        value = self.answers.pop(answer)
        if isinstance(value, HostLost):
            raise value
        return value

    def stop(self, hosts, end_sec=5.0):
        for host in hosts:
            host.pipe.close()
            host.process.join(0 if host.silent else 5)
            host.process.kill()
            host.process.join()

    def close(self):
        assert all(host.process.exitcode is not None for host in self.started), "every host was stopped"
        self.closed = True
