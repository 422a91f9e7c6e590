"""The README's five minutes run as they are written: they are the first thing anyone does."""

import os
import re
import subprocess
import sys

import pytest

from tests.commands import PATIENCE_S, clean_environment

pytestmark = pytest.mark.process
README = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(__file__))), "README.md")


def tour():
    """Return the section of the five minutes."""
    with open(README, encoding="utf-8") as file:
        return re.search(r"^## Five minutes$(.*?)^## ", file.read(), re.MULTILINE | re.DOTALL)[1]


def commands():
    """Return its commands, as they are typed."""
    return re.findall(r"^    ((?:rt|seq|export)\b.*?)(?: +#.*)?$", tour(), re.MULTILINE)


def shell_environment():
    """Return an environment where `rt` is the one that is tested."""
    path = os.path.dirname(sys.executable)
    return clean_environment() | {"PATH": f"{path}{os.pathsep}{os.environ['PATH']}"}


class Shell:
    """A shell in an empty directory, whose jobs end with it."""

    def __init__(self, directory):
        """Start it; a job's output goes to a file, and only `rt up` is waited for."""
        self._process = subprocess.Popen(
            ["bash"], cwd=directory, env=shell_environment(), text=True, bufsize=1,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def run(self, command):
        """Run a command and return the lines it said; of a job, nothing."""
        if command.endswith("&"):
            command = f"{command.removesuffix('&')} >job 2>&1 & jobs+=($!)"
        self._process.stdin.write(f"{command}\necho ended:$?\n")
        lines = []
        while not (line := self._process.stdout.readline()).startswith("ended:"):
            assert line, f"the shell ended: {lines}"
            lines.append(line)
        assert line == "ended:0\n", f"{command}: {''.join(lines)}"
        return lines

    def close(self):
        """End the jobs, the last one first, and the shell; return its exit code."""
        self._process.stdin.write(
            "for ((i = ${#jobs[@]} - 1; i >= 0; i--)); do\n"
            "kill ${jobs[i]}; wait ${jobs[i]} || exit; done\n"
        )
        said, _ = self._process.communicate("exit\n", timeout=PATIENCE_S)
        return self._process.returncode, said


def test_the_five_minutes_run_as_they_are_written(tmp_path):
    """A newcomer types them in this order, into an empty directory."""
    shell, said = Shell(tmp_path), {}
    try:
        for command in commands():
            if command.startswith("rt up"):
                shell.run(command.removesuffix("&") + ">up 2>&1 & jobs+=($!)")
                shell.run(f"SECONDS=0; until grep -qs 'nodes up' up; do sleep 0.2; "
                          f"kill -0 $! && ((SECONDS < {PATIENCE_S})) || break; done")  # fmt: skip
                shell.run("cat up; grep -q 'nodes up' up")
            else:
                said[command] = shell.run(command)
    finally:
        ended = shell.close()
    assert ended == (0, "")
    assert [*said.values()][1] == ["999998\n", "999999\n", "1000000\n"]
    assert said["rt subscribe --count 3"][-3:] == ["1\n", "2\n", "3\n"]
    assert "3 of 3 nodes answer, quorum yes" in "".join(said["rt status"])


def test_the_python_of_the_five_minutes_prints_its_message(tmp_path):
    """It is copied before it is read."""
    [code] = re.findall(r"^```python\n(.*?)^```$", tour(), re.MULTILINE | re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=clean_environment(), capture_output=True,
        text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("0.0.0 0 b'AA1 departed'\n", "")


def test_every_document_that_is_named_is_there():
    """A link that leads nowhere is the first thing a visitor finds."""
    with open(README, encoding="utf-8") as file:
        links = re.findall(r"\]\(([^)#:]+)\)", file.read())
    assert len(links) > 5
    missing = [
        link for link in links if not os.path.exists(os.path.join(os.path.dirname(README), link))
    ]
    assert not missing
