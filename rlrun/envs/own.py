"""Registers rlrun's own environments with one agent."""

import rlrun.envs.bandits
import rlrun.envs.debug
import rlrun.envs.slates  # noqa: F401
