"""An example of a package of one's own: an environment, a wrapper, an encoder, a distribution, a last layer, a callback, an
exploration and an algorithm, used by config alone.

cd tests/example
rlrun train algo=ppo env=my_rl:Corridor-v0 model.encoder=my_rl.models:Positions 'env.wrappers=[my_rl.envs:Hurry]' 'callbacks=[my_rl.callbacks:Best]'
rlrun train algo=ppo env=my_rl:Corridor-v0 'env.wrappers=[{name: my_rl.envs:Hurry, price: 0.1}]'
rlrun train algo=ppo env=Pendulum-v1 model.action_distribution=my_rl.distributions:Laplace model.value_head=my_rl.models:TwoLayers
rlrun train algo=ppo env=my_rl:Corridor-v0 algo.exploration.kind=my_rl.exploration:Sticky algo.exploration.kwargs.stay=0.5
rlrun train --trust --config-dir conf algo=clipped_pg env=my_rl:Corridor-v0
"""

import gymnasium

gymnasium.register("Corridor-v0", entry_point="my_rl.envs:Corridor", max_episode_steps=30)
