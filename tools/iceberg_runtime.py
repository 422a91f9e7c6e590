"""Have Spark's own runtime of Iceberg read a table of `rt export iceberg`, and compare.

    python tools/iceberg_runtime.py

The runtime is in a package for Spark 3.5, which lacks Iceberg's copy of Jackson; Spark's Jackson is
renamed to take its place. Both are installed into .venv/iceberg. Returns 1 if anything differs.
"""

import hashlib
import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any, Final

from rt.tables.export import ExportSettings, to_iceberg
from rt.tables.iceberg import local_catalog
from tests.spark.random_logs import random_log

HOME: Final = Path(__file__).parents[1] / ".venv" / "iceberg"
PACKAGES: Final = ("pyspark>=3.5,<3.6", "snowpark-connect-deps-iceberg==1.0.3")
JACKSON: Final = b"com/fasterxml/jackson"
SHADED: Final = b"org/apache/iceberg/shaded/" + JACKSON
WIDTHS: Final = {3: 5, 4: 5, 5: 9, 6: 9, 7: 3, 8: 3, 15: 4, 16: 3, 19: 3, 20: 3}  # the others: 5
COLUMNS: Final = ("stream", "position", "time_ns", "session", "seq", "number", "key", "payload")
# The program of the old Spark: SHA-256 of the sorted rows of each table.
READ: Final = """
import hashlib, json, sys
from pyspark.sql import SparkSession
jars, columns, *tables = sys.argv[1:]
builder = SparkSession.builder.master("local[2]").config("spark.jars", jars)
spark = builder.config("spark.ui.enabled", False).getOrCreate()
for table in tables:
    rows = spark.read.format("iceberg").load(table).select(columns.split(",")).collect()
    plain = [[v.hex() if isinstance(v, bytearray) else v for v in row] for row in rows]
    text = json.dumps(sorted(plain, key=json.dumps))
    print("found", len(rows), hashlib.sha256(text.encode()).hexdigest())
"""


def main() -> int:
    """Write tables of each partition, with files joined and replaced; compare what is read."""
    jars = ",".join(map(str, _installed()))
    with tempfile.TemporaryDirectory() as root:
        catalog = local_catalog(f"{root}/warehouse")
        locations, wanted = [], []
        for partition in ("none", "day", "session"):
            name = f"flights.{partition}"
            settings = ExportSettings(partition, include_active=True, target_bytes=4000)
            with random_log(f"{root}/{partition}", 7) as merging:
                to_iceberg(merging.directory, name, catalog, ExportSettings(partition))
                to_iceberg(merging.directory, name, catalog, settings)
            table = catalog.load_table(name)
            locations.append(table.metadata_location)
            wanted.append(_digest(table.scan(selected_fields=COLUMNS).to_arrow().to_pylist()))
        command = [HOME / "bin" / "python", "-c", READ, jars, ",".join(COLUMNS), *locations]
        told = subprocess.run(command, capture_output=True, text=True, check=False)
    found = [line for line in told.stdout.splitlines() if line.startswith("found ")]
    for location, ours, theirs in zip(locations, wanted, found or wanted, strict=False):
        sys.stdout.write(f"{Path(location).parts[-3]}: {ours}, the runtime {theirs}\n")
    if found != wanted:
        sys.stdout.write(f"FAILED {told.stderr[-2000:]}\n")
    return int(found != wanted)


def _digest(rows: list[dict[str, Any]]) -> str:
    plain = [
        [v.hex() if isinstance(v, bytes) else v for v in (row[each] for each in COLUMNS)]
        for row in rows
    ]
    text = json.dumps(sorted(plain, key=json.dumps))
    return f"found {len(rows)} {hashlib.sha256(text.encode()).hexdigest()}"


def _installed() -> list[Path]:
    """Install the packages once; return the runtime's jar, and that of the renamed Jackson."""
    python, shaded = HOME / "bin" / "python", HOME / "jackson.jar"
    if not shaded.exists():
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        for step in ([sys.executable, "-m", "venv", HOME], [*pip, *PACKAGES]):
            subprocess.run(step, check=True)
    (packages,) = HOME.glob("lib/python3*/site-packages")
    if not shaded.exists():
        names = ("core", "databind", "annotations")
        (core,), (bind,), (notes,) = (
            packages.glob(f"pyspark/jars/jackson-{each}-2*.jar") for each in names
        )
        with zipfile.ZipFile(shaded, "w") as jar:
            for each in (core, bind, notes):
                _shade(each, jar)
    return [*packages.glob("snowpark_connect_deps_iceberg/jars/*runtime-3.5_2.12*.jar"), shaded]


def _shade(source: Path, target: zipfile.ZipFile) -> None:
    with zipfile.ZipFile(source) as jar:
        for name in jar.namelist():
            if name.startswith(JACKSON.decode()) and name.endswith(".class"):
                target.writestr(_renamed(name.encode()).decode(), _renamed_class(jar.read(name)))


def _renamed_class(data: bytes) -> bytes:
    """Rename Jackson in the constants of a class."""
    count, place, number = int.from_bytes(data[8:10], "big"), 10, 1
    parts = [data[:10]]
    while number < count:
        tag, size = data[place], WIDTHS.get(data[place], 5)
        if tag == 1:  # a string, after its length
            size = 3 + int.from_bytes(data[place + 1 : place + 3], "big")
            text = _renamed(data[place + 3 : place + size])
            parts.append(b"\x01" + len(text).to_bytes(2, "big") + text)
        else:
            parts.append(data[place : place + size])
        place += size
        number += 2 if tag in (5, 6) else 1  # eight bytes count twice
    return b"".join(parts) + data[place:]


def _renamed(text: bytes) -> bytes:
    dotted = text.replace(JACKSON, SHADED)
    return dotted.replace(JACKSON.replace(b"/", b"."), SHADED.replace(b"/", b"."))


if __name__ == "__main__":
    raise SystemExit(main())
