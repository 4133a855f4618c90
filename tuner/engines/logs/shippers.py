"""Takes off what journald, container runtimes and log shippers write before a line."""

from __future__ import annotations

import re

import orjson

_STAMP = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)"
_SOURCE = r"\S+ [^\s\[\]]+(?:\[\d+\])?: "
_PREFIX = re.compile(
    r"(?:"
    rf"<\d+>1 {_STAMP} \S+ \S+ \S+ \S+ (?:-|\[[^\]]*\]) "  # syslog, RFC 5424
    rf"|{_STAMP} \S+ [^\s\[\]]+\[\d+\]: "  # journalctl -o short-iso
    rf"|{_STAMP} (?:std(?:out|err) [FP] )?"  # docker logs -t; a container runtime's file
    rf"|[^\W\d]{{2,4}} \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)? \S+ {_SOURCE}"  # journalctl -o short-full
    rf"|\[ *\d+\.\d{{6}}\] {_SOURCE}"  # journalctl -o short-monotonic
    rf"|\d{{10}}\.\d{{6}} {_SOURCE}"  # journalctl -o short-unix
    rf"|(?:[^\W\d]{{3,5}}\.?|\d\d?月) [ \d]\d \d\d:\d\d:\d\d(?:\.\d+)? (?:{_SOURCE})?"  # journalctl, syslog, ts
    r"|\[pod/[^\]]+\] "  # kubectl logs --prefix
    r"|[\w.-]+ +\| "  # docker compose logs
    rf"|[\w.-]+ [\w.-]+ (?={_STAMP})"  # stern
    r"|\([\w.:]+ pid=\d+(?:, ip=[\d.]+)?\) "  # a Ray worker
    r"|\d{1,4}: (?=\[\d{4}-|Traceback|  )"  # srun --label
    r")"
)
_KEYS = ("log", "MESSAGE", "message", "msg", "line")
"""Where shippers put the text of a line, in JSON."""
_REQUEST_KEYS = ("rid", "obj")
"""What a server's own JSON record of a request holds: prompts stand in it."""


def bare(line: str) -> str:
    """Return what the server itself wrote: the line without its shippers' prefixes."""
    line = line.lstrip("\ufeff")
    for _ in range(3):
        found = _PREFIX.match(line)
        if found is None:
            return line
        line = line[found.end() :]
    return line


def unwrapped(line: str) -> list[str]:
    """Return the lines in a shipper's JSON object; the line as it is, if it is none; nothing for a logged request."""
    try:
        entry = orjson.loads(line)
    except ValueError:
        return [line]
    if not isinstance(entry, dict):
        return [line]
    if any(key in entry for key in _REQUEST_KEYS):
        return []
    found = next((entry[key] for key in _KEYS if key in entry), None)
    if isinstance(found, list) and all(isinstance(byte, int) and 0 <= byte < 256 for byte in found):
        found = bytes(found).decode("utf-8", "replace")  # journald's form of what is not plain text
    return found.rstrip("\r\n").split("\n") if isinstance(found, str) else [line]
