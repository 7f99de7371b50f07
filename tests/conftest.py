"""What tests share: small configs, and a check that nothing is left behind."""

import atexit
import copy
import fcntl
import functools
import hashlib
import json
import multiprocessing
import os
import re
import shutil
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
# One folder for all processes of a test run, which the first one removes in the end.
os.environ.setdefault("RLRUN_TESTS_FIRST", str(os.getpid()))
if "RLRUN_TESTS" not in os.environ:
    os.environ["RLRUN_TESTS"] = tempfile.mkdtemp(prefix="rlrun-tests-")

# The key that signs runs is made there, and composed configs are kept there.
os.environ["XDG_CONFIG_HOME"] = tempfile.mkdtemp(dir=os.environ["RLRUN_TESTS"])
os.environ["RLRUN_TESTS_CONFIGS"] = os.path.join(os.environ["RLRUN_TESTS"], "configs")

import psutil
import pytest
import torch
import yaml

os.makedirs(os.environ["RLRUN_TESTS_CONFIGS"], exist_ok=True)
torch.set_num_threads(1)
if yaml.__with_libyaml__:  # its parser reads the same as Python's own, which takes a quarter of the time of configs' tests
    yaml.SafeLoader = yaml.CSafeLoader


@atexit.register
def remove_folder() -> None:
    if os.environ["RLRUN_TESTS_FIRST"] == str(os.getpid()):  # a copy of this process removes nothing
        shutil.rmtree(os.environ["RLRUN_TESTS"], ignore_errors=True)


SMALL = ["resources=debug", "algo.fragment_length=5", "algo.batch_size=20", "model.hidden=[8]", "logger=[]"]


def small(algo: str, kind: str) -> list[str]:
    """The command's words for an algorithm from tests/small: `tiny` for batches of 20 rows, `quick` for learning the identity environments."""
    options = yaml.safe_load((Path(__file__).parent / "small" / f"{algo}.yaml").read_text())
    return [f"algo={algo}", *options[kind]]


def same(a, b) -> bool:
    """Whether two parts of a checkpoint are equal to the bit, whatever tensors are inside of them."""
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return a == b


def optimizer_config(**options):
    """OptimizerConfig with Adam's defaults and no momentum; options replaces some of its fields."""
    from rlrun.core.optimizer import OptimizerConfig

    plain = {"kind": "adam", "epsilon": 1e-8, "decay": 0.99, "momentum": 0.0, "centered": False, "beta1": 0.9}
    plain |= {"beta2": 0.999, "weight_decay": 0.0, "max_grad_value": 0.0, "agc": 0.0, "warmup_updates": 0}
    return OptimizerConfig(**(plain | options))


def compose(*words: str) -> dict:
    """The plain config of `rlrun train words...`."""
    return copy.deepcopy(composed(words))


@functools.cache
def composed(words: tuple[str, ...]) -> dict:
    """Hydra composes each choice of groups once. Other words are set in what it made, as Hydra itself would do it."""
    from hydra._internal.config_loader_impl import ConfigLoaderImpl
    from omegaconf import OmegaConf

    from rlrun.config.types import plain

    chosen = tuple(word for word in words if chooses(word))
    rest = [parsed(word) for word in words if word not in chosen]
    config = OmegaConf.create(json.loads(of_groups(chosen)))
    OmegaConf.set_struct(config, True)
    ConfigLoaderImpl._apply_overrides_to_config(rest, config)
    return plain(config)


@functools.cache
def parsed(word: str):
    """A word as Hydra reads it. Many tests have the same words, and Hydra's grammar is slow."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    (made,) = OverridesParser.create().parse_overrides([word])
    return made


@functools.cache
def chooses(word: str) -> bool:
    """Whether a word chooses a file of a group, such as model=lstm, or adds or removes one."""
    from rlrun.config.paths import root

    key = word.partition("=")[0].lstrip("+~")
    return "/" in key or "@" in key or key == "tuned" or (root() / "conf" / key).is_dir()


ALONE = ("env", "resources", "logger")  # groups whose choices change the same parts of every config
PLAIN = ("algo=pg", "env=CartPole-v1")


@functools.cache
def of_groups(words: tuple[str, ...]) -> str:
    """The composed config as JSON. What a choice of a group in ALONE changes is found once, with the plainest config,
    so that Hydra need not compose every algorithm with every environment."""
    chosen = {word.partition("=")[0]: word for word in words}  # as with Hydra, the last choice of a group counts
    if "tuned" in chosen and not any(word.startswith(("+", "~")) for word in words):
        return of_tuned(chosen.pop("tuned").partition("=")[2], chosen)
    if "env" not in chosen or "tuned" in chosen:
        return by_hydra(words)
    rest = tuple(word for word in words if word.partition("=")[0] not in ALONE)
    made, plain = json.loads(by_hydra((*rest, PLAIN[1]))), json.loads(by_hydra(PLAIN))
    if (env := values_of_env(chosen["env"].partition("=")[2])) is not None:
        made["env"] = env
        del chosen["env"]
    for group in ALONE:
        if group in chosen:
            with_it = json.loads(by_hydra((PLAIN[0], *(() if group == "env" else PLAIN[1:]), chosen[group])))
            made |= {name: part for name, part in with_it.items() if part != plain[name]}
            made = {name: part for name, part in made.items() if name in with_it or name not in plain}
    return json.dumps(made)


def values_of_env(name: str) -> dict | None:
    """What env=name puts into a config, read from the source from which Hydra has it; None if that is a file of its own."""
    from omegaconf import OmegaConf

    from rlrun.config.hydra_plugins import SCHEME, EnvSource

    source = EnvSource(SCHEME, f"{SCHEME}://all")
    if EnvSource.family is not None or not source.is_config(f"env/{name}"):
        return None
    return OmegaConf.to_container(source.load_config(f"env/{name}").config, resolve=False)


def of_tuned(name: str, chosen: dict[str, str]) -> str:
    """The composed config of tuned=name as JSON: its choices of groups are composed like other words, unless chosen has
    another choice of that group, and its values are merged last, as Hydra does it."""
    from omegaconf import OmegaConf

    from rlrun.config.paths import root

    file = root() / "tuned" / f"{name}.yaml"
    assert file.read_text().startswith("# @package _global_\n"), f"{file} must begin with this line"
    values = OmegaConf.load(file)  # Hydra's way to read, with which 5e6 is a number
    choices = {}
    for ((key, choice),) in (line.items() for line in values.pop("defaults", [])):
        assert key.startswith("override /"), f"{file}: {key} is no choice of a group"
        group = key.removeprefix("override /")
        choices[group] = f"{group}={choice}"
    made = OmegaConf.create(json.loads(of_groups(tuple((choices | chosen).values()))))
    return json.dumps(OmegaConf.to_container(OmegaConf.merge(made, values), resolve=False))


@functools.cache
def by_hydra(words: tuple[str, ...]) -> str:
    """What Hydra composes of these words, as JSON. It takes 0.3 s of a processor each time, so that all processes of
    the tests share what it made."""
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from omegaconf import OmegaConf

    from rlrun.config.hydra_plugins import install
    from rlrun.config.paths import root

    file = Path(os.environ["RLRUN_TESTS_CONFIGS"]) / f"{hashlib.sha1(repr(words).encode()).hexdigest()}.json"
    if not file.exists():
        install()
        with initialize_config_dir(version_base="1.3", config_dir=str(root() / "conf")):
            made = OmegaConf.to_container(hydra_compose("train", overrides=list(words)), resolve=False)
        own = file.with_suffix(f".{os.getpid()}")
        own.write_text(json.dumps(made))
        own.replace(file)
    return file.read_text()


@pytest.fixture
def typed():
    from rlrun.config.run import type_config

    return lambda *words: type_config(compose(*words))


@pytest.fixture(autouse=True, scope="session")
def create_store():
    """The real function that creates an MLflow store, which takes seconds. All tests copy the empty store that the first
    of them has created, also in other processes of pytest, unless they set this function again."""
    from rlrun.loggers import mlflow

    real, first = mlflow._create, Path(os.environ["RLRUN_TESTS_CONFIGS"]) / "store.db"

    def copied(file: Path) -> None:
        if file.exists():
            return
        with first.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            real(first)  # does nothing where it is there
        new = file.with_name(f".{file.name}.new-{os.getpid()}")
        shutil.copyfile(first, new)
        os.replace(new, file)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mlflow, "_create", copied)
        yield real


@pytest.fixture(autouse=True)
def nothing_left_behind():
    """No child process and no /dev/shm entry survives a test."""
    before = in_shared_memory()
    yield
    assert multiprocessing.active_children() == []
    deadline = time.monotonic() + 5.0
    while left := in_shared_memory() - before:  # what another test process is about to remove is not ours
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def in_shared_memory() -> set[str]:
    """Names in /dev/shm whose maker is this process, or is gone: torch_<pid>_..., rlrun-ranks-<pid>-..."""
    found = set()
    for name in os.listdir("/dev/shm") if os.path.isdir("/dev/shm") else ():
        made = re.fullmatch(r"(?:torch_|rlrun-ranks-)(\d+)\W?_?.*", name)
        if made and (int(made[1]) == os.getpid() or not psutil.pid_exists(int(made[1]))):
            found.add(name)
    return found


@pytest.fixture
def written(tmp_path):
    """write(trajectories, facts, folder, **options of Writer) writes a data set and returns its folder."""
    from datasets_of_tests import facts as some

    from rlrun.datasets.parquet_writer import Writer

    def write(trajectories, facts=None, folder="set", **options):
        writer = Writer(tmp_path / folder, facts or some(), **options)
        for one in trajectories:
            writer.write(one)
        writer.close()
        return tmp_path / folder

    return write
