"""The service with a classifier that misbehaves on command: by the first red value of an image."""

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from quatserve.service.app import create_app
from quatserve.service.commands import parse
from quatserve.service.engine.cuda.buckets import BucketSessions
from quatserve.service.engine.load import Model, load_model
from quatserve.service.engine.session import Session
from quatserve.service.imaging import decoder as decoding
from quatserve.service.imaging.images import upright_rgb
from quatserve.service.settings import Settings
from quatserve.service.telemetry import logs
from quatserve.service.web import server

RAISES, WRONG_SHAPE, HELD, ENDLESS, STUCK, BREAKS = 11, 22, 33, 44, 55, 66
COSTLY_WIDTH = 4_443  # there is no memory to decode an image of this width
ENDLESS_WIDTH = 4_444  # decoding an image of this width never ends
HOLD_FILE = "hold"  # HELD runs wait while models_dir has it; a version loads while its directory has it


class FaultySession:
    """Wraps the real session."""

    def __init__(self, session: Session | BucketSessions, hold: Path) -> None:
        self._session, self._hold, self._stop = session, hold, False
        self._broken = False
        self.provider = session.provider

    def run(self, images: NDArray[np.uint8]) -> NDArray[Any]:
        self._stop = False
        command = int(images[0, 0, 0, 0])
        self._broken |= command == BREAKS
        if command == RAISES or self._broken:
            raise RuntimeError("told to raise")
        if command == WRONG_SHAPE:
            return np.zeros((0, 3), np.float32)
        while command == HELD and self._hold.exists():
            time.sleep(0.005)
        while command in (ENDLESS, STUCK):
            time.sleep(0.01)
            if command == ENDLESS and self._stop:
                raise RuntimeError("told to terminate")
        return self._session.run(images)

    def terminate(self) -> None:
        self._stop = True


def decode(image: Image.Image) -> Image.Image:
    if image.width == COSTLY_WIDTH:
        np.empty((2**60,), np.uint8)  # raises a class of numpy's own
    while image.width == ENDLESS_WIDTH:
        time.sleep(0.01)
    return upright_rgb(image)


def load_faulty(directory: Path, settings: Settings) -> Model:
    model = load_model(directory, settings)
    while (directory / HOLD_FILE).exists():
        load_model(directory, settings)
    object.__setattr__(model, "session", FaultySession(model.session, settings.models_dir / HOLD_FILE))
    return model


if __name__ == "__main__":
    server.STUCK_NOTICE_S = 5.0  # for the tests to inspect the service, on a slow machine too
    decoding.upright_rgb = decode  # type: ignore[attr-defined]  # it is where it is called
    chosen = parse(sys.argv[1:])
    logs.configure(chosen.log_level, chosen.log_format)
    server.serve(create_app(chosen, on_stuck=server.exit_stuck, load=load_faulty), chosen)
