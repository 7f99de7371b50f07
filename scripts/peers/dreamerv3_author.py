"""Writes tests/data/dreamerv3_author_<case>.npz: one update by the author's own code, which tests/algos/test_dreamerv3_author.py
compares with rlrun's.

    git clone https://github.com/danijar/dreamerv3 /tmp/author && git -C /tmp/author checkout e3f0224
    python -m venv /tmp/jax && /tmp/jax/bin/pip install jax ninjax elements optax einops chex portal granular scope cloudpickle
    PYTHONPATH=/tmp/author /tmp/jax/bin/python scripts/peers/dreamerv3_author.py tests/data

Networks are tiny, and products are made in float32. Random numbers are given: classes are drawn by the inverse of their
cumulative probabilities, choices by Gumbel's trick, and normal numbers are noise times deviation plus mean. Weights are
the author's initial ones with noise, so that none is 0. What is stored: weights before ("before/") and after ("after/")
the update under the author's names, the rows ("rows/"), the random numbers ("noise/"), and as results every part of the
loss, the whole, and the gradient's norm ("results/").
"""

import pathlib
import re
import sys

import elements
import embodied.jax.nets
import jax
import jax.numpy as jnp
import ninjax as nj
import numpy as np
import ruamel.yaml
from dreamerv3 import agent as authors
from embodied.jax import outs

COLUMNS, ROWS, STOCH, CLASSES, DETER, ACTIONS, OBS = 2, 5, 4, 3, 16, 3, 3
CASES = {"numbers": ROWS, "choices": ROWS, "last": 3}  # rows of each sequence, its last ones, at which dreams begin
CHANGES = {
    r".*\.rssm": {"deter": DETER, "hidden": 8, "classes": CLASSES, "stoch": STOCH, "blocks": 2},
    r".*\.units": 8,
    r".*\.bins": 15,
    "imag_length": 3,
    "horizon": 10,
    "opt": {"warmup": 0, "lr": 1e-3},
    "imag_loss": {"actent": 0.1},
    "retnorm": {"limit": 0.01},
}


def config_of(case):
    folder = pathlib.Path(authors.__file__).parent
    config = elements.Config(ruamel.yaml.YAML(typ="safe").load((folder / "configs.yaml").read_text())["defaults"]["agent"])
    config = config.update({**CHANGES, "imag_last": CASES[case]})
    # The author's policy of choices is not mixed with a uniform distribution, so the model's is not either.
    return config.update({"dyn.rssm.unimix": 0.0}) if case == "choices" else config


def rows_of(case, rng):
    first = np.zeros((COLUMNS, ROWS), bool)
    last, terminal = first.copy(), first.copy()
    last[0, 2], terminal[0, 2], first[0, 3] = True, True, True  # an end, and a beginning
    last[1, 1], first[1, 2] = True, True  # a time limit
    reward = rng.normal(size=(COLUMNS, ROWS)).astype(np.float32)
    reward[first] = 0.0
    if case == "choices":
        action = rng.integers(ACTIONS, size=(COLUMNS, ROWS)).astype(np.int32)
    else:
        action = (2.0 * rng.normal(size=(COLUMNS, ROWS, ACTIONS))).astype(np.float32)
    return {
        "obs": (3.0 * rng.normal(size=(COLUMNS, ROWS, OBS))).astype(np.float32),
        "reward": reward,
        "is_first": first,
        "is_last": last,
        "is_terminal": terminal,
        "prevact": action,
        "deter": rng.uniform(-0.5, 0.5, size=(COLUMNS, DETER)).astype(np.float32),
    }


def main():
    embodied.jax.nets.COMPUTE_DTYPE = jnp.float32
    for case in CASES:
        rng = np.random.default_rng(1)
        rows = rows_of(case, rng)
        starts = COLUMNS * CASES[case]
        noise = {
            "followed": rng.uniform(size=(COLUMNS, STOCH)).astype(np.float32),  # the same in every row
            "dreamt": rng.uniform(size=(starts, STOCH)).astype(np.float32),  # the same in every step
            "gumbel": rng.uniform(0.05, 0.95, size=(starts, ACTIONS)).astype(np.float32),
            "normal": rng.normal(size=(starts, ACTIONS)).astype(np.float32),
        }

        def category(self, seed, shape=(), noise=noise):
            if self.logits.ndim == 2:  # an action
                return jnp.argmax(self.logits - jnp.log(-jnp.log(noise["gumbel"])), -1)
            uniform = noise["followed" if len(self.logits) == COLUMNS else "dreamt"]
            ends = jnp.cumsum(jax.nn.softmax(self.logits, -1), -1)
            return (ends <= uniform[..., None] * ends[..., -1:]).sum(-1)

        def normal(self, seed, shape=(), noise=noise):
            return self.mean + self.stddev * noise["normal"]

        outs.Categorical.sample, outs.Normal.sample = category, normal
        space = {
            "obs": elements.Space(np.float32, (OBS,)),
            "reward": elements.Space(np.float32),
            **{name: elements.Space(bool) for name in ("is_first", "is_last", "is_terminal")},
        }
        act = elements.Space(np.int32, (), 0, ACTIONS) if case == "choices" else elements.Space(np.float32, (ACTIONS,), -1, 1)
        agent = object.__new__(authors.Agent)
        authors.Agent.__init__(agent, space, {"action": act}, config_of(case))
        stoch = np.zeros((COLUMNS, STOCH, CLASSES), np.float32)
        stoch[..., 0] = 1.0
        obs = {name: rows[name] for name in space}

        def update(agent=agent, stoch=stoch, obs=obs, rows=rows):
            carry = ({}, {"deter": jnp.array(rows["deter"]), "stoch": jnp.array(stoch)}, {})
            prevact = {"action": jnp.array(rows["prevact"])}
            metrics, (_, _, _, more) = agent.opt(agent.loss, carry, obs, prevact, training=True, has_aux=True)
            agent.slowval.update()
            return {**metrics, **more}

        state = nj.init(update)({}, seed=0)
        learnt = re.compile(r"^(dyn|enc|dec|rew|con|pol|val|slowval)/")
        before = {
            name: np.asarray(value) + rng.normal(scale=0.3, size=value.shape).astype(np.float32)
            for name, value in state.items()
            if learnt.match(name)
        }
        after, told = nj.pure(update)({**state, **before}, seed=0)
        results = {name.removeprefix("loss/"): told[name] for name in told if name.startswith("loss/")}
        results |= {"loss": told["opt/loss"], "grad_norm": told["opt/grad_norm"]}
        stored = {f"before/{name}": value for name, value in before.items()}
        stored |= {f"after/{name}": after[name] for name in before}
        stored |= {f"rows/{name}": value for name, value in rows.items()}
        stored |= {f"noise/{name}": value for name, value in noise.items()}
        stored |= {f"results/{name}": value for name, value in results.items()}
        folder = pathlib.Path(sys.argv[1])
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"dreamerv3_author_{case}.npz"
        np.savez_compressed(path, **{name: np.asarray(value) for name, value in stored.items()})
        print(path, path.stat().st_size, {name: float(value) for name, value in results.items()})
        for name, value in before.items():
            print("  ", name, value.shape)


if __name__ == "__main__":
    main()
