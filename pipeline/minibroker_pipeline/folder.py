"""Where an audit writes: a directory of this machine, or one that pyarrow or fsspec reaches by its URI."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

from minibroker_pipeline.files import Files
from minibroker_storage.private_files import output_path


class Folder:
    """A directory to write to. Can be pickled: each process opens its own file system.

    A file shows its content once it is whole. Raises OSError, NotReadable for a URI of an unknown kind.
    """

    def __init__(self, uri: str) -> None:
        self._files = Files(uri)

    def check(self) -> Folder:
        """Ask for it, so that a URI of an unknown kind, or no way to get there, is known before the work."""
        if not self._files.local:
            system, path = self._files.opened()
            system.get_file_info(path)
        return self

    def has(self, name: str) -> bool:
        """Whether a file of this name was published."""
        system, root = self._files.opened()
        return bool(system.get_file_info(f"{root.rstrip('/')}/{name}").is_file)

    def target(self, name: str) -> tuple[Any, str]:
        """(pyarrow's file system, path in it) to write a file to; its folder is made. `publish` shows the file then."""
        system, root = self._files.opened()
        path = f"{root.rstrip('/')}/{name}"
        if self._files.local:
            output_path(self._unfinished(path))
        system.create_dir(path.rpartition("/")[0], recursive=True)
        return system, self._unfinished(path)

    def publish(self, name: str) -> None:
        """Show a file that was written to its `target`."""
        system, root = self._files.opened()
        path = f"{root.rstrip('/')}/{name}"
        if self._unfinished(path) != path:
            system.move(self._unfinished(path), path)

    def _unfinished(self, path: str) -> str:
        """Object stores show an object when it is closed; renaming one would copy it."""
        return f"{path}.tmp" if self._files.local else path

    @contextmanager
    def writing(self, name: str) -> Iterator[IO[bytes]]:
        system, path = self.target(name)
        with system.open_output_stream(path) as file:
            yield file
        self.publish(name)

    def write_text(self, name: str, text: str) -> None:
        with self.writing(name) as file:
            file.write(text.encode())


def write_file(uri: str, text: str) -> None:
    """One file, at a path of this machine or a URI. Raises OSError, NotReadable."""
    files = Files(uri)
    if files.local:
        output_path(uri.removeprefix("file://")).write_text(text, encoding="utf-8")
        return
    system, path = files.opened()
    with system.open_output_stream(path) as file:
        file.write(text.encode())
