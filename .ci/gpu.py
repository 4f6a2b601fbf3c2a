"""What a device does: rules, numbers, launches, waits, speed, a training step, a run. One JSON file and a page.

    python .ci/gpu.py --device cuda --out runs/gpu      # about eight minutes on a card with 16 cores
    python .ci/gpu.py --device cpu --small              # seconds: does the script run?

Where nothing can be fetched: `make gpu-carry` puts the engine and missing wheels into .carry; take that folder along,
and this script finds it."""
import argparse
import json
import os
import platform
import subprocess
import sys
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CARRY = ROOT/".carry"
if CARRY.is_dir():
    wheels = [str(p) for p in CARRY.glob("*.whl")]
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--target", str(CARRY/"site")]
    if wheels and not (CARRY/"site").is_dir(): subprocess.run([*pip, *wheels], check=True)
    os.environ.setdefault("CHESS_GRPO_STOCKFISH", str(CARRY/"stockfish"))
    sys.path.append(str(CARRY/"site"))
    os.environ["PYTHONPATH"] = f"{ROOT}:{CARRY/'site'}"
sys.path.insert(0, str(ROOT))
os.environ.setdefault("WANDB_MODE", "disabled")

import chess    # noqa: E402
import torch    # noqa: E402

from chess_grpo.board import MOVES, Boards, compile_rules    # noqa: E402
from chess_grpo.config import TrainConfig, note_config    # noqa: E402
from chess_grpo.core import UserError, cores, generator    # noqa: E402
from chess_grpo.engine import EngineError, EnginePool    # noqa: E402
from chess_grpo.loss import LossConfig, group_advantages, grpo_loss    # noqa: E402
from chess_grpo.model import new_policy    # noqa: E402
from chess_grpo.positions import random_starts    # noqa: E402
from chess_grpo.report import element    # noqa: E402
from chess_grpo.ui.page import page_html    # noqa: E402
from chess_grpo.rollout import ScoringConfig, compute_log_probs, sample    # noqa: E402
from chess_grpo.train import Trainer, train    # noqa: E402


TINY = dict(batch_size=4, width=32, layers=1, heads=2)


def wrong_in(rows: list[tuple]) -> list[str]:
    "Positions in which python-chess finds other moves, another end or another successor."
    found = []
    for fen, legal, end, action, after in rows:
        board = chess.Board(fen)
        outcome, theirs = board.outcome(), sorted(m.uci() for m in board.legal_moves)
        same = theirs == sorted(MOVES[a] for a in legal) and (outcome.termination.value if outcome else 0) == end
        if same and not end:
            board.push_uci(MOVES[action])
            same = board.fen() == after
        if not same: found.append(fen)
    return found


def rules(device: str, small: bool) -> dict:
    "Random games on the device, each position beside python-chess."
    games, plies = (16, 20) if small else (512, 200)
    boards, g, rows = Boards.start(games, device=device), generator(0, device), []
    for _ in range(plies):
        boards = boards[boards.outcome() == 0]
        if not len(boards): break
        row, every = (x.cpu() for x in boards.legal_moves())
        legal = [x.tolist() for x in every.split(row.bincount(minlength=len(boards)).tolist())]
        actions = boards.random_moves(g)
        after = boards.push(actions)
        rows += zip(boards.fens(), legal, boards.outcome().tolist(), actions.tolist(), after.fens())
        boards = after
    with ProcessPoolExecutor(cores()) as pool:
        wrong = [fen for part in pool.map(wrong_in, [rows[i::64] for i in range(64)]) for fen in part]
    return {"positions": len(rows), "differ from python-chess": len(wrong), "first": wrong[0] if wrong else ""}


def numbers(device: str, small: bool) -> dict:
    "Log-probabilities, loss and gradient in float32 and bfloat16, beside the CPU's in float64."
    starts = random_starts(8 if small else 128, generator(0))
    policy = new_policy(TrainConfig().network, 0)
    rollout = sample(policy.eval(), starts, None, generator(1), num_generations=8, keep=False)
    rewards = torch.rand(rollout.rewards.shape, generator=generator(2))

    def found(where: str, dtype: torch.dtype, double: bool = False) -> list[torch.Tensor]:
        twin = new_policy(TrainConfig().network, 0).to(where)
        if double: twin = twin.double()
        out = compute_log_probs(twin, rollout.to(where), ScoringConfig(dtype=dtype))
        mask = rollout.mask.to(where)
        advantages = group_advantages(rewards.to(where), mask)
        loss, _ = grpo_loss(out.log_probs, rollout.log_probs.to(where), advantages, mask, LossConfig(entropy_coef=0.2),
                            out.entropy)
        loss.backward()
        gradient = torch.cat([p.grad.flatten() for p in twin.parameters() if p.grad is not None])
        return [x.detach().double().cpu() for x in (out.log_probs, loss, gradient)]
    exact, rows = found("cpu", torch.float32, double=True), {}
    for name, where, dtype in (("CPU, float32", "cpu", torch.float32), (f"{device}, float32", device, torch.float32),
                               (f"{device}, bfloat16", device, torch.bfloat16)):
        lp, loss, gradient = found(where, dtype)
        rows |= {f"{name}: largest difference of a log-probability": (lp - exact[0]).abs().max().item(),
                 f"{name}: difference of the loss": (loss - exact[1]).abs().item(),
                 f"{name}: of the gradient, relative": ((gradient - exact[2]).norm() / exact[2].norm()).item()}
    return rows


def settled(device: str):
    if device.startswith("cuda"): torch.cuda.synchronize()


def launches(device: str, small: bool) -> dict:
    "Kernels and waits of a ply and of a step, as the profiler and torch's own warnings see them."
    if not device.startswith("cuda"): return {"not asked": "there is no device: see notebook benchmarks"}
    from torch.profiler import ProfilerActivity, profile
    plies, starts = 4 if small else 16, random_starts(32, generator(0))
    policy = new_policy(TrainConfig().network, 0).to(device).eval()
    def ply(): sample(policy, starts, None, generator(0, device), num_generations=16, rollout_plies=plies)
    rows = {}
    with EnginePool() as pool:
        run = Trainer(TrainConfig(device=device, preflight="off", match_openings=0), pool)
        for name, work, per in (("ply", ply, plies), ("step", run.step, 1)):
            work()
            with profile(activities=[ProfilerActivity.CUDA]) as seen:
                work()
                settled(device)
            kernels = [e for e in seen.events() if e.device_type == torch.autograd.DeviceType.CUDA]
            with warnings.catch_warnings(record=True) as waits:
                warnings.simplefilter("always")
                torch.cuda.set_sync_debug_mode("warn")
                work()
                torch.cuda.set_sync_debug_mode("default")
            rows |= {f"kernels and copies a {name}": len(kernels) / per, f"waits a {name}": len(waits) / per,
                     f"microseconds on the device a {name}": sum(e.device_time for e in kernels) / per}
    return rows


def timed(work, device: str, least: float = 2.0) -> float: # seconds a call
    work()
    settled(device)
    start, calls = time.perf_counter(), 0
    while time.perf_counter() - start < least:
        work()
        calls += 1
        settled(device)
    return (time.perf_counter() - start) / calls


def speed(device: str, small: bool) -> dict:
    "Plies a second without and with the default policy, eager and with compiled rules; the most memory that was used."
    rows, policy = {}, new_policy(TrainConfig().network, 0).to(device).eval()
    for compiled in (False, *([] if small else [True])):
        why = compile_rules(compiled, device)
        if compiled and why:
            rows["compiled rules"] = why
            break
        for games in (64,) if small else (512, 4096, 65_536):
            boards, g = Boards.start(games, device=device), generator(0, device)
            def ply():
                actions = boards.random_moves(g)
                boards.legal_mask()
                boards.push(actions).outcome()
                boards.__dict__.pop("_legal")    # or the next call knows it
            def with_policy(): sample(policy, boards[:games // 16], None, g, num_generations=16, rollout_plies=2)
            name = f"{games:,} games, {'compiled rules' if compiled else 'eager'}"
            least = 0.1 if small else 2.0
            rows[f"{name}: plies a second, rules"] = games / timed(ply, device, least)
            if device.startswith("cuda"): torch.cuda.reset_peak_memory_stats()
            rows[f"{name}: plies a second, with the policy"] = 2 * games / timed(with_policy, device, least)
            if device.startswith("cuda"): rows[f"{name}: GiB at most"] = torch.cuda.max_memory_allocated() / 2**30
    compile_rules(False)
    return rows


def step(device: str, small: bool) -> dict:
    "A step of note 004's configuration (the reference system took 17 seconds), and of the default one."
    few = dict(TINY, num_generations=4, rollout_plies=4, freeze_layers=0) if small else {}
    rows = {}
    with EnginePool() as pool:
        for name, config in (("note 004", note_config("004", device=device, **few)),
                             ("default", TrainConfig(device=device, **few))):
            run = Trainer(config, pool)
            run.step()
            settled(device)
            start, times = time.perf_counter(), [run.step() for _ in range(2 if small else 5)]
            settled(device)
            rows[f"{name}: seconds a step"] = (time.perf_counter() - start) / len(times)
            for part in ("positions", "policy", "engine", "learn"):
                rows[f"{name}: of them {part}"] = sum(r[f"time/{part}"] for r in times) / len(times)
    return rows


def default_run(device: str, small: bool) -> dict:
    "`make train`."
    few = dict(TINY, max_steps=2, match_openings=0, preflight="off") if small else {}
    start = time.perf_counter()
    result = train(TrainConfig(run_name="gpu", device=device, **few), progress=False)
    return {"steps": result.steps, "seconds": time.perf_counter() - start, "loss before": result.before.expected_loss,
            "loss after": result.after.expected_loss}


def notes(device: str, small: bool) -> dict:
    "The first steps of notes 001 and 004: clipping and KL at equal weights, and at the end."
    few = dict(TINY, num_generations=4, rollout_plies=2, freeze_layers=0) if small else {}
    rows, steps = {}, 2 if small else 100
    with EnginePool() as pool:
        for note in ("001", "004"):
            run = Trainer(note_config(note, device=device, preflight="off", **few), pool)
            start, found = time.perf_counter(), []
            while len(found) < steps and time.perf_counter() - start < 90: found.append(run.step())
            for at, row in (("step 1", found[0]), (f"step {len(found)}", found[-1])):
                for k in ("mean_clip_fraction", "mean_kl_divergence", "entropy"):
                    rows[f"note {note}, {at}: {k}"] = row[k]
    return rows


SECTIONS = rules, numbers, launches, speed, step, default_run, notes


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    p.add_argument("--out", default="runs/gpu", type=Path)
    p.add_argument("--small", action="store_true", help="seconds: does the script run?")
    p.add_argument("--only", nargs="*", default=[f.__name__ for f in SECTIONS])
    a = p.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    card = torch.cuda.get_device_name() if a.device.startswith("cuda") else platform.processor() or platform.machine()
    found = {"machine": {"device": a.device, "name": card, "cores": cores(), "torch": torch.__version__,
                         "python": platform.python_version(), "small": a.small,
                         "ended": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())}}
    failed = 0
    for f in (f for f in SECTIONS if f.__name__ in a.only):
        start = time.perf_counter()
        try: found[f.__name__] = f(a.device, a.small)
        except (UserError, EngineError, RuntimeError, LookupError, AttributeError, TypeError) as e:    # others go on
            found[f.__name__], failed = {"failed": f"{type(e).__name__}: {str(e)[:500]}"}, failed + 1
        found[f.__name__]["seconds of this section"] = time.perf_counter() - start
        print(f.__name__, json.dumps(found[f.__name__], indent=1), flush=True)
        (a.out/"gpu.json").write_text(json.dumps(found, indent=1) + "\n")    # what is there stays, whatever follows
    def shown(x) -> str: return f"{x:,.4g}" if isinstance(x, float) else str(x)
    tables = [x for name, rows in found.items() for x in (
        element("h2", name.replace("_", " ")),
        element("table", *(element("tr", element("td", k), element("td", shown(v))) for k, v in rows.items())))]
    (a.out/"gpu.html").write_text(page_html(f"chess_grpo on {card}", tables))
    print(a.out/"gpu.html")
    return failed


if __name__ == "__main__": sys.exit(main())
