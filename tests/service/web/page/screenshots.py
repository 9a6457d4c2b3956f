"""Takes screenshots of the page, with its samples.

python -m tests.service.web.page.screenshots                  # docs/page-classify.png and docs/page-road.png
python -m tests.service.web.page.screenshots --all --out DIR  # both tasks, light and dark, wide and narrow
"""

import argparse
import sys
from pathlib import Path
from typing import Literal

from playwright.sync_api import Browser

from tests.service.harness import REPOSITORY, RunningService
from tests.service.web.page.chromium import chromium

Scheme = Literal["light", "dark"]
SAMPLES = {"classify": "cat.png", "road": "road.jpg"}
RESULTS = {"classify": "#classification", "road": "#segmentation"}
WIDE, NARROW = (960, 760), (375, 760)
KINDS: dict[str, tuple[Scheme, tuple[int, int]]] = {
    "": ("light", WIDE),
    "-dark": ("dark", WIDE),
    "-narrow": ("light", NARROW),
    "-dark-narrow": ("dark", NARROW),
}


def shoot(browser: Browser, url: str, task: str, scheme: Scheme, size: tuple[int, int], path: Path) -> None:
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]},
        color_scheme=scheme,
        device_scale_factor=1.5,
    )
    page = context.new_page()
    page.goto(f"{url}/#{task}")
    for _ in range(2):  # the first request is slower than all others
        with page.expect_response(lambda response: response.request.method == "POST"):
            page.click(f"[data-sample='{SAMPLES[task]}']")
        page.wait_for_selector(f"body:not(.busy) {RESULTS[task]}")
    page.screenshot(path=path, full_page=True)
    context.close()
    print(path)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models-dir", type=Path, default=REPOSITORY / "models")
    parser.add_argument("--out", type=Path, default=REPOSITORY / "docs")
    parser.add_argument(
        "--all", action="store_true", help="every scheme and width, not the two of the README"
    )
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    kinds = {name: kind for name, kind in KINDS.items() if options.all or not name}
    running = RunningService(options.models_dir)
    try:
        with chromium() as browser:
            for task in SAMPLES:
                for name, (scheme, size) in kinds.items():
                    path = options.out / f"page-{task}{name}.png"
                    shoot(browser, running.url, task, scheme, size, path)
    finally:
        running.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
