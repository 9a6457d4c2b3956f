"""How much of the session's own speed reaches the clients: raw onnxruntime, this service and LitServe.

    python benchmarks/serving.py                    # writes docs/serving.md, .png and .json
    python benchmarks/serving.py --only overload    # measures that again, and keeps the other sections

All take turns on the same cores with the same model and images, several rounds in one run; whoever is not
measured is stopped. Raw onnxruntime runs the same prepared input over and over with the session options of
the service. Needs wrk, and litserve with python-multipart, pillow and onnxruntime in some environment.
"""

import argparse
import contextlib
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

REPOSITORY = Path(__file__).parents[1]
sys.path.insert(0, str(REPOSITORY))

from benchmarks.speed import report  # noqa: E402
from benchmarks.speed.figures import Figures, machine  # noqa: E402
from benchmarks.speed.overload import overload  # noqa: E402
from benchmarks.speed.pictures import frame_files, prepared, small_files  # noqa: E402
from benchmarks.speed.raw import images_per_second, median_ms, model_file, raw_session  # noqa: E402
from benchmarks.speed.servers import Server, litserve, litserve_version, our_service  # noqa: E402
from benchmarks.speed.undisturbed import OTHERS_LIMIT, undisturbed  # noqa: E402
from benchmarks.speed.wrk import FORM, as_form, wrk  # noqa: E402
from quatserve.service.artifact import Precision, read_description  # noqa: E402
from quatserve.service.engine.versions import read_repository  # noqa: E402
from quatserve.service.settings import Settings  # noqa: E402

BATCH, CONNECTIONS, SEGMENT_CONNECTIONS = 32, 32, 4
PNG = "image/png"


def artifact(options: argparse.Namespace, name: str) -> Path:
    directory: Path = options.models_dir / name / str(read_repository(options.models_dir).versions[name][0])
    return directory


def rate(server: Server, path: str, bodies: list[bytes], kind: str, connections: int, seconds: int) -> float:
    """Requests a second."""
    with server.awake() as url:
        measure = partial(wrk, url + path, bodies, kind, connections, seconds)
        return undisturbed(lambda: measure().requests_per_second, [server.group])


def latency_ms(server: Server, path: str, bodies: list[bytes], kind: str, seconds: int) -> float:
    """The median of one connection."""
    with server.awake() as url:
        return undisturbed(lambda: wrk(url + path, bodies, kind, 1, seconds).median_ms, [server.group])


def classify(options: argparse.Namespace, precision: Precision) -> Figures:
    """One CIFAR image a request, by many connections and by one; LitServe beside it in fp32."""
    figures, files, seconds = Figures(), small_files(2 * BATCH), options.seconds
    directory = artifact(options, options.classifier)
    model, forms = model_file(directory, precision), [as_form(data) for data in files]
    if model is None:
        return figures
    session, batch = raw_session(model), prepared(files[:BATCH], read_description(directory))
    with contextlib.ExitStack() as stack:
        ours = stack.enter_context(our_service(directory, precision))
        compared = precision is Precision.FP32
        theirs = stack.enter_context(litserve(options.litserve_python, model, BATCH)) if compared else None
        for _ in range(options.rounds):
            figures.add("onnxruntime", undisturbed(lambda: images_per_second(session, batch, seconds)))
            figures.add("service, raw body", rate(ours, "/classify", files, PNG, CONNECTIONS, seconds))
            figures.add("service, form", rate(ours, "/classify", forms, FORM, CONNECTIONS, seconds))
            if theirs is not None:
                figures.add("LitServe, form", rate(theirs, "/predict", forms, FORM, CONNECTIONS, seconds))
            figures.add("onnxruntime, one image", undisturbed(lambda: median_ms(session, batch[:1], seconds)))
            figures.add("service, one connection", latency_ms(ours, "/classify", files, PNG, seconds))
    return figures


def segment(options: argparse.Namespace, precision: Precision) -> Figures:
    """Frames of full size, as PNG and as JPEG; onnxruntime alone has them at the network's size already."""
    figures, seconds = Figures(), options.seconds
    directory = artifact(options, options.segmenter)
    model = model_file(directory, precision)
    if model is None:
        return figures
    files = {kind: frame_files(kind) for kind in ("PNG", "JPEG")}
    session, frame = raw_session(model), prepared(files["PNG"][:1], read_description(directory))
    with our_service(directory, precision) as ours:
        for _ in range(options.rounds):
            figures.add("onnxruntime", undisturbed(lambda: images_per_second(session, frame, seconds)))
            for kind, bodies in files.items():
                mime = f"image/{kind.lower()}"
                found = rate(ours, "/segment", bodies, mime, SEGMENT_CONNECTIONS, seconds)
                figures.add(f"service, {kind}", found)
    return figures


def overloaded(options: argparse.Namespace) -> Figures:
    """Ten times as many connections as there is room for images."""
    figures, defaults, files = Figures(), Settings(), small_files(BATCH)
    connections = 10 * (defaults.queue_images + defaults.max_batch)
    directory = artifact(options, options.classifier)
    model = model_file(directory, Precision.FP32)
    assert model is not None  # every artifact has one
    session, batch = raw_session(model), prepared(files, read_description(directory))
    figures.add("batch, ms", undisturbed(lambda: median_ms(session, batch, options.seconds)))
    with our_service(directory, Precision.FP32) as ours, ours.awake():
        overload(ours.port, files[0], connections, options.seconds)  # so that memory has its size
        before = ours.resident_bytes()
        measure = partial(overload, ours.port, files[0], connections, options.overload_seconds)
        tally = undisturbed(measure, [ours.group])
        after = ours.resident_bytes()
    figures.add("connections", connections)
    figures.add("accepted", len(tally.accepted_ms))
    figures.add("refused", len(tally.refused_ms))
    figures.add("accepted p99, ms", float(np.percentile(tally.accepted_ms, 99)))
    figures.add("refused p99, ms", float(np.percentile(tally.refused_ms, 99)))
    figures.add("others", tally.others)
    figures.add("memory", after / before)
    return figures


SECTIONS: dict[str, Callable[[argparse.Namespace], Figures]] = {
    "classify fp32": lambda options: classify(options, Precision.FP32),
    "classify int8": lambda options: classify(options, Precision.INT8),
    "segment fp32": lambda options: segment(options, Precision.FP32),
    "segment int8": lambda options: segment(options, Precision.INT8),
    "overload": overloaded,
}


def how(known: dict[str, Any], sections: dict[str, Figures]) -> str:
    rounds = {key: len(next(iter(found.values.values()), [])) for key, found in sections.items()}
    lengths = ", ".join(
        f"{key} {count} x {known[key]['seconds']} s, sittings: {known[key]['sittings']}"
        for key, count in rounds.items()
        if count
    )
    litserve = known.get("classify fp32", {}).get("litserve", "")
    return (
        f"`python benchmarks/serving.py` on {machine()}; the servers and the load generator (wrk, one thread)"
        f" share them. Contenders alternate, in rounds ({lengths}); ratios and differences are taken round by"
        f" round. {CONNECTIONS} connections for /classify, {SEGMENT_CONNECTIONS} for /segment with frames of"
        " 1242 x 375. onnxruntime alone runs prepared input with the session options of the service (batches"
        f" of {BATCH}; single frames). The service's access log, on by default, is off. LitServe"
        f" {litserve} has those options too, one worker that decodes and runs, and waits up to 5 ms for a"
        f" batch. What was measured while other programs took more than {OTHERS_LIMIT} of a core was measured"
        " again. Every value is in `serving.json`."
    )


def arguments_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models-dir", type=Path, default=REPOSITORY / "models")
    parser.add_argument("--classifier", default="cifar10-quaternion", metavar="NAME")
    parser.add_argument("--segmenter", default="kitti-road-quaternion", metavar="NAME")
    what = f"measure these ({', '.join(SECTIONS)}), or none and write the report again"
    parser.add_argument("--only", nargs="*", default=list(SECTIONS), metavar="SECTION", help=what)
    parser.add_argument("--more", action="store_true", help="add to the rounds measured before")
    parser.add_argument("--seconds", type=int, default=5, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--overload-seconds", type=int, default=15)
    parser.add_argument("--litserve-python", default=sys.executable, help="an interpreter that has litserve")
    parser.add_argument("--out", type=Path, default=REPOSITORY / "docs")
    return parser


def main(arguments: list[str]) -> int:
    options = arguments_parser().parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    record: Path = options.out / "serving.json"
    known = json.loads(record.read_text()) if record.exists() else {}
    for name in options.only:
        print(name, flush=True)
        values, sittings = SECTIONS[name](options).values, 1
        if options.more and name in known:
            values = {key: known[name]["values"][key] + found for key, found in values.items()}
            sittings += known[name]["sittings"]
        seconds = options.overload_seconds if name == report.OVERLOAD else options.seconds
        known[name] = {"seconds": seconds, "sittings": sittings, "values": values}
        if "LitServe, form" in values:
            known[name]["litserve"] = litserve_version(options.litserve_python)
        record.write_text(json.dumps(known, indent=1) + "\n")
    sections = {name: Figures(known[name]["values"]) for name in SECTIONS if name in known}
    text = report.document(sections, how(known, sections))
    (options.out / "serving.md").write_text(text)
    report.plot(sections, options.out / "serving.png")
    print(text)
    return 0 if all(row.kept is not False for row in report.rows_of(sections)) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
