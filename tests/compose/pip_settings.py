"""This machine's pip settings for containers on its network: indexes, certificates, wheels on its disk."""

import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

TAKEN = {"cert", "timeout", "index-url", "extra-index-url", "trusted-host", "find-links"}


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Log nothing."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The folder over HTTP, to this machine alone."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def for_containers() -> Iterator[str]:
    """A pip.conf; folders of wheels that pip finds on this disk are served while the block lasts."""
    listed = subprocess.run(["pip", "config", "list"], capture_output=True, text=True, check=True).stdout
    found: dict[str, dict[str, None]] = {}
    for line in listed.splitlines():
        name, _, value = line.partition("=")
        words = [word for word in value.strip("'\"").split() if not word.startswith("file:")]
        found.setdefault(name.rpartition(".")[2], {}).update(dict.fromkeys(words))
    with ExitStack() as stack:
        lines = ["[global]"]
        for name in TAKEN & found.keys():
            words = [
                stack.enter_context(served(Path(word)))
                if name == "find-links" and Path(word).is_dir()
                else word
                for word in found[name]
            ]
            lines += [f"{name} = {' '.join(words)}"] if words else []
        yield "\n".join(lines) + "\n"
