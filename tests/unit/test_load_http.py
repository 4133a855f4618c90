"""httpx ends at this module: every exception of it becomes a value or an error of ours."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator

import httpx
import pytest

from tuner.errors import MeasurementFault, TunerError, UsageError
from tuner.load.http import _MEANING, HttpControlClient, HttpSlot, base_address, meaning
from tuner.load.stream import Failure, StreamEnd
from tuner.model.http import HttpCall, HttpReply

URL = "http://127.0.0.1:1"
POST = HttpCall(path="/v1/completions", body={"prompt": "ü"}, timeout_s=5.0)
EXCEPTIONS = sorted(
    {kind for kind in vars(httpx).values() if inspect.isclass(kind) and issubclass(kind, Exception)},
    key=lambda kind: kind.__name__,
)


def instance(kind: type[Exception]) -> Exception:
    if kind is httpx.HTTPStatusError:
        request = httpx.Request("GET", URL)
        return httpx.HTTPStatusError("why", request=request, response=httpx.Response(500, request=request))
    if kind in (httpx.StreamConsumed, httpx.StreamClosed, httpx.ResponseNotRead, httpx.RequestNotRead):
        return kind()
    return kind("why")


class Body(httpx.AsyncByteStream):
    """Gives pieces, then perhaps fails."""

    def __init__(self, pieces: list[bytes], error: Exception | None = None) -> None:
        self._pieces = pieces
        self._error = error
        self.is_closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece
        if self._error is not None:
            raise self._error

    async def aclose(self) -> None:
        self.is_closed = True


Answer = Callable[[httpx.Request], httpx.Response]


class ScriptedTransport(httpx.AsyncBaseTransport):
    """Answers the requests one after the other; the last answer repeats."""

    def __init__(self, *answers: Answer) -> None:
        self._answers = list(answers)
        self.requests: list[httpx.Request] = []
        self.is_closed = False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        answer = self._answers[0] if len(self._answers) == 1 else self._answers.pop(0)
        return answer(request)

    async def aclose(self) -> None:
        self.is_closed = True


class SilentTransport(httpx.AsyncBaseTransport):
    """Never answers."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await asyncio.Event().wait()
        raise AssertionError(f"{request.url} was answered")


class Sink:
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.sends: list[float] = []
        self.pieces: list[bytes] = []
        self.stamps: list[float] = []

    def sent(self, at_s: float) -> None:
        self.sends.append(at_s)

    def feed(self, piece: bytes, at_s: float) -> None:
        self.pieces.append(piece)
        self.stamps.append(at_s)


def raising(error: Exception) -> Answer:
    def answer(_: httpx.Request) -> httpx.Response:
        raise error

    return answer


def replying(*pieces: bytes, status: int = 200, error: Exception | None = None, **headers: str) -> Answer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda _: httpx.Response(status, headers=named, stream=Body(list(pieces), error))


def stream(transport: httpx.AsyncBaseTransport, sink: Sink, *, times: int = 1, call: HttpCall = POST) -> StreamEnd:
    async def run() -> StreamEnd:
        slot = HttpSlot(URL, transport=transport)
        for _ in range(times - 1):
            await slot.stream(call, sink)
        end = await slot.stream(call, sink)
        await slot.close()
        return end

    return asyncio.run(run())


def control(transport: httpx.AsyncBaseTransport, call: HttpCall) -> HttpReply:
    async def run() -> HttpReply:
        client = HttpControlClient(URL, transport=transport)
        reply = await client.call(call)
        await client.close()
        return reply

    return asyncio.run(run())


def test_the_table_names_every_exception_of_httpx_and_nothing_else() -> None:
    assert len(EXCEPTIONS) > 20
    assert set(_MEANING) == set(EXCEPTIONS)


def test_a_new_kind_of_a_known_exception_means_what_its_parent_means() -> None:
    class NewError(httpx.ConnectError):
        pass

    assert meaning(NewError("why")) is Failure.REFUSED


@pytest.mark.parametrize("kind", EXCEPTIONS)
def test_no_exception_of_httpx_leaves_a_slot(kind: type[Exception]) -> None:
    error = instance(kind)
    expected = meaning(error)
    if isinstance(expected, Failure):
        end = stream(ScriptedTransport(raising(error)), Sink())
        assert (end.status, end.failure) == (None, expected)
        assert kind.__name__ in (end.detail or "")
    else:
        with pytest.raises(TunerError) as caught:
            stream(ScriptedTransport(raising(error)), Sink())
        assert type(caught.value) is expected
        assert caught.value.__cause__ is error
        assert URL in str(caught.value)


@pytest.mark.parametrize("kind", EXCEPTIONS)
def test_no_exception_of_httpx_leaves_the_control_client(kind: type[Exception]) -> None:
    error = instance(kind)
    expected = meaning(error)
    if isinstance(expected, Failure):
        reply = control(ScriptedTransport(raising(error)), POST)
        assert (reply.status, reply.body, reply.error) == (None, b"", expected.value)
    else:
        with pytest.raises(expected):
            control(ScriptedTransport(raising(error)), POST)


def test_a_reply_is_pushed_as_it_arrives_and_read_to_its_end() -> None:
    transport, sink = ScriptedTransport(replying(b"data: a\n", b"\n")), Sink()
    end = stream(transport, sink)
    assert (end.status, end.failure, end.detail) == (200, None, None)
    assert sink.pieces == [b"data: a\n", b"\n"]
    assert sink.sends[0] <= sink.stamps[0] <= sink.stamps[1] <= end.ended_s
    assert transport.is_closed


def test_a_request_carries_utf_8_json_and_refuses_compression() -> None:
    transport = ScriptedTransport(replying())
    stream(transport, Sink())
    request = transport.requests[0]
    assert (request.method, str(request.url)) == ("POST", f"{URL}/v1/completions")
    assert request.content == '{"prompt":"ü"}'.encode()
    assert request.headers["accept-encoding"] == "identity"
    assert request.headers["content-length"] == "15"
    assert request.extensions["timeout"]["read"] is None


def test_the_headers_of_a_call_go_with_it() -> None:
    transport = ScriptedTransport(replying())
    keyed = HttpCall(path="/x", body={}, headers=(("authorization", "Bearer secret"), ("user-agent", "mine")))
    stream(transport, Sink(), call=keyed)
    control(transport, keyed)
    for request in transport.requests:
        assert request.headers["authorization"] == "Bearer secret"
        assert request.headers["user-agent"] == "mine"
        assert request.headers["accept-encoding"] == "identity"


def test_a_reply_that_breaks_off_in_its_body_is_cut_and_keeps_its_status() -> None:
    transport = ScriptedTransport(replying(b"data: a\n\n", error=httpx.RemoteProtocolError("incomplete")))
    sink = Sink()
    end = stream(transport, sink)
    assert (end.status, end.failure) == (200, Failure.CUT)
    assert sink.pieces == [b"data: a\n\n"]


def test_another_status_is_rejected_with_the_start_of_its_body() -> None:
    sink = Sink()
    end = stream(ScriptedTransport(replying(b"no\n such", b" model" * 99, status=404)), sink)
    assert (end.status, end.failure) == (404, Failure.REJECTED)
    assert (end.detail or "").startswith("HTTP 404: no such model model")
    assert len(end.detail or "") < 250
    assert sink.pieces == []


def test_a_compressed_reply_is_rejected() -> None:
    end = stream(ScriptedTransport(replying(b"\x1f\x8b", content_encoding="gzip")), Sink())
    assert end.failure is Failure.REJECTED
    assert "content-encoding gzip" in (end.detail or "")


def test_a_silent_server_ends_at_the_call_s_deadline() -> None:
    end = stream(SilentTransport(), Sink(), call=HttpCall(path="/x", body={}, timeout_s=0.02))
    assert (end.status, end.failure, end.detail) == (None, Failure.TIMED_OUT, "no end after 0.02 s")
    reply = control(SilentTransport(), HttpCall(path="/x", timeout_s=0.02))
    assert (reply.status, reply.error) == (None, "timed_out")


def test_a_kept_connection_found_closed_is_replayed_once_and_said() -> None:
    closed = raising(httpx.RemoteProtocolError("Server disconnected"))
    transport, sink = ScriptedTransport(replying(b"a"), closed, replying(b"b")), Sink()
    end = stream(transport, sink, times=2)
    assert end.failure is None
    assert "sent again" in (end.detail or "")
    assert sink.pieces == [b"a", b"b"]
    assert len(sink.sends) == 3


def test_a_new_connection_that_is_closed_is_not_replayed() -> None:
    transport = ScriptedTransport(raising(httpx.RemoteProtocolError("Server disconnected")))
    assert stream(transport, Sink()).failure is Failure.CUT
    assert len(transport.requests) == 1


def test_a_reply_that_had_begun_is_not_replayed() -> None:
    transport = ScriptedTransport(replying(b"a"), replying(b"b", error=httpx.ReadError("gone")))
    assert stream(transport, Sink(), times=2).failure is Failure.CUT
    assert len(transport.requests) == 2


def test_a_call_without_body_is_a_get_and_any_status_is_a_value() -> None:
    transport = ScriptedTransport(replying(b"not ", b"ready", status=503))
    reply = control(transport, HttpCall(path="/health"))
    assert transport.requests[0].method == "GET"
    assert (reply.status, reply.body, reply.error) == (503, b"not ready", None)
    assert transport.is_closed


def test_a_control_reply_that_breaks_off_is_no_reply() -> None:
    transport = ScriptedTransport(replying(b'{"half', error=httpx.ReadError("gone")))
    assert control(transport, HttpCall(path="/info")) == HttpReply(
        status=None, body=b"", error="cut", detail="ReadError: gone"
    )


@pytest.mark.parametrize("address", ["", "127.0.0.1:80", "ftp://host", "http://", "http://\0", "http://host:port"])
def test_an_address_that_is_none_is_the_person_s_to_mend(address: str) -> None:
    with pytest.raises(UsageError, match="http://host:port"):
        HttpSlot(address)


def test_a_trailing_slash_of_the_address_does_not_matter() -> None:
    assert base_address("http://host:1/") == base_address("http://host:1") == "http://host:1"


def test_a_transport_without_a_stream_is_our_own_fault() -> None:
    class SyncBody(httpx.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            yield b""

    with pytest.raises(MeasurementFault, match="cannot be streamed"):
        stream(ScriptedTransport(lambda _: httpx.Response(200, stream=SyncBody())), Sink())
