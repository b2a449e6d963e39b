"""A collected script is run as Python runs it: what it sees, how it fails, when it ends. Each is held to Python."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from collectors_job import collect, environment, manifest_of

LOOP = """
import torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
def train(steps):
    for step in range(steps):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""
WORLD = """
import sys
print(__name__, __file__, __package__, __cached__, __doc__, type(__builtins__).__name__, type(__loader__).__name__)
print(__spec__ and (__spec__.name, __spec__.origin), sys.argv, sys.path, sys.modules["__main__"].__dict__ is globals())
"""


def alone(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, cwd=folder, check=False, env=environment()
    )


def collected(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return collect("--out", "traces", "--steps", "2-3", "--warmup", "1", *arguments, cwd=folder)


def errors(done: subprocess.CompletedProcess[str]) -> str:
    """What the script wrote to stderr."""
    lines = done.stderr.splitlines(keepends=True)
    return "".join(each for each in lines if not each.startswith(("tracetools: ", "USDT:")))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Scripts of every kind that print their world."""
    for name in ("job/train.py", "package/__main__.py", "package/inner/train.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(WORLD)
    for name in ("package/__init__.py", "package/inner/__init__.py"):
        (tmp_path / name).touch()
    with zipfile.ZipFile(tmp_path / "job.zip", "w") as archive:
        archive.writestr("__main__.py", WORLD)
    return tmp_path


@pytest.mark.parametrize(
    "arguments",
    ["job/train.py a -b", "./job/train.py", "package", "job.zip x", "-m package a", "-m package.inner.train -m b"],
)
def test_a_script_of_every_kind(folder: Path, arguments: str):
    expected = alone(folder, *arguments.split())
    assert (expected.returncode, expected.stderr) == (0, "")
    done = collected(folder, *arguments.split())
    assert (done.returncode, done.stdout) == (0, expected.stdout)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-"], "-: a script from standard input reaches one rank at most; write it to a file"),
        (["empty"], "empty: holds no __main__.py; name a script in it"),
        (["nowhere.py"], "nowhere.py: no such script"),
        (["-m", "nowhere.train"], "nowhere.train: no such module; check the name"),
    ],
)
def test_what_is_no_script(tmp_path: Path, arguments: list[str], words: str):
    (tmp_path / "empty").mkdir()
    done = collected(tmp_path, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "body",
    [
        "x = (1,\ny = 2",
        "def f():\n    raise KeyError('mine')\nf()",
        "class Stop(BaseException): pass\nraise Stop('now')",
        "import sys; sys.exit('a word')",
        "import nothing_of_this_name",
        "try:\n    1 / 0\nexcept ZeroDivisionError:\n    raise ValueError",
        "import sys\nsys.excepthook = lambda kind, error, trace: print(kind, trace.tb_lineno)\nraise KeyError",
        "raise KeyboardInterrupt",
    ],
)
def test_errors_are_shown_as_python_shows_them(tmp_path: Path, body: str):
    (tmp_path / "train.py").write_text(body)
    expected = alone(tmp_path, "train.py")
    done = collected(tmp_path, "train.py")
    assert errors(done) == expected.stderr
    assert (done.returncode, done.stdout) == (expected.returncode, expected.stdout)


def test_handlers_at_exit_find_the_scripts_own_names(tmp_path: Path):
    body = """
import atexit, pickle, sys
class Mine:
    pass
atexit.register(lambda: print(type(pickle.loads(pickle.dumps(Mine()))), sys.modules["__main__"].Mine is Mine))
"""
    (tmp_path / "train.py").write_text(body)
    done = collected(tmp_path, "train.py")
    assert (done.stdout, done.returncode) == ("<class '__main__.Mine'> True\n", 0), done.stderr


THREADED = """
import sys, threading, time
def later():
    time.sleep(1)
    train(6)
    print("trained")
threading.Thread(target=later).start()
"""


@pytest.mark.parametrize(("end", "returncode"), [("", 0), ("sys.exit(3)", 3), ("raise KeyError", 1)])
def test_a_thread_that_trains_on_after_the_script_is_recorded(tmp_path: Path, end: str, returncode: int):
    (tmp_path / "train.py").write_text(LOOP + THREADED + end)
    done = collected(tmp_path, "train.py")
    assert (done.returncode, done.stdout) == (returncode, "trained\n"), done.stderr
    (recorded,) = manifest_of(tmp_path / "traces")["passes"]
    assert (recorded["complete"], recorded["steps"]) == (True, [2, 3])


def test_a_pool_of_threads_holds_nothing_up(tmp_path: Path):
    body = "from concurrent.futures import ThreadPoolExecutor\npool = ThreadPoolExecutor()\npool.submit(train, 6)\n"
    (tmp_path / "train.py").write_text(LOOP + body)
    done = collected(tmp_path, "train.py")
    assert done.returncode == 0, done.stderr
    assert manifest_of(tmp_path / "traces")["passes"][0]["complete"]


def test_an_error_of_the_script_is_none_of_ours(tmp_path: Path):
    """Errors that the command line has words for, where the script raises them."""
    (tmp_path / "train.py").write_text("import typer\nraise typer.BadParameter('of the script')")
    expected = alone(tmp_path, "train.py")
    done = collected(tmp_path, "train.py")
    assert (done.returncode, errors(done)) == (expected.returncode, expected.stderr)


@pytest.mark.parametrize("name", ["collectors.py", "collectors/__init__.py"])
@pytest.mark.parametrize("arguments", [["train.py"], ["-m", "train"], ["job/train.py"]])
def test_a_script_with_collectors_of_its_own(tmp_path: Path, name: str, arguments: list[str]):
    """A common name. It lies beside the script, or in the current folder, which `python -m` searches first."""
    folder = (tmp_path / arguments[-1]).parent
    folder.mkdir(exist_ok=True)
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text("MINE = 1")
    if name.endswith("__init__.py"):
        (folder / "collectors" / "models.py").write_text("MINE = 2")
    more = "from collectors.models import MINE as two; print(two)" if name.endswith("__init__.py") else ""
    body = f"import collectors; print(collectors.MINE)\n{more}\ntrain(2)\nstep = torch.compile(model, backend='eager')"
    body += "\nfor _ in range(3):\n    step(torch.ones(2, 4)).sum().backward()\n    optimizer.step()\n"
    (folder / "train.py").write_text(LOOP + body)
    done = collected(tmp_path, *arguments)
    assert (done.returncode, done.stdout.split()) == (0, ["1", "2"] if more else ["1"]), done.stderr
    assert manifest_of(tmp_path / "traces")["passes"][0]["complete"]


def test_collectors_in_the_current_folder_that_the_script_does_not_see(tmp_path: Path):
    (tmp_path / "collectors.py").write_text("raise ImportError('theirs')")
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "train.py").write_text(LOOP + "import collectors\nprint(collectors.collect.__name__)\ntrain(6)")
    done = collected(tmp_path, "job/train.py")
    assert (done.returncode, done.stdout) == (0, "collect\n"), done.stderr
