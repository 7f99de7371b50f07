"""Some of the tests that need a GPU, on one that a CPU emulates (tests/gpu/emulated)."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
# Each group is a run of pytest. A group has about as many seconds as tests.
GROUPS = {
    "updates": ("test_refusals or equals_the_cpus or (make_the_weights_of_plain_ones and (a2c or dqn or td3 or gru or r2d2)) or every_optimiser", 24),
    "runs": ("(training_runs and batched) or checkpoint_loads or (q_family and rainbow and batched) or page_locked or rows_on_a_gpu or with_filters or only_new_rows or (policy_gradient_family and appo and batched)", 10),
}  # fmt: skip


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.skipif(torch.version.cuda is not None, reason="this PyTorch has a CUDA of its own")
@pytest.mark.parametrize("group", GROUPS)
def test_on_an_emulated_gpu(group, tmp_path):
    chosen, least = GROUPS[group]
    folder = Path(importlib.util.find_spec("torch").origin).parent
    guard = tmp_path / "guard.so"
    subprocess.run(
        ["g++", "-std=c++20", "-fPIC", "-shared", f"-I{folder / 'include'}", str(HERE / "emulated" / "guard.cpp"), "-o", str(guard),
         f"-L{folder / 'lib'}", f"-Wl,-rpath,{folder / 'lib'}", "-lc10", "-ltorch_cpu"], check=True, timeout=120)  # fmt: skip
    environment = {**os.environ, "EMULATED_GUARD": str(guard), "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parents[1])])}
    command = [sys.executable, "-m", "pytest", "-p", "emulated.plugin", "-p", "no:cacheprovider", "-p", "no:xdist", "-o", "addopts=", "-q"]
    made = subprocess.run(
        [*command, str(HERE / "test_cuda.py"), str(HERE / "emulated"), "-k", chosen], env=environment, cwd=HERE.parents[1], capture_output=True, text=True, timeout=500
    )
    told = made.stdout[-5000:] + made.stderr[-2000:]
    assert made.returncode == 0, told
    passed, recordings = (int(re.search(pattern, made.stdout)[1]) for pattern in (r"(\d+) passed", r"(\d+) recordings"))
    assert passed >= least and recordings > 0, told
