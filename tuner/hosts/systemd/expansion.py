"""How systemd replaces variables in a command line, and reads environment files (systemd.service(5), systemd.exec(5)).

Pure. Followed from systemd's own ``replace_env_argv`` and ``parse_env_file``, because the manual leaves out
what happens to ``$`` within a word, to quotes inside a variable, and to a variable that is not set.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_IN_WORD = re.compile(r"\$\$|\$\{([^}]*)\}")
_WHITESPACE = " \t\n\r"
_NEWLINE = "\n\r"
_COMMENT = "#;"
_ESCAPED_IN_QUOTES = '"\\`$'


def expand(word: str, variables: Mapping[str, str]) -> tuple[str, ...]:
    r"""Return the words that one word of ExecStart becomes.

    ``$NAME`` as a whole word is split at white space, where quotes hold together; not set, it vanishes.
    ``${NAME}`` anywhere is replaced as it stands; not set, by nothing. ``$$`` is one ``$``, and any other
    ``$`` within a word is itself.
    """
    if word.startswith("$") and word[1:2] not in {"$", "{"}:
        return _split(variables.get(word[1:], ""))
    return (_IN_WORD.sub(lambda match: "$" if match[1] is None else variables.get(match[1], ""), word),)


def names_in(word: str) -> tuple[str, ...]:
    """Return the variables that a word of ExecStart refers to."""
    if word.startswith("$") and word[1:2] not in {"$", "{"}:
        return (word[1:],)
    return tuple(match[1] for match in _IN_WORD.finditer(word) if match[1] is not None)


def _split(value: str) -> tuple[str, ...]:
    """Split as systemd's ``EXTRACT_UNQUOTE | EXTRACT_RELAX``: quotes group, a backslash takes the next character."""
    words: list[str] = []
    word: str | None = None
    quote = ""
    characters = iter(value)
    for character in characters:
        if character == "\\":
            word = (word or "") + next(characters, "")
        elif quote:
            if character == quote:
                quote = ""
            else:
                word = (word or "") + character
        elif character in "'\"":
            quote, word = character, word or ""
        elif character in _WHITESPACE:
            if word is not None:
                words.append(word)
            word = None
        else:
            word = (word or "") + character
    return tuple(words if word is None else [*words, word])


def parse_environment_file(text: str) -> tuple[tuple[str, str], ...]:
    """Read the file of an EnvironmentFile= line; lines that assign nothing valid are left out, as systemd does."""
    pairs = []
    position = 0
    while position < len(text):
        if text[position] in _WHITESPACE:
            position += 1
            continue
        end = _line_end(text, position)
        if text[position] in _COMMENT or "=" not in text[position:end]:
            position = end + 1
            continue
        equals = text.index("=", position)
        name = text[position:equals].rstrip(_WHITESPACE)
        value, position = _value(text, equals + 1)
        if _NAME.fullmatch(name):
            pairs.append((name, value))
    return tuple(pairs)


def _line_end(text: str, position: int) -> int:
    while position < len(text) and text[position] not in _NEWLINE:
        position += 1
    return position


def _value(text: str, position: int) -> tuple[str, int]:
    """Return the value that begins here, and where its line ends.

    Quotes open only where a value, or a further quoted part of it, begins; within a bare value they are literal.
    """
    value = ""
    while position < len(text) and text[position] not in _NEWLINE:
        character = text[position]
        if character in _WHITESPACE:
            position += 1
        elif character in "'\"":
            part, position = _quoted(text, position + 1, character)
            value += part
        else:
            part, position = _bare(text, position)
            return value + part, position
    return value, position + 1


def _quoted(text: str, position: int, quote: str) -> tuple[str, int]:
    value = ""
    while position < len(text) and text[position] != quote:
        if text[position] == "\\" and quote == '"':
            escaped = text[position + 1 : position + 2]
            if escaped in _ESCAPED_IN_QUOTES:
                value += escaped
            elif escaped not in _NEWLINE:
                value += "\\" + escaped
            position += 2
        else:
            value += text[position]
            position += 1
    return value, position + 1


def _bare(text: str, position: int) -> tuple[str, int]:
    value = ""
    kept = 0  # white space at the end falls away, unless it was escaped
    while position < len(text) and text[position] not in _NEWLINE:
        if text[position] == "\\":
            escaped = text[position + 1 : position + 2]
            value += "" if escaped in _NEWLINE else escaped
            position += 2
            kept = len(value)
        else:
            value += text[position]
            if text[position] not in _WHITESPACE:
                kept = len(value)
            position += 1
    return value[:kept], position + 1
