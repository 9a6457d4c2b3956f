# Training and export in one image: `docker run IMAGE fit ...`, `docker run IMAGE build ...`.
# pip's torch brings its own CUDA libraries, so this image too starts from slim Python.

FROM python:3.11-slim-trixie AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
RUN python -m venv /opt/quatserve
COPY pyproject.toml constraints.txt ./
RUN touch README.md LICENSE \
 && /opt/quatserve/bin/pip install --constraint constraints.txt ".[export]"
COPY README.md LICENSE ./
COPY quatserve quatserve
COPY training training
COPY export export
COPY service service
RUN /opt/quatserve/bin/pip install --no-deps --force-reinstall .

FROM python:3.11-slim-trixie
# torch.compile writes C++ and compiles it. Debian's g++ of this release is meant, whichever patch it has.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends g++ \
 && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/quatserve /opt/quatserve
# Caches go to /tmp, and the user may have no name: run with --user "$(id -u):$(id -g)" to own what is written.
ENV PATH=/opt/quatserve/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    HOME=/tmp \
    MPLCONFIGDIR=/tmp/matplotlib \
    TORCHINDUCTOR_CACHE_DIR=/tmp/inductor \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
# Relative paths in commands (data/, runs/, models/) are those of the mounted directory.
WORKDIR /work
USER 10001:10001
ENTRYPOINT ["quatserve"]
CMD ["--help"]
