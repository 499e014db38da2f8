"""The package's layers, its light core, and the sizes of its files and functions."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "rexseek"
MODULES = sorted(PACKAGE.rglob("*.py"))
SCRIPTS = sorted(path for name in ("train", "eval") for path in (ROOT / name).glob("*.py"))
SOURCES = [
    *MODULES,
    *SCRIPTS,
    *sorted((ROOT / "tools").rglob("*.py")),
    *sorted((ROOT / "tests").rglob("*.py")),
]

LEAVES = {"tokens", "boxes", "images", "terminal"}
# What each layer may import from the package, besides itself. Imports go one way.
KNOWS = {
    **{leaf: set() for leaf in LEAVES},
    "config": set(),
    "visualize": {"boxes"},
    "metrics": {"boxes"},
    "nouns": set(),
    "detectors": {"boxes", "nouns"},
    "segmenter": {"boxes"},
    "model": {"tokens", "boxes", "config"},
    "processor": {*LEAVES, "config"},
    "data": {*LEAVES, "processor"},
    "referral": {*LEAVES, "visualize"},
    "predictor": {*LEAVES, "model", "processor", "referral", "visualize"},
    "training": {*LEAVES, "config", "processor", "model", "data", "predictor", "metrics", "visualize"},
    "evaluation": {*LEAVES, "predictor", "data", "metrics", "visualize"},
}
EVERYTHING = {*KNOWS, "cli", "cli_data", "commands", "web"}
KNOWS |= {"cli": EVERYTHING, "cli_data": EVERYTHING - {"cli"}, "commands": EVERYTHING - {"cli"}}
KNOWS["web"] = EVERYTHING - {"cli", "cli_data", "commands"}

EXTRAS = {"deepspeed", "peft", "datasets", "open_clip", "omegaconf", "wandb", "ijson"}  # train
EXTRAS |= {"pycocotools", "matplotlib", "openai", "gradio", "supervision"}  # eval, demo
FILE_LINES, FUNCTION_LINES, SCRIPT_LINES = 400, 60, 40


def identify(path: Path) -> str:
    return str(path.relative_to(ROOT))


def imported(path: Path, top_level_only: bool = False) -> Iterator[str]:
    """Full names of the modules a file imports, those of `from m import n` as `m.n`."""
    package = path.relative_to(ROOT).with_suffix("").parts[:-1]
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in tree.body if top_level_only else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{module}.{alias.name}" for alias in node.names)


def layer(name: str) -> str | None:
    """The layer of a module's full name; None for others' packages and for the bare `rexseek`."""
    parts = name.split(".")
    return parts[1] if parts[0] == "rexseek" and len(parts) > 1 and parts[1] in EVERYTHING else None


@pytest.mark.parametrize("path", MODULES, ids=identify)
def test_imports_go_one_way(path: Path) -> None:
    own = path.relative_to(PACKAGE).with_suffix("").parts[0]
    if own == "__init__":
        return  # the public names
    assert own in KNOWS, f"{identify(path)}: {own!r} is not a layer of DESIGN; say here what it may import"
    found = {layer(name) for name in imported(path)} - {None, own}
    assert found <= KNOWS[own], f"{own} must not import {', '.join(sorted(found - KNOWS[own]))}"


def test_no_module_imports_the_bare_package() -> None:
    """`from rexseek import X` inside the package would go round the layers."""
    allowed = {"rexseek.__version__"}
    for path in MODULES:
        names = {name for name in imported(path) if name.split(".")[0] == "rexseek" and layer(name) is None}
        assert names <= allowed, f"{identify(path)} imports {', '.join(names)} from the package itself"


@pytest.mark.parametrize("path", sorted((PACKAGE / "metrics").glob("*.py")), ids=identify)
def test_metrics_need_numpy_only(path: Path) -> None:
    allowed = {"numpy", "rexseek", *sys.stdlib_module_names}
    assert {name.split(".")[0] for name in imported(path, top_level_only=True)} <= allowed
    assert {name.split(".")[0] for name in imported(path)} <= {*allowed, "pycocotools"}


def test_importing_is_enough_for_the_auto_classes(tiny_model, tiny_processor, tmp_path) -> None:
    """The way of the documentation, without remote code, in an interpreter that has none of the extras."""
    tiny_model.save_pretrained(tmp_path)
    tiny_processor.save_pretrained(tmp_path)
    code = f"""
import sys
# Blocked, not only unused: timm and transformers import what happens to be installed.
sys.modules.update(dict.fromkeys({sorted(EXTRAS)}))
import rexseek
from transformers import AutoConfig, AutoModelForImageTextToText, AutoProcessor
folder = {str(tmp_path)!r}
assert type(AutoConfig.from_pretrained(folder)) is rexseek.RexSeekConfig
assert type(AutoProcessor.from_pretrained(folder)) is rexseek.RexSeekProcessor
model = AutoModelForImageTextToText.from_pretrained(folder)
assert type(model) is rexseek.RexSeekForConditionalGeneration
import rexseek.cli, rexseek.evaluation.predict, rexseek.evaluation.score
"""
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert "auto_map" not in (tmp_path / "config.json").read_text()


def test_sizes_of_files() -> None:
    limits = {path: SCRIPT_LINES if path in SCRIPTS else FILE_LINES for path in SOURCES}
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in SOURCES}
    too_long = [f"{identify(path)}: {lines[path]} lines" for path in SOURCES if lines[path] > limits[path]]
    assert not too_long, f"the house allows {FILE_LINES} lines, {SCRIPT_LINES} in entry scripts"


def test_sizes_of_functions() -> None:
    too_long = []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = node.end_lineno - node.lineno + 1 - docstring_lines(node)
                if length > FUNCTION_LINES:
                    too_long.append(f"{identify(path)}: {node.name} has {length} lines")
    assert not too_long, f"the house allows {FUNCTION_LINES} lines a function, without its docstring"


def docstring_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    first = node.body[0]
    if ast.get_docstring(node) is None:
        return 0
    return first.end_lineno - first.lineno + 1
