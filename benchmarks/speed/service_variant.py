"""`quatserve serve` with a part of ours replaced by the framework's: service_variant.py VARIANT [flags].

VARIANT is `fastapi` (every request passes through FastAPI, none by direct dispatch) or `uvicorn` (uvicorn's
HTTP protocol, without our bounds).
"""

import sys

from quatserve.service.app import create_app
from quatserve.service.commands import parse
from quatserve.service.telemetry import logs
from quatserve.service.web.server import Server, configuration

if __name__ == "__main__":
    variant, settings = sys.argv[1], parse(sys.argv[2:])
    logs.configure(settings.log_level, settings.log_format)
    app = create_app(settings, direct=variant != "fastapi")
    config = configuration(app, settings)
    if variant == "uvicorn":
        config.http = "httptools"
    Server(config, app, settings).run()
