"""The folder in which orders for a study lie until its driver has answered them.

An order is a file that appears whole (``ID.order``); the driver looks for new ones a few times a
second, carries out the oldest, lays the answer beside it (``ID.answer``) and only then removes the order.
A driver that is killed in between leaves the order, and the next run carries it out again: orders are
made so that this changes nothing more. Whoever gave the order takes the answer away.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tuner.errors import StudyUnwritable
from tuner.model.order import Answer, Order
from tuner.steer.order_json import decode_answer, decode_order, encode_answer, encode_order

FOLDER: Final = "orders"
POLL_S: Final = 0.1
"""Between two looks for orders; a person waits for the answer."""
ORDER: Final = ".order"
ANSWER: Final = ".answer"
STALE_S: Final = 3600.0
"""Age of an answer that nobody will fetch any more: whoever waited for it has gone."""
_LARGEST: Final = 64 * 1024
"""Bytes of an order; a larger file is none of ours."""


class Inbox:
    """The orders of the study in ``directory``; the driver's side is tuner.ports.Orders."""

    def __init__(self, directory: Path) -> None:
        self._folder = directory / FOLDER

    # -- whoever gives orders ----------------------------------------------------------

    def put(self, order: Order) -> None:
        """Lay an order in.

        Raises:
            StudyUnwritable: it cannot be written.
        """
        with _mapped(self._folder):
            self._folder.mkdir(exist_ok=True)
            _write(self._folder / f"{order.order}{ORDER}", encode_order(order))

    def take_answer(self, order: Order) -> Answer | None:
        """Return the answer and take it away; None: there is none yet.

        Raises:
            StudyUnwritable: it cannot be read.
        """
        path = self._folder / f"{order.order}{ANSWER}"
        with _mapped(self._folder):
            try:
                content = path.read_bytes()
            except FileNotFoundError:
                return None
            path.unlink(missing_ok=True)
        return decode_answer(content)

    def withdraw(self, order: Order) -> bool:
        """Take an order back that was not answered; False: it has been by now.

        Raises:
            StudyUnwritable: it cannot be removed.
        """
        with _mapped(self._folder):
            try:
                (self._folder / f"{order.order}{ORDER}").unlink()
            except FileNotFoundError:
                return False
        return True

    # -- whoever carries them out ------------------------------------------------------

    async def next(self) -> Order:
        """Wait for an order; the oldest comes first, and comes again until it was answered."""
        self._forget_stale()
        while True:
            order = self.first()
            if order is not None:
                return order
            await asyncio.sleep(POLL_S)

    def first(self) -> Order | None:
        """Return the oldest order; None: there is none. A file that is no order is answered and removed.

        Raises:
            StudyUnwritable: the folder cannot be read.
        """
        with _mapped(self._folder):
            for path in self._lying(ORDER):
                order = self._read(path)
                if order is not None:
                    return order
        return None

    def answer(self, order: Order, answer: Answer) -> None:
        """Lay the answer beside an order, which is removed then.

        Raises:
            StudyUnwritable: it cannot be written.
        """
        with _mapped(self._folder):
            self._close(order.order, answer)

    def _read(self, path: Path) -> Order | None:
        try:
            with path.open("rb") as file:
                content = file.read(_LARGEST)
        except FileNotFoundError:  # withdrawn
            return None
        name = path.name.removesuffix(ORDER)
        try:
            order = decode_order(content)
            reason = "" if order.order == name else "its id is not its name"
        except ValueError as error:
            reason = " ".join(str(error).split())[:200]
        if not reason:
            return order
        self._close(name, Answer(done=False, text=f"{path}: is no order: {reason}"))
        return None

    def _close(self, name: str, answer: Answer) -> None:
        _write(self._folder / f"{name}{ANSWER}", encode_answer(answer))
        (self._folder / f"{name}{ORDER}").unlink(missing_ok=True)

    def _forget_stale(self) -> None:
        with _mapped(self._folder):
            for path in self._lying(ANSWER):
                with contextlib.suppress(FileNotFoundError):  # fetched this moment
                    if time.time() - path.stat().st_mtime > STALE_S:
                        path.unlink()

    def _lying(self, suffix: str) -> list[Path]:
        try:
            names = os.listdir(self._folder)  # noqa: PTH208 - names are all that is wanted, ten times a second
        except FileNotFoundError:
            return []
        return [self._folder / name for name in sorted(names) if name.endswith(suffix) and not name.startswith(".")]


def _write(path: Path, content: bytes) -> None:
    """Make a file appear whole."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            os.fchmod(file.fileno(), 0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def _mapped(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StudyUnwritable(
            f"{folder}: orders cannot be kept there ({error.strerror}); free some space, or make it writable"
        ) from error
