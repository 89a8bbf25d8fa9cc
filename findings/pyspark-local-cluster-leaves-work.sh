#!/usr/bin/env bash
# PySpark 4.3.0 (Python 3.11, Linux, Java 17 or newer on PATH). Downloads 400 MB.
# Expected: a session with master local-cluster[…] keeps its files below spark.local.dir and removes them when it stops.
# Seen: its workers work in the directory `work` of SPARK_HOME, by default that of the installed package. After the stop each
# application's directory is still there, with the output of its executors: nobody empties it, and a package that may not
# be written to cannot be used so.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
python_packages pyspark==4.3.0
mkdir scratch
unset SPARK_HOME
env/bin/python - > seen 2> log << 'PYTHON'
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

package = Path(pyspark.__file__).parent
before = set(package.iterdir())
builder = SparkSession.builder.master("local-cluster[1,1,512]")
settings = {
    "spark.local.dir": str(Path("scratch").resolve()),
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "512m",
}
for name, value in settings.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
print(spark.range(10).count(), "rows")
spark.stop()
for directory in sorted(set(package.iterdir()) - before):
    print("new beside the package:", directory.name)
    for file in sorted(directory.rglob("*")):
        if file.name in ("stdout", "stderr"):
            print("  of an executor:", file.name)
PYTHON
same seen << 'EXPECTED'
10 rows
new beside the package: work
  of an executor: stderr
  of an executor: stdout
EXPECTED
