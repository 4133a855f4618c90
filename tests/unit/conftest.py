"""Unit tests cannot reach the outside world: no sockets, no other processes."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

FORBIDDEN = frozenset(
    {"socket.connect", "socket.bind", "subprocess.Popen", "os.fork", "os.exec", "os.posix_spawn", "os.system"}
)
_blocked = False


def _guard(event: str, args: tuple[object, ...]) -> None:
    if _blocked and event in FORBIDDEN:
        raise AssertionError(f"a unit test reached outside: {event} {args!r}; make it an integration test")


sys.addaudithook(_guard)  # audit hooks cannot be removed: this one does nothing outside unit tests


@pytest.fixture(autouse=True)
def no_outside_world() -> Iterator[None]:
    global _blocked  # noqa: PLW0603 - the hook outlives every test
    _blocked = True
    yield
    _blocked = False
