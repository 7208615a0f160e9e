"""Rules about the code: who imports whom, what importing the library pulls in, and how folders say what they are."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import sketchogd

SOURCE = Path(sketchogd.__file__).parent
ROOT = Path(__file__).parents[1]
PARTS = {"lab": {"lab"}, "paper": {"lab", "paper"}, "cli": {"lab", "paper", "cli"}}
"""The parts beside the library, and which of these each may import; what is not named here is the library."""


def files():
    """Every module of the package and of tools, by its dotted name."""
    found = {}
    for root, prefix in ((SOURCE, ["sketchogd"]), (ROOT / "tools", ["tools"])):
        for path in root.rglob("*.py"):
            parts = [*prefix, *path.relative_to(root).with_suffix("").parts]
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


FILES = files()


def part_of(module):
    """Which part: "library", "lab", "paper", "cli" or "tools"."""
    first, _, rest = module.partition(".")
    if module == "sketchogd.__main__":
        return "cli"  # `python -m sketchogd`; importing the library does not import it
    return "tools" if first == "tools" else rest.split(".")[0] if rest.split(".")[0] in PARTS else "library"


@cache
def imports(module):
    """The modules that a module imports anywhere but for type checking, relative names resolved."""
    path = FILES[module]
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    found = set()

    def visit(node):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            return
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            prefix = ".".join([*base, *([node.module] if node.module else [])])
            names = [f"{prefix}.{alias.name}" for alias in node.names]
            # `from package import module` needs the module; `from module import name` the module itself.
            found.update(name if name in FILES else prefix for name in names)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(path.read_text(encoding="utf-8")))
    return frozenset(found)


def test_the_borders_hold():
    """The library knows nothing of the lab, the lab nothing of the paper, and nobody installs the tools."""
    for module in FILES:
        mine = part_of(module)
        for name in imports(module):
            if name.split(".")[0] not in ("sketchogd", "tools"):
                continue
            theirs = part_of(name)
            allowed = {"library", *PARTS.get(mine, set())} if mine != "tools" else {"library", *PARTS, "tools"}
            assert theirs in allowed, f"{module} ({mine}) imports {name} ({theirs})"


def test_no_module_imports_itself_in_a_circle():
    done, stack = set(), []

    def walk(module):
        if module in stack:
            pytest.fail("import cycle: " + " -> ".join([*stack[stack.index(module) :], module]))
        if module in done:
            return
        stack.append(module)
        for name in sorted(imports(module)):
            # A package's own list of names stands above its files; what a file imports is other files.
            if name in FILES and not (module + ".").startswith(name + "."):
                walk(name)
        stack.pop()
        done.add(module)

    for module in sorted(FILES):
        walk(module)


def test_the_circle_test_sees_a_circle(monkeypatch, tmp_path):
    (tmp_path / "errors.py").write_text("def late():\n    from .protection import Protection\n")
    monkeypatch.setitem(FILES, "sketchogd.errors", tmp_path / "errors.py")
    imports.cache_clear()
    with pytest.raises(pytest.fail.Exception, match="cycle"):
        test_no_module_imports_itself_in_a_circle()
    monkeypatch.undo()
    imports.cache_clear()


def test_nobody_imports_torchvision_or_loads_pickles():
    for module, path in FILES.items():
        names = imports(module)
        assert not any(name.split(".")[0] == "torchvision" for name in names), path
        assert "pickle" not in names, path
        text = path.read_text(encoding="utf-8")
        assert "torch.load(" not in text, path
        assert "allow_pickle=True" not in text, path


def test_importing_the_library_pulls_in_torch_and_nothing_of_the_lab():
    others = "'typer', 'rich', 'matplotlib', 'transformers', 'peft', 'accelerate', 'lightning', 'avalanche'"
    code = f"import sys, sketchogd; print([m for m in sys.modules if m.split('.')[0] in ({others})"
    code += " or m.startswith(('sketchogd.lab', 'sketchogd.paper', 'sketchogd.cli', 'sketchogd.integrations'))])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert found.stdout.strip() == "[]"


def test_public_names_are_there_and_nothing_else_shows():
    shown = [name for name in dir(sketchogd) if not name.startswith("_")]
    folders = {path.stem for path in SOURCE.iterdir()}
    assert set(sketchogd.__all__) <= set(shown)
    assert set(shown) <= set(sketchogd.__all__) | folders
    assert sketchogd.distributed.cost.memory(100, 10) > 0


def test_files_say_their_idea_first_and_folders_list_their_files():
    for module, path in FILES.items():
        said = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
        assert said, f"{path} has no docstring"
        if path.name == "__init__.py" and module not in ("sketchogd", "tools"):
            here = [p for p in path.parent.iterdir() if p.suffix == ".py" and not p.stem.startswith("__")]
            here += [p for p in path.parent.iterdir() if (p / "__init__.py").exists()]
            missing = [p.stem for p in here if p.stem not in said]
            assert not missing, f"{path} does not list {', '.join(missing)}"


def test_no_folder_is_crowded():
    for folder in {path.parent for path in FILES.values()} - {ROOT / "tools"}:
        count = len(list(folder.glob("*.py")))
        assert count <= 13, f"{folder} has {count} files"
