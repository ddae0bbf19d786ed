"""The arrows of the design: who may import whom, read from the source (also inside functions) and tried at run time."""

from __future__ import annotations

import ast
import functools
import gc
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.tables import each

ROOT = Path(__file__).parents[1]
PACKAGES = {
    "fedquilt": ROOT / "common" / "fedquilt",
    **{f"fedquilt_{side}": ROOT / side / f"fedquilt_{side}" for side in ("common", "server", "client")},
}
LONGEST_FILE = 400
IO_MODULES = frozenset({
    "asyncio", "concurrent", "fcntl", "glob", "http", "httpx", "io", "logging", "mmap", "multiprocessing", "os",
    "paho", "pathlib", "psutil", "queue", "random", "requests", "sched", "secrets", "select", "selectors",
    "shutil", "signal", "socket", "sqlite3", "ssl", "subprocess", "sys", "tempfile", "threading", "time",
    "torch", "urllib",
})  # fmt: skip
BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
"""The fields of a statement that have other statements in them."""
IO_CALLS = frozenset({"open", "print", "input", "exec", "eval", "__import__", "breakpoint"})
TORCH_USERS = tuple(f"fedquilt_common.{room}" for room in (
    "training", "tracing", "models", "learning_tasks", "datasets", "algorithms", "doctor.training",
    "privacy.accountant",
))  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def parse_without_collections() -> Iterator[None]:
    """Let trees of syntax go when nothing refers to them: they are many objects, and have no cycles."""
    gc.disable()
    yield
    gc.enable()


@functools.cache
def sources() -> tuple[tuple[str, Path], ...]:
    """Module name and file of everything that is shipped."""
    found = []
    for name, folder in PACKAGES.items():
        for path in sorted(folder.rglob("*.py")):
            inside = path.relative_to(folder).with_suffix("")
            parts = [part for part in inside.parts if part != "__init__"]
            found.append((".".join([name, *parts]), path))
    return tuple(found)


def imports(text: str, module: str, *, is_package: bool = False, lazy: bool = True) -> set[str]:
    """Dotted names that ``text`` imports; without ``lazy`` only those that importing the module executes."""
    return set(_imported(ast.parse(text), module.split(".") if is_package else module.split(".")[:-1], lazy))


def _imported(node: ast.AST, package: list[str], lazy: bool) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = package[: len(package) - node.level + 1] if node.level else []
        source = ".".join([*base, *([node.module] if node.module else [])])
        yield from (f"{source}.{alias.name}" for alias in node.names)
    elif lazy or not (isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or _is_for_types(node)):
        for block in BLOCKS:  # expressions are most of a tree, and import nothing
            for child in getattr(node, block, ()):
                yield from _imported(child, package, lazy)


def _is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


@functools.cache
def imports_of(module: str, path: Path, *, lazy: bool = True) -> set[str]:
    """Names that a module imports; each module is parsed once for all tests."""
    return imports(path.read_text(), module, is_package=path.name == "__init__.py", lazy=lazy)


def is_below(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def users_of(package: str) -> set[str]:
    """The shipped modules that import ``package`` or something below it."""
    return {module for module, path in sources() if any(is_below(name, package) for name in imports_of(module, path))}


def test_the_reader_of_imports_sees_them_all() -> None:
    text = """
import os.path, json
from typing import TYPE_CHECKING
from . import near
from ..up import thing
if TYPE_CHECKING:
    from heavy import Kind
class A:
    async def f(self):
        try:
            import torch.nn
        except ImportError:
            from fedquilt_server import cli
        else:
            import one
        finally:
            import two
        match self:
            case 1:
                import three
        for _ in self:
            pass
        else:
            with self:
                import four
        if self:
            pass
        elif self:
            import five
"""
    eager = {"os.path", "json", "typing.TYPE_CHECKING", "a.b.near", "a.up.thing"}
    hidden = {"torch.nn", "heavy.Kind", "fedquilt_server.cli", "one", "two", "three", "four", "five"}
    assert imports(text, "a.b.c") == eager | hidden
    assert imports(text, "a.b.c", lazy=False) == eager
    assert imports("from . import x", "a.b", is_package=True) == {"a.b.x"}
    names = {module for module, _ in sources()}
    assert {"fedquilt_common.algorithms.fedavg", "fedquilt_server.round.machine", "fedquilt_client.agent"} <= names


# Who may import whom, type-only imports included: each sub-package or top-level module of a side, and all that it
# may import from. A room that needs another one gets a line here, and the graph must stay free of cycles.
COMMON = {
    "errors": "",
    "address_text": "",
    "terminal": "",
    "terminal_text": "",
    "error_messages": "terminal_text",
    "plurals": "",
    "wide_tables": "terminal",
    "seeds": "",
    "stored_samples": "",
    "types": "stored_samples",
    "process": "",
    "augment": "errors types",
    "user_imports": "errors",
    "rejections": "user_imports",
    "files": "error_messages errors",
    "downloads": "address_text errors files",
    "wire": "address_text errors files rejections terminal_text types",
    "experiment": "errors files rejections types wire",
    "flood_control": "types wire",
    "submodels": "errors files types wire",
    "privacy": "algorithm_api errors experiment files types",
    "learning_tasks": "errors types",
    "partial_sums": "aggregation algorithm_api errors types wire",
    "secure_aggregation": "aggregation algorithm_api errors plurals types wire",
    "algorithm_api": "error_messages errors learning_tasks submodels types user_imports wire",
    "models": "errors types user_imports",
    "tracing": "errors experiment models plurals privacy seeds submodels user_imports",
    "training": (
        "algorithm_api augment errors experiment learning_tasks models privacy rejections seeds submodels tracing types"
    ),
    "aggregation": "algorithm_api errors learning_tasks process stored_samples submodels types wire",
    "datasets": (
        "algorithm_api downloads errors experiment files learning_tasks plurals seeds stored_samples types "
        "user_imports wire"
    ),
    "algorithms": "aggregation algorithm_api augment errors learning_tasks seeds submodels training types user_imports",
    "experiment_tools": (
        "algorithm_api algorithms datasets errors experiment learning_tasks models privacy seeds submodels tracing "
        "training types"
    ),
    "own_code": "errors experiment user_imports",
    "experiment_file": "algorithms datasets errors experiment files models rejections user_imports",
    "command_app": "",
    "catalogue": "algorithms command_app datasets errors models user_imports",
    "data_tools": (
        "address_text aggregation catalogue cli command_app datasets downloads errors experiment_file experiment_tools "
        "files learning_tasks plurals rejections terminal terminal_text types user_imports wire"
    ),
    "broker_options": "errors wire",
    "doctor": (
        "broker_options command_app errors experiment learning_tasks plurals terminal terminal_text training types wire"
    ),
    "private_memory": "types",
    "training_jobs": "files types wire",
    "worker_lines": "training_jobs",
    "completion": "",
    "cli": "completion error_messages errors process user_imports",
}
SERVER = {
    "round": "",
    "lab": "status",
    "status": "round",
    "history": "round status",
    "runs": "history lab round status",
    "coordinator": "history lab round runs status",
    "library": "history runs status",
    "web": "library runs status",
    "central": "history lab round runs status",
    "simulate": "runs status",
    "provisioning": "simulate",
    "ray_cluster": "provisioning runs simulate status",
    "fleet": "provisioning status",
    "watch": "fleet library runs status",
    "sinks": "status",
    "tools": "simulate status",
    "privacy_audit": "central lab runs status",
    "replay": "central coordinator lab round runs status",
    "sweep": "runs simulate status",
    "report": "library status sweep",
    "run_options": "status web",
    "simulate_cli": "ray_cluster run_options runs simulate sinks status web",
    "cli": "coordinator provisioning run_options runs sinks status web",
}


def room_of(module: str) -> str:
    """``fedquilt_common.wire.codec`` -> ``fedquilt_common.wire``."""
    return ".".join(module.split(".")[:2])


@functools.cache
def arrows() -> dict[str, set[str]]:
    """Every arrow between two rooms of the same side."""
    files, found = dict(sources()), dict[str, set[str]]()
    for module, path in files.items():
        for name in imports_of(module, path):
            target = next((part for part in prefixes(name) if part in files), module)
            side = module.split(".")[0]
            if room_of(target) != room_of(module) and target.startswith(f"{side}.") and module != side:
                found.setdefault(room_of(module), set()).add(room_of(target))
    return found


def prefixes(name: str) -> list[str]:
    """``a.b.c`` -> ``a.b.c``, ``a.b``, ``a``."""
    parts = name.split(".")
    return [".".join(parts[:length]) for length in range(len(parts), 0, -1)]


@pytest.mark.parametrize(("side", "allowed"), [("fedquilt_common", COMMON), ("fedquilt_server", SERVER)])
def test_rooms_import_what_the_plan_says_and_nothing_else(side: str, allowed: dict[str, str]) -> None:
    drawn = {f"{side}.{room}": {f"{side}.{to}" for to in line.split()} for room, line in allowed.items()}
    assert {room_of(module) for module, _ in sources() if module.startswith(f"{side}.")} == set(drawn)
    found = {room: targets for room, targets in arrows().items() if room.startswith(f"{side}.")}
    assert found == {room: targets for room, targets in drawn.items() if targets}


def test_rooms_form_no_cycle() -> None:
    waiting = arrows()
    while waiting:
        ground = {room for room, targets in waiting.items() if not targets & set(waiting)}
        assert ground, f"these rooms import each other in a circle: {sorted(waiting)}"
        waiting = {room: targets for room, targets in waiting.items() if room not in ground}


@pytest.mark.parametrize(
    ("side", "forbidden"),
    [
        ("fedquilt_common", ("fedquilt_server", "fedquilt_client")),
        ("fedquilt_server", ("fedquilt_client",)),
        ("fedquilt_client", ("fedquilt_server",)),
    ],
)
def test_the_sides_meet_in_common_only(side: str, forbidden: tuple[str, ...]) -> None:
    for other in forbidden:
        assert not {module for module in users_of(other) if is_below(module, side)}


def test_only_the_command_finds_the_other_side_by_name() -> None:
    """A text such as "fedquilt_server.cli" is an import in disguise."""
    found = set()
    for module, path in sources():
        mine, source = module.partition(".")[0], path.read_text()
        sides = {"fedquilt_server", "fedquilt_client"} - {mine}
        foreign = tuple(f"{side}." for side in sides if side in source)
        nodes = ast.walk(ast.parse(source)) if foreign else ()  # most files name no other side at all
        if any(isinstance(n, ast.Constant) and isinstance(n.value, str) and n.value.startswith(foreign) for n in nodes):
            found.add(module)
    assert found == {"fedquilt_common.cli", "fedquilt_common.training_jobs"}


def test_the_public_package_is_for_users_only() -> None:
    """It reaches common and the server, only when a name is used; no side imports it."""
    assert {user for user in users_of("fedquilt") if not is_below(user, "fedquilt")} == set()
    assert not {user for user in users_of("fedquilt_client") if is_below(user, "fedquilt")}
    eager = imports_of("fedquilt", PACKAGES["fedquilt"] / "__init__.py", lazy=False)
    assert {name for name in eager if name.startswith("fedquilt")} == {"fedquilt_common.__version__"}


def test_only_the_transport_knows_paho() -> None:
    assert users_of("paho") == {"fedquilt_common.wire.mqtt", "fedquilt_common.wire.mqtt_client"}


def test_only_one_module_knows_ray() -> None:
    assert users_of("ray") == {"fedquilt_server.ray_cluster.library"}


def test_only_what_trains_or_evaluates_knows_torch() -> None:
    users = users_of("torch") | users_of("opacus") | users_of("torchvision")
    users = {user for user in users if not is_below(user, "fedquilt")}  # it builds the model that a run has trained
    assert "fedquilt_common.training.learner" in users
    assert {user for user in users if not any(is_below(user, allowed) for allowed in TORCH_USERS)} == set()


def test_nobody_unpickles() -> None:
    assert {user for name in ("pickle", "dill", "cloudpickle", "joblib", "shelve") for user in users_of(name)} == set()


def test_the_machine_does_no_io() -> None:
    path = PACKAGES["fedquilt_server"] / "round" / "machine.py"
    assert {
        name for name in imports_of("fedquilt_server.round.machine", path) if name.split(".")[0] in IO_MODULES
    } == set()
    calls = {n.func.id for n in ast.walk(ast.parse(path.read_text()))
             if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}  # fmt: skip
    assert calls & IO_CALLS == set()


def test_nothing_below_the_machine_does_io_either() -> None:
    """What the machine imports of fedquilt, and what that imports when it is loaded."""
    files = dict(sources())
    seen: set[str] = set()
    waiting = ["fedquilt_server.round.machine"]
    while waiting:
        module = waiting.pop()
        if module in seen:
            continue
        seen.add(module)
        names = imports_of(module, files[module], lazy=False)
        assert {name for name in names if name.split(".")[0] in IO_MODULES} == set(), module
        waiting += [m for name in names for m in (name, name.rpartition(".")[0]) if m in files]
    assert {"fedquilt_server.round.events", "fedquilt_common.types"} <= seen


@each(sources, lambda module, path: module)
def test_no_file_is_too_long(module: str, path: Path) -> None:
    assert len(path.read_text().splitlines()) <= LONGEST_FILE


@each(sources, lambda module, path: module)
def test_each_class_variable_has_a_type_because_3_10_evaluates_no_bare_one(module: str, path: Path) -> None:
    if "ClassVar" in (text := path.read_text()):
        marks = [node.annotation for node in ast.walk(ast.parse(text)) if isinstance(node, ast.AnnAssign)]
        assert not [mark.lineno for mark in marks if ast.unparse(mark).endswith("ClassVar")]


FIRST = ("numpy", "paho.mqtt.client", "psutil", "rich", "typer", "yaml", "fedquilt_common.experiment.experiment")
HEAVY = ("torch", "sklearn", "scipy", "fastapi", "uvicorn", "fedquilt_server", "fedquilt_common.training.learner")
AGENTS = (
    "fedquilt", "fedquilt_client.agent", "fedquilt_client.cli", "fedquilt_client.relay_cli",
    "fedquilt_common.experiment.experiment",
)  # fmt: skip
COORDINATORS = ("fedquilt_server.cli", "fedquilt_server.simulate_cli")
PAGE = "fedquilt_server.web.app"
READER = f"""
import importlib, os, sys
for name in {FIRST!r}:
    importlib.import_module(name)
for module in {[*AGENTS, *COORDINATORS, PAGE]!r}:
    child = os.fork()
    if not child:
        importlib.import_module(module)
        print(module, *[name for name in {HEAVY!r} if name in sys.modules], flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, module
"""
"""Each module is imported by a process of its own, which begins with what nearly all of them import."""


@pytest.fixture(scope="module")
def loaded() -> dict[str, set[str]]:
    """Which of the heavy modules a process has that has imported one module."""
    done = subprocess.run([sys.executable, "-W", "error", "-c", READER], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return {module: set(heavy) for module, *heavy in map(str.split, done.stdout.splitlines())}


@pytest.mark.parametrize("module", AGENTS)
def test_an_idle_agent_loads_nothing_heavy(module: str, loaded: dict[str, set[str]]) -> None:
    assert loaded[module] == set()


@pytest.mark.parametrize("module", COORDINATORS)
def test_a_waiting_coordinator_has_not_loaded_torch(module: str, loaded: dict[str, set[str]]) -> None:
    assert not {"torch", "sklearn"} & loaded[module]


def test_simulate_leaves_the_page_to_the_coordinator(loaded: dict[str, set[str]]) -> None:
    """It starts the other processes sooner."""
    assert not {"fastapi", "uvicorn"} & loaded["fedquilt_server.simulate_cli"]


def test_what_is_loaded_would_be_seen(loaded: dict[str, set[str]]) -> None:
    assert loaded[PAGE] == {"fastapi", "uvicorn", "fedquilt_server"}
