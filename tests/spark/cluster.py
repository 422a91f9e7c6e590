"""A Spark standalone cluster on this machine: a master and two workers, as processes."""

import os
import re
import signal
import subprocess
import sys
import sysconfig
import time
from contextlib import suppress

import pyspark

from rt.spark.launch import prepare

OURS = re.compile(
    r"(__editable__.*|.*\.pth|rt|rt[-_].*|replicator|sequencer|archiver|pyspark_rt|.*\bfinder.*)"
)


class Cluster:
    """A running cluster, with the Python that its executors run; sessions connect to `url`."""

    def __init__(self, directory, python):
        """Start the master, then the workers."""
        prepare()
        self.directory = str(directory)
        self._environment = {
            **without_our_code(),
            "SPARK_LOCAL_IP": "127.0.0.1",
            # the tests are about executors that die often
            "SPARK_MASTER_OPTS": "-Dspark.deploy.maxExecutorRetries=-1",
            "PYSPARK_PYTHON": python,
            "SPARK_WORKER_DIR": os.path.join(self.directory, "work"),
        }
        self._processes = []
        log = self._start("master", "master.Master", "--port", "0", "--webui-port", "0")
        self.url = _wait_for(log, r"Starting Spark master at (spark://\S+)")
        for name in ("one", "two"):
            limits = ("--cores", "1", "--memory", "1g", "--webui-port", "0")
            log = self._start(name, "worker.Worker", *limits, self.url)
            _wait_for(log, r"(Successfully registered)")

    def _start(self, name, kind, *arguments):
        log = os.path.join(self.directory, f"{name}.log")
        command = [
            os.path.join(os.path.dirname(pyspark.__file__), "bin", "spark-class"),
            f"org.apache.spark.deploy.{kind}", "--host", "127.0.0.1", *arguments,
        ]  # fmt: skip
        with open(log, "wb") as file:
            self._processes.append(
                subprocess.Popen(
                    command,
                    env=self._environment,
                    stdout=file,
                    stderr=file,
                    cwd=self.directory,
                    start_new_session=True,
                )
            )
        return log

    def executors(self):
        """Return the ids of the executor processes that run now."""
        workers = {str(process.pid) for process in self._processes[1:]}
        found = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            with suppress(OSError), open(f"/proc/{name}/stat", encoding="utf-8") as stat:
                parent = stat.read().rpartition(")")[2].split()[1]
                with open(f"/proc/{name}/cmdline", "rb") as line:
                    if parent in workers and b"CoarseGrainedExecutorBackend" in line.read():
                        found.append(int(name))
        return found

    def kill_executor(self, choose):
        """Kill one executor, if there is one; return whether there was."""
        running = self.executors()
        if not running:
            return False
        with suppress(ProcessLookupError):
            os.kill(choose(running), signal.SIGKILL)
        return True

    def stop(self):
        """End all processes that were started here."""
        for process in reversed(self._processes):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        for process in self._processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def without_our_code():
    """Return this process's environment without the paths by which Python finds rt."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def python_without_rt(directory):
    """Make an environment with rt's dependencies but without rt; return its Python."""
    base = os.path.join(str(directory), "bare")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", base], check=True)
    inside = sysconfig.get_path("purelib", vars={"base": base})
    # All of them, in search order: one may add others through a .pth file.
    for there in filter(os.path.isdir, map(os.path.abspath, sys.path)):
        if os.path.basename(there) == "site-packages":
            for name in os.listdir(there):
                if not OURS.fullmatch(name) and not os.path.lexists(os.path.join(inside, name)):
                    os.symlink(os.path.join(there, name), os.path.join(inside, name))
    return os.path.join(base, "bin", "python")


def _wait_for(log, pattern, timeout_s=60):
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        with open(log, encoding="utf-8", errors="replace") as file:
            match = re.search(pattern, text := file.read())
        if match:
            return match[1]
        time.sleep(0.1)
    raise TimeoutError(f"{log}: {text[-2000:]}")
