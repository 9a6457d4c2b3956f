"""A container engine in a scratch folder, for the time of one command: `private_engine.py COMMAND...`

It is Docker's daemon on a socket in that folder, with a base image that Debian's debootstrap makes: no
registry is asked. That image stands for the official Python image of the same name; it has another build of
Python, and the distribution of this machine. Afterwards the daemon, its containers, its networks and the
folder are gone. The daemon leaves the firewall alone: its proxy publishes ports, and builds share this
machine's network. It runs as root on Debian; what is missing there is an error, never a skip.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.compose import debian, pip_settings

ROOT = Path(__file__).parents[2]
PROGRAMS = ("dockerd", "docker", "debootstrap", "dpkg-deb", "prometheus")
STARTED_WITHIN_S, ENDED_WITHIN_S = 60, 60
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
PROMETHEUS = """
FROM {base}
COPY prometheus /bin/prometheus
RUN mkdir /prometheus && chown nobody /prometheus
USER nobody
WORKDIR /prometheus
ENTRYPOINT ["/bin/prometheus"]
CMD ["--config.file=/etc/prometheus/prometheus.yml", "--storage.tsdb.path=/prometheus"]
"""


def run(*command: object, **options: object) -> None:
    subprocess.run(list(map(str, command)), check=True, **options)  # type: ignore[call-overload]


@contextmanager
def daemon(scratch: Path) -> Iterator[str]:
    """Docker's daemon, until the end of the block; the address of its socket."""
    address, log = f"unix://{scratch}/docker.sock", scratch / "dockerd.log"
    command = ["dockerd", "--data-root", scratch / "data", "--exec-root", scratch / "exec"]
    command += ["--pidfile", scratch / "dockerd.pid", "--host", address, "--bridge=none"]
    command += ["--iptables=false", "--ip-forward=false"]
    with log.open("w") as stream:
        process = subprocess.Popen(list(map(str, command)), stdout=stream, stderr=stream)
    try:
        _await_daemon(process, address, log)
        yield address
    finally:
        process.send_signal(signal.SIGTERM)  # it stops its containers, and its own containerd
        try:
            process.wait(ENDED_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        _unmount_below(scratch)


def _await_daemon(process: "subprocess.Popen[bytes]", address: str, log: Path) -> None:
    end = time.monotonic() + STARTED_WITHIN_S
    while subprocess.run(["docker", "--host", address, "info"], capture_output=True).returncode:
        if process.poll() is not None or time.monotonic() > end:
            sys.exit(f"the engine does not start:\n{log.read_text()[-3000:]}")
        time.sleep(0.2)


def _unmount_below(scratch: Path) -> None:
    """What the daemon leaves mounted would make the folder undeletable."""
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for mount in sorted((m for m in mounts if m.startswith(f"{scratch}/")), reverse=True):
        subprocess.run(["umount", "--lazy", mount], check=False)


def base_names() -> set[str]:
    """The images that our Dockerfiles begin with."""
    text = "\n".join(file.read_text() for file in sorted((ROOT / "docker").glob("*.Dockerfile")))
    return set(re.findall(r"^FROM (\S+:\S+)", text, re.MULTILINE))


def import_base(scratch: Path, environment: Mapping[str, str], pip_configuration: str) -> None:
    """Debian with Python, under the names that the Dockerfiles ask for."""
    base = scratch / "base"
    base.mkdir()
    run("mount", "-t", "tmpfs", "tmpfs", base)  # dpkg waits for the disk after every file
    debian.bootstrap(base, ("python3", "python3-venv", "ca-certificates"))
    for name in ("python", "python3"):
        (base / "usr/local/bin" / name).symlink_to("/usr/bin/python3")
    if CERTIFICATES.exists():  # with an authority of this network, should there be one
        shutil.copy(CERTIFICATES, base / CERTIFICATES.relative_to("/"))
    (base / "etc/pip.conf").write_text(pip_configuration)
    archive = scratch / "base.tar"
    run("tar", "--create", "--file", archive, "--directory", base, ".")
    for name in sorted(base_names()):
        run("docker", "import", archive, name, env=environment, stdout=subprocess.DEVNULL)
    archive.unlink()
    run("umount", base)


def build_prometheus(scratch: Path, environment: Mapping[str, str]) -> None:
    """Debian's Prometheus under the name of the official image, with that image's user and arguments."""
    compose = (ROOT / "docker-compose.yml").read_text()
    (name,) = re.findall(r"image: (prom/prometheus:\S+)", compose)
    context = scratch / "prometheus"
    context.mkdir()
    shutil.copy(str(shutil.which("prometheus")), context)
    (context / "Dockerfile").write_text(PROMETHEUS.format(base=min(base_names())))
    run("docker", "build", "--quiet", "--tag", name, context, env=environment, stdout=subprocess.DEVNULL)


def main(command: Sequence[str]) -> int:
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing or os.geteuid() != 0:
        sys.exit(f"a private engine needs root and {', '.join(missing or PROGRAMS)}")
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="engine-")))
        address = stack.enter_context(daemon(scratch))
        environment = os.environ | {
            "DOCKER_HOST": address,
            "DOCKER_CONFIG": str(debian.compose_plugin(scratch / "config")),
            "DOCKER_BUILDKIT": "0",  # the builder inside the daemon: it takes the base image that is there
            "BUILD_NETWORK": "host",  # the daemon has no bridge for builds
        }
        begun = time.monotonic()
        import_base(scratch, environment, stack.enter_context(pip_settings.for_containers()))
        build_prometheus(scratch, environment)
        print(f"the private engine has its base image after {time.monotonic() - begun:.0f} s", flush=True)
        return subprocess.run(command, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
