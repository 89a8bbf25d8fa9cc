"""A standalone Spark cluster on this machine: a master and workers of one core each, as processes of their own."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

START_SECONDS = 300.0


@contextmanager
def standalone_spark(directory: Path, workers: int, memory: str = "1g") -> Iterator[str]:
    """The master's URL. `directory` gets the log (`cluster.log`) and what each worker works on (`worker-N`).

    `minibroker_pipeline.java.prepare` must have chosen a Java.
    """
    import pyspark

    starter = Path(pyspark.__file__).parent / "bin" / "spark-class"
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    url = f"spark://127.0.0.1:{port}"
    deploy = "org.apache.spark.deploy"
    log = directory / "cluster.log"
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m"}
    local = directory / "local"  # of a worker's applications: a killed worker leaves it
    local.mkdir()
    environment |= {"SPARK_LOCAL_DIRS": str(local), "TMPDIR": str(local)}
    quick = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    environment["SPARK_DAEMON_JAVA_OPTS"] = f"{quick} {shlex.quote(f'-Djava.io.tmpdir={local}')}"
    commands = [[f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]]
    for number in range(1, workers + 1):
        worker = [f"{deploy}.worker.Worker", "--cores", "1", "--memory", memory, "--webui-port", "0"]
        commands.append([*worker, "--work-dir", str(directory / f"worker-{number}"), url])
    with log.open("wb") as out:
        running = [
            subprocess.Popen([str(starter), *command], stdout=out, stderr=out, env=environment) for command in commands
        ]
        try:
            deadline = time.monotonic() + START_SECONDS
            while log.read_bytes().count(b"Successfully registered with master") < workers:
                assert time.monotonic() < deadline, log.read_text()[-2000:]
                assert all(process.poll() is None for process in running)
                time.sleep(0.5)
            yield url
        finally:
            for process in reversed(running):
                process.terminate()
            for process in running:
                process.wait(30)
