"""Together: an engine whose machines are names and whose hosts are objects of this process. Their samplers are processes as always."""

import importlib
import itertools

from rlrun.cluster.engine import HostLost
from rlrun.machine.nodes import Node


class _Here:
    def __init__(self, engine, made, name, node):
        self.engine, self.made, self.name, self.node, self.gone = engine, made, name, node, False

    def call(self, method, *args):
        number = next(self.engine.numbers)
        self.engine.calls[number] = (self, method, args)
        return number


class Together:
    """Calls are made when somebody waits for them, one for each host at a time."""

    made: list = []  # noqa: RUF012  (all engines of a test)

    def __init__(self, cfg, planned):
        self.there = {node.name: node for node in planned}
        self.calls, self.answers, self.numbers, self.hosts, self.started = {}, {}, itertools.count(), [], []
        self.closed = False
        Together.made.append(self)

    def nodes(self):
        return list(self.there.values())

    def join(self, name, cores=1):
        self.there[name] = Node(name, cores)

    def kill(self, name):
        """The machine is gone, with all that runs on it."""
        del self.there[name]
        for host in self.hosts:
            if host.node == name:
                self.kill_host(host)

    def kill_host(self, host):
        host.gone = True
        works = getattr(host.made, "sampler", None) or getattr(host.made, "players", None)
        if works is not None:
            for worker in works.workers.members:
                worker.process.kill()
            works.close()

    def start(self, kind, name, node, brief, spare=False):
        module, _, cls = kind.partition(":")
        host = _Here(self, getattr(importlib.import_module(module), cls)(brief), name, node)
        self.hosts.append(host)
        self.started.append((name, node, spare))
        return host

    def put(self, value):
        value.flags.writeable = False  # as what comes out of Ray's memory
        return value

    def wait(self, answers, timeout):
        for number in answers:
            host, method, args = self.calls.pop(number, (None, None, None))
            if host is not None:
                self.answers[number] = HostLost("the machine is gone") if host.gone else getattr(host.made, method)(*args)
        return list(answers)

    def get(self, answer):
        value = self.answers.pop(answer)
        if isinstance(value, HostLost):
            raise value
        return value

    def stop(self, hosts, end_sec=5.0):
        for host in hosts:
            if not host.gone:
                host.made.stop()
            host.gone = True
            self.hosts.remove(host)

    def close(self):
        assert not self.hosts, "every host was stopped"
        self.closed = True
