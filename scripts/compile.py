"""Called where specllama is built: compile `_few.c`. Without a compiler Python does its work."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from setuptools import Distribution, Extension

SOURCE = Path("specllama", "sampling", "_few.c")


class CompileHook(BuildHookInterface):
    """Put the compiled module beside its source, and into the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile; a failure is told in the build's log and changes nothing else."""
        for old in SOURCE.parent.glob("_few.*.so"):
            old.unlink()
        with TemporaryDirectory() as folder:
            module = compiled(folder)
        if module.exists():
            build_data["artifacts"] += [f"/{(SOURCE.parent / module.name).as_posix()}"]
            build_data |= {"pure_python": False, "infer_tag": True}


def compiled(folder: str) -> Path:
    """Where the module is, if it could be compiled.

    Args:
        folder: for what the compiler leaves behind.
    """
    module = Extension("specllama.sampling._few", [str(SOURCE)], optional=True)
    module.py_limited_api = True
    command = Distribution({"ext_modules": [module]}).get_command_obj("build_ext")
    command.inplace, command.build_temp, command.build_lib = True, folder, folder
    command.ensure_finalized()
    command.run()
    return Path(command.get_ext_fullpath(module.name))
