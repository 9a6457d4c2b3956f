"""`quatserve serve` without direct dispatch: every request passes through FastAPI."""

import sys

from quatserve.service.app import create_app
from quatserve.service.commands import parse
from quatserve.service.telemetry import logs
from quatserve.service.web.server import serve

if __name__ == "__main__":
    settings = parse(sys.argv[1:])
    logs.configure(settings.log_level, settings.log_format)
    serve(create_app(settings, direct=False), settings)
