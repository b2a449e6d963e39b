"""`python -m tracetools.collect`: the script's own arguments, path and exit code, and all that goes wrong."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import tracetools
from collectors_job import collect, environment, manifest_of, said, script, trace_of

LOOP = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
optimizer = torch.optim.SGD(model.parameters(), 0.1)
def train(steps):
    for step in range(steps):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def written(tmp_path: Path, body: str, name: str = "train.py") -> str:
    path = tmp_path / name
    path.write_text(LOOP + body)
    return str(path)


def run(tmp_path: Path, body: str, *options: str, arguments: tuple[str, ...] = ()):
    options = options or ("--steps", "2-3", "--warmup", "1")
    return collect("--out", str(tmp_path / "traces"), *options, written(tmp_path, body), *arguments)


def files(tmp_path: Path) -> list[str]:
    return sorted(each.name for each in (tmp_path / "traces").iterdir())


BOTH = ["rank-00000.manifest.json", "rank-00000.trace.json.gz"]


def test_the_script_sees_its_own_world(tmp_path: Path):
    body = "import sys, os; print(__name__, sys.argv[1:], os.path.basename(__file__), sys.path[0]); train(5)"
    done = run(tmp_path, body, arguments=("--steps", "9", "-m", "x"))
    assert done.returncode == 0
    assert done.stdout == f"__main__ ['--steps', '9', '-m', 'x'] train.py {tmp_path}\n"
    assert files(tmp_path) == BOTH


def test_a_module_is_run_as_with_python_m(tmp_path: Path):
    written(tmp_path, "import sys; train(5); sys.exit(len(sys.argv))", "job.py")
    done = collect("--out", "traces", "--steps", "2-3", "--warmup", "1", "-m", "job", "a", "b", cwd=tmp_path)
    assert done.returncode == 3
    assert files(tmp_path) == BOTH


def test_an_exit_code_is_kept(tmp_path: Path):
    done = run(tmp_path, "import sys; train(5); sys.exit(3)")
    assert done.returncode == 3
    assert files(tmp_path) == BOTH


def test_an_exception_passes_and_what_was_recorded_is_written(tmp_path: Path):
    done = run(tmp_path, "train(3)\nraise KeyError('mine')")
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith("KeyError: 'mine'")
    assert "tracetools/collect.py" not in done.stderr
    assert trace_of(tmp_path / "traces")["tracetools_measured"]["complete"] is False
    assert "KeyError ended the script in step 3" in manifest_of(tmp_path / "traces")["passes"][0]["reason"]
    findings = {each.rule: each for each in tracetools.load(str(tmp_path / "traces")).analysis.findings}
    assert "KeyError ended the script" in findings["recording_not_whole"].message


@pytest.mark.parametrize(
    ("number", "returncode", "word"),
    [(signal.SIGTERM, -signal.SIGTERM, "SIGTERM came"), (signal.SIGINT, -signal.SIGINT, "KeyboardInterrupt ended")],
)
def test_a_signal_saves_what_is_there(tmp_path: Path, number: signal.Signals, returncode: int, word: str):
    body = "train(3)\nimport time\nprint('ready', flush=True)\ntime.sleep(60)"
    command = [sys.executable, "-m", "tracetools.collect", "--out", str(tmp_path / "traces")]
    command += ["--steps", "2-9", "--warmup", "1", written(tmp_path, body)]
    job = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(), start_new_session=True
    )
    assert job.stdout is not None
    assert job.stdout.readline() == "ready\n"
    job.send_signal(number)
    _, errors = job.communicate(timeout=60)
    assert job.returncode == returncode
    assert word in errors
    assert files(tmp_path) == BOTH


def killed(tmp_path: Path, body: str, signals: int) -> tuple[int, str]:
    """Exit code and messages of a training that gets so many SIGTERMs, each once it has written `ready`."""
    command = [sys.executable, "-m", "tracetools.collect", "--out", str(tmp_path / "traces")]
    command += ["--steps", "2-99", "--warmup", "1", written(tmp_path, body)]
    job = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())
    assert job.stdout is not None
    for _ in range(signals):
        assert job.stdout.readline() == "ready\n"
        job.terminate()
    try:
        _, errors = job.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        job.kill()
        _, errors = job.communicate()
    return job.returncode, errors


@pytest.mark.parametrize("swallows", ["except:", "except BaseException:", "except SystemExit:"])
def test_a_loop_that_swallows_sigterm_ends_with_its_next_step(tmp_path: Path, swallows: str):
    body = f"""
import time
train(4)
print("ready", flush=True)
while True:
    try:
        time.sleep(0.2)
    {swallows}
        pass
    train(1)
"""
    returncode, errors = killed(tmp_path, body, 1)
    assert returncode == -signal.SIGTERM, errors
    assert "SIGTERM came in step" in errors
    assert files(tmp_path) == BOTH
    assert manifest_of(tmp_path / "traces")["passes"][0]["steps"] == [2, 3]


def test_a_second_sigterm_needs_no_step(tmp_path: Path):
    body = """
import time
train(4)
while True:
    try:
        print("ready", flush=True)
        time.sleep(60)
    except:
        pass
"""
    returncode, errors = killed(tmp_path, body, 2)
    assert returncode == -signal.SIGTERM, errors
    assert "SIGTERM came in step 4" in errors
    assert files(tmp_path) == BOTH


def test_a_sigterm_that_was_swallowed_is_died_of_after_the_script_too(tmp_path: Path):
    body = """
import time
train(4)
try:
    print("ready", flush=True)
    time.sleep(60)
except SystemExit:
    pass
"""
    returncode, errors = killed(tmp_path, body, 1)
    assert returncode == -signal.SIGTERM, errors
    assert files(tmp_path) == BOTH


def test_a_sigterm_while_a_trace_is_written_waits_for_it(tmp_path: Path):
    """As a launcher sends it that itself gets one from the scheduler: the second comes at once."""
    body = """
import os, signal, torch.profiler.profiler as kineto
export = kineto._KinetoProfile.export_chrome_trace
def slowly(profiler, path):
    if kineto.recorded:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
    export(profiler, path)
kineto._KinetoProfile.export_chrome_trace = slowly
kineto.recorded = False
train(3)
kineto.recorded = True
os.kill(os.getpid(), signal.SIGTERM)
"""
    returncode, errors = killed(tmp_path, body, 0)
    assert returncode == -signal.SIGTERM, errors
    assert "SIGTERM came in step 3" in errors
    assert files(tmp_path) == BOTH


def test_too_few_steps(tmp_path: Path):
    done = run(tmp_path, "train(2)", "--steps", "6-8")
    assert done.returncode == 0
    assert said(done)[-1].startswith("steps 6-8 of the timing pass not recorded: the script ended in step 2")
    assert files(tmp_path) == BOTH[:1]


def test_too_few_steps_beside_a_profiler_of_the_script(tmp_path: Path):
    body = """
from torch.profiler import profile
with profile():
    train(6)
"""
    done = run(tmp_path, body)
    assert "a profiler of the script held them up by 6 steps; leave it out to record" in said(done)[-1]


def test_too_few_steps_of_two_optimizers(tmp_path: Path):
    done = run(tmp_path, "train(3)\ndel optimizer\noptimizer = torch.optim.SGD(model.parameters(), 0.1)\ntrain(3)",
               "--steps", "9")  # fmt: skip
    assert "steps between two optimizers are not seen" in said(done)[-1]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small file system")
def test_a_full_disk_is_told_by_its_folder(tmp_path: Path):
    small = tmp_path / "traces"
    small.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(small)]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("this machine lets nobody mount a file system")
    try:
        body = "model = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(99)])\ntrain(5); print('trained')"
        done = run(tmp_path, body)
        assert (done.returncode, done.stdout) == (0, "trained\n")
        told = "\n".join(said(done))
        assert f"; {small} has " in told
        assert " B left); the training goes on" in told
        assert [name for name in files(tmp_path) if name.endswith(".gz") or name.startswith(".")] == []
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_no_step_at_all(tmp_path: Path):
    done = run(tmp_path, "model(torch.ones(2, 4))")
    assert done.returncode == 0
    assert said(done)[-1].startswith("nothing recorded: the script ended and no training step was seen")


def test_a_script_with_a_profiler_of_its_own_keeps_it(tmp_path: Path):
    body = """
from torch.profiler import profile, ProfilerActivity
with profile(activities=[ProfilerActivity.CPU]) as mine:
    train(4)
print(any(event.key == "aten::linear" for event in mine.key_averages()))
train(4)
"""
    done = run(tmp_path, body)
    assert (done.returncode, done.stdout) == (0, "True\n")
    assert any("a profiler of the script is running" in line for line in said(done))
    assert trace_of(tmp_path / "traces")["tracetools_measured"]["complete"] is True
    assert manifest_of(tmp_path / "traces")["passes"][0]["steps"] == [6, 7]


def test_a_profiler_that_starts_while_we_record_goes_first(tmp_path: Path):
    body = """
from torch.profiler import profile, ProfilerActivity
train(3)
with profile(activities=[ProfilerActivity.CPU]) as mine:
    train(4)
print(any(event.key == "aten::linear" for event in mine.key_averages()))
"""
    done = run(tmp_path, body)
    assert (done.returncode, done.stdout) == (0, "True\n")
    assert any("the script started a profiler of its own" in line for line in said(done))
    assert files(tmp_path) == BOTH


@pytest.mark.parametrize("kind", ["profiler.emit_itt()", "profiler_legacy.profile()"])
@pytest.mark.parametrize(("before", "steps"), [(0, [6, 7]), (1, [5, 6]), (3, [2])])
def test_other_profilers_of_torch_go_first(tmp_path: Path, kind: str, before: int, steps: list[int]):
    """They start before ours, in its trial, and while it records. A torch without CUDA has no `emit_nvtx`."""
    body = f"""
import torch.autograd.profiler as profiler, torch.autograd.profiler_legacy as profiler_legacy
train({before})
with {kind}:
    train({4 - min(before, 1)})
train(6)
print("trained")
"""
    done = run(tmp_path, "import warnings; warnings.simplefilter('ignore')\n" + body)
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
    assert manifest_of(tmp_path / "traces")["passes"][0]["steps"] == steps


def test_forked_workers_of_a_data_loader(tmp_path: Path):
    body = """
from torch.utils.data import DataLoader
if __name__ == "__main__":
    for batch in DataLoader(torch.ones(12, 4), batch_size=2, num_workers=2):
        model(batch).sum().backward()
        optimizer.step()
    print("done")
"""
    done = run(tmp_path, body)
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert files(tmp_path) == BOTH


def test_two_runs_do_not_mix(tmp_path: Path):
    assert run(tmp_path, "train(5)").returncode == 0
    again = run(tmp_path, "print('ran'); train(5)")
    assert (again.returncode, again.stdout) == (2, "")
    assert "holds another run (rank-00000.manifest.json, rank-00000.trace.json.gz)" in again.stderr
    replaced = run(tmp_path, "train(5)", "--steps", "2-3", "--warmup", "1", "--overwrite")
    assert replaced.returncode == 0
    assert files(tmp_path) == BOTH


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere.py"], "nowhere.py: no such script"),
        ([], "Missing argument"),
        (["--steps", "8-6", "x.py"], "steps 8-6: the first lies behind the last"),
        (["--steps", "two", "x.py"], "steps 'two': say one step or a span"),
        (["--steps", "1-2", "x.py"], "begins in step 0"),
        (["--ranks", "a", "x.py"], "ranks 'a': say numbers and spans"),
        (["--pass", "all", "x.py"], "pass 'all': say timing, structure or both"),
        (["--max-size", "big", "x.py"], "size 'big': say a number of bytes"),
        (["--nonsense", "x.py"], "No such option"),
        (["--clock-probe", "--ranks", "0", "x.py"], "the clock probe needs every rank, and only some are to record"),
        (["--out", os.fsdecode(b"tr\xe4ces"), "x.py"], "its name is not UTF-8; pass another --out"),
    ],
)
def test_wrong_usage(tmp_path: Path, arguments: list[str], words: str):
    done = collect(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_a_file(tmp_path: Path):
    (tmp_path / "traces").write_text("mine")
    done = run(tmp_path, "train(5)")
    assert done.returncode == 2
    assert said(done) == [f"{tmp_path}/traces is a file and no folder; pass another --out"]
    assert (tmp_path / "traces").read_text() == "mine"


def test_a_disk_that_fills_up_costs_the_recording_only(tmp_path: Path):
    """The limit on file sizes stands for the disk: a write past it fails as one on a full disk does."""
    body = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (4096, -1)); train(9); print('trained')"
    done = run(tmp_path, "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n" + body)
    assert (done.returncode, done.stdout) == (0, "trained\n")
    (told,) = [line for line in said(done) if "the training goes on" in line]
    assert told.startswith("nothing more is recorded (")
    assert re.search(rf"; {tmp_path}/traces has [\d.]+ [kMG]?B left\)", told)
    assert not [name for name in files(tmp_path) if name.endswith(".gz") or name.startswith(".")]


def test_max_size_shortens_or_withholds(tmp_path: Path):
    done = run(tmp_path, "train(9)", "--steps", "2-8", "--warmup", "1", "--max-size", "1K")
    assert any("has no room for a single step" in line for line in said(done))
    assert files(tmp_path) == BOTH[:1]


def test_only_some_ranks_record(tmp_path: Path):
    done = run(tmp_path, "train(5)", "--steps", "2-3", "--warmup", "1", "--ranks", "1")
    assert done.returncode == 0
    assert not (tmp_path / "traces").exists()


def test_both_passes_are_one_rank_to_the_analyzer(tmp_path: Path):
    done = run(tmp_path, "train(12)", "--steps", "2-3", "--warmup", "1", "--pass", "both", "--memory")
    assert done.returncode == 0, done.stderr
    structure = "rank-00000.structure.trace.json.gz"
    assert files(tmp_path) == sorted([*BOTH, structure])
    analysis = tracetools.load(str(tmp_path / "traces")).analysis
    assert [(each.rank, each.steps) for each in analysis.inputs] == [(0, (2, 3))]
    assert "structure_pass" in {each.rule for each in analysis.findings}
    assert "passes_differ" not in {each.rule for each in analysis.findings}
    assert {row.defined_at.partition(":")[0] for row in analysis.modules if row.defined_at} == {
        f"torch/nn/modules/{each}.py" for each in ("container", "linear", "activation")
    }
    alone = tracetools.load(str(tmp_path / "traces" / structure)).analysis
    assert "recorded_with_stacks" in {each.rule for each in alone.findings}
    assert alone.inputs[0].steps == (5, 6)


def test_nothing_of_the_environment_is_written(tmp_path: Path):
    secret = "hunter2-in-the-environment"
    path = written(tmp_path, "train(5)")
    done = collect("--out", str(tmp_path / "traces"), "--steps", "2", "--warmup", "1", path, WANDB_API_KEY=secret)
    assert done.returncode == 0
    assert secret not in str(trace_of(tmp_path / "traces")) + str(manifest_of(tmp_path / "traces"))


def test_a_rank_that_stops_early_holds_nobody_up(tmp_path: Path):
    body = "import os; train(3 if os.environ['RANK'] == '1' else 9)"
    before = time.monotonic()
    done = collect(
        "--out", str(tmp_path / "traces"), "--steps", "2-6", "--warmup", "1", written(tmp_path, body), ranks=2
    )
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - before < 60
    assert manifest_of(tmp_path / "traces", 0)["passes"][0]["complete"] is True
    assert manifest_of(tmp_path / "traces", 1)["passes"][0]["complete"] is False


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="no mpirun; make system installs Open MPI")
def test_mpirun(tmp_path: Path):
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2", sys.executable]
    command += ["-m", "tracetools.collect", "--out", str(tmp_path / "traces"), "--steps", "3-4", script("plain")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment())
    assert done.returncode == 0, done.stderr
    analysis = tracetools.load(str(tmp_path / "traces")).analysis
    assert [(each.rank, each.world_size, each.steps) for each in analysis.inputs] == [(0, 2, (3, 4)), (1, 2, (3, 4))]
    assert trace_of(tmp_path / "traces", 1)["tracetools"]["launcher"] == "openmpi"


def test_the_deepspeed_launcher(tmp_path: Path):
    """It puts an option of its own before ours, which the script gets as it would without us."""
    pytest.importorskip("deepspeed", reason="deepspeed is not installed")
    path = written(tmp_path, "import sys; sys.stdout.write(f'{sys.argv[1:]}\\n'); train(5)")
    command = ["deepspeed", "--num_accelerators", "2", "--master_port", "29511", "--module", "tracetools.collect"]
    command += ["--out", str(tmp_path / "traces"), "--steps", "2-3", "--warmup", "1", path, "--config", "x"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env=environment())
    assert done.returncode == 0, done.stderr
    for rank in (0, 1):
        assert f"['--local_rank={rank}', '--config', 'x']" in done.stdout.splitlines()
        assert trace_of(tmp_path / "traces", rank)["tracetools"]["local_rank"] == rank


@pytest.mark.parametrize(
    ("launcher", "names"),
    [
        ("slurm", ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS")),
        ("pmi", ("PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE")),
    ],
)
def test_variables_of_a_launcher_that_is_not_here(tmp_path: Path, launcher: str, names: tuple[str, str, str]):
    """Two processes with the variables that srun, or an mpiexec that speaks PMI, gives them."""
    path = written(tmp_path, "train(5)")
    command = [sys.executable, "-m", "tracetools.collect", "--out", str(tmp_path / "traces")]
    command += ["--steps", "2", "--warmup", "1", path]
    jobs = []
    for rank in ("0", "1"):
        variables = dict(zip(names, (rank, rank, "2"), strict=True), SLURM_STEP_ID="0")
        jobs.append(subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment(**variables)))
    assert [job.communicate(timeout=120) and job.returncode for job in jobs] == [0, 0]
    analysis = tracetools.load(str(tmp_path / "traces")).analysis
    assert [(each.rank, each.world_size) for each in analysis.inputs] == [(0, 2), (1, 2)]
    assert trace_of(tmp_path / "traces", 1)["tracetools"]["launcher"] == launcher


def test_losses_are_the_same_with_and_without(tmp_path: Path):
    plain = subprocess.run(
        [sys.executable, script("plain")], capture_output=True, text=True, check=True, env=environment()
    )
    collected = collect("--out", str(tmp_path / "traces"), "--steps", "3-4", script("plain"))
    assert collected.stdout == plain.stdout
    assert os.listdir(tmp_path / "traces")


def test_a_script_that_changes_its_folder(tmp_path: Path):
    (tmp_path / "elsewhere").mkdir()
    written(tmp_path, "import os; os.chdir('elsewhere'); train(5)")
    done = collect("--out", "traces", "--steps", "2-3", "--warmup", "1", "train.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert files(tmp_path) == BOTH


@pytest.mark.parametrize("end", ["sys.exit(0)", "raise ValueError"])
def test_a_forked_child_leaves_the_recording_to_its_parent(tmp_path: Path, end: str):
    body = f"""
import os, sys
train(2)
if os.fork() == 0:
    {end}
os.wait()
train(3)
"""
    done = run(tmp_path, body)
    assert done.returncode == 0, done.stderr
    assert files(tmp_path) == BOTH
    assert manifest_of(tmp_path / "traces")["passes"][0]["complete"]


def test_ranks_that_the_job_does_not_have(tmp_path: Path):
    done = run(tmp_path, "train(5)", "--ranks", "5")
    assert done.returncode == 0
    assert said(done) == ["nothing is recorded: no rank of 1 is among those to record"]


def test_an_output_that_cannot_be_written_to_stops_no_training(tmp_path: Path):
    command = [
        sys.executable,
        "-m",
        "tracetools.collect",
        "--out",
        str(tmp_path / "traces"),
        "--steps",
        "2-3",
        "--warmup",
        "1",
    ]
    with open("/dev/full", "w") as full:
        done = subprocess.run([*command, written(tmp_path, "train(5)")], stderr=full, env=environment(), check=False)
    assert done.returncode == 0
    assert files(tmp_path) == BOTH


def test_an_optimizer_that_steps_inside_backward_is_told_and_harms_nothing(tmp_path: Path):
    body = """
for parameter in model.parameters():
    own = torch.optim.SGD([parameter], 0.1)
    parameter.register_post_accumulate_grad_hook(lambda _, own=own: own.step())
for step in range(6):
    model(torch.ones(2, 4)).sum().backward()
"""
    done = run(tmp_path, body)
    assert done.returncode == 0, done.stderr
    assert any("steps inside backward" in line for line in said(done))
