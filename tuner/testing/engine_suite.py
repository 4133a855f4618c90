"""What every EngineAdapter must do; a test class inherits it and says which engine, space and logs."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Sequence
from dataclasses import replace

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tuner.errors import AssignmentRejected, HostFault
from tuner.model.http import HttpCall, HttpReply
from tuner.model.outcome import Cause, Ending, TrialState, Verdict
from tuner.model.prompt import Api, Prompt, Turn
from tuner.model.record import Counters
from tuner.model.space import Assignment, SearchSpace
from tuner.model.trial import Command
from tuner.model.workload import Workload
from tuner.ports import EngineAdapter, LogReader

SECRET = "sk-suite-0123456789"  # noqa: S105 - made up
WORKLOAD = Workload(output_tokens=32, ignore_eos=True, temperature=0.0)
ASKED = Prompt(id="p", turns=(Turn(role="system", content="Be brief."), Turn(role="user", content="Once upon")))

# One test function serves every class that inherits it.
_inherited = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.differing_executors, HealthCheck.too_slow],
)


def draw(space: SearchSpace, seed: int) -> Assignment:
    """Draw every parameter of the space on its own, as a naive sampler would."""
    choose = random.Random(seed)  # noqa: S311 - a test's draw
    return Assignment.of({parameter.name: choose.choice(parameter.values()) for parameter in space.parameters})


def reply(body: object, status: int = 200) -> HttpReply:
    """Wrap a JSON body."""
    return HttpReply(status=status, body=orjson.dumps(body))


class EngineSuite:
    """Inherit as ``TestX(EngineSuite)`` and override what raises NotImplementedError."""

    def engine(self) -> EngineAdapter:
        """Return the adapter under test."""
        raise NotImplementedError

    def space(self) -> SearchSpace:
        """Return the shipped space of the engine."""
        raise NotImplementedError

    def bases(self) -> Sequence[Command]:
        """Return base command lines that pin every tuned flag, in several spellings."""
        raise NotImplementedError

    def logs(self) -> Sequence[str]:
        """Return logs of dead and of healthy servers."""
        raise NotImplementedError

    def foreign_words(self) -> Sequence[str]:
        """Return words of the bases that no assignment may touch."""
        raise NotImplementedError

    def drawn(self, seed: int) -> Assignment | None:
        """Return the canonical form of a drawn assignment; None when the engine refuses it."""
        try:
            return self.engine().canonical(draw(self.space(), seed))
        except AssignmentRejected:
            return None

    def test_the_space_has_only_parameters_of_the_engine(self) -> None:
        """Else a study could not run."""
        assert self.space().engine == self.engine().name
        assert {parameter.name for parameter in self.space().parameters} <= self.engine().parameters

    @given(seed=st.integers(0, 2**32))
    @_inherited
    def test_canonical_is_idempotent_and_stays_in_the_space(self, seed: int) -> None:
        """One server has one form, and the study can look it up."""
        found = self.drawn(seed)
        if found is not None:
            assert self.engine().canonical(found) == found
            assert self.space().outside(found) is None

    def test_an_unknown_parameter_is_rejected_by_name(self) -> None:
        """A space written for another engine must not pass."""
        with pytest.raises(AssignmentRejected, match="phase_of_the_moon"):
            self.engine().canonical(Assignment.of({"phase_of_the_moon": 1}))

    def test_a_base_command_keeps_every_word_when_nothing_changes(self) -> None:
        """Trial 0 is what runs today."""
        for base in self.bases():
            assert self.engine().command(base, self.engine().settings_of(base)) == base

    def test_the_settings_of_a_base_command_are_canonical(self) -> None:
        """So that no other trial repeats trial 0."""
        for base in self.bases():
            found = self.engine().settings_of(base)
            assert self.engine().canonical(found) == found

    @given(seed=st.integers(0, 2**32))
    @_inherited
    def test_what_a_command_is_given_can_be_read_back_from_it(self, seed: int) -> None:
        """The flags say what the assignment says, whatever the base said before."""
        wanted = self.drawn(seed)
        if wanted is None:
            return
        for base in self.bases():
            command = self.engine().command(base, wanted)
            assert self.engine().settings_of(command) == wanted
            assert self.engine().command(command, wanted) == command
            assert command.env == base.env
            assert self.engine().port(command) == self.engine().port(base)
            assert [word for word in command.argv if word in self.foreign_words()] == [
                word for word in base.argv if word in self.foreign_words()
            ]

    @given(first=st.integers(0, 2**16), second=st.integers(2**17, 2**18))
    @_inherited
    def test_different_assignments_launch_different_servers(self, first: int, second: int) -> None:
        """No two trials may be the same command line."""
        one, other = self.drawn(first), self.drawn(second)
        if one is None or other is None or one == other:
            return
        base = self.bases()[0]
        assert self.engine().command(base, one) != self.engine().command(base, other)

    def test_the_port_is_the_one_in_the_command(self) -> None:
        """The last one given counts."""
        base = self.bases()[0]
        command = Command(argv=(*base.argv, "--port", "31555"))
        assert self.engine().port(command) == 31555
        assert self.engine().port(Command(argv=(*base.argv, "--port=31556"))) == 31556

    def test_the_api_key_is_the_one_in_the_command(self) -> None:
        """Without it every request would be refused."""
        base = self.bases()[0]
        assert self.engine().api_key(base) is None
        assert self.engine().api_key(Command(argv=(*base.argv, "--api-key", SECRET))) == SECRET

    @pytest.mark.parametrize(
        "text",
        [
            f"llm serve --api-key {SECRET} --port 1",
            f"llm serve --api-key={SECRET}",
            f"llm serve --api-key '{SECRET}'",
            f"['llm', '--api-key', '{SECRET}', '--port', '1']",
            f'{{"launch_command": "llm serve --api-key {SECRET} --port 1", "api_key": "{SECRET}"}}',
            f'["llm", "--api-key", "{SECRET}"]',
            f"server_args={{'api_key': '{SECRET}', 'admin_api_key': '{SECRET}x', 'port': 1}}",
            f"ServerArgs(api_key='{SECRET}', port=1)",
            f"Authorization: Bearer {SECRET}",
            f"server_args=ServerArgs(port=1, api_key='{SECRET}",  # a line that was cut
            f"['llm', '--api-key', '{SECRET}",
        ],
    )
    def test_a_secret_never_passes(self, text: str) -> None:
        """In a log, a process title, a JSON reply."""
        clean = self.engine().scrub(text)
        assert SECRET not in clean
        assert "***" in clean
        assert self.engine().scrub(clean) == clean

    def test_text_without_a_secret_is_left_alone(self) -> None:
        """Also where a key is named but not given."""
        text = "'api_key': None, --port 30000 api_key=None\nThe server is fired up and ready to roll!\n"
        assert self.engine().scrub(text) == text
        for log in self.logs():
            assert self.engine().scrub(log).count("\n") == log.count("\n")

    @pytest.mark.parametrize("before", [330, 385, 16_350])
    def test_no_secret_stays_in_evidence_because_its_line_was_cut(self, before: int) -> None:
        """Neither where a screen ends nor where a reader's memory does."""
        key = f"{SECRET}-{'k' * 60}"
        line = f"Error: RuntimeError: {'x' * before} api_key='{key}', port=1"
        for log in (line, *(f"{line}\n{log}" for log in self.logs())):
            reader = self.engine().log_reader()
            reader.feed(log)
            found = reader.diagnose(Ending(exit_status=1, exit_signal=None, state=TrialState.LOADING, signals_sent=()))
            assert SECRET[:4] not in "".join(found.evidence)
            assert all(len(text) <= 400 for text in found.evidence)

    def _verdict(self, reader: LogReader) -> tuple[str, bool, bool, Verdict]:
        seen = (reader.stage, reader.fatal, reader.is_configuration_fault)
        return (
            *seen,
            reader.diagnose(Ending(exit_status=None, exit_signal=9, state=TrialState.LOADING, signals_sent=())),
        )

    @given(data=st.data())
    @_inherited
    def test_where_pieces_of_a_log_end_makes_no_difference(self, data: st.DataObject) -> None:
        """Journals and pipes cut anywhere, in a word, in a colour code, between CR and LF."""
        log = data.draw(st.sampled_from(list(self.logs())))
        cuts = sorted(data.draw(st.lists(st.integers(0, len(log)), max_size=20)))
        whole, pieces = self.engine().log_reader(), self.engine().log_reader()
        whole.feed(log)
        for start, end in zip([0, *cuts], [*cuts, len(log)], strict=True):
            pieces.feed(log[start:end])
        assert self._verdict(pieces) == self._verdict(whole)

    # Without the letter that every word of an explanation holds: a single such word may be a hint.
    @given(text=st.text(st.characters(exclude_characters="eE"), max_size=400))
    @_inherited
    def test_any_text_can_be_read(self, text: str) -> None:
        """What it means is unknown; it never breaks the reader, and is never a guess."""
        reader = self.engine().log_reader()
        reader.feed(text)
        reader.feed(text)
        found = reader.diagnose(Ending(exit_status=1, exit_signal=None, state=TrialState.LOADING, signals_sent=()))
        assert found.cause is Cause.UNKNOWN
        assert found.config_fault is None
        assert len(found.evidence) <= 10

    def test_colours_and_carriage_returns_change_nothing(self) -> None:
        """Terminals and progress bars write them."""
        for log in self.logs():
            plain, dressed = self.engine().log_reader(), self.engine().log_reader()
            plain.feed(log)
            dressed.feed(log.replace("\n", "\x1b[0m\r\n\x1b[31;1m"))
            assert self._verdict(dressed) == self._verdict(plain)

    def test_a_line_without_end_does_not_fill_the_memory(self) -> None:
        """A reader keeps little, however much it is fed; and still reads what follows."""
        reader = self.engine().log_reader()
        piece = "x" * 1_000_000
        tracemalloc.start()
        for _ in range(20):
            reader.feed(piece)
        kept, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert kept < 500_000
        reader.feed("\n" + self.logs()[0])
        fresh = self.engine().log_reader()
        fresh.feed(self.logs()[0])
        assert reader.stage == fresh.stage

    def test_our_own_stop_is_not_a_crash(self) -> None:
        """Whatever signal it took."""
        found = (
            self.engine()
            .log_reader()
            .diagnose(Ending(exit_status=None, exit_signal=9, state=TrialState.MEASURING, signals_sent=(15, 9)))
        )
        assert (found.cause, found.config_fault) == (Cause.OWN_STOP, False)

    def test_signal_9_alone_is_evidence_of_nothing(self) -> None:
        """A parent that kills itself looks like the kernel's OOM killer."""
        found = (
            self.engine()
            .log_reader()
            .diagnose(Ending(exit_status=None, exit_signal=9, state=TrialState.MEASURING, signals_sent=()))
        )
        assert (found.cause, found.config_fault) == (Cause.UNKNOWN, None)

    def call(self, *, stream: bool, workload: Workload = WORKLOAD) -> HttpCall:
        """Ask for a generation."""
        return self.engine().generation_call(ASKED, max_tokens=32, workload=workload, stream=stream, seed=7)

    def test_a_conversation_goes_to_the_chat_endpoint_turn_by_turn(self) -> None:
        """The server's template makes one text of it, as in production."""
        call = self.call(stream=True, workload=replace(WORKLOAD, api=Api.CHAT))
        assert call.path == "/v1/chat/completions"
        assert call.body is not None
        assert call.body["messages"] == [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Once upon"},
        ]
        assert "prompt" not in call.body

    def test_without_a_template_the_bare_text_is_completed(self) -> None:
        """Turns are joined by blank lines."""
        call = self.call(stream=True, workload=replace(WORKLOAD, api=Api.COMPLETIONS))
        assert call.path == "/v1/completions"
        assert call.body is not None
        assert call.body["prompt"] == "Be brief.\n\nOnce upon"
        assert "messages" not in call.body

    def test_what_the_workload_leaves_open_is_left_to_the_server(self) -> None:
        """And what it says is sent as it stands."""
        named = ("top_p", "top_k", "min_p", "presence_penalty", "chat_template_kwargs")
        open_body = self.call(stream=True).body
        assert open_body is not None
        assert not set(named) & set(open_body)
        said = replace(WORKLOAD, temperature=0.7, top_p=0.8, top_k=20, min_p=0.0, presence_penalty=1.5, thinking=False)
        body = self.call(stream=True, workload=replace(said, api=Api.CHAT)).body
        assert body is not None
        assert [body[name] for name in named] == [0.8, 20, 0.0, 1.5, {"enable_thinking": False}]
        assert body["temperature"] == 0.7

    def test_a_generation_is_asked_for_with_its_length_seed_and_counts(self) -> None:
        """Fixed length, fixed sampling, the server's own token counts."""
        body = self.call(stream=True).body
        assert body is not None
        assert (body["max_tokens"], body["seed"]) == (32, 7)
        assert (body["ignore_eos"], body["temperature"], body["stream"]) == (True, 0.0, True)
        assert body["stream_options"]["include_usage"] is True
        lone = self.call(stream=False).body
        assert lone is not None
        assert lone["stream"] is False
        assert "stream_options" not in lone

    def test_the_end_of_a_stream_is_seen(self) -> None:
        """OpenAI's marker."""
        assert self.engine().read_event(b"[DONE]").done
        assert self.engine().read_event(b" [DONE]\r").done

    def test_text_is_content_and_its_absence_is_not(self) -> None:
        """Role announcements, usage and finish events are not chunks."""
        event = {"choices": [{"index": 0, "text": " a", "finish_reason": None}]}
        assert self.engine().read_event(orjson.dumps(event)).has_content
        chat = {"choices": [{"index": 0, "delta": {"content": " a"}}]}
        assert self.engine().read_event(orjson.dumps(chat)).has_content
        role = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}
        assert not self.engine().read_event(orjson.dumps(role)).has_content

    def test_usage_gives_the_counts_and_its_absence_none(self) -> None:
        """None is not 0."""
        usage = {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 32}}
        found = self.engine().read_event(orjson.dumps(usage))
        assert (found.has_content, found.tokens_total, found.prompt_tokens) == (False, 32, 5)
        none = self.engine().read_event(orjson.dumps({"choices": [{"text": "a"}]}))
        assert (none.tokens_total, none.prompt_tokens, none.finish_reason) == (None, None, None)

    @pytest.mark.parametrize(
        "event",
        [
            b'{"error": {"message": "out of slots", "code": 500}}',
            b'{"object": "error", "message": "out of slots", "code": 500}',
            b'{"error": "out of slots"}',
        ],
    )
    def test_an_error_in_a_stream_is_an_error(self, event: bytes) -> None:
        """Although the status was 200."""
        assert self.engine().read_event(event).error == "out of slots"

    @pytest.mark.parametrize("event", [b"", b"{", b"null", b"[1]", b"\xff"])
    def test_an_unreadable_event_is_an_error_and_not_an_exception(self, event: bytes) -> None:
        """A proxy's HTML page, half a line."""
        assert self.engine().read_event(event).error is not None

    def test_only_a_generation_counts_as_one(self) -> None:
        """A 200 with something else in it proves nothing."""
        good = {"choices": [{"text": " a"}], "usage": {"completion_tokens": 8}}
        assert self.engine().generated_tokens(reply(good)) == 8
        assert self.engine().generated_tokens(reply(good, status=503)) is None
        assert self.engine().generated_tokens(reply({"usage": {"completion_tokens": 8}})) is None
        assert self.engine().generated_tokens(reply({"choices": [{"text": " a"}]})) is None
        assert self.engine().generated_tokens(HttpReply(status=200, body=b"<html>")) is None
        assert self.engine().generated_tokens(HttpReply(status=None, body=b"", error="refused")) is None

    def test_metrics_that_are_off_are_none_and_not_zero(self) -> None:
        """A server started without metrics answers 404 or 501."""
        off = HttpReply(status=404, body=b"Not Found")
        assert self.engine().counters(off) == Counters()
        assert self.engine().counters(HttpReply(status=200, body=b"# nothing\n")) == Counters()
        assert self.engine().counters(HttpReply(status=None, body=b"", error="timed out")) == Counters()

    @pytest.mark.parametrize("body", [b"", b"{", b"[]", b"<html></html>"])
    def test_a_configuration_that_cannot_be_read_is_the_host_s_fault(self, body: bytes) -> None:
        """Another program may answer on the port."""
        replies = [HttpReply(status=200, body=body) for _ in self.engine().info_calls()]
        with pytest.raises(HostFault):
            self.engine().effective(replies)
        with pytest.raises(HostFault, match="401"):
            self.engine().effective([HttpReply(status=401, body=b"{}") for _ in self.engine().info_calls()])

    def test_every_setting_has_a_place_in_the_effective_configuration(self) -> None:
        """With None where the server does not say."""
        replies = [reply({}) for _ in self.engine().info_calls()]
        found = dict(self.engine().effective(replies).settings)
        assert set(found) == self.engine().parameters
        assert set(found.values()) == {None}
