"""What the private engine takes from Debian: a base system, and the compose plug-in of the next suite."""

import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

OS_RELEASE = Path("/etc/os-release")
APT = Path("/etc/apt")
NEXT = {"bookworm": "trixie"}  # whose own suite has no compose plug-in
PLUGIN = Path("usr/libexec/docker/cli-plugins/docker-compose")


def codename() -> str:
    found = re.search(r"^VERSION_CODENAME=(\S+)$", OS_RELEASE.read_text(), re.MULTILINE)
    assert found, "this is no Debian"
    return found[1]


def sources() -> Iterator[str]:
    """The stanzas of apt's configuration that name this suite itself, as deb822."""
    for file in sorted((APT / "sources.list.d").glob("*.sources")):
        for stanza in re.split(r"\n\s*\n", file.read_text()):
            if re.search(rf"^Suites:.*\b{codename()}(\s|$)", stanza, re.MULTILINE):
                yield stanza
    for file in (APT / "sources.list", *sorted((APT / "sources.list.d").glob("*.list"))):
        lines = file.read_text().splitlines() if file.exists() else []
        for line in lines:
            if found := re.match(rf"deb\s+(?:\[.*\]\s+)?(\S+)\s+{codename()}\s+(.+)$", line):
                yield f"Types: deb\nURIs: {found[1]}\nSuites: {codename()}\nComponents: {found[2]}\n"


def mirror() -> str:
    found = re.search(r"^URIs:\s*(\S+)", next(sources()), re.MULTILINE)
    assert found
    return found[1]


def bootstrap(target: Path, packages: Sequence[str]) -> None:
    """The smallest system of this machine's suite, with these packages, its own sources and no caches."""
    command = ["debootstrap", "--variant=minbase", f"--include={','.join(packages)}", codename()]
    subprocess.run([*command, str(target), mirror()], check=True, stdout=subprocess.DEVNULL)
    for cache in target.glob("var/cache/apt/archives/*.deb"):
        cache.unlink()


def compose_plugin(config: Path) -> Path:
    """A folder of Docker's configuration with the compose plug-in, fetched with an apt of its own."""
    plugin = config / "cli-plugins" / PLUGIN.name
    plugin.parent.mkdir(parents=True)
    parts, lists, cache, unpacked = (config / name for name in ("sources", "lists", "cache", "unpacked"))
    for folder in (parts, lists, cache):
        folder.mkdir()
    suite = NEXT.get(codename(), codename())
    stanza = re.sub(r"^Suites:.*$", f"Suites: {suite}", next(sources()), flags=re.MULTILINE)
    (parts / "next.sources").write_text(stanza)
    own = ["-o", "Dir::Etc::sourcelist=/dev/null", "-o", f"Dir::Etc::sourceparts={parts}"]
    own += ["-o", f"Dir::State::lists={lists}", "-o", f"Dir::Cache={cache}", "-o", "APT::Sandbox::User=root"]
    subprocess.run(["apt-get", *own, "-qq", "update"], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(
        ["apt-get", *own, "-qq", "download", "docker-compose"],
        check=True,
        cwd=config,
        stdout=subprocess.DEVNULL,
    )
    (package,) = config.glob("docker-compose_*.deb")
    subprocess.run(["dpkg-deb", "--extract", package, unpacked], check=True)
    (unpacked / PLUGIN).rename(plugin)
    return config
