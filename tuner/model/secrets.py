"""Which words of a command hold a secret, told by the names they stand behind.

Two rules, because the two kinds of names differ. An environment variable called KEY or TOKEN is a
secret far more often than not, and nothing is lost by hiding one that is none. Among the flags of an
LLM server most tokens are the model's (``--max-total-tokens``): there only names that say whose key
or token it is count.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from tuner.model.trial import Command

MASK = "***"

_VARIABLE = re.compile(
    r"(?:^|[_-])(?:keys?|token|pass|pat)\d*(?:[_-]|$)|api_?keys?|secret|passw(?:or)?d|passphrase|credential",
    re.IGNORECASE,
)
_FLAG = re.compile(
    r"^--?(?:[a-z0-9-]+-)?"
    r"(?:api-?keys?|(?:secret|private|access|auth)-keys?|secrets?|passw(?:or)?d|passphrase|credentials?"
    r"|(?:hf|hub|auth|access|api|bearer|admin|github)-token)$"
    # What argparse takes for --api-key, --admin-api-key, --hf-token and --ssl-keyfile-password.
    r"|^--(?:token|api-k?e?|admin|admin-[ap-]+(?:ke?)?|hf-t[oke]*|ssl-keyfile-p[aswor]*)$",
    re.IGNORECASE,
)
_ASSIGNMENT = re.compile(r"^[A-Za-z_]\w*$")
# Under a secret's name these are settings; replacing them wherever they stand would spoil every text.
_PLAIN_WORDS = frozenset({"true", "false", "none", "null", "auto", "default", "disabled", "enabled"})
_SHORTEST = 4


def is_secret_variable(name: str) -> bool:
    """Whether an environment variable of this name holds a secret."""
    return _VARIABLE.search(name) is not None


def is_secret_flag(flag: str) -> bool:
    """Whether the value of this flag, given with its dashes, is a secret."""
    return _FLAG.search(flag.replace("_", "-")) is not None


def masked(command: Command) -> Command:
    """Return ``command`` with ``***`` in the place of every secret."""
    argv = list(command.argv)
    for position, start, _ in _secrets_of(command.argv):
        argv[position] = argv[position][:start] + MASK
    env = tuple((name, MASK if is_secret_variable(name) and value else value) for name, value in command.env)
    return replace(command, argv=tuple(argv), env=env)


def secret_values(command: Command) -> tuple[str, ...]:
    """Return what must not appear in any text about ``command``, longest first.

    A flag may take several keys, separated by commas: each is one. Values too short or too common
    to be anybody's key are left out; :func:`masked` hides them all the same.
    """
    whole = [value for name, value in command.env if is_secret_variable(name)]
    whole += [value for _, _, value in _secrets_of(command.argv)]
    parts = {part.strip() for value in whole for part in (value, *value.split(","))}
    telling = {part for part in parts if len(part) >= _SHORTEST and part.lower() not in _PLAIN_WORDS}
    return tuple(sorted(telling, key=lambda part: (-len(part), part)))


def _secrets_of(argv: tuple[str, ...]) -> Iterator[tuple[int, int, str]]:
    """Yield each secret as position, where in that word it starts, and value."""
    for position, word in enumerate(argv):
        name, equals, value = word.partition("=")
        if not name.startswith("-"):
            # env NAME=value server: an assignment in front of the program
            if equals and value and _ASSIGNMENT.match(name) and is_secret_variable(name):
                yield position, len(name) + 1, value
        elif is_secret_flag(name):
            if equals:
                yield position, len(name) + 1, value
            elif position + 1 < len(argv) and not argv[position + 1].startswith("-"):
                yield position + 1, 0, argv[position + 1]
