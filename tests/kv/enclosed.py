"""Run a server that listens on every interface in a network namespace of its own, and forward one port to it.

    python -m tests.kv.enclosed PORT INNER_PORT COMMAND…

The listening socket is made before the namespace, so it stays outside; connections to the server are made inside.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import socket
import subprocess
import sys

CLONE_NEWNET = 0x40000000


async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


async def serve(listener: socket.socket, inner_port: int) -> None:
    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, here = await asyncio.open_connection("127.0.0.1", inner_port)
        except OSError:
            writer.transport.abort()
            return
        await asyncio.gather(carry(reader, here), carry(there, writer))

    while True:  # not before the server listens
        try:
            (await asyncio.open_connection("127.0.0.1", inner_port))[1].close()
            break
        except OSError:
            await asyncio.sleep(0.05)
    async with await asyncio.start_server(forward, sock=listener) as server:
        await server.serve_forever()


def main() -> None:
    port, inner_port, *command = sys.argv[1:]
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", int(port)))
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET):
        sys.exit(f"no network namespace: {os.strerror(ctypes.get_errno())}")
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    subprocess.Popen(["setpriv", "--pdeathsig=KILL", *command])
    asyncio.run(serve(listener, int(inner_port)))


if __name__ == "__main__":
    main()
