"""What a wheel has beside its packages: the museum, and where MINIBROKER_COMPILE=1 the compiled walk of records."""

import os
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

MODULE = "minibroker_protocol._native"
COMPILE = os.environ.get("MINIBROKER_COMPILE") == "1"


class CustomBuildHook(BuildHookInterface[Any]):
    def dependencies(self) -> list[str]:
        return ["setuptools>=70"] if COMPILE else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "standard":  # an editable install finds them where they are
            build_data["force_include"]["museum"] = "minibroker_lab/museum/data"
        if not COMPILE:
            return
        from setuptools import Distribution, Extension

        source = Path("protocol", *MODULE.split(".")).with_suffix(".c")
        build = Distribution({"ext_modules": [Extension(MODULE, [str(source)], py_limited_api=True)]}).get_command_obj(
            "build_ext"
        )
        build.build_lib, build.build_temp = "protocol", "build"
        build.ensure_finalized()
        build.run()
        (built,) = build.get_outputs()
        build_data["pure_python"] = False
        build_data["tag"] = f"cp311-abi3-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
        if version == "standard":  # an editable install finds it where it is
            build_data["force_include"][built] = Path(built).relative_to("protocol").as_posix()
