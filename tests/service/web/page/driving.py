"""Actions on a page, and readings from it."""

import base64
import io
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from playwright.sync_api import FilePayload, Page, expect

Task = Literal["classify", "road"]
TRANSFER = """([event, name, type, data]) => {
  const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
  const transfer = new DataTransfer();
  transfer.items.add(new File([bytes], name, { type }));
  const options = { bubbles: true, cancelable: true };
  dispatchEvent(event === "paste"
    ? new ClipboardEvent(event, { clipboardData: transfer, ...options })
    : new DragEvent(event, { dataTransfer: transfer, ...options }));
}"""


def choose(page: Page, data: bytes, name: str = "image.png") -> None:
    page.set_input_files("#file", FilePayload(name=name, mimeType="", buffer=data))


def bring(page: Page, event: Literal["drop", "paste", "dragenter"], data: bytes) -> None:
    """Drop a file on the page, or paste it."""
    page.evaluate(TRANSFER, [event, "image.png", "image/png", base64.b64encode(data).decode()])


def bars(page: Page) -> list[tuple[str, str]]:
    """(label, percentage) of each bar, once there is an answer."""
    expect(page.locator("#classification")).to_be_visible()
    rows = page.locator("#bars li").all()
    return [(row.locator(".label").inner_text(), row.locator(".value").inner_text()) for row in rows]


def canvas(page: Page) -> NDArray[np.uint8]:
    """The pixels of the road picture, [height, width, 3]."""
    address = page.locator("#canvas").evaluate("canvas => canvas.toDataURL()")  # a PNG is lossless
    return opened(base64.b64decode(address.partition(",")[2]))


def opened(data: bytes) -> NDArray[Any]:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def set_threshold(page: Page, value: float) -> None:
    page.locator("#threshold").fill(str(value))
