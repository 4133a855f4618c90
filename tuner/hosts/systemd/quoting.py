r"""Writes words into a unit file so that systemd reads exactly them back.

Pure. Between the file and the process stand, in this order: line joining and the line's length, unquoting
with C escapes, specifiers (``%``), and, for command lines only, variables (``$``).
"""

from __future__ import annotations

import re

from tuner.errors import UsageError

LINE_MAX_BYTES = 1024 * 1024
"""systemd's LONG_LINE_MAX: a longer line makes it refuse the whole file."""

WORD_MAX_BYTES = 131071
"""Linux's MAX_ARG_STRLEN, less the NUL: execve(2) refuses a longer argument."""

_ESCAPES = {"\\": r"\\", '"': r"\"", "\n": r"\n", "\t": r"\t", "\r": r"\r", "%": "%%"}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_BARE = re.compile(r"[A-Za-z0-9_./:=,@+-]+")
_NOT_IN_PATH = re.compile(r"[\x00-\x1f\x7f\"'\\]")


def constant(word: str) -> str:
    """Return a word that becomes ``word`` when systemd replaces variables in it."""
    return word.replace("$", "$$")


def literal(word: str) -> str:
    """Return one word of ExecStart= that reaches the process unchanged.

    Raises:
        UsageError: it is what no command line can hold: a NUL, bytes that are not UTF-8, too long.
    """
    return quoted(constant(word))


def quoted(word: str) -> str:
    """Return one word of ExecStart= in which systemd still replaces ``${VARIABLES}``; specifiers are literal.

    Raises:
        UsageError: as for :func:`literal`.
    """
    _must_be_text(word, f"argument {word!r}")
    if _BARE.fullmatch(word):
        return word
    # Always in quotes otherwise: an empty word is one, and a lone `;` would separate commands.
    return '"' + "".join(_escaped(character) for character in word) + '"'


def program(path: str, prefixes: str = "") -> str:
    """Return the first word of ExecStart=, with its prefixes; systemd neither unescapes nor expands it further.

    Raises:
        UsageError: systemd takes no such path: quotes, backslashes and control characters are not allowed in it.
    """
    if not path or _NOT_IN_PATH.search(path) or path.endswith("/"):
        msg = f"program {path!r}: systemd runs no program whose path is empty or has quotes or backslashes in it"
        raise UsageError(msg)
    if "/" in path and not path.startswith("/"):
        msg = f"program {path!r}: systemd wants an absolute path, or a bare name that it looks for itself"
        raise UsageError(msg)
    if path[0] in "-@:+!|":
        msg = f"program {path!r}: systemd would take its first character for a prefix: give its absolute path"
        raise UsageError(msg)
    return quoted(prefixes + path)


def assignment(name: str, value: str) -> str:
    """Return one word of Environment=, where ``$`` means nothing.

    Raises:
        UsageError: systemd refuses such a name, or such a value.
    """
    if not _NAME.fullmatch(name):
        msg = f"environment variable {name!r}: a name is made of letters, digits and underscores"
        raise UsageError(msg)
    _must_be_text(value, f"environment variable {name}")
    if any((ord(character) < 32 and character not in "\t\n") or ord(character) == 127 for character in value):
        msg = f"environment variable {name}: systemd takes no control characters in a value"
        raise UsageError(msg)
    return quoted(f"{name}={value}")


def checked_line(line: str) -> str:
    """Return a whole line of a unit file.

    Raises:
        UsageError: it is longer than systemd reads.
    """
    size = len(line.encode())
    if size >= LINE_MAX_BYTES:
        msg = f"{line.partition('=')[0]}= would be {size} bytes long, and systemd reads lines below {LINE_MAX_BYTES}"
        raise UsageError(msg)
    return line


def _must_be_text(word: str, what: str) -> None:
    if "\0" in word:
        msg = f"{what} holds a NUL, which ends a word"
        raise UsageError(msg)
    try:
        size = len(word.encode())
    except UnicodeEncodeError as error:
        msg = f"{what} is not UTF-8, and systemd ignores a line that is not"
        raise UsageError(msg) from error
    if size > WORD_MAX_BYTES:
        msg = f"{what[:80]}… is {size} bytes long, and Linux takes {WORD_MAX_BYTES} at most"
        raise UsageError(msg)


def _escaped(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    code = ord(character)
    return f"\\x{code:02x}" if code < 32 or code == 127 else character
