"""Reads a log of any size from anywhere, a piece at a time: plain, packed, or wrapped in JSON by whoever shipped it."""

from __future__ import annotations

import bz2
import codecs
import contextlib
import gzip
import importlib
import io
import json
import lzma
import stat
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from tuner.errors import UsageError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

STDIN = "-"
_PIECE = 1 << 20  # bytes
_LONGEST_LINE = 4 << 20  # bytes; a longer one is handed on in pieces
_HEAD = 1 << 12  # bytes that show whether it is text
_ODD_BYTES = bytes(set(range(32)) - set(b"\t\n\v\f\r\x1b\b\0")) + b"\x7f"
_MOST_ODD = 0.05
"""Share of control characters above which it is no text; compressed data and programs have a tenth or more."""
_TEXT_KEYS = ("MESSAGE", "log", "message")
"""Where the text is in a line of JSON: of journald, of Docker, of most log shippers."""
_PACKED: tuple[tuple[bytes, str], ...] = (
    (b"\x1f\x8b", "gzip"),
    (b"\xfd7zXZ\0", "xz"),
    (b"BZh", "bz2"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
)
_UTF16 = {codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Some whole lines; the last one of a log may lack its end.

    Attributes:
        line: number of its first line, from 1.
        is_one: all of its text stands in that one line of the file.
    """

    line: int
    text: str
    is_one: bool = False


@dataclass(slots=True)
class LogInput:
    """A log that is read from its begin to its end, in constant memory.

    Attributes:
        given: as the person named it; ``-`` is standard input.
        remarks: what the reader should know of how it was read.
    """

    given: str
    stdin: BinaryIO | None = field(default_factory=lambda: None if sys.stdin is None else sys.stdin.buffer)
    remarks: list[str] = field(default_factory=list)
    _begin: int | None = None

    @property
    def name(self) -> str:
        """For messages."""
        return "standard input" if self.given == STDIN else self.given

    @property
    def can_be_read_again(self) -> bool:
        """Whether :meth:`pieces` works a second time: a pipe is gone once it was read."""
        if self.given == STDIN:
            return self._begin is not None
        return Path(self.given).is_file()

    @property
    def waits_for_a_person(self) -> bool:
        """Whether nothing comes until somebody types it."""
        return self.given == STDIN and self.stdin is not None and self.stdin.isatty()

    def pieces(self) -> Iterator[Piece]:
        """Yield the log.

        Raises:
            UsageError: there is none, or it cannot be read; names the place and the remedy.
        """
        self.remarks.clear()
        with contextlib.ExitStack() as stack:
            try:
                raw = self._open(stack)
                yield from self._read(raw)
            except (OSError, zlib.error, lzma.LZMAError) as error:
                raise UsageError(f"{self.name}: cannot be read: {getattr(error, 'strerror', None) or error}") from error

    def _open(self, stack: contextlib.ExitStack) -> BinaryIO:
        if self.given == STDIN:
            if self.stdin is None:
                raise UsageError("standard input is closed; give a file, or a log through a pipe")
            if self._begin is not None:
                self.stdin.seek(self._begin)
            elif self.stdin.seekable():
                self._begin = self.stdin.tell()
            return self.stdin
        path = Path(self.given)
        try:
            mode = path.stat().st_mode
        except FileNotFoundError:
            raise UsageError(f"{self.given}: there is no such file; - reads standard input") from None
        if stat.S_ISDIR(mode):
            raise UsageError(f"{self.given}: is a folder; name the log file in it")
        if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
            raise UsageError(f"{self.given}: is a device, not a log file; - reads standard input")
        return stack.enter_context(path.open("rb"))

    def _read(self, raw: BinaryIO) -> Iterator[Piece]:
        blocks = self._blocks(_Peeked(raw))
        head, has_any = _head(blocks)
        if not has_any:
            raise UsageError(f"{self.name}: is empty; give the log of the server that died")
        encoding = _UTF16.get(head[:2], "utf-8-sig")
        if encoding == "utf-8-sig":
            self._require_text(head)
        decoder = codecs.getincrementaldecoder(encoding)("replace")
        lines = _lines(_chain(head, blocks), decoder)
        first = next(lines)
        yield from _pieces(first, lines, _text_in if _text_in(first) is not None else None)

    def _blocks(self, peeked: _Peeked) -> Iterator[bytes]:
        packed = _unpacked(peeked, self.name)
        if packed is None:
            yield peeked.first
        source = peeked.raw if packed is None else packed
        read = getattr(source, "read1", source.read)  # what is there already, where it comes through a pipe
        while True:
            try:
                block = read(_PIECE)
            except EOFError:
                self.remarks.append(f"{self.name} is cut off: judged from what could be unpacked")
                return
            if not block:
                return
            yield block

    def _require_text(self, head: bytes) -> None:
        text = head.replace(b"\0", b"")  # a log that is cut while it is written gets them
        odd = len(text) - len(text.translate(None, _ODD_BYTES))
        if not text or odd > _MOST_ODD * len(text):
            raise UsageError(f"{self.name}: is binary, not a log; give what the server printed")


class _Peeked(io.RawIOBase):
    """A stream whose first bytes were looked at, and are still to come."""

    def __init__(self, raw: BinaryIO) -> None:
        self.raw = raw
        self.first = b""
        while len(self.first) < max(len(mark) for mark, _ in _PACKED):
            more = raw.read(1)
            if not more:
                break
            self.first += more
        self._left = self.first

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        room = memoryview(buffer).cast("B")
        read = getattr(self.raw, "read1", self.raw.read)
        got: bytes = self._left[: len(room)] or read(len(room))
        self._left = self._left[len(got) :]
        room[: len(got)] = got
        return len(got)


def _unpacked(raw: _Peeked, name: str) -> BinaryIO | None:
    kind = next((kind for mark, kind in _PACKED if raw.first.startswith(mark)), None)
    if kind is None:
        return None
    source = cast("BinaryIO", io.BufferedReader(raw, _PIECE))
    match kind:
        case "gzip":
            return cast("BinaryIO", gzip.GzipFile(fileobj=source))
        case "xz":
            return cast("BinaryIO", lzma.LZMAFile(source))
        case "bz2":
            return cast("BinaryIO", bz2.BZ2File(source))
        case _:
            try:
                zstd = importlib.import_module("compression.zstd")  # Python 3.14 and newer
            except ModuleNotFoundError:
                version = f"{sys.version_info.major}.{sys.version_info.minor}"
                raise UsageError(
                    f"{name}: is packed with zstd, which Python {version} cannot read: "
                    f"zstd -dc FILE | python -m tuner diagnose {STDIN}"
                ) from None
            return cast("BinaryIO", zstd.ZstdFile(source))


def _head(blocks: Iterator[bytes]) -> tuple[bytes, bool]:
    """Return the first bytes that are not zero, and whether there were any bytes."""
    head, has_any = b"", False
    for block in blocks:
        has_any = has_any or bool(block)
        head = (head + block).lstrip(b"\0")
        if len(head) >= _HEAD:
            break
    return head, has_any


def _chain(head: bytes, blocks: Iterator[bytes]) -> Iterator[bytes]:
    yield head
    yield from blocks


def _lines(blocks: Iterator[bytes], decoder: codecs.IncrementalDecoder) -> Iterator[str]:
    """Yield texts that end where a line ends, as far as lines are not endless; at least one."""
    kept = ""
    for block in blocks:
        text = decoder.decode(block)
        kept += text.replace("\0", "") if "\0" in text else text
        end = kept.rfind("\n") + 1
        if end == 0 and len(kept) < _LONGEST_LINE:
            continue
        end = end or len(kept)
        yield kept[:end]
        kept = kept[end:]
    yield kept + decoder.decode(b"", final=True)


def _pieces(first: str, rest: Iterator[str], unwrap: Callable[[str], str | None] | None) -> Iterator[Piece]:
    number = 1
    text: str | None = first
    while text is not None:
        if unwrap is None:
            yield Piece(line=number, text=text)
        else:
            yield from _unwrapped(text, number, unwrap)
        number += text.count("\n")
        text = next(rest, None)


def _unwrapped(text: str, number: int, unwrap: Callable[[str], str | None]) -> Iterator[Piece]:
    for offset, line in enumerate(text.split("\n")):
        if line:
            inner = unwrap(line)
            message = line if inner is None else inner.rstrip("\n")
            yield Piece(line=number + offset, text=f"{message}\n", is_one=True)


def _text_in(text: str) -> str | None:
    """Return the message in a line of JSON; None: it is none."""
    line = text.partition("\n")[0].lstrip("\x1e")  # of journalctl -o json-seq
    if not line.startswith("{"):
        return None
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    found = next((entry[key] for key in _TEXT_KEYS if key in entry), None)
    if isinstance(found, list):  # journald's way to write what is not UTF-8, or holds colours
        return bytes(byte for byte in found if isinstance(byte, int) and 0 <= byte < 256).decode("utf-8", "replace")
    return found if isinstance(found, str) else None
