"""Cluster files: the configurations and certificates that make machines the nodes of a stream."""

import json
import os
import re
import secrets
import shutil
import socket
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain, repeat
from random import choice
from typing import Final

from rt.config.settings import FILE_BYTES_MAX as SETTINGS_BYTES_MAX
from rt.errors import Misuse
from rt.inspect.verify import LogState, open_log, verify_log
from rt.log.files.disk import OsDisk, make_private_directory, sync_directory
from rt.names import parse_peer, parse_stream, shown, stream_directory
from rt.net.addresses import PORT, parse_address
from rt.net.authority.certificates import (
    AUTHORITY,
    LOCAL_HOSTS,
    certificate_files,
    copy_authority,
    host_name,
    init_authority,
    is_cluster_id,
    issue,
    load_certificate,
    remember_cluster,
)
from rt.net.authority.files import read_file, write_file
from rt.net.authority.grants import GRANTS_NAME
from rt.net.authority.identity import CertificateRole, identity_of
from rt.net.authority.renewal import hosts_of
from rt.net.authority.succession import SUCCESSION_BYTES_MAX, one_line
from rt.net.authority.successions import own_path
from rt.node.founding.carried_state import read_carried
from rt.node.founding.from_copy import read_founding
from rt.node.founding.layout import HERE, ClusterLayout
from rt.position import FILE_BYTES_MAX
from sequencer.journal.identity import IDENTITY_NAME
from sequencer.journal.journal import REMOVED_NAME
from sequencer.raft.consensus import MEMBERS_ALLOWED

CLIENTS_NAME: Final = "clients.toml"
CERTS_NAME: Final = "certs"
_DRAFT: Final = ".making"  # holds a cluster's files until all are written
_NODES: Final = re.compile(r"^nodes = \[[^\]\n]*\]$", re.MULTILINE)  # as `_clients_toml` writes
_PORTS: Final = 20  # ports tried, from the usual one on, before any other
# Below the ports that Linux gives to outgoing connections, since such a connection could take the
# port of a node that is being restarted.
_OTHER_PORTS: Final = range(10_000, 32_000)


@dataclass(frozen=True, slots=True)
class Place:
    """Place: a node of a new cluster: its name, its address, and its configuration's path."""

    name: str
    address: str
    config: str


def init_cluster(
    directory: str,
    stream: str,
    addresses: Sequence[str],
    *,
    publishers: Sequence[str] = (),
    subscribers: Sequence[str] = (),
    sessions: Sequence[str] = (),
    leases: bool = False,
    founded: Sequence[str] = (),
    layout: ClusterLayout = HERE,
) -> list[Place]:
    """Write certificates and a configuration for each node of a new cluster.

    Args:
        directory: where `certs/`, `n1.toml`, `n2.toml`, ... and `clients.toml` are written; it must
            not hold a cluster yet.
        stream: the stream that the cluster serves.
        addresses: host:port of each node, as the others and the clients reach it.
        publishers: names that get a certificate each.
        subscribers: names that get a certificate each, and are granted the stream.
        sessions: globs granted to each publisher; if empty, only the session of its own name.
        leases: whether subscribers are granted leases.
        founded: lines of each node's configuration about the log it is founded from, if any.
        layout: names and paths of the nodes, and the authority.

    Raises:
        Misuse: not 1, 3, 5 or 7 addresses, an unusable name, or a cluster exists already.
    """
    parse_stream(stream)
    _check_addresses(addresses, layout.root)
    names = layout.node_names(len(addresses))
    _check_names([*publishers, *subscribers], names)
    certs = os.path.join(directory, CERTS_NAME)
    _demand_new(directory, certs)
    places = [
        Place(name, address, os.path.join(directory, f"{name}.toml"))
        for name, address in zip(names, addresses, strict=True)
    ]
    make_private_directory(directory)
    with _drafted(directory) as draft:
        pki = os.path.join(draft, CERTS_NAME)
        if layout.authority:
            copy_authority(layout.authority, pki)
            if layout.grants:
                known = read_file(layout.grants, SETTINGS_BYTES_MAX)
                write_file(os.path.join(pki, GRANTS_NAME), known, force=True)
            if layout.succession:
                word = read_file(layout.succession, SUCCESSION_BYTES_MAX)
                ca = certificate_files(pki, AUTHORITY).ca
                write_file(own_path(ca, stream), one_line(word), force=True)
        else:
            init_authority(pki)
        _write_nodes(draft, stream, places, layout, founded)
        for name in publishers:
            issue(pki, name, CertificateRole.PUBLISHER, sessions=sessions)
        for name in subscribers:
            issue(pki, name, CertificateRole.SUBSCRIBER, streams=(stream,), leases=leases)
        issue(pki, "operator", CertificateRole.OPERATOR)
        identities = {
            "push": (*publishers, "publisher")[0], "archive": "operator",
            "session": "operator",
            "": (*subscribers, "operator")[0], "pull": (*subscribers, "subscriber")[0],
        }  # fmt: skip
        with open(os.path.join(draft, CLIENTS_NAME), "x", encoding="utf-8") as file:
            file.write(_clients_toml(certs, stream, addresses, identities))
    return places


def is_half_made(directory: str) -> bool:
    """Whether `init_cluster` was killed in this directory before it had made a cluster."""
    made = os.path.exists(os.path.join(directory, CERTS_NAME))
    return not made and os.path.exists(os.path.join(directory, _DRAFT))


@contextmanager
def _drafted(directory: str) -> Iterator[str]:
    """Yield a draft directory for a cluster's files; afterwards move them out, certificates last.

    The cluster exists once its certificates are in place.
    """
    draft = os.path.join(directory, _DRAFT)
    _remove_draft(directory, draft)
    make_private_directory(draft)
    try:
        yield draft
        for name in os.listdir(draft):
            if name != CERTS_NAME:
                os.link(os.path.join(draft, name), os.path.join(directory, name))
        os.rename(os.path.join(draft, CERTS_NAME), os.path.join(directory, CERTS_NAME))
        sync_directory(directory)
        _remove_draft(directory, draft)
    except BaseException:
        _remove_draft(directory, draft)
        with suppress(OSError):
            os.rmdir(directory)  # if nothing else is there
        raise


def _remove_draft(directory: str, draft: str) -> None:
    """Remove the files of an unfinished draft; other files with the same names stay."""
    is_made = not os.path.exists(os.path.join(draft, CERTS_NAME))
    for name in OsDisk().names(draft) if not is_made else ():
        path = os.path.join(directory, name)
        if os.path.isfile(path) and os.path.samefile(path, os.path.join(draft, name)):
            os.unlink(path)
    shutil.rmtree(draft, ignore_errors=True)


def founding_lines(
    log: str, stream: str, groups: Sequence[str], state: str = "", *, log_id: str = ""
) -> list[str]:
    """Return the configuration lines that say from which log a node's cluster is founded.

    The whole log is read and checked first.

    Args:
        log: the directory of a merged log.
        stream: the stream of the cluster and of the log.
        groups: each as `GROUP=SESSION,SESSION`.
        state: the file of the state that a standby carried; "" if there is none.
        log_id: the id of the new cluster's log; "" for a new id. If it is the id of `log`, existing
            copies of that log continue; use that id only if the old cluster can merge nothing more.

    Raises:
        Misuse: the directory is not a merged log of the stream, a file is missing, or the log is
            inconsistent.
        CorruptLog: the log is damaged.
    """
    carried = read_carried(state) if state else None
    founding = read_founding(log, groups, FILE_BYTES_MAX, carried)
    if founding.stream != stream:
        raise Misuse(f"{log} is of stream {founding.stream}; found that with --stream")
    report = verify_log(open_log(log), lambda _size: None)
    # A torn end is left out if all of the state that was read from the headers precedes it; an
    # earlier one is damage.
    torn = [each for each in report.files if each.state is LogState.TORN]
    if report.is_wrong or any(each.end < founding.ledger.end for each in torn):
        raise Misuse(f"{log} is not whole; rt verify {log} says what is wrong with it")
    listed = ", ".join(_quoted(each) for each in groups)
    lines = [f"founded_state = {_quoted(os.path.abspath(state))}"] if state else []
    if log_id:
        lines.append(_log_line(log_id).rstrip())
    return [
        *lines,
        f"founded_from = {_quoted(os.path.abspath(log))}",
        f'founded_at = "{founding.fingerprint}"',
        f"founded_groups = [{listed}]",
    ]


def _write_nodes(
    draft: str,
    stream: str,
    places: Sequence[Place],
    layout: ClusterLayout,
    founded: Sequence[str],
) -> None:
    """Write the certificate and the configuration of each node."""
    certs, cluster_id = os.path.join(draft, CERTS_NAME), secrets.token_hex(16)
    directory = os.path.dirname(places[0].config)
    if len(places) > 1:  # a node alone has no id
        remember_cluster(certs, cluster_id)
    for place in places:
        hosts = tuple(dict.fromkeys((parse_address(place.address)[0], *LOCAL_HOSTS)))
        issue(certs, place.name, CertificateRole.NODE, hosts=hosts)
        text = _toml(directory, stream, place, places=places, cluster_id=cluster_id, layout=layout)
        path = os.path.join(draft, os.path.basename(place.config))
        with open(path, "x", encoding="utf-8") as file:
            file.write(text)
            file.writelines(f"{line}\n" for line in founded)


def init_local_cluster(
    directory: str, stream: str, nodes: int, founded: Sequence[str] = (),
    layout: ClusterLayout = HERE,
) -> list[Place]:  # fmt: skip
    """Write the files of a cluster on this machine, for development.

    It has one publisher, `publisher`, which may push every session, and one subscriber,
    `subscriber`, which may hold leases. Arguments and errors are those of `init_cluster` and
    `free_addresses`.
    """
    return init_cluster(
        directory, stream, free_addresses(nodes), publishers=("publisher",),
        subscribers=("subscriber",), sessions=("*",), leases=True, founded=founded, layout=layout,
    )  # fmt: skip


def _demand_new(directory: str, certs: str) -> None:
    """Raise `Misuse` if a cluster cannot be made here or exists already; writes nothing."""
    try:
        os.path.abspath(directory).encode()
    except UnicodeEncodeError:
        words = f"{shown(directory)} is not UTF-8, as the files that name it are; name another"
        raise Misuse(words) from None
    if os.path.exists(certs):
        if os.path.exists(os.path.join(directory, CLIENTS_NAME)):
            raise Misuse(f"{certs} is there already; a cluster is made once")
        words = "of a cluster that was not made to the end; remove it, and each n*.toml beside it"
        raise Misuse(f"{certs} is there already, {words}")


def _check_addresses(addresses: Sequence[str], root: str) -> None:
    """Refuse addresses that cannot form a cluster; writes nothing."""
    _check_count(len(addresses))
    for address in addresses:
        host_name(parse_address(address)[0])
    if len(set(map(parse_address, addresses))) != len(addresses):
        raise Misuse(f"each node needs an address of its own: {', '.join(addresses)}")
    hosts = {parse_address(address)[0] for address in addresses}
    if root and len(hosts) < len(addresses):
        raise Misuse(f"nodes on one machine cannot share {root}; leave out the root")


def _check_names(names: Sequence[str], nodes: Sequence[str]) -> None:
    ours = {"operator", AUTHORITY, *nodes}
    for name in names:
        if parse_peer(name) in ours or names.count(name) > 1:
            raise Misuse(f"{name} names a certificate of another holder; give each its own name")


def _check_count(count: int) -> None:
    if count not in MEMBERS_ALLOWED:
        raise Misuse(f"a stream is served by 1, 3, 5 or 7 nodes, not by {count}")


def is_founded(directory: str, place: Place, stream: str) -> bool:
    """Whether a node of a cluster on this machine has been founded."""
    return bool(OsDisk().names(_state_of(directory, place, stream)))


def is_removed(directory: str, place: Place, stream: str) -> bool:
    """Whether a node of a cluster on this machine has learned that it was removed."""
    names = OsDisk().names(_state_of(directory, place, stream))
    return REMOVED_NAME in names and IDENTITY_NAME not in names


def _state_of(directory: str, place: Place, stream: str) -> str:
    return os.path.join(stream_directory(root_of(directory, place), stream), "state")


def root_of(directory: str, place: Place) -> str:
    """Return the directory in which a node keeps its stream."""
    return os.path.join(directory, place.name)


def write_member(
    directory: str, stream: str, name: str, addresses: Mapping[str, str], cluster_id: str, *,
    log_id: str = "",
) -> str:  # fmt: skip
    """Write the configuration of a node that joins a running cluster; return its path.

    Args:
        directory: where `NAME.toml` is written; it has `certs/`.
        stream: the stream that the cluster serves.
        name: the node's name.
        addresses: the addresses of all members by name, including this node's.
        cluster_id: the id of the cluster.
        log_id: the id of the merged log, if it differs from the cluster's id.

    Raises:
        Misuse: a file of that name exists, and is another node's or another cluster's.
    """
    places = [Place(each, addresses[each], "") for each in sorted(addresses)]
    [place] = [each for each in places if each.name == name]
    path = os.path.join(directory, f"{name}.toml")
    if not _is_written(path, place, cluster_id):
        with open(path, "x", encoding="utf-8") as file:
            file.write(_toml(directory, stream, place, places=places, cluster_id=cluster_id))
            file.write(_log_line(log_id))
    return path


def _log_line(log_id: str) -> str:
    return f'log_id = "{log_id}"\n' if log_id else ""


def name_nodes(path: str, addresses: Sequence[str]) -> None:
    """Set the nodes in the clients' configuration that `init_cluster` wrote.

    Raises:
        Misuse: the file has no line `nodes = [...]`; it may have been edited.
    """
    with open(path, encoding="utf-8") as file:
        text, count = _NODES.subn(f"nodes = {json.dumps(list(addresses))}", file.read())
    if not count:
        raise Misuse(f"{path} has no line for nodes; add nodes = {json.dumps(list(addresses))}")
    with open(path + ".tmp", "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(path + ".tmp", path)


def _is_written(path: str, place: Place, cluster_id: str) -> bool:
    """Whether this node's file exists already, perhaps with an earlier attempt's members.

    Raises:
        Misuse: the file is another node's, or another cluster's.
    """
    try:
        node = dict(tomllib.loads(read_file(path, SETTINGS_BYTES_MAX).decode()).get("node", {}))
    except FileNotFoundError:
        return False
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, TypeError, ValueError):
        node = {}
    wanted = {"name": place.name, "listen": place.address, "cluster_id": cluster_id}
    if any(node.get(key) != value for key, value in wanted.items()):
        words = f"is there already, and not for {place.name} at {place.address}"
        raise Misuse(f"{path} {words}; move it out of the way")
    return True


def certify_node(certs: str, name: str, host: str, cluster: str = "") -> str:
    """Ensure that a node's certificate names the host at which it is dialled, and its cluster.

    Args:
        certs: the directory of the certificate files.
        name: the node's name.
        host: the host at which the node is dialled.
        cluster: the id of the node's cluster; "" if it has none.

    Returns:
        A sentence: what was done, or which command to run on the machine with the authority's key.
    """
    files, authority = certificate_files(certs, name), certificate_files(certs, AUTHORITY)
    found = load_certificate(files.cert) if os.path.exists(files.cert) else None
    hosts, named = (hosts_of(found), identity_of(found).clusters) if found else ([], ())
    may_issue, is_bound = os.path.exists(authority.key), not cluster or cluster in named
    if host in hosts and (is_bound or not (named or may_issue)):
        return f"{files.cert} names {host} already"
    wanted = tuple(dict.fromkeys((host, *LOCAL_HOSTS, *hosts)))
    clusters = tuple(dict.fromkeys((*named, cluster))) if is_cluster_id(cluster) else named
    again = " --force" if found else ""
    if not may_issue:
        options = [*(f"--host {each}" for each in wanted), *(f"--cluster {c}" for c in clusters)]
        command = f"rt certs issue {name} --role node {' '.join(options)}{again}"
        return f"{name} needs a certificate; run where the authority's key is: {command}"
    issue(
        certs, name, CertificateRole.NODE, hosts=wanted, force=bool(found),
        clusters=clusters or None,
    )  # fmt: skip
    return f"issued {files.cert} and {files.key}; the node needs them, and {authority.cert}"


def free_addresses(count: int) -> list[str]:
    """Return addresses on this machine that are free now, trying the usual ports first.

    They are reserved until this process ends: no other caller on this machine gets them.

    Raises:
        Misuse: a cluster cannot have so many nodes.
    """
    _check_count(count)
    addresses: list[str] = []
    others = (choice(_OTHER_PORTS) for _ in repeat(None))
    ports = chain(range(PORT, PORT + _PORTS), others)
    while len(addresses) < count:
        if free := _free_port(next(ports)):
            addresses.append(f"localhost:{free}")
    return addresses


def _free_port(port: int) -> int | None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return None
        port = probe.getsockname()[1]
    # A port that a node has yet to bind looks free. An abstract Unix socket reserves it while this
    # process lives, in the same network namespace as the port.
    lease = socket.socket(socket.AF_UNIX)
    try:
        lease.bind(f"\0rt-port-{port}")
    except OSError:
        lease.close()
        return None
    lease.detach()
    return port


def _toml(
    directory: str,
    stream: str,
    place: Place,
    *,
    places: Sequence[Place],
    cluster_id: str,
    layout: ClusterLayout = HERE,
) -> str:
    root = layout.root or os.path.abspath(root_of(directory, place))
    certs = layout.certs or os.path.abspath(os.path.join(directory, "certs"))
    members = ", ".join(f'"{each.name}={each.address}"' for each in places)
    lines = [
        "[node]",
        f"root = {_quoted(root)}",
        f'stream = "{stream}"',
        f'name = "{place.name}"',
        f'listen = "{place.address}"',
        f"certs = {_quoted(certs)}",
    ]
    if len(places) > 1:
        lines += [f"members = [{members}]", f'cluster_id = "{cluster_id}"']
    return "\n".join(lines) + "\n"


def _quoted(path: str) -> str:
    """Return a path as a TOML string, which allows JSON's escapes."""
    return json.dumps(path, ensure_ascii=False).replace("\x7f", "\\u007f")


def _clients_toml(
    certs: str, stream: str, addresses: Sequence[str], identities: Mapping[str, str]
) -> str:
    """Return the text of `clients.toml`, with the identity that each command uses."""
    nodes = ", ".join(f'"{address}"' for address in addresses)
    link = [f"nodes = [{nodes}]", f"certs = {_quoted(os.path.abspath(certs))}"]
    lines = []
    for table in ("publish", "push", "pull", "subscribe", "status", "archive", "session"):
        lines += [f"[{table}]", f'stream = "{stream}"']
        if table not in ("publish", "subscribe"):
            lines += [*link, f'identity = "{identities.get(table, identities[""])}"']
        lines.append("")
    reader = f'identity = "{identities.get("pull", identities[""])}"'
    publisher = f'publisher = "{identities.get("push", identities[""])}"'
    lines += ["[gateway]", f'stream = "{stream}"', *link, reader, publisher, ""]
    lines += ["[verify]", *link, reader, ""]
    return "\n".join(lines)
