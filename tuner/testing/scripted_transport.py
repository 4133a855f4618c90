"""A host of which only the answers to commands exist, as a test tells them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tuner.model.host import CommandResult

Answer = Callable[[tuple[str, ...]], CommandResult]


def said(stdout: str = "", stderr: str = "", status: int = 0) -> CommandResult:
    """Return what a command printed."""
    return CommandResult(status=status, stdout=stdout, stderr=stderr)


def in_turn(*answers: CommandResult) -> Answer:
    """Give one answer after another; a command beyond the last is an error."""
    left = list(answers)
    return lambda _argv: left.pop(0)


class ScriptedTransport:
    """Answers commands, and keeps what it was asked. Files can be had only by commands.

    Args:
        answer: says or raises what comes of a command.

    Attributes:
        calls: the commands.
        inputs: what each got on its standard input.
        timeouts_s: what each was given.
    """

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.calls: list[tuple[str, ...]] = []
        self.inputs: list[bytes] = []
        self.timeouts_s: list[float] = []

    async def run(
        self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 30.0, repeat: bool = True
    ) -> CommandResult:
        """Answer; only commands that may be repeated are asked for."""
        assert repeat
        assert timeout_s > 0
        self.calls.append(tuple(argv))
        self.inputs.append(stdin)
        self.timeouts_s.append(timeout_s)
        return self._answer(tuple(argv))

    async def read_file(self, path: str) -> bytes:
        """Fail: nobody asks for it."""
        raise AssertionError(path)

    async def write_file(self, path: str, content: bytes, *, mode: int = 0o600) -> None:
        """Fail: nobody asks for it."""
        raise AssertionError(f"{path} {content!r} {mode}")

    async def close(self) -> None:
        """Nothing is open."""
