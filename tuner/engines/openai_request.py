"""The part of OpenAI's protocol by which the engines are asked: the two endpoints, and how to sample."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tuner.model.prompt import Api, Prompt
from tuner.model.workload import Workload

PATHS: Final[Mapping[Api, str]] = {Api.CHAT: "/v1/chat/completions", Api.COMPLETIONS: "/v1/completions"}
_SAMPLING = ("top_p", "top_k", "min_p", "presence_penalty")


def asked(prompt: Prompt, workload: Workload) -> dict[str, Any]:
    """Return the fields that say what is asked, and how to sample; what the workload leaves open is not there."""
    body: dict[str, Any] = {}
    if workload.api is Api.CHAT:
        body["messages"] = [{"role": turn.role, "content": turn.content} for turn in prompt.turns]
        if workload.thinking is not None:
            body["chat_template_kwargs"] = {"enable_thinking": workload.thinking}
    else:
        body["prompt"] = prompt.text
    body["temperature"] = workload.temperature
    for name in _SAMPLING:
        value = getattr(workload, name)
        if value is not None:
            body[name] = value
    return body
