"""What a release needs holds together: versions, addresses, workflows, packages.

python tests/release.py            # files, and the crates as they would be packaged, without a network
python tests/release.py --wheel    # the built wheel, in a fresh environment; the source distribution
python tests/release.py --source   # a wheel built from the source distribution alone, in a fresh environment: minutes
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import runner
import yaml

ROOT = Path(__file__).parent.parent
CARGO = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]
CRATES = ["afterfit-core", "afterfit", "afterfit-cli"]
# What crates.io takes at most.
MOST_BYTES = 10_000_000


def text(name: str) -> str:
    return (ROOT / name).read_text()


def one_version(_: Path) -> None:
    citation = yaml.safe_load(text("CITATION.cff"))
    assert citation["version"] == citation["preferred-citation"]["version"] == CARGO["version"]
    assert re.search(rf"^## {re.escape(CARGO['version'])}$", text("CHANGELOG.md"), re.MULTILINE)
    paper = citation["references"][0]
    assert paper["year"] == 2020 and [one["family-names"] for one in paper["authors"]] == ["Wu", "Braverman", "Yang"]


def one_minimum_rust(_: Path) -> None:
    minimum = CARGO["rust-version"]
    assert f"rust-toolchain@{minimum}.0" in text(".github/workflows/test.yml")
    assert f"Rust {minimum}" in text("README.md") and f"Rust {minimum}" in text("crates/afterfit-py/README.md")


def one_address(_: Path) -> None:
    """Wherever the repository's address stands, it is the one of Cargo.toml."""
    owner = CARGO["repository"].rsplit("/", 1)[0]
    for name in (
        "README.md",
        "crates/afterfit/README.md",
        "crates/afterfit-py/README.md",
        "mkdocs.yml",
        "docs/site.py",
        "CITATION.cff",
        "crates/afterfit-py/pyproject.toml",
        ".github/ISSUE_TEMPLATE/config.yml",
    ):
        found = re.findall(r"https://github\.com/[\w-]+/afterfit", text(name))
        assert found and set(found) == {CARGO["repository"]}, (name, found)
        assert owner in text(name)
    for name in CRATES:
        package = tomllib.loads(text(f"crates/{name}/Cargo.toml"))["package"]
        assert package["repository"] == {"workspace": True} and name in package["documentation"]


def workflows(_: Path) -> None:
    """They parse, have jobs with steps, and what they make exists."""
    files = sorted((ROOT / ".github").glob("**/*.yml"))
    assert len(files) >= 9, files
    made = set()
    for file in files:
        content = yaml.safe_load(file.read_text())
        if file.parent.name != "workflows":
            assert content.get("name") or content.get("contact_links"), file
            continue
        assert True in content or "on" in content, f"{file}: no trigger"  # (YAML 1.1 reads the key `on` as true.)
        # (A job that needs more names it itself.)
        assert content["permissions"] == {"contents": "read"}, f"{file}: more rights than it needs"
        for name, job in content["jobs"].items():
            assert job["runs-on"] and job["steps"], (file, name)
            for step in job["steps"]:
                assert ("uses" in step) != ("run" in step), (file, name, step)
                assert "@" in step.get("uses", "@"), f"{file}: {step['uses']} names no version"
                made |= set(re.findall(r"^make ([a-z -]+)$", step.get("run", ""), re.MULTILINE))
    require_targets("workflows", {target for line in made for target in line.split()})


def require_targets(where: str, named: set[str]) -> None:
    targets = set(re.findall(r"^([a-z-]+):", text("Makefile"), re.MULTILINE))
    assert named and named <= targets, f"{where}: there is no make target {sorted(named - targets)}"


def make_targets(_: Path) -> None:
    """Those that documents name exist; each has a line in `make help`."""
    for name in ("CONTRIBUTING.md", "docs/release.md", ".ci/run", "README.md"):
        require_targets(name, set(re.findall(r"(?:^|`|\$ )make ([a-z-]+)", text(name), re.MULTILINE)))
    helped = subprocess.run(["make", "help"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    targets = set(re.findall(r"^([a-z-]+):(?!=)", text("Makefile"), re.MULTILINE))
    missing = {target for target in targets if not re.search(rf"^{target} ", helped, re.MULTILINE)}
    assert not missing, f"make help does not list {sorted(missing)}"


def container(_: Path) -> None:
    """Its command is this command: the parts that can be checked without an image."""
    steps = text("Containerfile")
    assert "afterfit man " in steps and "afterfit completions bash" in steps and "--locked" in steps
    copied = re.findall(r"^COPY (?!--)(.+) \S+$", steps, re.MULTILINE)
    assert all((ROOT / name).exists() for line in copied for name in line.split() if name != ".")


def crates(folder: Path) -> None:
    """The packages of the published crates: made without a network, small, with their license and README."""
    names = [part for name in CRATES for part in ("-p", name)]
    command = ["cargo", "package", "--offline", "--no-verify", "--allow-dirty", "--quiet", "--target-dir", str(folder), *names]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "warning" not in done.stderr, done.stderr
    for name in CRATES:
        package = folder / f"package/{name}-{CARGO['version']}.crate"
        assert package.stat().st_size < MOST_BYTES
        with tarfile.open(package) as archive:
            inside = {member.name.split("/", 1)[1]: member for member in archive.getmembers()}
            assert {"Cargo.toml", "LICENSE-MIT", "LICENSE-APACHE", "src/lib.rs"} <= set(inside), name
            # (Links would lead nowhere.)
            assert all(member.isfile() for member in inside.values()), name
            if name != "afterfit-core":
                file = archive.extractfile(inside["README.md"])
                # (With links that lead somewhere from there; tests/docs.py compares it with README.)
                assert file is not None and file.read().decode() == text("crates/afterfit/README.md")


def wheel(folder: Path) -> None:
    works_alone(ROOT / "target/wheels", folder)


def works_alone(wheels: Path, folder: Path) -> None:
    """Installed in an environment that has nothing but numpy: the module, the command, a fit."""
    built = list(wheels.glob("*.whl"))
    assert len(built) == 1, f"one wheel in {wheels}: {built}"
    names = {Path(name).name for name in zipfile.ZipFile(built[0]).namelist()}
    assert {"LICENSE-MIT", "LICENSE-APACHE"} <= names, names
    venv.create(folder / "fresh", with_pip=True)
    python = folder / "fresh" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    requirement = next(line for line in text("tests/requirements.txt").splitlines() if line.startswith("numpy=="))
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", requirement, built[0]]
    subprocess.run(pip, check=True)
    code = "import afterfit; print(afterfit.__version__, afterfit.plan(l2=(1e-4, 1.0), rate=0.1, steps=1000, params=10).nodes)"
    said = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True, cwd=folder).stdout.split()
    assert said[0] == CARGO["version"] and int(said[1]) > 3, said
    command = python.parent / "afterfit"
    (folder / "a.csv").write_text("\n".join(["x,y", *(f"{i},{2 * i + i % 3}" for i in range(30)), ""]))
    done = subprocess.run([command, "fit", "a.csv", "--target", "y"], check=True, capture_output=True, text=True, cwd=folder)
    assert "best λ" in done.stdout, done.stdout


MATURIN = Path(sys.executable).parent / "maturin"


def unpacked(folder: Path) -> Path:
    """The source distribution, made and unpacked."""
    manifest = ROOT / "crates/afterfit-py/Cargo.toml"
    subprocess.run([MATURIN, "sdist", "--manifest-path", manifest, "--out", folder], check=True, cwd=ROOT, capture_output=True)
    [archive] = folder.glob("*.tar.gz")
    with tarfile.open(archive) as content:
        content.extractall(folder, filter="data")
    [root] = [entry for entry in folder.iterdir() if entry.is_dir()]
    return root


def wheel_from_source(folder: Path) -> None:
    """What the source distribution has is enough to build the package: its wheel works alone."""
    (folder / "source").mkdir()
    root = unpacked(folder / "source")
    # (What was built from the repository must not count as built from these.)
    for path in root.rglob("*"):
        path.touch()
    # (Dependencies are those of the wheel that was built before; without a network.)
    shared = {**os.environ, "CARGO_TARGET_DIR": str(ROOT / "target"), "CARGO_NET_OFFLINE": "true"}
    # (That it can be built is the point, so its own crates are not optimized.)
    fast = [part for name in CRATES[:2] for part in ("--config", f"profile.dev.package.{name}.opt-level=0")]
    command = [MATURIN, "build", "--profile", "dev", *fast, "--compatibility", "linux", "--out", folder / "wheels"]
    done = subprocess.run(command, cwd=root, env=shared, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    works_alone(folder / "wheels", folder)


def source_distribution(folder: Path) -> None:
    """It has the whole of what the package is built from: cargo reads its workspace without a network."""
    root = unpacked(folder)
    inside = {str(path.relative_to(root)) for path in root.rglob("*")}
    assert {
        "PKG-INFO",
        "pyproject.toml",
        "LICENSE-MIT",
        "LICENSE-APACHE",
        "Cargo.lock",
        "crates/afterfit/src/dial.rs",
        "crates/afterfit-core/src/mass.rs",
    } <= inside
    [own] = [path for path in root.rglob("Cargo.toml") if path.parent.name == "afterfit-py"]
    reading = ["cargo", "metadata", "--offline", "--format-version", "1", "--manifest-path", own]
    done = subprocess.run(reading, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheel", action="store_true")
    parser.add_argument("--source", action="store_true")
    arguments = parser.parse_args()
    if arguments.source:
        runner.run([wheel_from_source])
    elif arguments.wheel:
        runner.run([wheel, source_distribution])
    else:
        runner.run([one_version, one_minimum_rust, one_address, workflows, make_targets, container, crates])
