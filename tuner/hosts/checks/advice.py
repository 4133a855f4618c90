"""How a remedy is written down: as an option of the command line, or in the host's table of the study."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What a person can change, in the words of how they named the host.

    Attributes:
        by_options: the host was named by ``--host`` and ``--unit``; False: by a ``[[hosts]]`` table.
        restore: the whole command that puts the study's hosts back.
        doctor: the whole command that looks at them.
    """

    by_options: bool = False
    restore: str = "tuner restore --study NAME"
    doctor: str = "tuner doctor --study NAME"

    @property
    def sudo(self) -> str:
        """What lets it go through sudo."""
        return "give --sudo" if self.by_options else "write sudo = true in its [[hosts]] table"

    @property
    def tunnel(self) -> str:
        """What sends the load through SSH."""
        return "give --tunnel" if self.by_options else "write tunnel = true in its [[hosts]] table"

    @property
    def unit(self) -> str:
        """What names another unit."""
        return "correct --unit" if self.by_options else "correct unit in its [[hosts]] table"

    @property
    def identity(self) -> str:
        """What names another login."""
        if self.by_options:
            return "name another user in --host, or another IdentityFile for it in ~/.ssh/config"
        return "name another user or identity_file in its [[hosts]] table"

    def key(self, name: str) -> str:
        """Where a key is written that no option stands for."""
        where = "the host's [[hosts]] table, which the study needs for it" if self.by_options else "its [[hosts]] table"
        return f"{name} in {where}"


TABLE = Advice()
"""For a host of the study file."""
