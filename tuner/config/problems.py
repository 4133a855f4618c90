"""Says what is wrong with a file in one line: file, key, value, what is allowed, the nearest known key."""

from __future__ import annotations

import contextlib
import difflib
import json
import re
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from tuner.errors import StudyFileError

NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")
LONGEST_NAME = 64
"""Names become parts of file names, which the file system limits to 255 bytes."""
_LONGEST_VALUE = 60


class Table(BaseModel):
    """A TOML table: unknown keys are refused, nothing is converted from one type to another."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong.

    Attributes:
        key: dotted path of the key, ``workload.ladder``; empty for the whole file.
        text: what is wrong and what is allowed.
    """

    key: str
    text: str


def failure(file: str, problems: Sequence[Problem]) -> StudyFileError:
    """Build the one-line error: every problem in full, one after the other."""
    told = "; ".join(f"{problem.key}: {problem.text}" if problem.key else problem.text for problem in problems)
    return StudyFileError(" ".join(f"{file}: {told}".split()))


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that ``word`` was probably meant to be."""
    matches = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return matches[0] if matches else None


def unknown(what: str, word: str, known: Collection[str]) -> str:
    """Say that ``word`` is not known, what was probably meant, and what is."""
    guess = nearest(word, known)
    meant = f"; did you mean {quoted(guess)}?" if guess else ""
    return f"unknown {what} {quoted(word)}{meant} (known: {', '.join(sorted(known)) or 'none'})"


def quoted(value: object) -> str:
    """Write a value as TOML would, shortened to what a line can hold."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError):  # dates, inf and nan: TOML has them, JSON does not
        text = str(value)
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 1] + "…"


def check_name(name: str, what: str) -> str | None:
    """Say why ``name`` cannot be the name of a file in our folders; None when it can."""
    if len(name) > LONGEST_NAME:
        return f"{what} {quoted(name)} is too long: use at most {LONGEST_NAME} characters"
    if NAME.fullmatch(name) and ".." not in name:
        return None
    return f'{what} {quoted(name)} is not allowed: use a-z, 0-9, "-", "_" and single dots, without a path'


@contextlib.contextmanager
def reading(shown: str) -> Iterator[None]:
    """Turn what the file system refuses (rights, a path too long, a loop of links) into one line.

    Raises:
        StudyFileError: names ``shown`` and the reason.
    """
    try:
        yield
    except OSError as error:
        raise StudyFileError(
            f"{shown}: cannot be read: {error.strerror}; make it readable, or name another with --root"
        ) from error


def read_toml(path: Path, shown: str) -> dict[str, Any]:
    """Parse a TOML file.

    Args:
        path: the file.
        shown: how messages call it.

    Raises:
        StudyFileError: it cannot be read, or is not TOML; with line and column.
    """
    try:
        return tomllib.loads(path.read_bytes().decode("utf-8"))
    except OSError as error:
        raise StudyFileError(f"{shown}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise StudyFileError(f"{shown}: is not UTF-8 text (byte {error.start}); save it as UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        raise failure(shown, [Problem(key="", text=f"is not valid TOML: {error}")]) from error


def problems_of(error: ValidationError, model: type[BaseModel], prefix: str = "") -> list[Problem]:
    """Translate pydantic's findings; unknown keys come first, because they explain missing ones.

    Args:
        error: as raised by ``model.model_validate``.
        model: the table that was validated.
        prefix: dotted path of that table in its file.
    """
    found = error.errors(include_url=False)
    found.sort(key=lambda detail: detail["type"] != "extra_forbidden")
    return [
        Problem(key=_dotted(prefix, detail["loc"]), text=_describe(dict(detail), model, prefix)) for detail in found
    ]


_EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "a text in quotes",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a table",
    "model_type": "a table",
    "model_attributes_type": "a table",
}


_BOUNDS = {"greater_than": "above", "greater_than_equal": "at least", "less_than_equal": "at most"}


def _describe(detail: Mapping[str, Any], model: type[BaseModel], prefix: str) -> str:
    kind, context = detail["type"], detail.get("ctx", {})
    fixed = {"missing": "is missing", "too_short": "must not be empty", "string_too_short": "must not be empty"}
    if kind in fixed:
        return fixed[kind]
    if kind == "extra_forbidden":
        return _unknown_key(str(detail["loc"][-1]), detail["loc"][:-1], model, prefix)
    if kind == "value_error":
        return str(context["error"])
    if kind == "list_type" and isinstance(detail["input"], dict):  # [hosts] is one table, [[hosts]] a list of them
        return f"is one table, but must be a list of them: write [[{_dotted(prefix, detail['loc'])}]]"
    return f"is {quoted(detail['input'])}, but must be {_allowed(kind, context, detail['msg'])}"


def _allowed(kind: str, context: Mapping[str, Any], message: str) -> str:
    """Say what pydantic wanted; its own words where we have none better."""
    if kind in _BOUNDS:
        bound = next(number for name, number in context.items() if name in ("gt", "ge", "le"))
        return f"{_BOUNDS[kind]} {bound:.10g}"  # seeds have ten digits
    if kind == "literal_error":
        return f"one of {context['expected']}".replace("'", '"')
    return _EXPECTED.get(kind, f"different: {message}")


def _unknown_key(key: str, place: Sequence[str | int], model: type[BaseModel], prefix: str) -> str:
    table = _table_at(model, place)
    siblings = list(table.model_fields)
    guess = nearest(key, siblings)
    if guess is None:  # the right key in the wrong table
        guess = next((path for path in _all_keys(model) if path.rpartition(".")[2] == key), None)
        if guess is not None and prefix:
            guess = f"{prefix}.{guess}"
    meant = f"; did you mean {guess}?" if guess else ""
    return f"unknown key{meant} (allowed here: {', '.join(siblings)})"


def _table_at(model: type[BaseModel], place: Sequence[str | int]) -> type[BaseModel]:
    for step in place:
        if isinstance(step, str) and step in model.model_fields:
            model = _table_of(model.model_fields[step].annotation) or model
    return model


def _table_of(annotation: object) -> type[BaseModel] | None:
    """Return the table in ``Table``, ``Table | None`` or ``list[Table]``."""
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return None


def _all_keys(model: type[BaseModel]) -> list[str]:
    keys: list[str] = []
    for name, field in model.model_fields.items():
        keys.append(name)
        inner = _table_of(field.annotation)
        if inner is not None:
            keys += [f"{name}.{key}" for key in _all_keys(inner)]
    return keys


def _dotted(prefix: str, place: Sequence[str | int]) -> str:
    path = prefix
    for step in place:
        if isinstance(step, int):
            path += f"[{step}]"
        else:
            path += f".{step}" if path else step
    return path
