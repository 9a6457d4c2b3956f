# The service, for a host with an NVIDIA GPU; `--build-arg RUNTIME=cpu` for one without.
#
# Slim Python with the CUDA libraries from pip, rather than an NVIDIA base image: constraints.txt then pins
# CUDA, cuDNN and onnxruntime side by side, `make check-gpu-install` installs exactly what is built here, the
# image holds only the libraries the runtime loads, and the GPU and CPU images differ in one argument.
# An NVIDIA base would bring a second, unpinned set and another distribution's Python. The driver is the
# host's in both cases (580 or newer), handed in by the NVIDIA container toolkit.

ARG RUNTIME=gpu

FROM python:3.11-slim-trixie AS build
ARG RUNTIME
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
RUN python -m venv /opt/quatserve
# Dependencies first, against a package that is still empty: gigabytes that only new pins make again.
COPY pyproject.toml constraints.txt ./
RUN touch README.md LICENSE \
 && /opt/quatserve/bin/pip install --constraint constraints.txt ".[${RUNTIME}]"
COPY README.md LICENSE ./
COPY quatserve quatserve
COPY service service
RUN /opt/quatserve/bin/pip install --no-deps --force-reinstall .

FROM python:3.11-slim-trixie AS runtime
COPY --from=build /opt/quatserve /opt/quatserve
# No bytecode is written: the root file system is meant to be mounted read-only.
ENV PATH=/opt/quatserve/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    QUATSERVE_HOST=0.0.0.0 \
    QUATSERVE_PORT=8000 \
    QUATSERVE_MODELS_DIR=/models
WORKDIR /
USER 10001:10001
EXPOSE 8000
STOPSIGNAL SIGTERM
# Ready, not merely alive. It raises on 503, so the exit code is the answer, and no curl is needed. An engine may put
# a proxy into every container's environment: this question is not for it.
HEALTHCHECK --interval=10s --timeout=5s --start-period=120s --retries=3 \
    CMD ["python", "-c", "from urllib.request import ProxyHandler, build_opener; build_opener(ProxyHandler({})).open('http://127.0.0.1:8000/readyz', timeout=4)"]
ENTRYPOINT ["quatserve", "serve"]

FROM runtime AS runtime-cpu
ENV QUATSERVE_DEVICE=cpu

# `cuda` refuses to start where it would have run on the CPU unnoticed. Which GPU is left to whoever starts the
# container; the toolkit refuses a driver older than this CUDA before there is one.
FROM runtime AS runtime-gpu
ENV QUATSERVE_DEVICE=cuda \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    NVIDIA_REQUIRE_CUDA=cuda>=13.0

# hadolint ignore=DL3006
FROM runtime-${RUNTIME}
