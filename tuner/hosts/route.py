"""The way to a server that can simply be connected to."""

from __future__ import annotations


class DirectRoute:
    """``ports.Route`` without anything between the load and the server.

    Args:
        address: of the host, as a URL has it.
        base_url: where the server is reached, whatever its port; None: at ``address`` and its port.
    """

    def __init__(self, address: str, base_url: str | None = None) -> None:
        self._address = f"[{address}]" if ":" in address else address
        self._base_url = None if base_url is None else base_url.rstrip("/")

    @property
    def deaths(self) -> int:
        """There is nothing of ours that could break down."""
        return 0

    @property
    def is_through_proxy(self) -> bool:
        """Whether one may be there: somebody named a URL."""
        return self._base_url is not None

    async def open(self, port: int) -> str:
        """Return the server's base URL."""
        return self._base_url or f"http://{self._address}:{port}"

    async def close(self) -> None:
        """Nothing to end."""
