"""A verdict on a death, line by line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence

from tuner.report.diagnosis import Diagnosis, EvidenceLine, diagnosis_record

_LABEL = 10
_PLACE = 7


def diagnosis_lines(diagnosis: Diagnosis) -> list[str]:
    """Write what a log tells: the cause first, what to do last."""
    verdict = diagnosis.verdict
    lines = [f"{sentence(diagnosis.what)} ({verdict.cause.value})"]
    guessed = ", by the words of its log" if diagnosis.is_guessed else ""
    lines += labelled("engine", [f"{diagnosis.engine}{guessed}"])
    lines += labelled("stage", [diagnosis.stage or "none: the log shows no step of a start"])
    lines += labelled("fault", [diagnosis.fault])
    if diagnosis.asked:
        lines += labelled("asked", [", ".join(f"{name} {value}" for name, value in sorted(diagnosis.asked.items()))])
    if verdict.advice:
        lines += labelled("to do", [verdict.advice])
    lines += labelled("settings", diagnosis.means)
    lines += labelled("note", diagnosis.remarks)
    if diagnosis.evidence:
        lines += ["", f"{'line':>{_PLACE}}  from the log"]
        lines += evidence_lines(diagnosis.evidence)
    return [printable(line) for line in lines]


def diagnosis_json(diagnosis: Diagnosis) -> str:
    """Write the same for a program."""
    return json.dumps(diagnosis_record(diagnosis), indent=2, allow_nan=False)


def evidence_lines(evidence: Iterable[EvidenceLine]) -> Iterator[str]:
    """Write lines of a log, each behind its number; a dash where the number is not known."""
    for item in evidence:
        yield f"{item.line or '-':>{_PLACE}}  {item.text}"


def labelled(label: str, texts: Sequence[str]) -> list[str]:
    """Write texts below each other, the first behind its label."""
    return [f"{label if index == 0 else '':<{_LABEL}}{text}" for index, text in enumerate(texts)]


def sentence(text: str) -> str:
    """Begin with a capital letter."""
    return text[:1].upper() + text[1:]


def printable(text: str) -> str:
    """Keep what a server says from steering the terminal."""
    return "".join(letter if letter.isprintable() else " " if letter == "\t" else "�" for letter in text)
