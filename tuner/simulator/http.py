"""The HTTP endpoints, over the engine."""

from __future__ import annotations

import asyncio
import hmac
import uuid
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing

import orjson
from aiohttp import web

from tuner.simulator.engine import Engine, Status
from tuner.simulator.info import Info
from tuner.simulator.logs import STDOUT
from tuner.simulator.machine import Machine
from tuner.simulator.metrics import Metrics
from tuner.simulator.protocol import (
    BadRequest,
    Dialect,
    Reply,
    error_body,
    event,
    parse_generation,
    parse_object,
)
from tuner.simulator.request import Request, Sampling

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

HEALTH_PREFIX = "HEALTH_CHECK"
_HEALTH_TIMEOUT_S = 20.0
_HEALTH_POLL_S = 1.0
_ADMIN = frozenset({"/flush_cache", "/abort_request", "/set_internal_state"})
_OPEN = ("/health", "/ready", "/metrics")
_THRESHOLDS = ("speculative_accept_threshold_single", "speculative_accept_threshold_acc")
_UPDATABLE = frozenset({"pp_max_micro_batch_size", *_THRESHOLDS})
_MAX_BODY_BYTES = 64 * 1024 * 1024


class Endpoints:
    """The routes of one server.

    Args:
        environ: SGLang's own switches.
    """

    def __init__(
        self, machine: Machine, engine: Engine, info: Info, metrics: Metrics, environ: Mapping[str, str]
    ) -> None:
        self._machine = machine
        self._engine = engine
        self._info = info
        self._metrics = metrics
        self._health_generates = environ.get("SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION", "1").lower() not in {
            "0",
            "false",
        }
        self._health_timeout_s = float(environ.get("SGLANG_HEALTH_CHECK_TIMEOUT") or _HEALTH_TIMEOUT_S)

    def application(self) -> web.Application:
        """Return the application to serve."""

        @web.middleware
        async def authorize(request: web.Request, handler: Handler) -> web.StreamResponse:
            if self._is_authorized(request):
                return await handler(request)
            return _json({"error": "Unauthorized"}, 401)

        application = web.Application(middlewares=[authorize], client_max_size=_MAX_BODY_BYTES)
        routes = application.router
        for path in ("/health", "/health_generate"):
            routes.add_get(path, self._health)
        routes.add_get("/ready", self._ready)
        routes.add_get("/ping", self._ready)
        for path in ("/server_info", "/get_server_info"):
            routes.add_get(path, self._server_info)
        for path in ("/model_info", "/get_model_info"):
            routes.add_get(path, self._model_info)
        routes.add_get("/v1/models", self._models)
        routes.add_get("/v1/loads", self._loads)
        for path, dialect in (
            ("/v1/completions", Dialect.COMPLETION),
            ("/v1/chat/completions", Dialect.CHAT),
            ("/generate", Dialect.NATIVE),
        ):
            routes.add_post(path, self._generation(dialect))
        for method in ("GET", "POST"):
            routes.add_route(method, "/flush_cache", self._flush)
        routes.add_post("/abort_request", self._abort)
        for method in ("POST", "PUT"):
            routes.add_route(method, "/set_internal_state", self._set_internal_state)
        if self._machine.args.enable_metrics:
            routes.add_get("/metrics", self._prometheus)
        application.on_response_prepare.append(self._log_access)
        return application

    def _is_authorized(self, request: web.Request) -> bool:
        args, path = self._machine.args, request.path
        key = args.admin_api_key if args.admin_api_key and path in _ADMIN else args.api_key
        if not key or request.method == "OPTIONS" or path.startswith(_OPEN):
            return True
        given = request.headers.get("Authorization", "")
        return hmac.compare_digest(given.encode(), f"Bearer {key}".encode())

    async def _log_access(self, request: web.Request, response: web.StreamResponse) -> None:
        peer = request.transport.get_extra_info("peername") if request.transport else None
        client = f"{peer[0]}:{peer[1]}" if peer else "-"
        version = f"{request.version.major}.{request.version.minor}"
        self._machine.log.record(
            f'INFO:     {client} - "{request.method} {request.path_qs} HTTP/{version}" {response.status} '
            f"{response.reason}",
            stream=STDOUT,
        )

    # ------------------------------------------------------------------ health

    async def _health(self, _request: web.Request) -> web.StreamResponse:
        engine = self._engine
        if engine.draining or engine.status is Status.STARTING:
            return web.Response(status=503)
        if engine.stalled or not self._health_generates:
            return web.Response()
        began_s = engine.now_s()
        # The same tiny prompt each time, so its prefix is cached and costs next to nothing.
        sampling = Sampling(max_new_tokens=1, ignore_eos=True, temperature=0.0)
        probe = engine.submit(f"{HEALTH_PREFIX}_{uuid.uuid4().hex}", (0,), sampling, streamed=False)
        poll_s = min(_HEALTH_POLL_S, max(0.01, self._machine.host.scaled(_HEALTH_POLL_S)))
        try:
            while engine.now_s() - began_s < self._health_timeout_s:
                await asyncio.sleep(poll_s)
                if engine.last_message_s > began_s:
                    engine.status = Status.UP
                    return web.Response()
        finally:
            engine.forget(probe)
        engine.status = Status.UNHEALTHY
        self._machine.log.record(
            "Health check failed. Server couldn't get a response from detokenizer for last "
            f"{self._health_timeout_s:g} seconds. tic start time: {began_s:.3f}. "
            f"last_heartbeat time: {engine.last_message_s:.3f}"
        )
        return web.Response(status=503)

    async def _ready(self, _request: web.Request) -> web.StreamResponse:
        up = self._engine.status is Status.UP and not self._engine.draining
        return web.Response(status=200 if up else 503)

    # ------------------------------------------------------------------ information

    async def _server_info(self, _request: web.Request) -> web.StreamResponse:
        return _json(self._info.server_info())

    async def _model_info(self, _request: web.Request) -> web.StreamResponse:
        return _json(self._info.model_info())

    async def _models(self, _request: web.Request) -> web.StreamResponse:
        return _json(self._info.models())

    async def _loads(self, _request: web.Request) -> web.StreamResponse:
        return _json(self._info.loads())

    async def _prometheus(self, _request: web.Request) -> web.StreamResponse:
        page = self._metrics.page(gauges=self._info.gauges(), totals=self._info.totals())
        return web.Response(text=page, content_type="text/plain", charset="utf-8")

    # ------------------------------------------------------------------ generation

    def _generation(self, dialect: Dialect) -> Handler:
        async def handle(http: web.Request) -> web.StreamResponse:
            try:
                generation = parse_generation(
                    await http.read(),
                    dialect,
                    self._info.limits,
                    usage_default=self._machine.args.stream_response_default_include_usage,
                )
            except BadRequest as error:
                return _json(error_body(str(error), 400), 400)
            prefix = {Dialect.COMPLETION: "cmpl-", Dialect.CHAT: "chatcmpl-", Dialect.NATIVE: ""}[dialect]
            rid = generation.rid or prefix + uuid.uuid4().hex
            request = self._engine.submit(rid, generation.tokens, generation.sampling, streamed=generation.stream)
            reply = Reply(
                generation, request, model=self._info.model, cache_report=self._machine.args.enable_cache_report
            )
            if generation.stream:
                return await self._stream(http, request, reply)
            await self._engine.generate(request)
            if request.failed:
                return _json(error_body(request.message, 500), 500)
            return _json(reply.whole())

        return handle

    async def _stream(self, http: web.Request, request: Request, reply: Reply) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        async with aclosing(self._engine.progress(request)) as progress:
            await response.prepare(http)
            opening = reply.opening()
            async for fresh in progress:
                if request.failed:
                    content = event({"error": error_body(request.message, 500)})
                else:
                    content = opening + reply.chunk(fresh)
                if request.finish is not None:
                    content += reply.closing()
                opening = b""
                await response.write(content)
        await response.write_eof()
        return response

    # ------------------------------------------------------------------ control

    async def _flush(self, http: web.Request) -> web.StreamResponse:
        scheduler = self._engine.scheduler
        try:
            patience_s = float(http.query.get("timeout", "0"))
        except ValueError:
            return _json(error_body("timeout must be a number of seconds", 400), 400)
        end_s = self._engine.now_s() + patience_s
        while scheduler.pending and self._engine.now_s() < end_s:  # noqa: ASYNC110 - SGLang polls, too
            await asyncio.sleep(0.01)
        if scheduler.pending:
            self._machine.log.record(
                "Cache not flushed because there are pending requests. "
                f"#queue-req: {len(scheduler.waiting)}, #running-req: {len(scheduler.running)}",
                0,
            )
            return web.Response(status=400, text="Flush cache failed.\n")
        scheduler.flush()
        self._machine.log.record("Cache flushed successfully!", 0)
        return web.Response(
            text="Cache flushed.\nPlease check backend logs for more details. (When there are running or waiting "
            "requests, the operation will not be performed.)\n"
        )

    async def _abort(self, http: web.Request) -> web.StreamResponse:
        try:
            fields = parse_object(await http.read())
        except BadRequest as error:
            return _json(error_body(str(error), 400), 400)
        rid = str(fields.get("rid") or "")
        for request in self._engine.scheduler.pending:
            # SGLang matches request ids by their beginning.
            if fields.get("abort_all") is True or (rid and request.rid.startswith(rid)):
                self._engine.scheduler.abort(request, "Abort by /abort_request")
        return web.Response()

    async def _set_internal_state(self, http: web.Request) -> web.StreamResponse:
        try:
            wanted = parse_object(await http.read()).get("server_args")
        except BadRequest as error:
            return _json(error_body(str(error), 400), 400)
        if not isinstance(wanted, dict):
            return _json(error_body("server_args must be an object", 400), 400)
        refused = [key for key in wanted if key not in _UPDATABLE]
        for key in refused:
            self._machine.log.record(f"Updating {key} is not supported.", 0)
        if not refused and any(key in wanted for key in _THRESHOLDS):
            self._engine.scheduler.reset_speculation()
        return _json({"updated": not refused, "server_args": wanted})


def _json(body: Mapping[str, object], status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(body), status=status, content_type="application/json")
