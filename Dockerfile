# Two images, from an index of Python packages alone: `cpu` (the last stage, so the default) and `cuda`.
#
#   docker build -t pfleague .                        docker run --rm pfleague           # the demo
#   docker build -t pfleague:cuda --target cuda .     docker run --rm --gpus all pfleague:cuda run --grid ... --device cuda
#
# What is to be kept belongs in volumes: /home/bench/runs and, for data files, /home/bench/data.
#
# torch for Linux on x86-64 brings several GB of CUDA's libraries along. PyTorch's own index has one without them:
# --build-arg TORCH_INDEX=... with the address that its installation page gives for CPUs makes the small image.
# Another index for all packages is pip's own variable: --build-arg PIP_INDEX_URL=...
ARG PYTHON=3.11

FROM python:${PYTHON}-slim-bookworm AS build
ARG PIP_INDEX_URL
ARG TORCH_INDEX
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /source
RUN python -m venv /opt/pfleague
ENV PATH=/opt/pfleague/bin:$PATH
# The large packages first, in a layer that changes of the code leave as it is.
COPY constraints.txt ./
RUN pip install ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} -c constraints.txt torch torchvision
COPY . ./
RUN pip install -c constraints.txt setuptools \
    && pip install -c constraints.txt --no-build-isolation .

# The full Python image has the C compiler with which Triton compiles what starts its kernels; the GPU's driver is the host's.
FROM python:${PYTHON}-bookworm AS cuda
COPY --from=build /opt/pfleague /opt/pfleague
ENV PATH=/opt/pfleague/bin:$PATH
RUN useradd --create-home --uid 1000 bench && install -d -o bench -g bench /home/bench/runs /home/bench/data
USER 1000
WORKDIR /home/bench
ENTRYPOINT ["bench"]
CMD ["run", "--grid", "quickstart.yaml", "--out", "runs/quickstart"]

FROM python:${PYTHON}-slim-bookworm AS cpu
COPY --from=build /opt/pfleague /opt/pfleague
ENV PATH=/opt/pfleague/bin:$PATH
RUN useradd --create-home --uid 1000 bench && install -d -o bench -g bench /home/bench/runs /home/bench/data
USER 1000
WORKDIR /home/bench
ENTRYPOINT ["bench"]
CMD ["run", "--grid", "quickstart.yaml", "--out", "runs/quickstart"]
