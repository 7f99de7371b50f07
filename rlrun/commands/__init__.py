"""One file per subcommand of rlrun."""

COMMANDS = {
    "train": "learn: algo=impala env=Pong, or tuned=impala/pong",
    "sweep": "algo=ppo,impala env=Pong seed=1,2,3: every combination, packed on this machine",
    "resume": "RUN_DIR [env_steps=...]: continue a run exactly",
    "evaluate": "RUN_DIR [episodes=10]: play full games with a trained policy",
    "watch": "RUN_DIR: an mp4 and a gif of a trained policy",
    "export": "RUN_DIR: the trained policy as .pt2, .safetensors or .onnx, for programs without rlrun",
    "list": "algos, envs or tuned",
    "explain": "ALGO: paper, what is recorded, every option",
    "benchmark": "throughput, growth, replay, reproduce-tables or tuned: speed, and results beside the published ones",
    "plot": "RUN_DIR ...: learning curves with their spread over seeds",
    "compare": "RUN_DIR RUN_DIR: what differs, and what came of it",
    "report": "RUN_DIR or SWEEP_DIR: one HTML file about it",
    "import-rllib": "FILE.yaml: RLlib's tuned file as rlrun's",
    "doctor": "versions, cores, GPU, shared memory, optional parts",
}
