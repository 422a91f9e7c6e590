"""A node that gives prepared answers over TLS, to test the commands that ask nodes."""

import json
import os
import shutil
import socket
import threading
import time
from contextlib import suppress

from rt.net.admin import ADMIN_ALPN
from rt.net.authority.certificates import certificate_files, issue
from rt.net.authority.identity import CertificateRole
from rt.net.exchange import receive_line
from rt.net.question import STATUS_ALPN
from rt.net.tls import Contexts, offering, server_context

PATIENCE_S = 60


class FakeNode:
    """Answers status questions with `status`, and requests with what `answers` has for them."""

    def __init__(
        self, certs, name="n1", *, status=None, answers=None, stream="stream",
        address=("localhost", 0),
    ):  # fmt: skip
        """Listen; the directory `certs` has the certificate of the node `name`."""
        context = Contexts(certificate_files(certs, name), server_context).current()
        protocols = (STATUS_ALPN, ADMIN_ALPN)
        self._context = offering(context, *(f"{each}/{stream}" for each in protocols), *protocols)
        self.status, self.answers = status, answers or {}
        self.asked, self.requests = [], []
        self._listening = socket.create_server(address)
        host, port = self._listening.getsockname()[:2]
        self.address, self.place = (host, port), f"localhost:{port}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with suppress(OSError):  # until it is closed
            while True:
                taken, _ = self._listening.accept()
                threading.Thread(target=self._serve, args=[taken], daemon=True).start()

    def _serve(self, taken):
        with suppress(OSError), self._context.wrap_socket(taken, server_side=True) as connection:
            connection.sendall(bytes(2))  # welcome
            connection.recv(2)
            connection.sendall(json.dumps(self._answer(connection)).encode() + b"\n")

    def _answer(self, connection):
        if connection.selected_alpn_protocol().startswith(STATUS_ALPN):
            self.asked.append("status")
            return self.status
        request = json.loads(receive_line(connection, 1 << 20, time.monotonic() + PATIENCE_S))
        self.asked.append(request["do"])
        self.requests.append(request)
        return self.answers[request["do"]]

    def close(self):
        """Refuse connections from now on."""
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()


def nodes_certificates(directory, clients):
    """Return a directory with certificates of nodes n1 to n3, from the authority of `clients`."""
    certs = os.path.join(directory, "certs")
    shutil.copytree(clients, certs)
    for name in ("n1", "n2", "n3"):
        issue(certs, name, CertificateRole.NODE)
    return certs


def refusal(words, code="busy"):
    """Return the answer of a node that refuses."""
    return {"error": words, "code": code}


def closed_place():
    """Return an address that refuses connections until this process ends."""
    held = socket.socket()  # bound, so that no one else gets it, and not listening
    held.bind(("127.0.0.1", 0))
    port = held.getsockname()[1]
    held.detach()
    return f"localhost:{port}"
