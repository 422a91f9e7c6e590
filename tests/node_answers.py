"""Status answers of nodes, to test the commands that ask for them."""

SECOND_NS = 1_000_000_000


def answer(name, **changed):
    """Return the answer of a healthy node of three, with some fields changed."""
    number = int(name[1:])
    return {
        "node": name, "stream": "flights", "cluster": "c" * 32, "members": ["n1", "n2", "n3"],
        "role": "leader" if number == 1 else "follower", "term": 3, "leader": "n1",
        "merged_end": "0.0.4096", "messages": 10, "merge_time_ns": 1_700_000_000 * SECOND_NS,
        "digest": "ab" * 16, "durability": "synced by a majority before it is merged",
        "copying_to": None, "copying_waits_for": "", "waiting_for": None, "unreachable": {},
        "refusal": "", "takes_data": True, "disk_free": 1 << 40,
        "sessions": [
            {"session": "jfk", "pushed_by": "publisher", "durable": "0.0.300", "merged": "0.0.100"}
        ],
    } | changed  # fmt: skip


def held(name, pushed_by="publisher", **changed):
    """Return one session as in a node's answer."""
    return {
        "session": name, "pushed_by": pushed_by, "durable": "0.0.300", "merged": "0.0.300",
        "stuck": "", "bytes": 2048, "messages": 2, "bytes_per_s": 0, "last_ns": 0, "waiting_s": 0.0,
    } | changed  # fmt: skip


def busy(name, **changed):
    """Return the answer of a node with sessions and clients, with some fields changed."""
    now_ns = 1_700_000_100 * SECOND_NS
    puller = {"peer": "spark", "kind": "pull", "address": "10.0.0.7:4000", "waiting_s": 4.2,
              "since_ns": now_ns - 3600 * SECOND_NS, "position": "0.0.96", "lag_bytes": 4000,
              "bytes": 96}  # fmt: skip
    pusher = puller | {"peer": "publisher", "kind": "push", "position": None, "lag_bytes": None}
    return answer(name, now_ns=now_ns, **{"clients": [pusher], "sessions": [
        held("aaa", last_ns=now_ns - 7 * SECOND_NS, bytes_per_s=3_000_000),
        held("bbb", bytes=1 << 30, last_ns=now_ns - 400 * SECOND_NS),
        held("ccc", merged="0.0.100", waiting_s=12.5, bytes=1024),
    ]} | ({"clients": [pusher, puller]} if name == "n2" else {}) | changed)  # fmt: skip
