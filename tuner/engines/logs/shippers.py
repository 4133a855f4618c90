"""Takes off what journald, container runtimes and log shippers write before a line."""

from __future__ import annotations

import json
import re

_STAMP = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)"
_PREFIX = re.compile(
    r"(?:"
    rf"<\d+>1 {_STAMP} \S+ \S+ \S+ \S+ (?:-|\[[^\]]*\]) "  # syslog, RFC 5424
    rf"|{_STAMP} \S+ [^\s\[\]]+\[\d+\]: "  # journalctl -o short-iso
    rf"|{_STAMP} (?:std(?:out|err) [FP] )?"  # docker logs -t; a container runtime's file
    r"|[^\W\d]{3,5}\.? [ \d]\d \d\d:\d\d:\d\d(?:\.\d+)? \S+ [^\s\[\]]+(?:\[\d+\])?: "  # journalctl, syslog
    r"|\[pod/[^\]]+\] "  # kubectl logs --prefix
    r"|[\w.-]+ +\| "  # docker compose logs
    rf"|[\w.-]+ [\w.-]+ (?={_STAMP})"  # stern
    r")"
)
_JSON_KEYS = ("log", "MESSAGE", "message", "msg")


def bare(line: str) -> str:
    """Return what the server itself wrote: the line without its shippers' prefixes."""
    if line.startswith("{"):
        line = _unwrapped(line)
    line = line.lstrip("\ufeff\0")
    for _ in range(3):
        found = _PREFIX.match(line)
        if found is None:
            return line
        line = line[found.end() :]
    return line


def _unwrapped(line: str) -> str:
    """Return the text in a shipper's JSON object, or the line as it is."""
    try:
        entry = json.loads(line)
    except ValueError:
        return line
    if isinstance(entry, dict):
        for key in _JSON_KEYS:
            if isinstance(entry.get(key), str):
                return str(entry[key]).rstrip("\r\n")
    return line
