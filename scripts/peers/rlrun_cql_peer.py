"""rlrun's side of scripts/compare_peers --offline: a run of `rlrun train algo=cql` from a data set of the same rows, which
a callback measures as the peers measure themselves."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import offline_common as common

from rlrun import Callback
from rlrun.core.specs import Box, EnvSpec
from rlrun.datasets.parquet_writer import Writer
from rlrun.datasets.trajectories import DataFacts, Trajectory

WAYS, SECONDS = ("1 thread",), "RLRUN_PEER_SECONDS"


def write(folder):
    """Writes common.episodes() as a data set."""
    spec = EnvSpec(
        name="rows",
        obs={"observation": Box(shape=(common.OBSERVATIONS,), dtype="float32", low=(-np.inf,), high=(np.inf,))},
        action=Box(shape=(common.ACTIONS,), dtype="float32", low=(-1.0,), high=(1.0,)),
    )
    writer = Writer(folder, DataFacts(spec=spec, record={}, policies=("random numbers",)))
    nothing, live = np.zeros(common.LENGTH, dtype=bool), np.arange(common.LENGTH) < common.LENGTH - 1
    cut = np.arange(common.LENGTH) == common.LENGTH - 2  # the last row only ends the trajectory
    for seen, action, reward in zip(*common.episodes(), strict=True):
        writer.write(Trajectory({"observation": seen}, action, np.where(live, reward, 0.0), nothing, cut, live, {}))
    writer.close()


class Watch(Callback):
    """Tells a Meter of every update, prints what it found, and asks the run to end."""

    def __init__(self):
        self.meter, self.shown = common.Meter(float(os.environ[SECONDS])), False

    def on_update(self, clock, metrics):
        if not self.shown and self.meter.over():
            self.shown = True
            self.meter.show({"threads": 1}, ["rlrun"])
            os.kill(os.getpid(), signal.SIGTERM)


def main():
    said = common.words(WAYS)
    hidden = str(common.NETS[said.algo]).replace(" ", "")
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, SECONDS: str(said.seconds), "PYTHONPATH": os.pathsep.join(paths)}
    with tempfile.TemporaryDirectory() as made:
        write(Path(made) / "set")
        words = [
            "algo=cql",
            f"data.path={Path(made) / 'set'}",
            f"algo.actor.hidden={hidden}",
            f"algo.critic.hidden={hidden}",
            f"algo.batch_size={common.BATCH}",
            f"algo.num_actions={common.SAMPLED}",
            "resources.learner_threads=1",
            "callbacks=[rlrun_cql_peer:Watch]",
            "env_steps=1e12",
            "checkpoint.every=null",
            "checkpoint.every_sec=null",
            "logger=[]",
            f"run_dir={Path(made) / 'run'}",
            *said.words,
        ]
        code = subprocess.run([sys.executable, "-m", "rlrun", "train", *words], env=env).returncode
        return 0 if code == 128 + signal.SIGTERM else code


if __name__ == "__main__":
    sys.exit(main())
