"""Environments with known answers, for tests, and those of RLlib's tuned examples."""

from __future__ import annotations

import gymnasium
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleEnv, CartPoleVectorEnv

from rlrun.envs import tasks


class Counting(gymnasium.Env):
    """An environment whose rows can be checked wherever they arrive.

    The observation is [episode number, step in the episode, first random number of the seed] and the reward is the step
    number. An episode ends after `length` steps; every second one is truncated, the others terminate.
    """

    def __init__(self, length: int = 7, fail_at: int = 0, fault: str = "raise", once: str | None = None):
        """once: a file that does not exist yet. The first environment that fails makes it, and no other fails."""
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(5)
        self.length, self.fail_at, self.fault, self.once = length, fail_at, fault, once
        self.episode, self.total = -1, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.step_number, self.tag = self.episode + 1, 0, float(self.np_random.integers(1000))
        return self._obs(), {}

    def _obs(self):
        return np.array([self.episode, self.step_number, self.tag], dtype=np.float32)

    def step(self, action):
        self.total += 1
        if self.total == self.fail_at and (self.once is None or _first(self.once)):
            if self.fault == "raise":
                raise RuntimeError("this env was told to fail")
            if self.fault == "kill":
                import os
                import signal

                os.kill(os.getpid(), signal.SIGKILL)
            if self.fault == "hang":
                import time

                time.sleep(3600)
            if self.fault == "not-finite":
                return np.full(3, np.nan, dtype=np.float32), 0.0, False, False, {}
            if self.fault == "too-large":
                return np.array([1e39, -1e39, 0.0]), 0.0, False, False, {}
            if self.fault == "no-number":
                return self._obs(), float("inf"), False, False, {}
            if self.fault == "other-shape":
                return self._obs()[:2], 0.0, False, False, {}
        self.step_number += 1
        over = self.step_number >= self.length
        return self._obs(), float(self.step_number), over and self.episode % 2 == 0, over and self.episode % 2 == 1, {}


def _first(path: str) -> bool:
    """Whether this is the first call with this path, among all processes."""
    try:
        open(path, "x").close()
    except FileExistsError:
        return False
    return True


class Faulty(gymnasium.Wrapper):
    """Lets an environment fail now and then, for tests of what a run survives:
    env.wrappers=[{name: rlrun.envs.debug:Faulty, raises: 0.0025, hangs: 0.0001}].

    Each option is the share of steps at which it happens: the environment raises, sleeps for ever, is killed, crashes
    by a segmentation fault, or ends its process without a word."""

    def __init__(
        self,
        env: gymnasium.Env,
        raises: float = 0.0,
        hangs: float = 0.0,
        killed: float = 0.0,
        crashes: float = 0.0,
        exits: float = 0.0,
        fails_to_reset: float = 0.0,
    ):
        super().__init__(env)
        self.shares = {"raise": raises, "hang": hangs, "kill": killed, "crash": crashes, "exit": exits}
        self.fails_to_reset, self.steps = fails_to_reset, 0
        self.rng = np.random.default_rng()

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        if self.rng.random() < self.fails_to_reset:
            raise RuntimeError(f"this env was told to fail in its reset after {self.steps} steps")
        return self.env.reset(seed=seed, options=options)

    def step(self, action):
        self.steps += 1
        drawn = self.rng.random()
        for fault, share in self.shares.items():
            if drawn < share:
                self._fail(fault)
            drawn -= share
        return self.env.step(action)

    def _fail(self, fault: str) -> None:
        import os
        import signal
        import time

        if fault == "raise":
            raise RuntimeError(f"this env was told to fail in its step {self.steps}")
        if fault == "hang":
            time.sleep(3600)
        if fault == "exit":
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL if fault == "kill" else signal.SIGSEGV)


class Identity(gymnasium.Env):
    """Shows one of n symbols and pays 1 for naming it. Every algorithm must solve it."""

    def __init__(self, n: int = 4, length: int = 20):
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (n,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(n)
        self.n, self.length = n, length

    def _obs(self):
        self.symbol = int(self.np_random.integers(self.n))
        return np.eye(self.n, dtype=np.float32)[self.symbol]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.step_number = 0
        return self._obs(), {}

    def step(self, action):
        reward = float(action == self.symbol)
        self.step_number += 1
        return self._obs(), reward, False, self.step_number >= self.length, {}


class IdentityBox(gymnasium.Env):
    """Shows a number in [-1, 1] and pays minus the squared distance of the action from it."""

    def __init__(self, length: int = 20, high: float = 1.0):
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1.0, high, (1,), np.float32)
        self.length = length

    def _obs(self):
        self.number = float(self.np_random.uniform(-1, 1))
        return np.array([self.number], dtype=np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.step_number = 0
        return self._obs(), {}

    def step(self, action):
        reward = -float((action[0] - self.number) ** 2)
        self.step_number += 1
        return self._obs(), reward, False, self.step_number >= self.length, {}


class IdentityImage(gymnasium.Env):
    """Shows a dark picture with one of n bright stripes, from left to right, and pays 1 for naming the stripe."""

    def __init__(self, height: int = 12, width: int = 16, channels: int = 3, n: int = 4, length: int = 20):
        self.shape = (height, width, channels)
        self.observation_space = gymnasium.spaces.Box(0, 255, self.shape, np.uint8)
        self.action_space = gymnasium.spaces.Discrete(n)
        self.n, self.length = n, length

    def _obs(self):
        self.stripe = int(self.np_random.integers(self.n))
        picture = np.zeros(self.shape, dtype=np.uint8)
        np.array_split(picture, self.n, axis=1)[self.stripe][:] = 255
        return picture

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.step_number = 0
        return self._obs(), {}

    def step(self, action):
        reward = float(action == self.stripe)
        self.step_number += 1
        return self._obs(), reward, False, self.step_number >= self.length, {}


class EverySpace(gymnasium.Env):
    """Nested observations and actions with parts of every kind of space; actions outside the space are an error.

    It pays for naming what is shown: 1 each for the choice, the switch and the pair, and minus the squared distance
    from the number, so that 3 is perfect.
    """

    def __init__(self, length: int = 20, image: bool = False):
        spaces = gymnasium.spaces
        self.length, self.image = length, image
        inner: dict[str, gymnasium.Space] = {
            "number": spaces.Box(-1.0, 1.0, (1,), np.float64),
            "flags": spaces.MultiBinary(2),
        }
        if image:
            inner["picture"] = spaces.Box(0, 255, (36, 36, 3), np.uint8)
        self.observation_space = spaces.Tuple(
            (spaces.Discrete(3, start=1), spaces.MultiDiscrete([2, 3]), spaces.Dict(inner))
        )
        pair = spaces.Dict({"pair": spaces.MultiDiscrete([2, 3], start=[0, 5]), "flags": spaces.MultiBinary(2)})
        self.action_space = spaces.Tuple((spaces.Discrete(3, start=1), spaces.Box(0.0, 4.0, (1,), np.float32), pair))

    def _obs(self):
        self.seen = self.observation_space.sample()
        return self.seen

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.step_number = 0
        return self._obs(), {}

    def step(self, action):
        if not self.action_space.contains(action):
            raise ValueError(f"{action} is not in {self.action_space}")
        choice, number, inner = action
        seen_choice, seen_pair, seen = self.seen
        right = [
            choice == seen_choice,
            (inner["flags"] == seen["flags"]).all(),
            (inner["pair"] - np.array([0, 5]) == seen_pair).all(),
        ]
        distance = float(number[0] / 2.0 - 1.0 - seen["number"][0])
        self.step_number += 1
        return self._obs(), float(sum(right)) - distance**2, False, self.step_number >= self.length, {}


class Masked(gymnasium.Env):
    """A mask leaves two of five actions, of which the higher one pays 1; an illegal action is an error.

    The mask of an episode's last observation has no legal action.
    """

    def __init__(self, length: int = 10, stuck: str = "never"):
        spaces = gymnasium.spaces
        self.observation_space = spaces.Dict(
            {"action_mask": spaces.Box(0, 1, (5,), np.int8), "step": spaces.Box(0.0, 1.0, (1,), np.float32)}
        )
        self.action_space = spaces.Discrete(5)
        self.length, self.stuck = length, stuck

    def _obs(self, over=False):
        self.legal = np.sort(self.np_random.choice(5, size=2, replace=False))
        mask = np.zeros(5, dtype=np.int8)
        if not over and self.stuck != "at once" and (self.stuck != "later" or self.step_number < 3):
            mask[self.legal] = 1
        return {"action_mask": mask, "step": np.array([self.step_number / self.length], dtype=np.float32)}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.step_number = 0
        return self._obs(), {}

    def step(self, action):
        if action not in self.legal:
            raise ValueError(f"{action} is illegal, {self.legal.tolist()} are legal")
        reward = float(action == self.legal[1])
        self.step_number += 1
        over = self.step_number >= self.length
        return self._obs(over), reward, over, False, {}


class RepeatAfterMe(gymnasium.Env):
    """Shows random bits over `length` rows; naming the bit of `delay` rows ago pays 1, the other one pays -1.

    This is RLlib's RepeatAfterMeEnv.
    """

    def __init__(self, delay: int = 1, length: int = 100):
        self.observation_space = self.action_space = gymnasium.spaces.Discrete(2)
        self.delay, self.length = delay, length

    def _obs(self):
        self.bits.append(int(self.np_random.integers(2)))
        return self.bits[-1]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.bits = [0] * self.delay
        return self._obs(), {}

    def step(self, action):
        reward = 1.0 if action == self.bits[-1 - self.delay] else -1.0
        over = len(self.bits) >= self.delay + self.length
        return self._obs(), reward, False, over, {}


class CorrelatedActions(gymnasium.Env):
    """Pays 1 for two equal choices (compare RLlib's CorrelatedActionsEnv).

    With an entropy bonus the best policy draws the first choice at random and repeats it, which a policy with
    independent parts cannot do.
    """

    def __init__(self, length: int = 20):
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,), np.float32)
        self.action_space = gymnasium.spaces.Tuple([gymnasium.spaces.Discrete(2), gymnasium.spaces.Discrete(2)])
        self.length = length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.step_number = 0
        return np.ones(1, np.float32), {}

    def step(self, action):
        self.step_number += 1
        return np.ones(1, np.float32), float(action[0] == action[1]), False, self.step_number >= self.length, {}


class ParametricActionsCartPole(gymnasium.Env):
    """CartPole whose two actions are in two of `slots` places, which change at every step.

    This is RLlib's ParametricActionsCartPole. `avail_actions` has an embedding of the action in each place, whose
    meaning must be learnt; the mask says which two places are filled.
    """

    MEANING = np.array([[0.6, -0.3], [-0.4, 0.8]], dtype=np.float32)  # embeddings of left and right; any two would do

    def __init__(self, slots: int = 10, **kwargs):
        spaces = gymnasium.spaces
        self.cart, self.slots = CartPoleEnv(**kwargs), slots
        self.action_space = spaces.Discrete(slots)
        self.observation_space = spaces.Dict(
            {
                "action_mask": spaces.Box(0, 1, (slots,), np.int8),
                "avail_actions": spaces.Box(-1.0, 1.0, (slots, 2), np.float32),
                "cart": self.cart.observation_space,
            }
        )

    def _obs(self, cart):
        self.places = self.np_random.choice(self.slots, size=2, replace=False)
        mask, meaning = np.zeros(self.slots, dtype=np.int8), np.zeros((self.slots, 2), dtype=np.float32)
        mask[self.places], meaning[self.places] = 1, self.MEANING
        return {"action_mask": mask, "avail_actions": meaning, "cart": cart}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        cart, info = self.cart.reset(seed=seed)
        return self._obs(cart), info

    def step(self, action):
        if action not in self.places:
            raise ValueError(f"{action} is illegal, {self.places.tolist()} are legal")
        cart, *rest = self.cart.step(int(action == self.places[1]))
        return self._obs(cart), *rest


_POSITIONS = [0, 2]  # indices of the cart position and the pole angle


class StatelessCartPole(gymnasium.ObservationWrapper):
    """CartPole without velocities (RLlib's StatelessCartPole)."""

    metadata = CartPoleEnv.metadata  # Gymnasium 1.3 looks at the class, where a wrapper has a property

    def __init__(self, **kwargs):
        super().__init__(CartPoleEnv(**kwargs))
        full = self.env.observation_space
        assert isinstance(full, gymnasium.spaces.Box)
        self.observation_space = gymnasium.spaces.Box(full.low[_POSITIONS], full.high[_POSITIONS], (2,), np.float32)

    def observation(self, observation):
        return observation[_POSITIONS]


class StatelessCartPoleVector(CartPoleVectorEnv):
    """StatelessCartPole as a vector environment."""

    def __init__(self, num_envs: int = 1, **kwargs):
        super().__init__(num_envs=num_envs, **kwargs)
        full = self.single_observation_space
        assert isinstance(full, gymnasium.spaces.Box)
        self.single_observation_space = gymnasium.spaces.Box(
            full.low[_POSITIONS], full.high[_POSITIONS], (2,), np.float32
        )
        self.observation_space = gymnasium.vector.utils.batch_space(self.single_observation_space, num_envs)

    def reset(self, *, seed=None, options=None):
        obs, info = super().reset(seed=seed, options=options)
        return obs[:, _POSITIONS], info

    def step(self, action):
        obs, *rest = super().step(action)
        return obs[:, _POSITIONS], *rest


def register() -> None:
    """Registers rlrun's ids with Gymnasium, once."""
    entries = ("Counting", "Identity", "IdentityBox", "IdentityImage", "EverySpace", "Masked", "RepeatAfterMe")
    for entry in (*entries, "CorrelatedActions"):
        if f"rlrun/{entry}-v0" not in gymnasium.registry:
            gymnasium.register(f"rlrun/{entry}-v0", entry_point=f"rlrun.envs.debug:{entry}")
    if "rlrun/Grouped-v0" not in gymnasium.registry:  # several agents as one
        gymnasium.register("rlrun/Grouped-v0", entry_point="rlrun.envs.grouped:Grouped")
    if "ParametricActionsCartPole-v0" not in gymnasium.registry:
        gymnasium.register("ParametricActionsCartPole-v0", entry_point=ParametricActionsCartPole, max_episode_steps=500)
    if "StatelessCartPole-v0" not in gymnasium.registry:
        gymnasium.register(
            "StatelessCartPole-v0",
            entry_point=StatelessCartPole,
            vector_entry_point=StatelessCartPoleVector,
            max_episode_steps=500,
        )
    puzzles = {"CartPoleSparse-v0": "sparse_cartpole", "Knapsack-v0": "knapsack", "BinPacking-v0": "bin_packing"}
    for name, maker in puzzles.items():
        if name not in gymnasium.registry:
            gymnasium.register(name, entry_point=f"rlrun.envs.puzzles:{maker}")
    tasks.register()


register()
