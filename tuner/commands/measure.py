"""``tuner measure``: what a server that runs already can do."""

from __future__ import annotations

import enum
import math
import os
import resource
from typing import Annotated
from urllib.parse import urlsplit

import typer
from rich.console import Console

from tuner.cli_print import data, prose
from tuner.commands.json_file import JsonFile
from tuner.commands.options import Plain
from tuner.config.study_file import HIGHEST_SEED
from tuner.errors import UsageError
from tuner.model.measurement import Measurement
from tuner.model.prompt import BUILTIN, Api
from tuner.model.workload import Workload

UNSOUND = 6
NOT_READY = 3
INTERRUPTED = 130
DEFAULT_LEVELS = "1,4,16,64"
_MOST_LEVELS = 32
_HIGHEST_LEVEL = 4096
_SPARE_FILES = 64  # beside the connections of a level: the program's own


class ClientLimits(enum.Enum):
    """When the client is called the bottleneck."""

    STRICT = "strict"
    TOLERANT = "tolerant"


class EngineName(enum.Enum):
    """Whose protocol the server speaks."""

    AUTO = "auto"
    SGLANG = "sglang"
    LLAMACPP = "llamacpp"
    OPENAI = "openai"


BaseUrl = Annotated[
    str | None, typer.Option("--base-url", metavar="URL", help="Of the server: http://host:port, with or without /v1.")
]
Levels = Annotated[str, typer.Option(metavar="N,N,…", help="Concurrencies to measure, ascending.")]
ModelName = Annotated[str | None, typer.Option("--model", help="The model to ask for; needed where there are several.")]
As = Annotated[EngineName, typer.Option("--engine", help="Whose protocol it speaks; auto finds out.")]
KeyVariable = Annotated[
    str | None,
    typer.Option("--api-key-env", metavar="NAME", help="The environment variable that holds the server's API key."),
]
Prompts = Annotated[str, typer.Option(metavar="SET|FILE", help="A shipped set of prompts, or a JSONL file.")]
OutputTokens = Annotated[int, typer.Option(min=2, help="Tokens each request asks for.")]
NaturalEnds = Annotated[bool, typer.Option("--natural-ends", help="Let answers end where the model ends them.")]
MinSeconds = Annotated[float, typer.Option(min=0.1, help="Shortest window of a level.")]
MaxSeconds = Annotated[float, typer.Option(min=0.1, help="A level ends after this long even if its interval is wide.")]
Interval = Annotated[
    float, typer.Option(min=0.001, max=0.5, help="Wanted half width of the 95 % interval, relative: 0.02 is ±2 %.")
]
SoakSeconds = Annotated[
    float, typer.Option("--soak", min=0, metavar="SECONDS", help="Hold the highest level once more, at least so long.")
]
WarmUp = Annotated[int, typer.Option(min=0, help="Requests that are sent before and count for nothing.")]
Temperature = Annotated[float, typer.Option(min=0, max=2, help="Of sampling; 0 is greedy.")]
TimeOut = Annotated[
    float, typer.Option("--request-timeout", min=1, metavar="SECONDS", help="A request that takes longer has failed.")
]
Order = Annotated[int, typer.Option("--seed", min=0, max=HIGHEST_SEED, help="Of the prompts' order and of sampling.")]
Flush = Annotated[
    bool, typer.Option("--flush", help="Empty the server's prefix cache before each level: it is everybody's.")
]
Json = Annotated[
    str | None, typer.Option("--json", metavar="FILE|-", help="Write everything as JSON; - prints it instead.")
]
Endpoint = Annotated[
    Api, typer.Option("--api", help="chat: with the model's own template; completions: the bare text.")
]
Client = Annotated[
    ClientLimits,
    typer.Option(
        "--client-limits", help="How fast this machine must be, or a level is void; tolerant: only not stuck."
    ),
]
SelfTest = Annotated[
    bool, typer.Option("--selftest", help="Measure this machine's own client instead, against a server of its own.")
]


def measure(  # noqa: PLR0913, PLR0917  each is an option
    base_url: BaseUrl = None,
    levels: Levels = DEFAULT_LEVELS,
    model: ModelName = None,
    engine: As = EngineName.AUTO,
    api_key_env: KeyVariable = None,
    api: Endpoint = Api.CHAT,
    prompts: Prompts = BUILTIN,
    output_tokens: OutputTokens = 512,
    natural_ends: NaturalEnds = False,
    min_seconds: MinSeconds = 10.0,
    max_seconds: MaxSeconds = 60.0,
    interval: Interval = 0.02,
    soak: SoakSeconds = 0.0,
    warm_up: WarmUp = 4,
    temperature: Temperature = 0.0,
    request_timeout: TimeOut = 300.0,
    seed: Order = 0,
    flush: Flush = False,
    client_limits: Client = ClientLimits.STRICT,
    json_file: Json = None,
    plain: Plain = False,
    selftest: SelfTest = False,
) -> int:
    """Measure any server that speaks OpenAI's protocol, as a study would; starts, stops and changes nothing.

    Ctrl-C ends it: what was measured until then is printed and saved. Exit code 6: a level has failed
    requests or no result.
    """
    if selftest:
        return _test_client(base_url, json_file)
    if base_url is None:
        raise UsageError("--base-url is missing: the server to measure, such as http://127.0.0.1:30000")
    _require_finite(min_seconds, max_seconds, interval, soak, temperature, request_timeout)
    if min_seconds > max_seconds:
        raise UsageError(f"--min-seconds {min_seconds:g} is more than --max-seconds {max_seconds:g}")
    ladder = levels_of(levels)
    _require_files(ladder[-1])
    address = address_of(base_url)
    key = _key(api_key_env)
    report = None if json_file is None else JsonFile(json_file)
    from tuner.report.measurement import measurement_json, note_lines, table_lines  # noqa: PLC0415  see cli.run
    from tuner.screen.measuring import LiveMeasuring, PlainMeasuring  # noqa: PLC0415
    from tuner.wiring.measure import measure as measure_server  # noqa: PLC0415
    from tuner.wiring.visit import Wish  # noqa: PLC0415

    wish = Wish(
        base_url=address,
        workload=Workload(
            prompts=prompts,
            api=api,
            output_tokens=output_tokens,
            ignore_eos=not natural_ends,
            temperature=temperature,
            ladder=ladder,
            level_min_s=min_seconds,
            level_max_s=max_seconds,
            interval=interval,
            soak_s=soak,
            warmup_requests=warm_up,
            request_timeout_s=request_timeout,
        ),
        seed=seed,
        engine=None if engine is EngineName.AUTO else engine.value,
        model=model,
        api_key=key,
        key_variable=api_key_env,
        may_flush=flush,
        soaks=soak > 0,
        tolerates_client=client_limits is ClientLimits.TOLERANT,
    )

    def save(measurement: Measurement) -> None:
        if report is not None:
            report.write(measurement_json(measurement))

    console = Console(stderr=True)
    screen = LiveMeasuring(console) if console.is_terminal and not plain else PlainMeasuring(prose)
    with screen:
        measurement = measure_server(wish, screen, save)
    is_json_printed = report is not None and report.is_standard_output
    if report is not None and report.standard_output is not None:
        data(report.standard_output)
    out = Console(stderr=is_json_printed)
    for line in table_lines(measurement, width=out.width if out.is_terminal else None):
        (prose if is_json_printed else data)(line)
    for line in note_lines(measurement):
        prose(line)
    return exit_code(measurement)


def _test_client(base_url: str | None, json_file: str | None) -> int:
    """Say what this machine's client can do; options of a measurement mean nothing to it."""
    if base_url is not None or json_file is not None:
        raise UsageError("--selftest measures this machine's client and no server; leave out --base-url and --json")
    from tuner.report.selftest_table import selftest_lines  # noqa: PLC0415  see cli.run
    from tuner.wiring.selftest import check_client  # noqa: PLC0415

    prose("testing this machine's client against a server of its own, about 20 s")
    for line in selftest_lines(check_client()):
        data(line)
    return 0


def exit_code(measurement: Measurement) -> int:
    """Return 130 interrupted, 3 the server is gone, 6 a level is not sound, 0 none of them."""
    if measurement.is_interrupted:
        return INTERRUPTED
    if measurement.gone is not None:
        return NOT_READY
    return 0 if all(level.is_sound for level in measurement.levels) else UNSOUND


def levels_of(text: str) -> tuple[int, ...]:
    """Read ``1,4,16``.

    Raises:
        UsageError: it is not a list of concurrencies that grow.
    """
    levels: list[int] = []
    for word in text.split(","):
        digits = word.strip()
        if not (digits.isascii() and digits.isdigit()):
            raise UsageError(f"--levels {text}: {digits!r} is no whole number; write for example {DEFAULT_LEVELS}")
        levels.append(int(digits))
    if not 1 <= min(levels) <= max(levels) <= _HIGHEST_LEVEL:
        raise UsageError(f"--levels {text}: each must be from 1 to {_HIGHEST_LEVEL}")
    if len(levels) > _MOST_LEVELS:
        raise UsageError(f"--levels: {len(levels)} are given, at most {_MOST_LEVELS} can be measured at once")
    if levels != sorted(set(levels)):
        raise UsageError(f"--levels {text}: they must ascend, each once: {','.join(map(str, sorted(set(levels))))}")
    return tuple(levels)


def address_of(url: str) -> str:
    """Return a server's address without ``/v1`` and trailing slash.

    Raises:
        UsageError: it is none, or holds what must not stand on a command line.
    """
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError as error:
        raise UsageError(f"--base-url: {error}; write http://host:port") from error
    if "@" in parts.netloc:
        raise UsageError("--base-url: credentials in an address are seen by everybody; use --api-key-env")
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise UsageError(f"--base-url {url}: not an http address; write http://host:port")
    if parts.query or parts.fragment:
        raise UsageError("--base-url: ends in a query or fragment; write http://host:port")
    path = parts.path.rstrip("/")
    return f"{parts.scheme}://{parts.netloc}{path.removesuffix('/v1')}"


def _key(variable: str | None) -> str | None:
    if variable is None:
        return None
    key = os.environ.get(variable, "").strip()
    if not key:
        raise UsageError(f"--api-key-env {variable}: there is no such variable in the environment, or it is empty")
    if not (key.isascii() and key.isprintable()):
        raise UsageError(f"--api-key-env {variable}: the key in it has characters that no header can carry")
    return key


def _require_finite(*given: float) -> None:
    """Hold what bounds do not: that each is a number of seconds, or a share."""
    if not all(math.isfinite(value) for value in given):
        raise UsageError("an option is nan or inf; give a number")


def _require_files(concurrency: int) -> None:
    """Hold that a level's connections may all be open."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = concurrency + _SPARE_FILES
    if most != resource.RLIM_INFINITY and needed > most:
        raise UsageError(
            f"--levels: {concurrency} connections need {needed} open files, {most} are allowed: ulimit -n {needed}"
        )
