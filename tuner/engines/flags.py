"""Reads and edits the flags of a command line without ever joining it."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.errors import UsageError

Argv = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag that takes one value, under all its exact names; the first is how we write it."""

    names: tuple[str, ...]

    @property
    def name(self) -> str:
        """The spelling we use when we add the flag."""
        return self.names[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """One occurrence of a flag: where its value stands, and how many words it takes."""

    index: int
    words: int
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FlagSet:
    """The flags of one program, as its own parser understands them.

    Attributes:
        known: flags we read or write, and the neighbours that make a prefix ambiguous.
        prefixes: whether the program takes unique prefixes of long flags (argparse does).
    """

    known: tuple[Flag, ...]
    prefixes: bool

    def value(self, argv: Argv, flag: Flag) -> str | None:
        """Return the value that counts (the last one given); None when the flag is absent.

        Raises:
            UsageError: the flag has no value, or a prefix fits several flags.
        """
        places = self._places(argv, flag)
        return places[-1].value if places else None

    def integer(self, argv: Argv, flag: Flag) -> int | None:
        """Return :meth:`value` as a whole number.

        Raises:
            UsageError: it is not one.
        """
        text = self.value(argv, flag)
        if text is None:
            return None
        try:
            return int(text)
        except ValueError:
            raise UsageError(f"base command: {flag.name} needs a whole number, not {text!r}") from None

    def number(self, argv: Argv, flag: Flag) -> float | None:
        """Return :meth:`value` as a number.

        Raises:
            UsageError: it is not one.
        """
        text = self.value(argv, flag)
        if text is None:
            return None
        try:
            return float(text)
        except ValueError:
            raise UsageError(f"base command: {flag.name} needs a number, not {text!r}") from None

    def has(self, argv: Argv, flag: Flag) -> bool:
        """Whether the flag is given at all, with or without a value."""
        return any(self._flag_of(word) is flag for word in argv)

    def put(self, argv: Argv, flag: Flag, value: str) -> Argv:
        """Set the flag where its last occurrence stands, or append it.

        A value that already means the same is left as it is written (``0.80`` for ``0.8``).
        """
        places = self._places(argv, flag)
        if not places:
            return (*argv, flag.name, value)
        last = places[-1]
        if _same(last.value, value):
            return argv
        if last.words == 2:
            return (*argv[: last.index + 1], value, *argv[last.index + 2 :])
        spelled = argv[last.index].partition("=")[0]
        return (*argv[: last.index], f"{spelled}={value}", *argv[last.index + 1 :])

    def drop(self, argv: Argv, flag: Flag) -> Argv:
        """Remove every occurrence of the flag together with its value."""
        gone = {place.index + i for place in self._places(argv, flag) for i in range(place.words)}
        return tuple(word for i, word in enumerate(argv) if i not in gone)

    def _places(self, argv: Argv, flag: Flag) -> list[_Place]:
        places = []
        for index, word in enumerate(argv):
            if self._flag_of(word) is not flag:
                continue
            if word.startswith("--") and "=" in word:
                places.append(_Place(index=index, words=1, value=word.partition("=")[2]))
            elif index + 1 < len(argv) and not argv[index + 1].startswith("--"):
                places.append(_Place(index=index, words=2, value=argv[index + 1]))
            else:
                raise UsageError(f"base command: {word} needs a value after it")
        return places

    def _flag_of(self, word: str) -> Flag | None:
        if not word.startswith("-"):
            return None
        spelled = word.partition("=")[0] if word.startswith("--") else word
        for flag in self.known:
            if spelled in flag.names:
                return flag
        if not self.prefixes or not spelled.startswith("--") or spelled == "--":
            return None
        fitting = [flag for flag in self.known if any(name.startswith(spelled) for name in flag.names)]
        if len(fitting) > 1:
            names = ", ".join(flag.name for flag in fitting)
            raise UsageError(f"base command: {spelled} is ambiguous, it could be {names}")
        return fitting[0] if fitting else None


def _same(written: str, wanted: str) -> bool:
    """Whether two values mean the same: as text, or as numbers."""
    if written == wanted:
        return True
    try:
        return float(written) == float(wanted)
    except ValueError:
        return False
