"""Finds out what a running server is, and that it can be measured; starts nothing and changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from tuner.engines import ENGINES, measurable
from tuner.engines.guest import Guest
from tuner.engines.openai import NAME as GENERIC
from tuner.engines.openai import Extras, OpenAiApi
from tuner.engines.recognition import MODELS_CALL, SIGNS, ServedModel, by_owner, models_of
from tuner.errors import HostFault, PreflightError, UsageError
from tuner.load.http import CERTIFICATES
from tuner.load.sse import EventSplitter
from tuner.model.http import HttpReply
from tuner.model.measurement import ServerFacts
from tuner.model.prompt import Api, plain_prompt
from tuner.model.secrets import MASK
from tuner.model.trial import Capacity, Effective
from tuner.model.workload import Workload
from tuner.ports import ControlClient, EngineApi

PROBE = "Count slowly from one to ten."
PROBE_TOKENS = 16
_PROBE_TIMEOUT_S = 120.0
_SAID = 160  # characters of a server's own words in a message
_REFUSED_FIELD = frozenset({400, 422})
_NO_CHAT = frozenset({400, 404, 405, 501})

Remark = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What is to be measured, and how.

    Attributes:
        base_url: of the server, without ``/v1``.
        workload: it is put under; ``ladder`` are the levels.
        seed: of the prompts' order.
        engine: whose protocol it speaks; None: find out.
        model: that requests name; None: the only one there is.
        api_key: that it wants; None: none.
        key_variable: where the key came from.
        may_flush: its prefix cache may be emptied between the legs.
        soaks: the highest level is held once more at the end.
        tolerates_client: only a client without any time left makes a level void.
    """

    base_url: str
    workload: Workload
    seed: int
    engine: str | None = None
    model: str | None = None
    api_key: str | None = field(default=None, repr=False)
    key_variable: str | None = None
    may_flush: bool = False
    soaks: bool = False
    tolerates_client: bool = False

    def masked(self, text: str) -> str:
        """Return ``text`` in one line and without the key: servers repeat what they refuse."""
        return _one_line(text.replace(self.api_key, MASK) if self.api_key else text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Visited:
    """A server that can be measured.

    Attributes:
        api: how it is spoken to; it leaves alone what is not ours.
        facts: what it is.
        workload: what it can be put under of what was wished.
    """

    api: EngineApi
    facts: ServerFacts
    workload: Workload


async def visit(wish: Wish, control: ControlClient, remark: Remark) -> Visited:
    """Ask a server what it is, and for one short generation.

    Raises:
        PreflightError: it is not there, speaks another protocol, or does not count its tokens.
        UsageError: an option does not fit it.
    """
    models = await _models(wish, control)
    model = _model(wish, models)
    name, is_recognised = await _engine(wish, control, models)
    inner = measurable(name)
    effective = await _effective(inner, control)
    extras: Extras | None = Extras() if name == GENERIC else None
    while True:
        inner = inner if extras is None else OpenAiApi(extras)
        api = Guest(inner, model=model, may_flush=wish.may_flush)
        reply = await _generate(api, wish, control)
        if extras is None or reply.status not in _REFUSED_FIELD:
            break
        fewer = extras.without(reply.body.decode(errors="replace"))
        if fewer is None:
            break
        extras = fewer
    probed = _probed(api, wish, model, models, reply)
    is_fixed = wish.workload.ignore_eos and probed.tokens == PROBE_TOKENS
    if wish.workload.ignore_eos and not is_fixed:
        remark(
            f"the server ended after {probed.tokens} of {PROBE_TOKENS} tokens although ignore_eos was asked for: "
            "answers end where the model ends them, so lengths differ"
        )
    if not probed.has_running_count:
        remark(
            "the server counts tokens at the end of a stream only: until then they are spread evenly over its chunks, "
            "and one request's decode speed counts the first chunk as one of them"
        )
    return Visited(
        api=api,
        facts=ServerFacts(
            base_url=wish.base_url,
            engine=name,
            is_recognised=is_recognised,
            model=model,
            version=effective.version,
            capacity=effective.capacity,
            has_running_count=probed.has_running_count,
            is_length_fixed=is_fixed,
        ),
        workload=replace(wish.workload, ignore_eos=is_fixed),
    )


# ------------------------------------------------------------------ models and engine


async def _models(wish: Wish, control: ControlClient) -> tuple[ServedModel, ...]:
    reply = await control.call(MODELS_CALL)
    _require_reply(wish, reply)
    _require_key(wish, reply)
    if reply.status == 404 and wish.model is not None:
        return ()  # some gateways have no list
    models = models_of(reply)
    if models is None:
        raise PreflightError(
            f"{wish.base_url}: not a server that speaks OpenAI's protocol: {MODELS_CALL.path} answered "
            f"{_said(wish, reply)}; check --base-url"
            + (" (a server without this list needs --model)" if reply.status == 404 else "")
        )
    return models


def _require_reply(wish: Wish, reply: HttpReply) -> None:
    """Hold that a reply came, and that it is the server's own.

    Raises:
        PreflightError: none did, or it says that the server does not serve.
    """
    if reply.status is None:
        said = wish.masked(reply.detail or reply.error or "no reply")
        if "CERTIFICATE_VERIFY_FAILED" in said:
            remedy = f"name the file of its certificate authority in {CERTIFICATES}"
        elif "SSL" in said or (reply.error == "cut" and wish.base_url.startswith("http:")):
            remedy = "check whether it speaks http or https"
        else:
            remedy = "start it, or check --base-url"
        raise PreflightError(f"{wish.base_url}: no answer ({said}); {remedy}")
    if reply.status == 503:
        raise PreflightError(f"{wish.base_url}: the server is not ready (HTTP 503); wait until it has loaded")
    if 300 <= reply.status < 400:
        raise PreflightError(
            f"{wish.base_url}: the server sends elsewhere (HTTP {reply.status}); give the address it sends to"
        )


def _require_key(wish: Wish, reply: HttpReply) -> None:
    if reply.status not in (401, 403):
        return
    if wish.api_key is None:
        raise UsageError(
            f"{wish.base_url}: the server wants an API key (HTTP {reply.status}); put it into a variable and name "
            "that with --api-key-env"
        )
    raise UsageError(
        f"{wish.base_url}: the server refuses the API key in {wish.key_variable} (HTTP {reply.status}); "
        "put the right one there, or name another variable with --api-key-env"
    )


def _model(wish: Wish, models: tuple[ServedModel, ...]) -> str:
    there = _listed(model.id for model in models)
    if wish.model is not None:
        if models and wish.model not in {model.id for model in models}:
            raise UsageError(f"--model {wish.model}: the server has {there}")
        return wish.model
    if len(models) == 1:
        return models[0].id
    if not models:
        raise PreflightError(f"{wish.base_url}: the server lists no model; load one, or name it with --model")
    raise UsageError(f"--model is needed: the server has {there}")


async def _engine(wish: Wish, control: ControlClient, models: tuple[ServedModel, ...]) -> tuple[str, bool]:
    """Return the engine's name, and whether the server showed that it is one."""
    if wish.engine is not None:
        return wish.engine, False
    owner = by_owner(models)
    if owner is not None:
        return owner, True
    for name, sign in SIGNS.items():
        if sign.is_met(await control.call(sign.call)):
            return name, True
    return GENERIC, False


async def _effective(engine: EngineApi, control: ControlClient) -> Effective:
    """Ask the server what it runs; nothing is known where it does not say."""
    replies = [await control.call(call) for call in engine.info_calls()]
    try:
        return engine.effective(replies)
    except HostFault:
        return Effective(settings=(), capacity=Capacity())


# ------------------------------------------------------------------ one generation


@dataclass(frozen=True, slots=True, kw_only=True)
class _Probed:
    tokens: int
    has_running_count: bool


async def _generate(api: EngineApi, wish: Wish, control: ControlClient) -> HttpReply:
    call = api.generation_call(
        plain_prompt(PROBE), max_tokens=PROBE_TOKENS, workload=wish.workload, stream=True, seed=wish.seed
    )
    return await control.call(replace(call, timeout_s=min(_PROBE_TIMEOUT_S, wish.workload.request_timeout_s)))


def _probed(api: EngineApi, wish: Wish, model: str, models: tuple[ServedModel, ...], reply: HttpReply) -> _Probed:
    """Read the stream that came back of the probe.

    Raises:
        PreflightError: it is none, or its tokens are not counted.
        UsageError: the server does not know the model.
    """
    _require_reply(wish, reply)
    _require_key(wish, reply)
    if reply.status == 404 and models == ():
        raise UsageError(f"--model {model}: the server does not know it, and lists none ({_said(wish, reply)})")
    if reply.status != 200:
        remedy = ""
        if wish.workload.api is Api.CHAT and reply.status in _NO_CHAT:
            remedy = "; a model without a chat template is asked with --api completions"
        raise PreflightError(f"{wish.base_url}: a generation was refused: {_said(wish, reply)}{remedy}")
    deltas = [api.read_event(payload) for payload in EventSplitter().feed(reply.body)]
    error = next((delta.error for delta in deltas if delta.error is not None), None)
    if error is not None:
        raise PreflightError(f"{wish.base_url}: a generation failed: {wish.masked(api.scrub(error))}")
    if not deltas:
        raise PreflightError(
            f"{wish.base_url}: a generation came back without a stream of events: {_said(wish, reply)}"
        )
    counts = [delta.tokens_total for delta in deltas if delta.tokens_total is not None]
    if not counts:
        raise PreflightError(
            f"{wish.base_url}: the server does not count its tokens (no usage in a stream); throughput would be a "
            "guess from chunks or from the length asked for, and is not measured"
        )
    if max(counts) == 0:
        raise PreflightError(f"{wish.base_url}: a generation came back without a token")
    chunks = [delta for delta in deltas if delta.has_content]
    return _Probed(
        tokens=max(counts), has_running_count=all(delta.tokens_total is not None for delta in chunks) and bool(chunks)
    )


def _said(wish: Wish, reply: HttpReply) -> str:
    """Quote a reply in one short line."""
    text = wish.masked(reply.body[: 4 * _SAID].decode(errors="replace"))
    cut = text if len(text) <= _SAID else f"{text[: _SAID - 1]}…"
    return f"HTTP {reply.status}{f': {cut}' if cut else ''}"


def _one_line(text: str) -> str:
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())


def _listed(names: Iterable[str]) -> str:
    found = [_one_line(name) for name in names]
    return ", ".join(found[:8]) + (f" and {len(found) - 8} more" if len(found) > 8 else "")


ENGINE_NAMES = (*ENGINES, GENERIC)
"""What ``--engine`` may say."""
