"""Sends a server's API key with every call."""

from __future__ import annotations

from dataclasses import replace

from tuner.model.http import HttpCall, HttpReply
from tuner.ports import ControlClient

Headers = tuple[tuple[str, str], ...]


def bearer(api_key: str | None) -> Headers:
    """Return the headers that carry ``api_key``; none for a server that asks for none."""
    return () if api_key is None else (("Authorization", f"Bearer {api_key}"),)


class AuthorisedControl:
    """A ControlClient that adds headers to the calls of another."""

    def __init__(self, inner: ControlClient, headers: Headers) -> None:
        self._inner = inner
        self._headers = headers

    async def call(self, call: HttpCall) -> HttpReply:
        """Send one request with the headers; failures are values."""
        return await self._inner.call(replace(call, headers=(*call.headers, *self._headers)))

    async def close(self) -> None:
        """Close the connections of the inner client."""
        await self._inner.close()
