"""Orders and answers as JSON, the edge where a file of a person's becomes a value of ours."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from tuner.model.order import AbortOrder, Answer, Order, TryOrder, VerdictOrder
from tuner.model.ruling import Ruling, Word
from tuner.model.space import Assignment, Value

_Time = Annotated[float, Field(ge=0, le=1e11)]
"""Unix time, in the years that a date can have."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class _Try(_Strict):
    kind: Literal["try"] = "try"
    order: str
    who: str
    at_s: _Time
    values: dict[str, Value]
    again: bool


class _Ruled(_Strict):
    order: str
    who: str
    at_s: _Time
    why: str

    def ruling(self, word: str) -> Ruling:
        return Ruling(order=self.order, word=Word(word), why=self.why, who=self.who, at_s=self.at_s)


class _Abort(_Ruled):
    kind: Literal["abort"] = "abort"
    word: Literal["infeasible", "retry"]
    host: str | None
    trial: int | None


class _Verdict(_Ruled):
    kind: Literal["verdict"] = "verdict"
    word: Literal["infeasible", "retry", "measured"]
    trial: int


class _Answer(_Strict):
    done: bool
    text: str


_ORDER: TypeAdapter[_Try | _Abort | _Verdict] = TypeAdapter(
    Annotated[_Try | _Abort | _Verdict, Field(discriminator="kind")]
)


def encode_order(order: Order) -> bytes:
    """Write an order."""
    entry: BaseModel
    match order:
        case TryOrder():
            entry = _Try(
                order=order.order, who=order.who, at_s=order.at_s, values=dict(order.values), again=order.again
            )
        case AbortOrder():
            entry = _Abort.model_validate(_said(order.ruling) | {"host": order.host, "trial": order.trial})
        case VerdictOrder():
            entry = _Verdict.model_validate(_said(order.ruling) | {"trial": order.trial})
    return entry.model_dump_json().encode()


def decode_order(content: bytes) -> Order:
    """Read an order.

    Raises:
        ValueError: it is none.
    """
    entry = _ORDER.validate_json(content)
    match entry:
        case _Try():
            return TryOrder(
                order=entry.order,
                who=entry.who,
                at_s=entry.at_s,
                values=Assignment.of(entry.values),
                again=entry.again,
            )
        case _Abort():
            return AbortOrder(ruling=entry.ruling(entry.word), host=entry.host, trial=entry.trial)
        case _Verdict():
            return VerdictOrder(ruling=entry.ruling(entry.word), trial=entry.trial)


def encode_answer(answer: Answer) -> bytes:
    """Write an answer."""
    return _Answer(done=answer.done, text=answer.text).model_dump_json().encode()


def decode_answer(content: bytes) -> Answer:
    """Read an answer.

    Raises:
        ValueError: it is none.
    """
    entry = _Answer.model_validate_json(content)
    return Answer(done=entry.done, text=entry.text)


def _said(ruling: Ruling) -> dict[str, str | float]:
    return {
        "order": ruling.order,
        "who": ruling.who,
        "at_s": ruling.at_s,
        "why": ruling.why,
        "word": ruling.word.value,
    }
