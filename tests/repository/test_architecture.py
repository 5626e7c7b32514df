"""The rooms of the house and who may know whom."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("preflight", "training", "calibration", "worker")
"""From the lowest up: each imports only itself and those before it."""
LAYERS = {
    "preflight": (
        "errors numbers packages statistics", "container contract files", "config pictures tuner",
        "object_store recognizer", "redis", "wire", "events launch queue", "client", "cli lightning transformers",
    ),
    "training": (
        "prediction system", "process", "group models", "data", "catalog", "importing",
        "artifacts optim", "step", "checkpoints", "loop", "distributed",
    ),
    "calibration": (
        "measure result space", "cache memory verdicts", "task", "races", "batch_advice worth", "acceptance", "search",
        "choose",
    ),
    "worker": (
        "client config wire", "broker imports models state", "events", "admission", "jobs", "features", "queue", "web",
        "cli",
    ),
}  # fmt: skip
"""Room -> its packages and modules from the lowest layer up: each imports only itself and those of lower layers."""
OUTSIDE = {"redis", "rq", "structlog", "click", "http", "socketserver", "urllib"}
"""What training and calibration know nothing of."""
READERS = {
    "preflight/cli/settings.py", "worker/config/settings.py",
    "preflight/cli/app.py",  # NO_COLOR and TERM, of the terminal
    "training/process/fork_server/main.py",  # it starts itself again
    "preflight/launch/run.py", "preflight/launch/site/sitecustomize.py",  # the environment of other people's commands
}  # fmt: skip
"""Modules that read the environment."""
BARE = {"container", "statistics", "tuner"}
"""Parts of `preflight` that run where nothing is installed: they need the standard library alone."""
HEAVY = {
    "torch", "torchvision", "numpy", "sklearn", "scipy", "safetensors", "fsspec", "s3fs", "mlflow", "tensorboard",
    "matplotlib", "jinja2", "markupsafe", "PIL", "onnx", "onnxruntime",
}  # fmt: skip
CHILD_SIDE = {
    "preflight/lightning.py", "preflight/transformers.py",
    "calibration/measure/benchmark.py", "calibration/measure/candidate.py",
    "training/checkpoints/checkpointer.py", "training/checkpoints/tensors.py",
    "training/data/augmentation/augment.py", "training/data/augmentation/colour.py",
    "training/data/augmentation/framing.py", "training/data/augmentation/image_ops.py",
    "training/data/batches.py", "training/data/counter_rng.py", "training/data/read_ahead.py",
    "training/data/loader.py",
    "training/distributed/elastic.py", "training/distributed/gloo.py",
    "training/distributed/gradients.py", "training/distributed/measuring.py", "training/distributed/mesh.py",
    "training/distributed/rank.py", "training/distributed/ranks.py", "training/distributed/rendezvous.py",
    "training/importing/building/choosing.py", "training/importing/building/decoded.py",
    "training/importing/building/duplicates.py", "training/importing/building/findings.py",
    "training/importing/building/splitting.py", "training/importing/building/store.py",
    "training/importing/decoding/arrays.py", "training/importing/decoding/child.py",
    "preflight/pictures/decoding.py", "training/importing/decoding/pixels.py",
    "training/importing/decoding/earlier.py", "training/importing/decoding/readers.py", "training/importing/rows.py",
    "training/loop/evaluate.py", "training/loop/progress.py", "training/step/train_step.py",
    "training/loop/trainer.py", "training/loop/window.py",
    "training/models/cnn.py", "training/models/ensemble.py", "training/models/factory.py",
    "training/models/layers.py", "training/models/resnet.py", "training/models/weight_gradients.py",
    "training/optim/factory.py", "training/optim/muon.py", "training/optim/untraced.py",
    "training/system/reference_workload.py",
    "worker/features/report/calibration.py", "worker/features/report/calibration_plots.py",
    "worker/features/report/page.py", "worker/features/report/plots.py", "worker/features/report/svg.py",
    "worker/features/report/templates/__init__.py", "worker/features/report/test_set.py",
}  # fmt: skip
"""Modules that only child processes import, and that may therefore import torch at module scope; and those that only
`preflight data add` imports, with numpy."""


def modules() -> list[str]:
    """Return the paths of all modules as Python finds them: `preflight/errors.py`."""
    rooms = [(located(room), Path(room)) for room in ROOMS]
    return [str(room / path.relative_to(folder)) for folder, room in rooms for path in sorted(folder.rglob("*.py"))]


def located(path: str) -> Path:
    """Return where a module or a room lies: `preflight` is a project of its own in the folder `client`."""
    return ROOT / "client" / path if path.partition("/")[0] == "preflight" else ROOT / path


def parsed(path: str) -> ast.Module:
    """Return a module's tree with its relative imports as absolute ones."""
    tree = ast.parse(located(path).read_text())
    package = path.removesuffix(".py").removesuffix("/__init__").split("/")
    if not path.endswith("__init__.py"):
        package.pop()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            above = package[: len(package) - node.level + 1]
            node.module, node.level = ".".join([*above, *([node.module] if node.module else [])]), 0
    return tree


def imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def module_scope(body: list[ast.stmt]) -> Iterator[str]:
    """Yield what is imported when a module is imported; type-checking blocks are not."""
    for node in body:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from imports(node)
        elif isinstance(node, ast.If | ast.Try | ast.With):
            yield from module_scope(node.body)


def part(module: str) -> tuple[str, str]:
    """Return the room of a module, and its package or module right below it; "" for the room itself."""
    room, _, rest = module.partition(".")
    return room, rest.partition(".")[0]


def targets(path: str) -> Iterator[str]:
    """Yield what a module imports when it runs; a name that is no module counts as a part of its module."""
    tree = parsed(path)
    guards = [node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)]
    for_types = {id(node) for guard in guards for node in ast.walk(guard)}
    for node in (node for node in ast.walk(tree) if id(node) not in for_types):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if is_module(name) else node.module for name in names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def is_module(name: str) -> bool:
    path = located(name.replace(".", "/"))
    return path.with_suffix(".py").exists() or path.is_dir()


def is_in_order(importer: tuple[str, str], imported: tuple[str, str]) -> bool:
    """Whether an arrow from one part to another points down, or stays inside."""
    if importer[0] != imported[0]:
        return ROOMS.index(importer[0]) > ROOMS.index(imported[0])
    room, own = importer
    if imported[1] in ("", own):
        return True
    layers = [layer.split() for layer in LAYERS[room]]
    height = {name: number for number, layer in enumerate(layers) for name in layer}
    return own == "" or height[own] > height[imported[1]]


@pytest.mark.parametrize("path", modules())
def test_imports_point_down(path: str) -> None:
    """No arrow up and none sideways, so no two packages import each other and no circle exists."""
    importer = part(path.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
    ours = [name for name in targets(path) if name.partition(".")[0] in ROOMS]
    assert [name for name in ours if not is_in_order(importer, part(name))] == []


@pytest.mark.parametrize("path", modules())
def test_nothing_imports_a_feature_but_the_list(path: str) -> None:
    """A feature imports what is below, and no other feature: its folder can be deleted."""
    features = {name.split(".")[2] for name in targets(path) if name.startswith("worker.features.")}
    allowed = {path.split("/")[2]} if path.startswith("worker/features/") else {"entries"}
    assert path == "worker/features/entries.py" or features <= allowed


@pytest.mark.parametrize("path", modules())
def test_training_and_calibration_do_not_know_the_outside(path: str) -> None:
    roots = {name.partition(".")[0] for name in imports(parsed(path))}
    if path.partition("/")[0] in ("training", "calibration"):
        assert not roots & OUTSIDE - ({"http", "urllib"} if path == "training/data/builtin/download.py" else set())


@pytest.mark.parametrize("path", [path for path in modules() if part(path.replace("/", "."))[1] in BARE])
def test_what_measures_a_container_needs_nothing_installed(path: str) -> None:
    """`preflight run` reads cgroups and compares step times inside other people's environments."""
    roots = {name.partition(".")[0] for name in imports(parsed(path))}
    assert not roots - sys.stdlib_module_names - {"preflight"} - ({"torch"} if "/tuner/" in path else set())
    assert all(part(name)[1] in BARE for name in targets(path) if name.startswith("preflight"))


@pytest.mark.parametrize("path", modules())
def test_heavy_packages_stay_out_of_module_scope(path: str) -> None:
    """Only modules of the child side import torch and its like when they are imported."""
    if path in CHILD_SIDE:
        pytest.skip("imported by child processes only")
    roots = {name.partition(".")[0] for name in module_scope(parsed(path).body)}
    assert not roots & HEAVY


@pytest.mark.parametrize("path", modules())
def test_only_the_settings_read_the_environment(path: str) -> None:
    names = {node.attr for node in ast.walk(parsed(path)) if isinstance(node, ast.Attribute)}
    if path in READERS:
        assert "environ" in names
    else:
        assert not names & {"environ", "getenv", "environb", "putenv"}


@pytest.mark.parametrize("path", modules())
def test_every_redis_key_is_in_one_file(path: str) -> None:
    assert ("preflight:{" in located(path).read_text()) == (path == "preflight/redis/keys.py")


def loaded(packages: set[str], program: str) -> list[str]:
    """Run a program in a new process; return which of the packages it has imported."""
    program = f"import sys; {program}; print(*sorted({packages!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_the_service_side_imports_no_torch() -> None:
    """Importing every module of worker, and what calibration and training run in the parent, loads nothing heavy."""
    paths = [path for path in modules() if path not in CHILD_SIDE and not path.endswith("__init__.py")]
    names = [".".join(Path(path).with_suffix("").parts) for path in paths]
    assert loaded(HEAVY, f"import {', '.join(names)}") == []


def test_help_needs_neither_torch_nor_rq() -> None:
    """`preflight --help` imports only what it prints with."""
    program = (
        "from click.testing import CliRunner; from preflight.cli.app import main;"
        "assert CliRunner().invoke(main, ['--help']).exit_code == 0"
    )
    assert loaded({"torch", "rq", "redis", "pydantic"}, program) == []


def test_the_client_needs_neither_torch_nor_a_worker() -> None:
    """`from preflight import Client` loads no torch, and rq and redis only when a client is made."""
    assert loaded({"torch", "numpy", "rq", "redis"}, "from preflight import Client") == []


CONNECTING = {"Redis", "StrictRedis", "AsyncRedis", "from_url", "from_pool", "ConnectionPool", "BlockingConnectionPool"}
"""What of redis-py opens connections, and the name by which its client for asyncio is imported."""


@pytest.mark.parametrize("path", modules())
def test_every_connection_to_redis_is_opened_in_one_file(path: str) -> None:
    """One that is opened otherwise would stay at a replica after a failover; a module below has the pools."""
    calls = [node.func for node in ast.walk(parsed(path)) if isinstance(node, ast.Call)]
    called = {func.attr for func in calls if isinstance(func, ast.Attribute)}
    called |= {func.id for func in calls if isinstance(func, ast.Name)}
    if path not in ("preflight/redis/connection.py", "preflight/redis/primary.py"):
        assert not called & CONNECTING
