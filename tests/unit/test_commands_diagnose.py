"""``tuner diagnose``: logs of every wrapping and size, how a server ended, and what is no log."""

from __future__ import annotations

import bz2
import gzip
import io
import itertools
import json
import lzma
import os
import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from tuner.cli import main
from tuner.commands.diagnose import ending_of
from tuner.commands.log_engine import SIGNS, Guess
from tuner.commands.log_input import LogInput
from tuner.engines import ENGINES
from tuner.errors import UsageError
from tuner.model.outcome import Ending

GOLDEN = Path(__file__).parents[1] / "golden"
LOG = GOLDEN / "sglang_logs" / "oom_under_load.log"
DECISIVE = 21  # line of the log in which the GPU runs out of memory
Capture = pytest.CaptureFixture[str]


class Piped(io.BytesIO):
    """Standard input that is a pipe: read once, and a few bytes at a time."""

    def seekable(self) -> bool:
        return False

    def read1(self, size: int | None = -1, /) -> bytes:
        return super().read1(97 if size is None or size < 0 else min(size, 97))


def journal(raw: bytes) -> bytes:
    entries = []
    for number, line in enumerate(raw.decode().splitlines()):
        message = line if number % 2 else list(line.encode())  # journald writes lines with colours as numbers
        entries.append(json.dumps({"__REALTIME_TIMESTAMP": str(number), "_PID": "4711", "MESSAGE": message}))
    return "\n".join(entries).encode() + b"\n"


def docker(raw: bytes) -> bytes:
    lines = raw.decode().splitlines(keepends=True)
    return b"".join(json.dumps({"log": line, "stream": "stderr"}).encode() + b"\n" for line in lines)


def utf16(raw: bytes) -> bytes:
    return b"\xff\xfe" + raw.decode().encode("utf-16-le")


WRAPPINGS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "xz": lzma.compress,
    "bz2": bz2.compress,
    "journald": journal,
    "journald in gzip": lambda raw: gzip.compress(journal(raw)),
    "docker": docker,
    "utf-16": utf16,
    "utf-8 with a mark": lambda raw: b"\xef\xbb\xbf" + raw,
    "dos": lambda raw: raw.replace(b"\n", b"\r\n"),
    "colours": lambda raw: raw.replace(b"memory", b"\x1b[01;31m\x1b[Kmemory\x1b[m\x1b[K"),
    "zeros in front": lambda raw: bytes(100_000) + raw,
    "bytes that are no UTF-8": lambda raw: raw.replace(b"TP1", b"T\xe9P1"),
    "no end of the last line": lambda raw: raw.rstrip(b"\n"),
}


def judged(path: Path | str, capsys: Capture, *options: str, code: int = 0) -> dict[str, object]:
    assert main(["diagnose", str(path), "--format", "json", *options]) == code
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict)
    return found


def refused(arguments: list[str], capsys: Capture) -> str:
    assert main(["diagnose", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err.removeprefix("tuner: error: ").rstrip()


def test_a_log_is_told_in_words_with_the_lines_that_decide(capsys: Capture) -> None:
    assert main(["diagnose", str(LOG)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("The GPU ran out of memory")
    assert "engine    sglang, by the words of its log" in lines
    assert any(line.startswith("fault     the configuration's") for line in lines)
    assert any(line.startswith("settings  ") and "about 0.4 GiB of 139.8" in line for line in lines)
    assert any(re.match(rf" +{DECISIVE}  torch.OutOfMemoryError", line) for line in lines)


@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_a_wrapped_log_is_read_as_the_plain_one(wrapping: str, tmp_path: Path, capsys: Capture) -> None:
    plain = judged(LOG, capsys)
    path = tmp_path / "log"
    path.write_bytes(WRAPPINGS[wrapping](LOG.read_bytes()))
    found = judged(path, capsys)
    same = ("cause", "engine", "stage", "direction", "shortfall_bytes", "asked", "means")
    assert {key: found[key] for key in same} == {key: plain[key] for key in same}
    assert isinstance(found["evidence"], list)
    assert found["evidence"][0]["line"] == DECISIVE


def test_a_pipe_is_read_once_and_names_no_lines(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(Piped(LOG.read_bytes())))
    found = judged("-", capsys)
    assert found["cause"] == judged(LOG, capsys)["cause"]
    assert isinstance(found["evidence"], list)
    assert {line["line"] for line in found["evidence"]} == {None}


def test_whoever_types_a_log_is_told_how_to_end_it(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    typed = Piped(LOG.read_bytes())
    monkeypatch.setattr(typed, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(typed))
    assert main(["diagnose", "-"]) == 0
    assert capsys.readouterr().err == "reading what you type or paste; Ctrl-D ends it\n"


def test_a_file_on_standard_input_is_read_again_for_its_lines(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    with LOG.open() as file:
        monkeypatch.setattr("sys.stdin", file)
        found = judged("-", capsys)
    assert isinstance(found["evidence"], list)
    assert found["evidence"][0]["line"] == DECISIVE


def test_a_packed_log_that_is_cut_off_is_judged_from_what_is_left(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "log.gz"
    packed = gzip.compress(LOG.read_bytes() + b"Decode batch\n" * 200_000)
    path.write_bytes(packed[:-30])
    found = judged(path, capsys)
    assert found["cause"] == judged(LOG, capsys)["cause"]
    assert found["remarks"] == [f"{path} is cut off: judged from what could be unpacked"]


def test_a_long_log_takes_no_more_memory_than_a_short_one(tmp_path: Path, capsys: Capture) -> None:
    raw = LOG.read_bytes()
    decode = next(line for line in raw.splitlines(keepends=True) if b"Decode batch" in line)
    path = tmp_path / "log"
    head, tail = raw.split(decode)
    path.write_bytes(head + decode * (12_000_000 // len(decode)) + tail)
    tracemalloc.start()
    try:
        found = judged(path, capsys)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found["cause"] == judged(LOG, capsys)["cause"]
    assert peak < 10_000_000, "bytes, of a longer log"


def test_a_line_without_end_is_read_in_pieces(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"x" * 9_000_000 + b"\n" + LOG.read_bytes())
    assert judged(path, capsys)["cause"] == judged(LOG, capsys)["cause"]


def test_a_healthy_log_of_a_server_that_died_says_no_cause_with_an_exit_code_of_its_own(capsys: Capture) -> None:
    log = GOLDEN / "sglang_logs" / "healthy_under_pressure.log"
    assert judged(log, capsys)["cause"] == "healthy"
    assert judged(log, capsys, "--exit", "1", code=5)["cause"] == "unknown"


@pytest.mark.parametrize("name", ENGINES)
def test_every_log_of_an_engine_is_known_as_its_own(name: str) -> None:
    logs = sorted((GOLDEN / f"{name}_logs").glob("*.log"))
    assert logs
    for path in logs:
        guess = Guess(tuple(ENGINES))
        guess.feed(path.read_bytes().decode(errors="replace"))
        assert guess.engine(path.name) == name, path.name


def test_an_engine_without_signs_is_known_by_its_name() -> None:
    assert "vllm" not in SIGNS
    guess = Guess(["sglang", "vllm"])
    guess.feed("(EngineCore pid=7) ERROR vllm/v1/engine/core.py:700 EngineCore failed to start.\n")
    assert guess.engine("log") == "vllm"


def test_a_name_that_a_shipper_writes_before_every_line_is_not_the_engine() -> None:
    guess = Guess(tuple(ENGINES))
    guess.feed("sglang-0 | srv  load_model: loading model\n" + "sglang-0 | ggml_abort\n" * 50)
    assert guess.engine("log") == "llamacpp"


def test_a_long_log_of_one_engine_is_soon_known() -> None:
    guess = Guess(tuple(ENGINES))
    guess.feed("Decode batch, #running-req: 16\n" * 99)
    assert not guess.is_sure
    guess.feed("Decode batch, #running-req: 16\n")
    assert guess.is_sure


def test_a_log_of_no_engine_asks_for_one(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "log"
    path.write_text("hello\nworld\n")
    options = " or ".join(f"--engine {name}" for name in sorted(ENGINES))
    assert refused([str(path)], capsys) == f"{path}: cannot tell which engine wrote it; give {options}"
    assert judged(path, capsys, "--engine", "sglang", "--exit", "1", code=5)["engine_guessed"] is False


@pytest.mark.parametrize(
    ("code", "signal", "ending"),
    [
        (None, None, Ending(has_ended=False)),
        (0, None, Ending(exit_status=0)),
        (1, None, Ending(exit_status=1)),
        (128, None, Ending(exit_status=128)),
        (255, None, Ending(exit_status=255)),
        (137, None, Ending(exit_signal=9)),
        (-9, None, Ending(exit_signal=9)),
        (None, "9", Ending(exit_signal=9)),
        (None, "kill", Ending(exit_signal=9)),
        (None, "SIGTERM", Ending(exit_signal=15)),
        (143, "TERM", Ending(exit_signal=15)),
    ],
)
def test_an_exit_code_is_read_as_a_shell_writes_it(code: int | None, signal: str | None, ending: Ending) -> None:
    assert ending_of(code, signal) == ending


@pytest.mark.parametrize(
    ("code", "signal", "says"),
    [
        (256, None, "--exit 256: give a code of 0 to 255, or a signal as -1 to -64"),
        (-65, None, "--exit -65: give a code of 0 to 255"),
        (None, "0", "--signal 0: there is no such signal; give 1 to 64, or a name such as KILL"),
        (None, "65", "--signal 65: there is no such signal"),
        (None, "FOO", "--signal FOO: there is no such signal"),
        (None, "²", "--signal ²: there is no such signal"),
        (1, "9", "--exit 1 and --signal 9 do not say the same; give one of them"),
        (143, "KILL", "--exit 143 and --signal KILL do not say the same"),
    ],
)
def test_an_end_that_cannot_be_is_refused(code: int | None, signal: str | None, says: str) -> None:
    with pytest.raises(UsageError, match=re.escape(says)):
        ending_of(code, signal)


def test_the_end_of_a_server_is_an_option(capsys: Capture) -> None:
    log = GOLDEN / "sglang_logs" / "killed_without_a_word.log"
    assert judged(log, capsys, "--exit", "-9", code=5)["cause"] == "unknown"
    assert judged(log, capsys, "--signal", "SIGTERM")["cause"] == "operator_stop"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty; give the log of the server that died"),
        (bytes(5000), "is binary, not a log"),
        (bytes(range(256)) * 64, "is binary, not a log"),
        (gzip.compress(b"", mtime=0), "is empty"),
        (gzip.compress(os.urandom(5000)), "is binary, not a log"),
        (b"\x1f\x8b" + bytes(range(200)), "cannot be read: "),
        (gzip.compress(LOG.read_bytes())[:200] + bytes(range(255)), "cannot be read: "),
    ],
    ids=["empty", "zeros", "all bytes", "empty gzip", "binary gzip", "no gzip", "broken gzip"],
)
def test_what_is_no_log_is_refused_in_one_line(content: bytes, says: str, tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "log"
    path.write_bytes(content)
    assert refused([str(path)], capsys).startswith(f"{path}: {says}")


def test_a_log_that_this_python_cannot_unpack_says_what_can(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "log.zst"
    path.write_bytes(b"\x28\xb5\x2f\xfd" + bytes(range(100)))
    assert "zstd -dc FILE | python -m tuner diagnose -" in refused([str(path)], capsys)


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("nowhere/server.log", "there is no such file; - reads standard input"),
        (str(GOLDEN), "is a folder; name the log file in it"),
        ("/dev/zero", "is a device, not a log file; - reads standard input"),
        ("/proc/self/mem", "cannot be read: Input/output error"),
        ("x" * 300, "cannot be read: File name too long"),
    ],
)
def test_a_place_without_a_log_is_refused_in_one_line(path: str, says: str, capsys: Capture) -> None:
    assert refused([path], capsys) == f"{path}: {says}"


def test_closed_standard_input_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr("sys.stdin", None)
    assert refused(["-"], capsys) == "standard input is closed; give a file, or a log through a pipe"


def test_an_engine_that_there_is_not_is_refused_with_the_nearest(capsys: Capture) -> None:
    assert refused([str(LOG), "--engine", "sgl"], capsys).endswith("did you mean 'sglang'?")


def test_lines_are_numbered_over_pieces() -> None:
    log = LogInput("-", stdin=io.BytesIO(b"a\nb\n" * 600_000 + b"c"))
    pieces = list(log.pieces())
    assert len(pieces) > 1
    for piece, after in itertools.pairwise(pieces):
        assert after.line == piece.line + piece.text.count("\n")
    assert "".join(piece.text for piece in pieces) == "a\nb\n" * 600_000 + "c"
