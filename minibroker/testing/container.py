"""`MinibrokerContainer`: the image under Testcontainers for Python, with its faults and clock."""

from __future__ import annotations

import io
import secrets
import tarfile
from collections.abc import Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any

from minibroker.kernel.extras import hint

try:
    from testcontainers.core.container import DockerContainer
    from testcontainers.core.wait_strategies import LogMessageWaitStrategy
except ImportError as error:
    raise ImportError(hint("MinibrokerContainer", "testcontainers"), name=error.name) from None

from minibroker.config.settings import environment_of
from minibroker.control.client import Control
from minibroker.control.http_client import HttpCaller
from minibroker.control.reading import Controlled
from minibroker.server.options import behaviour_arguments, make_options
from minibroker.server.service import Service

KAFKA_PORT, CONTROL_PORT, NETWORK_PORT = 9092, 9094, 29092
_START_SCRIPT = "/home/minibroker/start.sh"
_SETUP = "/home/minibroker/setup.toml"
_READY = r".*Kafka Server started.*"


class MinibrokerContainer(DockerContainer, Controlled):
    """A broker in a container; needs the package ``testcontainers``.

    Clients of the host use `get_bootstrap_server`; other containers of its network use ``ALIAS:29092``, under an alias
    that `with_network_aliases` gave.

    topics, semantics, transaction_version, as_version, config, not_yet, setup: as `Minibroker` has them.
    arguments: further ones of `minibroker serve`.

    Raises ConfigError for invalid options.
    """

    def __init__(
        self,
        image: str = "minibroker",
        *,
        topics: Mapping[str, int] | None = None,
        semantics: str = "kafka",
        transaction_version: int | None = None,
        as_version: str | None = None,
        config: Mapping[str, Any] | None = None,
        not_yet: bool = False,
        setup: str | PathLike[str] | None = None,
        arguments: str = "",
        **options: Any,
    ) -> None:
        wanted = make_options(
            topics=topics,
            semantics=semantics,
            transaction_version=transaction_version,
            as_version=as_version,
            config=config,
            not_yet=not_yet,
            setup=None if setup is None else str(setup),
        )
        self._setup = wanted.setup
        if wanted.setup is not None:
            wanted = replace(wanted, setup=replace(wanted.setup, path=_SETUP))
        Service(wanted)  # says what is wrong with it
        super().__init__(image, **options)
        self._token = secrets.token_urlsafe(24)
        self._control: Control | None = None
        self.with_exposed_ports(KAFKA_PORT, CONTROL_PORT)
        self.with_env("MINIBROKER_CONTROL_TOKEN", self._token)
        self.with_env("MINIBROKER_ARGS", " ".join([*behaviour_arguments(wanted), arguments]).strip())
        for name, value in environment_of(wanted.config).items():
            self.with_env(name, value)
        self.with_env("KAFKA_LISTENERS", f"HOST://0.0.0.0:{KAFKA_PORT},NETWORK://0.0.0.0:{NETWORK_PORT}")
        self.with_env("KAFKA_LISTENER_SECURITY_PROTOCOL_MAP", "HOST:PLAINTEXT,NETWORK:PLAINTEXT")
        # The mapped port is known only once the container runs; then the script comes, and the broker starts.
        self.with_command(f'sh -c "while [ ! -f {_START_SCRIPT} ]; do sleep 0.05; done; sh {_START_SCRIPT}"')

    def with_kraft(self) -> MinibrokerContainer:
        """No effect: for tests written for the stock module. There is no ZooKeeper in any case."""
        return self

    def with_cluster_id(self, cluster_id: str) -> MinibrokerContainer:
        """Set the cluster id; by default each container has a new one."""
        self.with_env("CLUSTER_ID", cluster_id)
        return self

    def start(self, timeout: float = 30.0) -> MinibrokerContainer:
        """Start it and return once it serves; TimeoutError after `timeout` seconds."""
        super().start()
        self._copy_start_script()
        strategy = LogMessageWaitStrategy(_READY)
        strategy.with_startup_timeout(int(timeout))
        strategy.wait_until_ready(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None and self._control is not None:
                self._control.faults.verify()
        finally:
            super().__exit__(kind, error, trace)

    def _copy_start_script(self) -> None:
        alias = next(iter(self._network_aliases or []), None) or "$(hostname)"
        advertised = f"HOST://{self.get_bootstrap_server()},NETWORK://{alias}:{NETWORK_PORT}"
        script = f"export KAFKA_ADVERTISED_LISTENERS={advertised}\nexec /etc/kafka/docker/run\n".encode()
        files = {_START_SCRIPT: script}
        if self._setup is not None:
            files = {_SETUP: Path(self._setup.path).read_bytes(), **files}  # the script last: the broker waits for it
        with io.BytesIO() as archive:
            with tarfile.TarFile(fileobj=archive, mode="w") as tar:
                for path, content in files.items():
                    entry = tarfile.TarInfo(path.lstrip("/"))
                    entry.size, entry.mode = len(content), 0o644
                    tar.addfile(entry, io.BytesIO(content))
            archive.seek(0)
            self.get_wrapped_container().put_archive("/", archive)

    def get_bootstrap_server(self) -> str:
        """``HOST:PORT`` for clients of the host."""
        return f"{self.get_container_host_ip()}:{self.get_exposed_port(KAFKA_PORT)}"

    @property
    def control(self) -> Control:
        """Faults, clock, state and exchanges of the broker in the container."""
        if self._control is None:
            address = f"{self.get_container_host_ip()}:{self.get_exposed_port(CONTROL_PORT)}"
            self._control = Control(HttpCaller(address, self._token))
        return self._control
