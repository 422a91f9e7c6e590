"""`python -m tests.hostile_sink CERTS NODE LIE PORT...`: a node that takes every session and lies.

It stores nothing. With the LIE `possible`, it says that everything it was sent is durable,
replicated and merged; with `impossible`, it says so of the greatest position there is.
"""

import socket
import sys
import threading
from contextlib import suppress

from replicator.wire.codec import VERSION, encode
from replicator.wire.link import Link
from replicator.wire.messages import PUSH, Ack, Data, Hello, Open, RolledNotice, Standing
from rt.errors import RtError
from rt.format.frame import parse_header
from rt.net.authority.certificates import certificate_files
from rt.net.tls import accept, server_context
from rt.position import START, Position
from tests.links import arrives

IMPOSSIBLE = Position((1 << 63) - 1)


def main():
    """Serve one connection after another on each port."""
    certs, name, lie, *ports = sys.argv[1:]
    files = certificate_files(certs, name)
    context = server_context(files.ca, files.cert, files.key)
    listening = [socket.create_server(("localhost", int(port))) for port in ports]
    print("listening", flush=True)
    threads = [threading.Thread(target=listen, args=(each, context, lie)) for each in listening]
    for thread in threads:
        thread.start()


def listen(listening, context, lie):
    """Serve one connection after another on a port."""
    while True:
        plain, _ = listening.accept()
        with suppress(RtError, OSError):
            sock, _ = accept(plain, context)
            serve(Link(sock, "pusher"), lie)


def serve(link, lie):
    """Acknowledge everything that comes on one connection."""
    link.expect(Hello)
    link.send(encode(Hello(VERSION, VERSION, PUSH, "flights", "hostile")))
    try:
        while True:
            for message in link.receive():
                answer(link, message, lie)
            link.beat()
            arrives(link, 1)
    finally:
        link.close()


def answer(link, message, lie):
    """Welcome a session at its start, and acknowledge what it sends."""
    if isinstance(message, Open):
        link.send(encode(Standing(message.channel, START)))
        if lie == "impossible":
            link.send(encode(Ack(message.channel, *[IMPOSSIBLE] * 4, START)))
    elif isinstance(message, Data) and lie == "possible":
        end = message.position + len(message.payload)
        assert parse_header(message.payload).position == message.position
        link.send(encode(Ack(message.channel, *[Position(end)] * 4, START)))
    elif isinstance(message, RolledNotice) and lie == "possible":
        end = Position(message.line.file + message.line.end)
        link.send(encode(Ack(message.channel, *[end] * 4, START)))


if __name__ == "__main__":
    main()
