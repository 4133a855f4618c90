"""An engine's rules without the engine: SGLang's draft trees, for tests of the search.

The names are the search's own business, so these are short; the rules are SGLang's: steps 0
drops the other two, topk 1 forces draft = steps + 1, and a tree cannot have more nodes than
it can grow.
"""

from __future__ import annotations

from tuner.errors import AssignmentRejected
from tuner.model.space import Assignment, ChoiceParameter, FloatParameter, IntParameter, SearchSpace

FULL_SPACE = SearchSpace(
    name="draft-trees",
    engine="draft-trees",
    parameters=(
        IntParameter(name="steps", low=0, high=16),
        ChoiceParameter(name="topk", choices=(1, 2, 4, 8), ordered=True),
        IntParameter(name="draft", low=2, high=64),
        FloatParameter(name="fraction", low=0.60, high=0.95, step=0.01),
    ),
)
FULL_BASELINE = Assignment.of({"steps": 3, "topk": 1, "draft": 4, "fraction": 0.85})

SMALL_SPACE = SearchSpace(
    name="small-draft-trees",
    engine="draft-trees",
    parameters=(
        IntParameter(name="steps", low=0, high=2),
        ChoiceParameter(name="topk", choices=(1, 2), ordered=True),
        IntParameter(name="draft", low=2, high=4),
        FloatParameter(name="fraction", low=0.8, high=0.9, step=0.1),
    ),
)
SMALL_BASELINE = Assignment.of({"steps": 1, "topk": 1, "draft": 2, "fraction": 0.8})
SMALL_COUNT = 14
"""Servers in the small space, per fraction: one without speculation, two chains, four trees."""


def canonical(assignment: Assignment) -> Assignment:
    """Return the one form of ``assignment``; see :class:`tuner.ports.EngineAdapter`.

    Raises:
        AssignmentRejected: a tree breaks the size rule.
    """
    steps = int(assignment["steps"])
    fraction = assignment["fraction"]
    if steps == 0:
        return Assignment.of({"steps": 0, "fraction": fraction})
    topk = int(assignment["topk"])
    if topk == 1:
        return Assignment.of({"steps": steps, "topk": 1, "draft": steps + 1, "fraction": fraction})
    draft = int(assignment["draft"])
    if draft <= steps:
        raise AssignmentRejected(f"draft={draft} must be above steps={steps}")
    if draft - 1 > topk + (steps - 1) * topk**2:
        raise AssignmentRejected(f"draft={draft} is more than a tree of {steps} steps and topk {topk} can hold")
    return assignment
