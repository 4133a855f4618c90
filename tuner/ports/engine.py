"""What is asked of a server, and what is known of an engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tuner.model.http import HttpCall, HttpReply, StreamDelta
from tuner.model.outcome import Ending, Verdict
from tuner.model.prompt import Prompt
from tuner.model.record import Counters
from tuner.model.space import Assignment
from tuner.model.trial import Command, Effective
from tuner.model.workload import Workload


class ControlClient(Protocol):
    """Single requests to the server: health, configuration, counters."""

    async def call(self, call: HttpCall) -> HttpReply:
        """Send one request; failures are values."""

    async def close(self) -> None:
        """Close its connections."""


class LogReader(Protocol):
    """Reads one server's log as it arrives and knows how far the start-up got."""

    def feed(self, text: str) -> None:
        """Take the next piece of log; pieces may end anywhere in a line."""

    @property
    def stage(self) -> str:
        """The last start-up stage seen, in the engine's words (``load_weights``, …).

        Empty before any; ``args`` while the command line is being read, which every engine does first.
        """

    @property
    def fatal(self) -> bool:
        """A line was seen after which the server cannot live; waiting can end."""

    @property
    def is_configuration_fault(self) -> bool:
        """Whether a cause seen so far names the configuration (needs no second try)."""

    def diagnose(self, ending: Ending) -> Verdict:
        """Say why the server died, from its log and from how it ended.

        A cause in the log that came before our own stop stays the cause. Asked again with
        more evidence, or after more log, it judges anew.
        """


class EngineApi(Protocol):
    """What is asked of an engine's running server, and what its replies mean; pure."""

    name: str

    def health_call(self) -> HttpCall:
        """Return the call that answers 200 once the server serves."""

    def info_calls(self) -> tuple[HttpCall, ...]:
        """Return the calls whose replies :meth:`effective` reads."""

    def effective(self, replies: Sequence[HttpReply]) -> Effective:
        """Read the configuration that really runs.

        Raises:
            HostFault: the replies cannot be read.
        """

    def generation_call(
        self, prompt: Prompt, *, max_tokens: int, workload: Workload, stream: bool, seed: int
    ) -> HttpCall:
        """Return a generation request in the engine's protocol, asking for the server's token counts.

        The endpoint is the workload's ``api``: a conversation's turns, or its bare text. What the
        workload leaves open (``top_p``, …) is not sent, so that the server's own default holds.
        """

    def generated_tokens(self, reply: HttpReply) -> int | None:
        """Count the completion tokens of a non-streamed reply; None: it is not a generation."""

    def quick_count(self, event: bytes) -> int | None:
        """Read only the running count of a payload, where that is all it says; None: read it whole.

        Called for every chunk, so it must be cheap; a count must be the one that ``read_event`` finds,
        in an event without error, end or finish reason.
        """

    def read_event(self, event: bytes) -> StreamDelta:
        """Read the ``data:`` payload of one server-sent event."""

    def flush_call(self) -> HttpCall | None:
        """Return the call that empties the prefix cache; None: the engine has none."""

    def abort_call(self) -> HttpCall | None:
        """Return the call that aborts all requests; None: closing connections does."""

    def counters_call(self) -> HttpCall | None:
        """Return the call whose reply :meth:`counters` reads; None: the engine counts nothing."""

    def counters(self, reply: HttpReply) -> Counters:
        """Read the running totals; fields it does not find are None."""

    def scrub(self, text: str) -> str:
        """Replace secrets the engine prints (API keys) by ``***``."""


class EngineAdapter(EngineApi, Protocol):
    """Everything tuner knows of an engine whose servers it starts; pure, and one object for all trials."""

    parameters: frozenset[str]

    def canonical(self, assignment: Assignment) -> Assignment:
        """Map an assignment to the one that launches the same server, in one form only.

        Parameters that do not apply are dropped, forced ones are set; idempotent.

        Raises:
            AssignmentRejected: the engine would refuse it; the message is the rule.
        """

    def settings_of(self, command: Command) -> Assignment:
        """Read the tuned settings out of a base command line, defaults resolved; canonical.

        Raises:
            UsageError: a tuned flag is malformed, or a setting cannot be known from the command.
        """

    def command(self, base: Command, assignment: Assignment) -> Command:
        """Replace the tuned flags of ``base``; everything else stays as it is."""

    def port(self, command: Command) -> int:
        """Return the HTTP port the server will listen on."""

    def api_key(self, command: Command) -> str | None:
        """Return the key its clients must send as ``Authorization: Bearer``; None: it asks for none."""

    def log_reader(self) -> LogReader:
        """Return a reader for one server start."""
