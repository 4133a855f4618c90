"""Where things of a unit lie: its drop-in, its D-Bus object, its cgroup."""

from __future__ import annotations

import shlex

DROP_IN = "zzzz-tuner.conf"
"""Drop-ins apply in the order of their file names, whichever of /etc and /run they lie in: a name that
sorts early would lose to the ``override.conf`` that ``systemctl edit`` makes."""

_UNIT_OBJECTS = "/org/freedesktop/systemd1/unit/"


def drop_in_folder(unit: str) -> str:
    """Return the folder of the unit's drop-ins that do not outlive a reboot."""
    return f"/run/systemd/system/{unit}.d"


def drop_in_path(unit: str) -> str:
    """Return the path of a trial's drop-in."""
    return f"{drop_in_folder(unit)}/{DROP_IN}"


def object_path(unit: str) -> str:
    """Return the unit's D-Bus object path: what is not alphanumeric, and a leading digit, becomes ``_xx``.

    As ``sd_bus_path_encode`` does it (sd_bus_path_encode(3)).
    """
    characters = (chr(byte) if byte < 128 else "" for byte in unit.encode())
    label = "".join(
        character if character.isalpha() or (character.isdigit() and place > 0) else f"_{byte:02x}"
        for place, (character, byte) in enumerate(zip(characters, unit.encode(), strict=True))
    )
    return _UNIT_OBJECTS + label


def slice_cgroup(slice_name: str) -> str:
    """Return the cgroup of a slice: ``a-b.slice`` lies in ``a.slice`` (systemd.slice(5))."""
    stem = slice_name.removesuffix(".slice")
    if stem in {"", "-"}:
        return ""
    parts = stem.split("-")
    return "".join(f"/{'-'.join(parts[: end + 1])}.slice" for end in range(len(parts)))


def shown_words(text: str) -> tuple[str, ...]:
    """Return the entries of an array as ``systemctl show`` prints it: those with a special character are quoted."""
    try:
        return tuple(shlex.split(text))
    except ValueError:  # no shell would read it, so systemctl did not quote it
        return tuple(text.split())
