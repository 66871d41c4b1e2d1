"""The simulated machine: time, random names and processes, all from the seed.

`install` replaces the modules `time`, `uuid`, `socket` and `os` in the product's modules only.
"""

from __future__ import annotations

import os
import random
import socket
import sys
import time
import uuid
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.simulator.process import Process, Thread
    from tests.simulator.volume import Volume

START_US = 1_700_000_000_000_000


class Machine:
    """The true time, the random numbers and the processes of one history."""

    def __init__(self) -> None:
        self.true_us = START_US
        self.random = random.Random(0)
        self.thread: Thread | None = None
        """The thread that runs now; None if the world itself runs."""
        self.processes: dict[str, Process] = {}
        """The processes, by `host:pid`."""
        self.volumes: list[Volume] = []
        """The file systems of all hosts."""

    def reset(self, seed: int) -> None:
        self.true_us = START_US
        self.random = random.Random(seed)
        self.thread = None
        self.processes = {}
        self.volumes = []

    @property
    def current(self) -> Process | None:
        """The process that runs now; None if the world itself runs."""
        return self.thread.process if self.thread is not None else None

    def now_us(self) -> int:
        """Return the time of the current process's host; each call advances the time."""
        self.true_us += 1
        return self.true_us + (self.current.host.ahead_us if self.current is not None else 0)

    def monotonic_s(self) -> float:
        """Return the time of a clock that never goes back."""
        return (self.true_us - START_US) / 1_000_000 + 1_000.0


MACHINE = Machine()


class _Module:
    """Replaces a module: its methods replace functions, and the other names are those of the module."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


class _Time(_Module):
    def time_ns(self) -> int:
        return MACHINE.now_us() * 1_000

    def time(self) -> float:
        return MACHINE.now_us() / 1_000_000

    def monotonic(self) -> float:
        MACHINE.true_us += 1
        return MACHINE.monotonic_s()

    def sleep(self, seconds: float) -> None:
        assert MACHINE.current is not None
        MACHINE.current.sleep(seconds)


def uuid4() -> uuid.UUID:
    return uuid.UUID(int=MACHINE.random.getrandbits(128), version=4)


class _Uuid(_Module):
    uuid4 = staticmethod(uuid4)


class _Socket(_Module):
    def gethostname(self) -> str:
        return MACHINE.current.host.name if MACHINE.current is not None else "world"


class _Os(_Module):
    def getpid(self) -> int:
        return MACHINE.current.pid if MACHINE.current is not None else 0

    def kill(self, pid: int, signal: int) -> None:
        assert signal == 0, "the product only asks whether a process is there"
        assert MACHINE.current is not None
        process = MACHINE.processes.get(f"{MACHINE.current.host.name}:{pid}")
        if process is None or not process.alive:
            raise ProcessLookupError(pid)

    def open(self, path: object, _flags: int) -> tuple[Volume, str]:
        for volume in MACHINE.volumes:
            name = str(path).removeprefix(volume.folder).strip("/")
            if str(path).startswith(volume.folder) and volume.exists(name):
                return volume, name
        raise FileNotFoundError(path)

    def fsync(self, descriptor: tuple[Volume, str]) -> None:
        volume, name = descriptor
        assert MACHINE.current is not None
        MACHINE.current.io("sync", name, lambda: volume.sync(name))

    def close(self, descriptor: tuple[Volume, str]) -> None:
        pass


_TIME = _Time(time)

_REPLACED: dict[int, Any] = {
    id(time): _TIME,
    id(time.monotonic): _TIME.monotonic,
    id(time.sleep): _TIME.sleep,
    id(uuid): _Uuid(uuid),
    id(uuid.uuid4): uuid4,
    id(socket): _Socket(socket),
    id(os): _Os(os),
}


def install() -> None:
    """Replace the modules in each loaded module of the product."""
    for name, module in list(sys.modules.items()):
        if name.split(".", maxsplit=1)[0] not in {"wal_sink", "state_backends"}:
            continue
        for attribute, value in list(vars(module).items()):
            if id(value) in _REPLACED:
                setattr(module, attribute, _REPLACED[id(value)])
            elif isinstance(value, type):
                for method in vars(value).values():
                    _replace_defaults(method)
            else:
                _replace_defaults(value)


def _replace_defaults(function: object) -> None:
    """Replace the modules in the default values of a function's parameters."""
    if not isinstance(function, FunctionType):
        return
    kept, named = function.__defaults__ or (), function.__kwdefaults__ or {}
    function.__defaults__ = tuple(_REPLACED.get(id(value), value) for value in kept) or None
    named.update({name: _REPLACED.get(id(value), value) for name, value in named.items()})
