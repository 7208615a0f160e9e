"""Rules about the code itself: who imports whom, and what importing the library pulls in."""

import ast
import subprocess
import sys
from pathlib import Path

import sketchogd

SOURCE = Path(sketchogd.__file__).parent
LAB = {"lab", "cli", "baselines", "integrations"}


def imports(path):
    """The modules a file imports anywhere, relative ones resolved."""
    package = ["sketchogd", *path.relative_to(SOURCE).parts[:-1]]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            prefix = ".".join([*base, *([node.module] if node.module else [])])
            yield prefix
            yield from (f"{prefix}.{alias.name}" for alias in node.names)


def test_the_library_never_imports_the_lab():
    for path in SOURCE.rglob("*.py"):
        if path.relative_to(SOURCE).parts[0].removesuffix(".py") in LAB:
            continue
        for name in imports(path):
            parts = name.split(".")
            assert not (parts[0] == "sketchogd" and len(parts) > 1 and parts[1] in LAB), f"{path} imports {name}"


def test_nobody_imports_torchvision_or_loads_pickles():
    for path in SOURCE.rglob("*.py"):
        names = set(imports(path))
        assert not any(name.split(".")[0] == "torchvision" for name in names), path
        if path.name != "fileformats.py":  # the CIFAR archive, through an unpickler that admits arrays only
            assert "pickle" not in names, path
        text = path.read_text()
        assert "torch.load(" not in text, path
        assert "allow_pickle=True" not in text, path


def test_importing_the_library_pulls_in_torch_and_nothing_of_the_lab():
    code = "import sys, sketchogd; print([m for m in sys.modules if m.split('.')[0] in ('typer', 'rich', 'matplotlib')"
    code += " or m.startswith(('sketchogd.lab', 'sketchogd.cli', 'sketchogd.baselines'))])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert found.stdout.strip() == "[]"


def test_files_say_their_idea_first():
    for path in SOURCE.rglob("*.py"):
        assert ast.get_docstring(ast.parse(path.read_text())), f"{path} has no docstring"
