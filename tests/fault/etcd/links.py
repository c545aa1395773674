"""TCP links to servers that a test can cut or let swallow everything; they know no protocol."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Self

__all__ = ["Link", "Links"]


class Link:
    """Listens on a port of its own and passes on to a target, both ways."""

    def __init__(self, links: Links, target: str) -> None:
        self._links = links
        self._host, _, port = target.rpartition(":")
        self._port = int(port)
        self._open = asyncio.Event()
        self._open.set()
        self._answers = asyncio.Event()
        self._answers.set()
        self._refuses = False
        self._writers: set[asyncio.StreamWriter] = set()
        self.endpoint = ""

    async def listen(self) -> None:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.endpoint = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"

    def cut(self) -> None:
        """Breaks every connection, and refuses new ones until ``heal``."""
        self._links.run(self._cut())

    def blackhole(self) -> None:
        """Blocks all bytes until ``heal``; connections stay, and new ones are accepted."""
        self._links.run(self._blackhole())

    def swallow_answers(self) -> None:
        """Blocks the answers until ``heal``; what is sent arrives."""
        self._links.run(self._swallow_answers())

    def heal(self) -> None:
        """Passes on again, also what was held back."""
        self._links.run(self._heal())

    async def _cut(self) -> None:
        self._refuses = True
        self._open.set()
        self._answers.set()
        for writer in list(self._writers):
            writer.transport.abort()

    async def _blackhole(self) -> None:
        self._open.clear()

    async def _swallow_answers(self) -> None:
        self._answers.clear()

    async def _heal(self) -> None:
        self._refuses = False
        self._answers.set()
        self._open.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.CancelledError):  # asyncio would complain of it at the end
            await self._connect(reader, writer)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refuses:
            writer.transport.abort()
            return
        await self._open.wait()
        try:
            to_reader, to_writer = await asyncio.open_connection(self._host, self._port)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, to_writer}
        try:
            passing = [
                asyncio.create_task(self._pass(reader, to_writer, self._open)),
                asyncio.create_task(self._pass(to_reader, writer, self._open, self._answers)),
            ]
            await asyncio.wait(passing, return_when=asyncio.FIRST_COMPLETED)
            for task in passing:
                task.cancel()
        finally:
            self._writers -= {writer, to_writer}
            writer.transport.abort()
            to_writer.transport.abort()

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *gates: asyncio.Event
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(65_536):
                for gate in gates:
                    await gate.wait()
                writer.write(data)
                await writer.drain()


class Links:
    """Proxies to several servers, all run by one thread."""

    def __init__(self, *targets: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="links", daemon=True)
        self._targets = targets
        self.links: list[Link] = []

    def __enter__(self) -> Self:
        self._thread.start()
        for target in self._targets:
            link = Link(self, target)
            self.run(link.listen())
            self.links.append(link)
        return self

    def __exit__(self, *_: object) -> None:
        self.run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Does it in the links' thread."""
        asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    @property
    def endpoints(self) -> list[str]:
        """host:port of each link."""
        return [link.endpoint for link in self.links]

    async def _end(self) -> None:
        tasks = [one for one in asyncio.all_tasks() if one is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
