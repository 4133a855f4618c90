"""What a simulated server is made of: one TOML file of constants a model and host.

The equations are in ``physics`` (time, acceptance) and ``memory``; nothing else in the
simulator knows a number of a model. All memory constants are bytes per GPU at the
profile's own number of GPUs; a smaller ``--tp-size`` scales them up.
"""

from __future__ import annotations

import dataclasses
import tomllib
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

FOLDER = Path(__file__).parent / "profiles"

T = TypeVar("T")


class ProfileError(Exception):
    """No such profile, or its file is wrong; the message names the file and the key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """The host's GPUs.

    Attributes:
        memory_bytes: of each GPU, as nvidia-smi prints its total.
        compute_capability: ``major * 10 + minor`` (90 is Hopper).
    """

    name: str
    count: int
    memory_bytes: int
    compute_capability: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What the server says of the model.

    Attributes:
        draft_architecture: the type printed when the draft is loaded.
        context_length: default of ``--context-length``.
        multimodal: lowers the default memory fraction, as SGLang does.
        default_triple: steps, topk and draft tokens when none of the three is given.
    """

    name: str
    architecture: str
    draft_architecture: str
    context_length: int
    vocab_size: int
    layers: int
    multimodal: bool
    default_triple: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Who holds how much GPU memory.

    Attributes:
        context_bytes: CUDA context and NCCL, taken before SGLang's memory baseline.
        weights_bytes: the target model.
        draft_weights_bytes: the draft model, with its own copy of the vocabulary.
        draft_vocabulary_bytes: the part of the draft that is freed once the pools are sized.
        kv_bytes_per_token: target and draft, at ``--kv-cache-dtype auto``.
        state_bytes_per_request: linear-attention state; 0 for a model without.
        state_conv_share: part of the state that is convolution state, 0..1.
        intermediate_bytes_per_draft_token: state kept per request and draft token.
        kv_tokens_per_request: how the rest is split between state and KV: both pools
            are full when every running request holds this many tokens.
        pool_overhead_bytes: index tables next to the KV pool.
        allocator_reserve_bytes: what the allocator cannot use in the static part.
        graph_bytes: of the CUDA graphs whatever their size.
        graph_bytes_per_token: more per verified token of the largest graph.
        draft_graph_share: draft graphs relative to the target's.
        capture_peak: memory needed during capture relative to what the graphs keep.
        activation_bytes_per_prefill_token: a prefill chunk's activations, the largest
            there is while serving.
        verify_bytes_per_token: workspace per running request and verified token.
        verify_bytes_per_token_squared: workspace per running request and D squared.
    """

    context_bytes: int
    weights_bytes: int
    draft_weights_bytes: int
    draft_vocabulary_bytes: int
    kv_bytes_per_token: int
    state_bytes_per_request: int
    state_conv_share: float
    intermediate_bytes_per_draft_token: int
    kv_tokens_per_request: int
    pool_overhead_bytes: int
    allocator_reserve_bytes: int
    graph_bytes: int
    graph_bytes_per_token: int
    draft_graph_share: float
    capture_peak: float
    activation_bytes_per_prefill_token: int
    verify_bytes_per_token: int
    verify_bytes_per_token_squared: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """How often the target agrees with the draft.

    Attributes:
        first: probability that the first draft token is accepted.
        decay: factor on it for each further depth.
        branch_gain: exponent with which more branches lower the rejection.
        difficulty_spread: sigma of the log-normal factor on rejection, one a prompt.
    """

    first: float
    decay: float
    branch_gain: float
    difficulty_spread: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Constants of the step-time equation; see ``physics``.

    Attributes:
        floor_s: A, one pass with one request: the time to stream the weights once.
        batch_floor_s: G, how much the floor grows when many requests run.
        batch_scale: tau, at how many requests it has grown by 63 %.
        verify_s: B, per verified token of one request.
        batch_share: c, part of B that a further request costs again with short drafts.
        depth_knee: D0, tokens at which it costs half of the rest as well.
        depth_power: q, how fast that comes.
        sharpness: p of the soft maximum.
        draft_pass_s: one draft step.
        eager_s: added when the batch runs outside the CUDA graphs.
        prefill_tokens_per_s: prompt tokens.
        prefill_base_s: per prefill pass.
        noise: relative standard deviation of a step's time.
    """

    floor_s: float
    batch_floor_s: float
    batch_scale: float
    verify_s: float
    batch_share: float
    depth_knee: float
    depth_power: float
    sharpness: float
    draft_pass_s: float
    eager_s: float
    prefill_tokens_per_s: float
    prefill_base_s: float
    noise: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """How long a real start takes, in seconds."""

    spawn_s: float
    weights_s: float
    draft_s: float
    pools_s: float
    capture_s: float
    capture_per_size_s: float
    warmup_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A model on a host.

    Attributes:
        source: what each group of constants was fitted to or derived from.
    """

    name: str
    source: str
    gpu: Gpu
    model: Model
    memory: Memory
    acceptance: Acceptance
    speed: Speed
    loading: Loading

    @property
    def hybrid(self) -> bool:
        """Whether the model keeps linear-attention state per request."""
        return self.memory.state_bytes_per_request > 0


def names() -> tuple[str, ...]:
    """Return the names of the shipped profiles, sorted."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.toml")))


def load(name: str) -> Profile:
    """Read the profile called ``name``.

    Raises:
        ProfileError: there is none, or its file is wrong.
    """
    if name not in names():
        raise ProfileError(f"no simulator profile {name!r}; available: {', '.join(names())}")
    path = FOLDER / f"{name}.toml"
    return parse(path.read_text(encoding="utf-8"), name)


def parse(text: str, name: str) -> Profile:
    """Build a profile from TOML text.

    Raises:
        ProfileError: not TOML, a key is missing or unknown, or a value has the wrong type.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ProfileError(f"profile {name}: {error}") from error
    return _build(Profile, {"name": name, **document}, f"profile {name}")


def _build(kind: type[T], table: Mapping[str, Any], place: str) -> T:
    types = typing.get_type_hints(kind)
    wanted = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    if table.keys() != wanted:
        missing, unknown = sorted(wanted - table.keys()), sorted(table.keys() - wanted)
        raise ProfileError(f"{place}: missing keys {missing}, unknown keys {unknown}")
    return kind(**{key: _value(types[key], value, f"{place}: {key}") for key, value in table.items()})


def _value(kind: object, value: object, place: str) -> object:
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        if not isinstance(value, dict):
            raise ProfileError(f"{place} must be a table")
        return _build(kind, value, place)
    if kind == tuple[int, ...]:
        if not (isinstance(value, list) and all(type(item) is int for item in value)):
            raise ProfileError(f"{place} must be a list of integers, not {value!r}")
        return tuple(value)
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise ProfileError(f"{place} must be {getattr(kind, '__name__', kind)}, not {value!r}")
    return value
