"""Writes the long shipped prompts, tuner/load/data/long.jsonl: the same bytes every time."""
# ruff: noqa: E501, ISC004 - tasks are easier to read and to change whole

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import prose
import technical

OUT = Path(__file__).parents[2] / "tuner" / "load" / "data" / "long.jsonl"
SEED = 20261201
PROSE, DENSE = 4.0, 2.6  # characters a token: of prose, of logs, tables and code


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of long prompt; ``tasks`` are asked in turn, above the text."""

    name: str
    prompt_class: str
    text: Callable[[random.Random, int], str]
    characters_a_token: float
    thousands: tuple[int, ...]
    tasks: tuple[str, ...]


KINDS = (
    Kind(
        name="sum-minutes",
        prompt_class="summarising",
        text=prose.minutes,
        characters_a_token=PROSE,
        thousands=(1, 2, 3, 4, 6, 8),
        tasks=(
            "Summarise these minutes of a town council for a local newspaper in 250 words. Lead with what changes for "
            "residents, then say what was put off, and name nobody who only asked a question.",
            "Make a table of all decisions in these minutes: item, decision, majority, deadline, who acts. Below it, "
            "list the items on which nothing was decided.",
            "A new council member has ten minutes. Summarise these minutes by theme (money, traffic, schools and youth, "
            "environment, administration) instead of by item, and point out where two items depend on each other.",
        ),
    ),
    Kind(
        name="sum-log",
        prompt_class="summarising",
        text=technical.log,
        characters_a_token=DENSE,
        thousands=(2, 4, 8),
        tasks=(
            "Write the timeline of the incident in this log for people who were asleep: when it began, where it began, "
            "how it spread, when it was over, and what the log does not tell. Quote at most five lines.",
            "Summarise this log in ten sentences for the on-call engineer of the next shift, and name the three numbers "
            "that should have raised an alarm first.",
        ),
    ),
    Kind(
        name="code-warehouse",
        prompt_class="code",
        text=technical.module,
        characters_a_token=3.2,
        thousands=(2, 4, 6, 8),
        tasks=(
            "Review this Python module. List the defects by severity (security, data loss, wrong results, style), each "
            "with the method and a one-line fix. Then propose how to split the class, and write the first of the new "
            "classes in full.",
            "Write pytest tests for this class that would survive a refactoring. Choose the eight methods whose failure "
            "would cost most, say why, and use an in-memory SQLite database.",
        ),
    ),
    Kind(
        name="json-messages",
        prompt_class="json",
        text=prose.messages,
        characters_a_token=PROSE,
        thousands=(1, 2, 4, 6, 8),
        tasks=(
            "Turn each message into an object with the keys number, sender, language, product (null if none is named), "
            "problem (one of wrong_item, damaged, late, defective, billing, delivery, other), wish, and urgency from 1 to "
            "3. Output one JSON array in the order of the messages and nothing else.",
            "Group the messages by problem. Output only JSON: an object whose keys are the problems and whose values are "
            "arrays of {number, summary of at most twelve words, refund_asked}.",
        ),
    ),
    Kind(
        name="reason-table",
        prompt_class="reasoning",
        text=technical.table,
        characters_a_token=DENSE,
        thousands=(2, 4, 8),
        tasks=(
            "The figures below are those of twelve branches. Which branch grew most in sales per staff hour between the "
            "first and the last month, which one has the most suspicious returns, and which cells are missing? Show how "
            "you worked it out and how sure you are of each answer.",
            "Somebody claims that branches with more staff hours sell more. Use the figures below to support or refute "
            "that for the last three months, step by step, and name one other explanation.",
        ),
    ),
    Kind(
        name="chat-handbook",
        prompt_class="chat",
        text=prose.handbook,
        characters_a_token=PROSE,
        thousands=(1, 2, 4, 8),
        tasks=(
            "You help new people in a bakery. Below is the handbook. I start tomorrow in the early shift and have never "
            "worked with machines: what must I know before I touch anything, in the order in which I shall need it?",
            "Below is our bakery's handbook. Two rules in it seem to say different things about who may do what and when. "
            "Find the pairs that a tired colleague could misread, and suggest a clearer wording in a friendly tone.",
        ),
    ),
)


def main() -> None:
    """Write the file."""
    lines = []
    for kind in KINDS:
        for index, thousands in enumerate(kind.thousands):
            name = f"{kind.name}-{thousands}k"
            task = kind.tasks[index % len(kind.tasks)]
            room = round(thousands * 1000 * kind.characters_a_token) - len(task)
            text = kind.text(random.Random(f"{SEED}/{name}"), room)  # noqa: S311 - a text, not a secret
            prompt = {"id": name, "class": kind.prompt_class, "prompt": f"{task}\n\n{text}"}
            lines.append(json.dumps(prompt, ensure_ascii=False))
    OUT.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
