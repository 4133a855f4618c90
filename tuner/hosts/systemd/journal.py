"""What the processes of a unit wrote, read from the journal on from a cursor.

Only what they wrote themselves: systemd's own lines about the unit carry ``UNIT=`` and not ``_SYSTEMD_UNIT=``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tuner.errors import HostFault
from tuner.model.host import CommandResult
from tuner.ports import HostTransport

CHUNK_BYTES = 1024 * 1024
"""Of JSON, before it is read: the text in it is shorter."""

_QUIET = "export LC_ALL=C SYSTEMD_PAGER= SYSTEMD_COLORS=0"
_NOW = f"{_QUIET}; date +%s; exec journalctl --no-pager -n 0 --show-cursor"
# --cursor= and not --after-cursor=: systemd 252 (and others) let the latter pass over the first entry that
# matches whatever the cursor names, so that a line is lost when that is another unit's entry, or gone.
# A pipe's status is that of head, which ends journalctl by SIGPIPE when there is more: its own goes to stderr.
_READ = (
    f"{_QUIET}\n"
    '{ journalctl --no-pager -q -o json --all --output-fields="$3" ${2:+"$5$2"} _SYSTEMD_UNIT="$1"'
    '; echo "journalctl: $?" >&2; } | head -c "$4"'
)
_STATUS = re.compile(r"^journalctl: (\d+)$", re.MULTILINE)
_FINE = frozenset({"0", "141"})  # 141: SIGPIPE
_FIELDS = "MESSAGE,_LINE_BREAK"
_TIME = "@"  # before a time in place of a cursor
_CURSOR_LINE = re.compile(r"^-- cursor: (\S+)$", re.MULTILINE)
_HIDDEN = re.compile(r"not seeing messages|insufficient permissions|No journal files", re.IGNORECASE)
_LEFT_OUT = f"[a message of more than {CHUNK_BYTES} bytes is left out]\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalPiece:
    """What a look at the journal showed.

    Attributes:
        text: of whole entries, each with a newline at its end unless journald cut it within a line.
        cursor: of the last of them; the one that was asked for when there was none.
        is_cut: an entry did not fit, and there is more.
    """

    text: str
    cursor: str
    is_cut: bool = False


async def cursor_now(transport: HostTransport) -> str:
    """Return the cursor of the last entry in the journal; where there is no entry yet, the time, as ``@seconds``.

    Without either, all that the unit ever wrote would be read as this trial's.

    Raises:
        HostFault: the login may not read the journal, there is none, or it is damaged.
        TransportFault: the host is not reached.
    """
    result = await transport.run(("sh", "-c", _NOW))
    if result.status == 127 or _HIDDEN.search(result.stderr):
        raise _unreadable(result)
    match = _CURSOR_LINE.search(result.stdout)
    if match is not None:
        return match[1]
    now_s = result.stdout.partition("\n")[0]
    # A failure without words is what some versions call it when there is no entry.
    if not now_s.isdigit() or (result.status != 0 and result.stderr.strip()):
        said = (result.stderr.strip() or f"status {result.status}").splitlines()[0]
        msg = f"the journal of this host does not say where it ends ({said}): see `journalctl --verify` on the host"
        raise HostFault(msg)
    return f"{_TIME}{now_s}"


async def read_journal(transport: HostTransport, unit: str, cursor: str) -> JournalPiece:
    """Read what ``unit`` wrote after ``cursor``, at most :data:`CHUNK_BYTES` of JSON at once.

    A cursor whose entry was rotated away goes on with the first entry after its time.

    Raises:
        HostFault: the journal cannot be read.
        TransportFault: the host is not reached.
    """
    piece = parse_entries(await _read(transport, unit, cursor), cursor)
    if not piece.is_cut or piece.cursor != cursor:
        return piece
    # One entry fills it all: that of the cursor, or the next. Cursors are read without messages to tell.
    listing = await _read(transport, unit, cursor, fields="_BOOT_ID", limit=4096)
    following = parse_entries(listing, cursor, most=1)
    if following.cursor == cursor:
        return JournalPiece(text="", cursor=cursor)
    if parse_entries(listing, "", most=1).cursor == cursor:
        piece = parse_entries(await _read(transport, unit, cursor, after=True), cursor)
        if piece.cursor != cursor:
            return piece
    return JournalPiece(text=_LEFT_OUT, cursor=following.cursor)


def parse_entries(text: str, cursor: str, *, most: int | None = None) -> JournalPiece:
    """Read JSON lines from ``journalctl``, without the entry that ``cursor`` names, ``most`` of them.

    Raises:
        HostFault: a whole line is no entry.
    """
    *lines, rest = text.split("\n")
    parts: list[str] = []
    last = cursor
    for line in lines:
        entry = _entry(line)
        if entry["__CURSOR"] == cursor:
            continue
        if most is not None and len(parts) == most:
            break
        parts.append(_words(entry))
        last = entry["__CURSOR"]
    return JournalPiece(text="".join(parts), cursor=last, is_cut=bool(rest))


def _entry(line: str) -> dict[str, Any]:
    try:
        entry = json.loads(line)
        if isinstance(entry, dict) and isinstance(entry["__CURSOR"], str):
            return entry
    except (ValueError, KeyError):
        pass
    msg = f"journalctl printed a line that is no journal entry: {line[:100]!r}: see `journalctl --verify` on the host"
    raise HostFault(msg)


def _words(entry: Mapping[str, Any]) -> str:
    message = entry.get("MESSAGE")
    # Null: journalctl left it out. Several fields of that name: an entry from the native protocol.
    several = message if isinstance(message, list) and not all(isinstance(byte, int) for byte in message) else [message]
    text = "\n".join(_text(part) for part in several if part is not None)
    # journald cuts a long line in pieces (LineMax=): put together, they are that line again.
    return text if entry.get("_LINE_BREAK") == "line-max" else f"{text}\n"


def _text(message: str | list[int]) -> str:
    """Return a message; journalctl shows one with bytes that are not printable UTF-8 as their numbers."""
    return message if isinstance(message, str) else bytes(message).decode(errors="replace")


async def _read(
    transport: HostTransport,
    unit: str,
    cursor: str,
    *,
    fields: str = _FIELDS,
    limit: int = CHUNK_BYTES,
    after: bool = False,
) -> str:
    option = "--after-cursor=" if after else ("--since=" if cursor.startswith(_TIME) else "--cursor=")
    result = await transport.run(("sh", "-c", _READ, "tuner", unit, cursor, fields, str(limit), option))
    status = _STATUS.search(result.stderr)
    words = _STATUS.sub("", result.stderr).strip()
    # Words without a failure are warnings, of a file that was just rotated away say; a failure without words is
    # what some versions call it when there is no entry.
    if result.status != 0 or status is None or (status[1] not in _FINE and words):
        raise _unreadable(replace(result, stderr=words))
    return result.stdout


def _unreadable(result: CommandResult) -> HostFault:
    said = (result.stderr.strip() or f"status {result.status}").splitlines()[0]
    return HostFault(
        f"the journal of this host cannot be read ({said}): "
        "run `sudo usermod -aG systemd-journal USER` for the login's user, or log in as root"
    )
