"""Serve the last value of each key over HTTP: `python examples/web.py CLIENTS.toml [PORT]`.

PUT /KEY publishes the body under a key, and answers once a majority of the nodes has it in the
merged log. GET /KEY answers with the last value. One asyncio process does both:

    curl -X PUT --data 1.08 localhost:8080/eur-usd
    curl localhost:8080/eur-usd
"""

import asyncio
import sys
from asyncio import StreamReader, StreamWriter
from contextlib import suppress
from http import HTTPStatus

from rt import RtError
from rt.client import aio
from rt.client.readers.last_value import LastValue

BODY_BYTES_MAX = 1 << 20


async def answer(
    reader: StreamReader, values: LastValue, publisher: aio.AsyncPublisher
) -> tuple[HTTPStatus, bytes]:
    """Read one request, and answer it."""
    head = await reader.readuntil(b"\r\n\r\n")
    request, *lines = head.split(b"\r\n")
    method, path, _ = request.split(b" ")
    fields = {name.lower(): value for name, _, value in (line.partition(b":") for line in lines)}
    key = path.removeprefix(b"/")
    if method == b"GET":
        found = values.get(key)
        return (HTTPStatus.OK, found.payload) if found else (HTTPStatus.NOT_FOUND, b"")
    length = int(fields.get(b"content-length", b"0"))
    if method != b"PUT" or not 0 < length <= BODY_BYTES_MAX:
        return HTTPStatus.BAD_REQUEST, b""
    body = await reader.readexactly(length)
    async with asyncio.timeout(10):
        await publisher.publish(body, key=key, confirm="merged")
    return HTTPStatus.CREATED, b""


async def main(config: str, port: str = "8080") -> None:
    """Serve until interrupted."""
    async with aio.connect(config) as client:
        publisher = await client.publisher("web")
        values = await client.last_value(sessions=["web"])

        async def serve(reader: StreamReader, writer: StreamWriter) -> None:
            try:
                status, body = await answer(reader, values, publisher)
            except (ValueError, EOFError, asyncio.LimitOverrunError) as error:
                status, body = HTTPStatus.BAD_REQUEST, str(error).encode()
            except (TimeoutError, RtError) as error:
                status, body = HTTPStatus.SERVICE_UNAVAILABLE, str(error).encode()
            head = f"HTTP/1.1 {status} {status.phrase}\r\nContent-Length: {len(body)}\r\n"
            writer.write(head.encode() + b"Connection: close\r\n\r\n" + body)
            with suppress(ConnectionError):
                await writer.drain()
            writer.close()

        server = await asyncio.start_server(serve, "localhost", int(port))
        print(f"http://localhost:{server.sockets[0].getsockname()[1]}", flush=True)
        async with server:
            await server.serve_forever()


if __name__ == "__main__":
    if not 2 <= len(sys.argv) <= 3:
        sys.exit(__doc__)
    try:
        asyncio.run(main(*sys.argv[1:]))
    except KeyboardInterrupt:
        pass
    except (RtError, OSError, ValueError) as error:
        sys.exit(f"web: {error}")
