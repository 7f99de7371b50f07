"""An environment whose observations are words: rlrun must refuse it with a sentence."""

import gymnasium


class Text(gymnasium.Env):
    observation_space = gymnasium.spaces.Text(5)
    action_space = gymnasium.spaces.Discrete(2)


gymnasium.register("Text-v0", entry_point=Text)
