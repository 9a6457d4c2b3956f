"""wrk, the load generator: one thread, bodies in turn, every answer a success."""

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

BOUNDARY = "benchmark-boundary"
FORM = f"multipart/form-data; boundary={BOUNDARY}"
LUA = """
local bodies, turn = {}, 0
for index = 1, %(count)d do
  local file = io.open("%(folder)s/" .. index, "rb"); bodies[index] = file:read("*a"); file:close()
end
wrk.method = "POST"; wrk.headers["Content-Type"] = "%(kind)s"
function request() turn = turn %% #bodies + 1; return wrk.format(nil, nil, nil, bodies[turn]) end
function done(summary, latency)
  local wrong = summary.errors.status + summary.errors.connect + summary.errors.read + summary.errors.timeout
  io.write(string.format("\\nRESULT %%f %%d %%f\\n",
    summary.requests / summary.duration * 1e6, wrong, latency:percentile(50) / 1e3))
end
"""


@dataclass(frozen=True)
class Load:
    requests_per_second: float
    median_ms: float


def as_form(image: bytes) -> bytes:
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="a.png"\r\n'
    return head.encode() + b"Content-Type: image/png\r\n\r\n" + image + f"\r\n--{BOUNDARY}--\r\n".encode()


def wrk(url: str, bodies: list[bytes], kind: str, connections: int, seconds: int) -> Load:
    with tempfile.TemporaryDirectory() as folder:
        for index, body in enumerate(bodies, 1):
            (Path(folder) / str(index)).write_bytes(body)
        script = Path(folder) / "load.lua"
        script.write_text(LUA % {"count": len(bodies), "folder": folder, "kind": kind})
        sizes = ["-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "20s"]
        command = ["wrk", *sizes, "-s", str(script), url]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"RESULT (\S+) (\d+) (\S+)", output)
    if found is None or found[2] != "0":
        raise SystemExit(f"{url}: some requests failed\n{output}")
    return Load(float(found[1]), float(found[3]))
