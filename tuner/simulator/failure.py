"""Text that a Python process leaves when it fails on purpose."""

from __future__ import annotations

PACKAGE = "/usr/local/lib/python3.12/dist-packages/"


class ArgumentFailure(Exception):
    """The command line is refused before anything is loaded.

    Attributes:
        exit_status: 2 from argparse, 1 from SGLang's rules, 0 after ``--help``.
        stderr: all that is printed.
    """

    def __init__(self, exit_status: int, stderr: str) -> None:
        super().__init__(stderr)
        self.exit_status = exit_status
        self.stderr = stderr


def traceback_lines(error: str, *frames: str) -> tuple[str, ...]:
    """Return a traceback's lines.

    Args:
        error: its last line, ``ValueError: text``; may hold several lines.
        frames: ``module/file.py:line:function``, outermost first.
    """
    lines = ["Traceback (most recent call last):"]
    for frame in frames:
        file, line, function = frame.split(":")
        lines.append(f'  File "{PACKAGE}{file}", line {line}, in {function}')
    return (*lines, *error.split("\n"))
