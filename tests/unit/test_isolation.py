"""The guard around unit tests works."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest


def test_a_unit_test_cannot_connect() -> None:
    with socket.socket() as stream, pytest.raises(AssertionError, match="reached outside"):
        stream.connect(("127.0.0.1", 9))


def test_a_unit_test_cannot_start_a_process() -> None:
    with pytest.raises(AssertionError, match="reached outside"):
        subprocess.run([sys.executable, "-c", ""], check=False)
