"""Versions: which Spark is new enough."""

from rt.errors import Misuse


def check_version(version: str) -> None:
    """Refuse a Spark that does not check the order of a source's columns.

    Raises:
        Misuse: the version is too old.
    """
    if tuple(int(part) for part in version.split(".")[:2]) < (4, 2):
        raise Misuse(
            f"this is Spark {version}; rt needs PySpark 4.2 or newer, since older ones do not "
            "check the columns a source returns: pip install 'pyspark>=4.2'"
        )
