"""Dependencies point one way, and the core imports what it needs and nothing else."""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import sb3_caps

ROOT = Path(sb3_caps.__file__).parent
RELATIVES = {"prql", "ops_tl", "jump_start", "qdagger", "cup", "ibrl"}
# From the top to the bottom, as docs and DESIGN have it: what stands in a line imports from its own and those below
LEVELS: list[set[str]] = [
    {"__init__", "__main__"},
    {"commands", "studies", "zoo", "explorer", "hub"},
    {"caps", "continuous", "library", "tabular", "envs", "settings"} | RELATIVES,
    {"reuse", "replay"},
    {"sources"},
    {"files"},
    {"extras", "colours"},
]
LEVEL = {package: level for level, packages in enumerate(LEVELS) for package in packages}
# What a file imports from above, and why it has to
EXCEPTIONS: dict[str, tuple[set[str], str]] = {
    "files/export.py": (
        {"sources", "reuse", "caps", "continuous"},
        "an export holds a whole model, and a source may be one",
    ),
    "files/descriptions.py": ({"sources", "reuse"}, "it describes the parts of a model"),
    "files/schema.py": ({"sources", "reuse", "caps", "continuous"}, "it says what such a description may hold"),
}
CORE = {"caps", "reuse", "replay", "sources", "files", "extras"} | RELATIVES
# Of which cloudpickle is one of SB3's own
NEEDED = {"stable_baselines3", "torch", "gymnasium", "numpy", "cloudpickle", "sb3_caps"}
IMPORT_STRING = re.compile(r"(sb3_caps(?:\.\w+)+)(?::\w+)?")


def files() -> list[Path]:
    return sorted(ROOT.rglob("*.py"))


def package_of(file: Path) -> str:
    first, *rest = file.relative_to(ROOT).parts
    return first if rest else first.removesuffix(".py")


def modules_in(tree: ast.AST) -> Iterator[str]:
    """The full name of everything that is imported, in functions too, and of what stands in strings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute here"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found = IMPORT_STRING.fullmatch(node.value)
            if found:
                yield found[1]


def packages_in(tree: ast.AST) -> set[str]:
    """The packages of ours among these. What the root exports is where it really is."""
    parts = [module.split(".") for module in modules_in(tree) if module.startswith("sb3_caps.")]
    return {sb3_caps._WHERE.get(name, name).split(".")[0] for _, name, *_ in parts} - {"__version__"}


IMPORTS = {str(file.relative_to(ROOT)): packages_in(ast.parse(file.read_text())) for file in files()}


def test_every_package_has_its_place() -> None:
    assert {package_of(file) for file in files()} <= LEVEL.keys()
    assert set().union(*IMPORTS.values()) <= LEVEL.keys()


@pytest.mark.parametrize("file", IMPORTS)
def test_dependencies_point_downwards(file: str) -> None:
    package = package_of(ROOT / file)
    allowed, _ = EXCEPTIONS.get(file, (set[str](), ""))
    above = {each for each in IMPORTS[file] if LEVEL[each] < LEVEL[package]}
    # The list of exceptions gets shorter, too
    assert above == allowed


def test_packages_of_one_level_form_no_circle() -> None:
    edges: dict[str, set[str]] = {package: set() for package in LEVEL}
    for file, packages in IMPORTS.items():
        package = package_of(ROOT / file)
        edges[package] |= {each for each in packages if LEVEL[each] == LEVEL[package]} - {package}

    def reached(package: str, way: tuple[str, ...] = ()) -> None:
        assert package not in way, " -> ".join([*way, package])
        for following in edges[package]:
            reached(following, (*way, package))

    for package in edges:
        reached(package)


def test_worlds_import_no_algorithm() -> None:
    imported = set().union(*(packages for file, packages in IMPORTS.items() if file.startswith("envs/")))
    assert imported - {"envs"} <= {"files", "extras", "colours"}


def test_relatives_do_not_know_each_other() -> None:
    """Nor do they know CAPS: what they share is in reuse."""
    for file, packages in IMPORTS.items():
        package = package_of(ROOT / file)
        if package in RELATIVES | {"caps"}:
            assert not packages & ((RELATIVES | {"caps"}) - {package}), file


@pytest.mark.parametrize("file", [file for file in IMPORTS if package_of(ROOT / file) in CORE])
def test_the_core_needs_what_the_setup_installs(file: str) -> None:
    """All else is an extra, which is imported where it is used: inside of a function."""
    tree = ast.parse((ROOT / file).read_text())
    at_once = ast.Module([node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))], [])
    found = {module.split(".")[0] for module in modules_in(at_once)}
    assert found <= NEEDED | set(sys.stdlib_module_names)
