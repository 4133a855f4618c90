"""The layers of the design, held by walking the imports."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "tuner"

ALLOWED = {
    "model": {"model"},
    "stats": {"model", "stats"},
    "report": {"model", "stats", "report"},
    "engines": {"model", "ports", "errors", "engines"},
    "runtime": {"ports", "model", "stats", "errors", "runtime"},
    "hosts": {"ports", "model", "errors", "hosts"},
    "load": {"ports", "model", "stats", "errors", "load"},
    "search": {"ports", "model", "stats", "errors", "search"},
    "steer": {"model", "errors", "steer"},
    "execution": {"ports", "model", "errors", "runtime", "execution"},
    "config": {"model", "errors", "config"},
    "simulator": {"simulator"},
    "servers": {"servers"},
}
FOREIGN = {
    "ray": {"tuner/execution/ray_executor.py"},
    "paramiko": {"tuner/hosts/ssh/paramiko_edge.py"},
    "httpx": {"tuner/load/http.py", "tuner/load/wire/transport.py"},
    "optuna": {"tuner/search/", "tuner/report/"},
}


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)}
    return found


@pytest.mark.parametrize("layer", sorted(ALLOWED))
def test_a_layer_imports_only_what_the_design_allows(layer: str) -> None:
    for path in sorted((PACKAGE / layer).rglob("*.py")):
        for name in imports(path):
            parts = name.split(".")
            if parts[0] == "tuner" and len(parts) > 1 and parts[1] != "__version__":
                assert parts[1] in ALLOWED[layer], f"{path.relative_to(ROOT)} imports {name}"


def test_model_imports_the_standard_library_only() -> None:
    for path in (PACKAGE / "model").rglob("*.py"):
        for name in imports(path):
            top = name.split(".")[0]
            assert top == "tuner" or top in sys.stdlib_module_names, f"{path}: {name}"


@pytest.mark.parametrize("library", sorted(FOREIGN))
def test_a_foreign_library_is_imported_where_the_design_says(library: str) -> None:
    for path in modules():
        relative = path.relative_to(ROOT).as_posix()
        if any(name.split(".")[0] == library for name in imports(path)):
            assert any(relative.startswith(place) for place in FOREIGN[library]), f"{relative} imports {library}"
