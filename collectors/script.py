"""Runs a training script as Python itself runs it: as `__main__`, which it stays until exit. In: a name, arguments.

train.py        a file              python train.py
job/, job.zip   with __main__.py    python job/
mypackage.train a module            python -m mypackage.train
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import io
import os
import pkgutil
import runpy
import sys
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Any, Final, cast

from collectors.errors import CollectError

_MAIN: Final = "__main__"


class Script:
    """A script with its own arguments. module: whether the first argument names a module, as behind `python -m`.

    Raises: CollectError where there is no such script.
    """

    def __init__(self, arguments: list[str], module: bool) -> None:
        self._arguments = arguments
        self._module = module
        self._name = arguments[0]
        self._folder = os.getcwd() if module else self._folder_of_file()
        if module and _spec(self._name.partition(".")[0], [self._folder, *sys.path]) is None:
            raise CollectError(f"{self._name}: no such module; check the name, or leave -m out for a file")

    def take_the_path(self) -> None:
        """Put the script's folder first on the path, where Python has put another for us."""
        here = os.getcwd()
        if not sys.flags.safe_path and sys.path and sys.path[0] in ("", here):
            sys.path[0] = self._folder
        else:
            sys.path.insert(0, self._folder)
        _leave_the_name(__package__ or "collectors", str(Path(__file__).parent))

    def run(self) -> None:
        """Run it. Raises: what the script raises."""
        sys.argv[:] = self._arguments
        # Until exit: what the script registered to run then finds its own names.
        main = sys.modules[_MAIN] = ModuleType(_MAIN)
        vars(main)["__builtins__"] = sys.modules["builtins"]
        exec(self._code(main), vars(main))

    def _folder_of_file(self) -> str:
        path = Path(self._name)
        if self._name == "-":
            raise CollectError("-: a script from standard input reaches one rank at most; write it to a file")
        if not path.exists():
            raise CollectError(f"{self._name}: no such script; check the path, or pass -m for a module")
        if not _is_program(path):
            return str(path.resolve().parent)
        if _spec(_MAIN, [str(path)]) is None:
            raise CollectError(f"{self._name}: holds no __main__.py; name a script in it")
        return os.path.join(os.getcwd(), self._name)

    def _code(self, main: ModuleType) -> CodeType:
        if self._module:
            # As pdb and cProfile of the standard library do.
            _, spec, code = runpy._get_module_details(self._name)  # type: ignore[attr-defined]
            sys.argv[0] = spec.origin
            _describe(main, spec)
            return cast("CodeType", code)
        if _is_program(Path(self._name)):
            spec = _spec(_MAIN, [self._folder])
            _describe(main, spec)
            return cast("CodeType", spec.loader.get_code(_MAIN))
        file = os.path.join(os.getcwd(), self._name)
        main.__file__ = file
        vars(main)["__cached__"] = None
        vars(main)["__package__"] = None
        main.__loader__ = importlib.machinery.SourceFileLoader(_MAIN, file)
        return _code_of(file)


def without_our_frames(trace: TracebackType | None, command: str) -> TracebackType | None:
    """A traceback from the script's first frame on; None for a script that could not be compiled.

    command: the file that runs it.
    """
    ours = (command, __file__, runpy.__file__, "<frozen runpy>")
    while trace is not None and trace.tb_frame.f_code.co_filename in ours:
        trace = trace.tb_next
    return trace


def _leave_the_name(package: str, folder: str) -> None:
    """Where the script has a package of the name of ours, its imports find that; ours has been imported.

    Modules of ours whose names theirs lacks stay known by them: torch's compiler asks for modules by name.
    """
    theirs = importlib.machinery.PathFinder.find_spec(package, sys.path)
    # A folder without __init__.py stands behind every package.
    if theirs is None or theirs.origin is None or str(Path(theirs.origin).resolve().parent) == folder:
        return
    _OURS.append(sys.modules.pop(package))
    for name in [each for each in sys.modules if each.startswith(f"{package}.")]:
        first = ".".join(name.split(".")[:2])
        if importlib.machinery.PathFinder.find_spec(first, theirs.submodule_search_locations or []) is not None:
            _OURS.append(sys.modules.pop(name))


_OURS: Final[list[ModuleType]] = []
"""Modules of ours that are not known by their names any more."""


def _is_program(path: Path) -> bool:
    """A folder, or an archive that Python can run."""
    return path.is_dir() or (path.is_file() and pkgutil.get_importer(str(path)) is not None)


def _spec(name: str, path: list[str]) -> Any:
    return importlib.machinery.PathFinder.find_spec(name, path) or (
        importlib.util.find_spec(name) if name != _MAIN else None
    )


def _describe(main: ModuleType, spec: Any) -> None:
    main.__spec__ = spec
    main.__loader__ = spec.loader
    main.__package__ = spec.parent
    main.__file__ = spec.origin
    vars(main)["__cached__"] = spec.cached


def _code_of(file: str) -> CodeType:
    """Code of a source, or of what Python compiled."""
    with io.open_code(file) as opened:
        compiled: CodeType | None = pkgutil.read_code(opened)
        if compiled is not None:
            return compiled
        opened.seek(0)
        return compile(opened.read(), file, "exec")
