"""What pip would install: the pins, the closure of every extra, and the wheel."""

import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib import metadata
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.packaging.import_statements import PACKAGES, imports, modules
from tests.packaging.wheel import build_wheel

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# torch appends "+cpu" to its version; the pin must not, or no other index could satisfy it.
LOCAL_SUFFIX = re.compile(r"\+.*$")


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    found = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in found}


def closure(name: str, extras: set[str]) -> set[str]:
    """Everything that `pip install name[extras]` brings along here, read from the installed metadata."""
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = [(canonicalize_name(name), frozenset(extras))]
    while waiting:
        project, wanted = waiting.pop()
        if (project, wanted) in seen:
            continue
        seen.add((project, wanted))
        for text in metadata.requires(project) or []:
            requirement = Requirement(text)
            environments = [{"extra": extra} for extra in ("", *wanted)]
            if requirement.marker is None or any(map(requirement.marker.evaluate, environments)):
                waiting.append((canonicalize_name(requirement.name), frozenset(requirement.extras)))
    return {project for project, _ in seen} - {canonicalize_name(name)}


def required(extras: set[str]) -> set[str]:
    """What pyproject.toml asks for by name, the extras that an extra names included."""
    listed = [
        *PROJECT["dependencies"],
        *chain.from_iterable(map(PROJECT["optional-dependencies"].get, extras)),
    ]
    names: set[str] = set()
    for requirement in map(Requirement, listed):
        inner = requirement.extras if requirement.name == PROJECT["name"] else set()
        names |= required(inner) if inner else {canonicalize_name(requirement.name)}
    return names


def test_every_package_of_this_environment_is_the_pinned_one() -> None:
    pinned = pins()
    for project in sorted(closure("quatserve", {"dev"})):
        assert LOCAL_SUFFIX.sub("", metadata.version(project)) == pinned.get(project), project


def test_pins_name_no_local_build() -> None:
    assert [name for name, version in pins().items() if "+" in version] == []


def test_each_direct_requirement_admits_its_pin() -> None:
    listed = [*PROJECT["dependencies"], *chain.from_iterable(PROJECT["optional-dependencies"].values())]
    for requirement in map(Requirement, listed):
        if requirement.name != PROJECT["name"]:
            assert requirement.specifier.contains(pins()[canonicalize_name(requirement.name)]), requirement


def test_serving_installs_no_torch_and_one_runtime() -> None:
    served = closure("quatserve", {"cpu"})
    assert "onnxruntime" in served
    assert served.isdisjoint({"torch", "onnx", "onnxscript", "onnxruntime-gpu", "matplotlib", "h5py"})


def test_only_the_gpu_extra_installs_the_gpu_runtime() -> None:
    extras = PROJECT["optional-dependencies"]
    assert [name for name, listed in extras.items() if any("onnxruntime-gpu" in item for item in listed)] == [
        "gpu"
    ]
    assert not any("quatserve" in item and "gpu" in item for listed in extras.values() for item in listed)


@pytest.mark.parametrize(
    ("package", "extras"), [("service", {"cpu"}), ("training", {"training"}), ("export", {"export"})]
)
def test_what_a_package_imports_is_required_by_name(package: str, extras: set[str]) -> None:
    """Not only as the dependency of a dependency, which may drop it."""
    names = {
        name.partition(".")[0] for module, path in modules(ROOT, package) for name in imports(module, path)
    }
    owners = metadata.packages_distributions()
    third_party = names - {*sys.stdlib_module_names, "quatserve"}
    used = {canonicalize_name(owners.get(name, [name])[0]) for name in third_party}
    assert used - required(extras) == set()


def test_the_version_has_one_place() -> None:
    version = PROJECT["version"]
    assert metadata.version("quatserve") == version
    sources = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    assert [path.name for path in sources if re.search(r"__version__\s*=", path.read_text())] == []
    first = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert first is not None
    assert first[1] == version


def package_files(root: Path) -> set[str]:
    """What must be installed: code and the files of the page, but no documentation."""
    found = [path for package in PACKAGES for path in (root / package).rglob("*") if path.is_file()]
    found += [path for path in (root / "quatserve").iterdir() if path.is_file()]
    return {str(path.relative_to(root)) for path in found if path.suffix not in {".md", ".pyc"}}


def installed_name(file: str) -> str:
    return file if file.startswith("quatserve/") else f"quatserve/{file}"


def test_wheel_and_sdist_hold_one_name_with_real_files(tmp_path: Path) -> None:
    source = tmp_path / "source"  # a copy: building writes beside pyproject.toml
    for name in [*package_files(ROOT), "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"]:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes((ROOT / name).read_bytes())
    for package in PACKAGES:
        (source / "quatserve" / package).symlink_to(f"../{package}")
    (source / "service/web/page/icons").mkdir(parents=True, exist_ok=True)
    (source / "service/web/page/icons/road.svg").touch()  # data in a nested folder
    (source / "tests").mkdir()
    (source / "tests/test_models.py").touch()  # setuptools would take tests by their names
    build_wheel(source, tmp_path)
    expected = {installed_name(file) for file in package_files(source)}
    wheel = zipfile.ZipFile(next(tmp_path.glob("*.whl")))
    assert {name for name in wheel.namelist() if ".dist-info/" not in name} == expected

    build = "import sys; from setuptools.build_meta import build_sdist; build_sdist(sys.argv[1])"
    subprocess.run([sys.executable, "-c", build, tmp_path], cwd=source, check=True, capture_output=True)
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as sdist:
        files = {member.name.partition("/")[2]: member for member in sdist.getmembers()}
    assert all(files[name].isfile() for name in expected)
    others = {name.partition("/")[0] for name in files.keys() - expected if files[name].isfile()}
    made = {"MANIFEST.in", "PKG-INFO", "setup.cfg", "quatserve.egg-info"}
    assert others == made | {"pyproject.toml", "README.md", "LICENSE"}
