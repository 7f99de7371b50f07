# rlrun in a container, for a CPU or for CUDA; docs/docker.md says how it is built and used.
#   docker build -t rlrun .                                                   for a CPU
#   docker build -t rlrun:cuda --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu128 .
FROM python:3.11-slim

# PyTorch's own index: /cpu has packages without CUDA, and those of /cu128 bring CUDA's libraries along, so that the host
# needs a driver and the NVIDIA container toolkit only.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ARG EXTRAS=atari,video,box2d,mujoco,search

# swig and a compiler are for Box2D, which has no wheel for every processor; the GL libraries are for drawing.
RUN apt-get update \
    && apt-get install -y --no-install-recommends build-essential swig libgl1 libegl1 libglib2.0-0 \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/rlrun
COPY scripts/constraints.txt scripts/constraints.txt
RUN torch=$(grep '^torch==' scripts/constraints.txt) \
    && pip install --no-cache-dir --index-url "$TORCH_INDEX" --extra-index-url https://pypi.org/simple "$torch"
COPY pyproject.toml setup.py MANIFEST.in README.md LICENSE CHANGELOG.md CITATION.cff CONTRIBUTING.md ./
COPY conf conf
COPY tuned tuned
COPY rlrun rlrun
RUN pip install --no-cache-dir -c scripts/constraints.txt ".[$EXTRAS]" && rm -rf build

ENV MUJOCO_GL=egl MLFLOW_DISABLE_TELEMETRY=true
RUN useradd --create-home rlrun
USER rlrun
WORKDIR /home/rlrun
ENTRYPOINT ["rlrun"]
CMD ["--help"]
