"""A Java for Spark, or one clear line that says what is missing."""

import os

import pytest

from rt.errors import Misuse
from rt.spark import java


def fake_java(home, version):
    """Put a `java` under `home` that says it is of `version`; return `home`."""
    path = home / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2020-01-01' >&2\n")
    path.chmod(0o755)
    return str(home)


@pytest.fixture
def bare(monkeypatch):
    """A machine without Java."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    return monkeypatch


def test_a_machine_without_java_gets_one_line(bare):
    """Spark itself says it in forty lines, the reason last."""
    with pytest.raises(Misuse, match="Spark needs Java 17 or newer, and there is none") as error:
        java.prepare()
    assert "\n" not in str(error.value)


def test_an_old_java_is_named_with_its_version_and_place(bare, tmp_path):
    """The user has one, so "no Java" would be a riddle."""
    bare.setenv("JAVA_HOME", fake_java(tmp_path / "old", "1.8.0_292"))
    with pytest.raises(Misuse, match=r"/old/bin/java is Java 8: install one"):
        java.prepare()


def test_a_java_of_java_home_is_taken_and_the_workers_run_this_python(bare, tmp_path):
    """A virtual environment need not be activated."""
    bare.setenv("JAVA_HOME", fake_java(tmp_path / "new", "21.0.1"))
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        bare.setenv(name, "")
        bare.delenv(name)
    java.prepare()
    assert os.environ["PYSPARK_PYTHON"] == java.sys.executable
