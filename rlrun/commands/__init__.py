"""One file per subcommand of rlrun."""

COMMANDS = {
    "train": "algo=impala env=Pong, or tuned=impala/pong: train a policy",
    "sweep": "algo=ppo,impala env=Pong seed=1,2,3: train every combination, several at a time",
    "resume": "RUN_DIR [env_steps=...]: continue a run from its last checkpoint",
    "evaluate": "RUN_DIR [PLAYER ...] [episodes=10]: play full games with a policy, or between several",
    "record": "RUN_DIR [episodes=100]: record what a trained policy does, as data to learn from",
    "data": "PATH: show a data set: its returns, its size and where it is from",
    "estimate": "RUN_DIR data.path=DIR: estimate a policy's value from recorded episodes",
    "watch": "RUN_DIR [window=true]: write an mp4 and a gif of a trained policy, or open a window",
    "export": "RUN_DIR: write the trained policy as .pt2, .safetensors or .onnx, for programs without rlrun",
    "list": "algos, envs or tuned: list the names of one kind",
    "explain": "ALGO, GROUP or env=NAME: print what it is and every option",
    "check-env": "NAME [env.kwargs={...}]: find what is wrong with an environment of your own, and how to mend it",
    "benchmark": "throughput, growth, replay, cluster, reproduce-tables or tuned: measure speed or reproduce results",
    "sync": "RUN_DIR or SWEEP_DIR: send to MLflow what is missing there of a run or a sweep",
    "plot": "RUN_DIR ...: draw learning curves with their spread over seeds",
    "compare": "RUN_DIR RUN_DIR: show how two runs differ in options and results",
    "report": "RUN_DIR or SWEEP_DIR: write one HTML file about it",
    "import-rllib": "FILE.yaml: convert an RLlib tuned file to rlrun's format",
    "setup": "[EXTRA ...]: install extras, such as mujoco and box2d, or list them",
    "doctor": "show versions, cores, GPU, shared memory and optional packages",
}

# What other libraries, and people, call them.
ALSO_CALLED = {
    "train": ("run", "fit", "learn", "start"),
    "sweep": ("tune", "search", "grid", "multirun"),
    "resume": ("continue", "restore", "load"),
    "evaluate": ("eval", "rollout", "test", "score"),
    "watch": ("enjoy", "play", "render", "video", "visualize", "view", "show"),
    "check-env": ("check", "check_env", "validate"),
    "plot": ("curves", "plots"),
    "list": ("ls", "envs", "algos"),
    "setup": ("install",),
    "doctor": ("info", "versions", "env"),
    "benchmark": ("bench", "reproduce"),
}
