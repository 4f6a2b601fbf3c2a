"How large the library is, each figure beside its budget."
import ast
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Sequence

from project import ROOT, library, modules, notebooks, source_of

BUDGETS = {
    "lines: core": 7_500, "lines: preflight": 2_540, "lines: text": 1_700, "lines: ui": 1_200,
    "lines: integrations": 1_760, "lines: research": 400, "lines: all": 15_000,
    "public names": 350, "keys of a training run": 60, "commands": 8, "notebooks": 60,
    "words of prose": 45_000, "columns of a line, p90": 95, "lines of a function, p90": 20}
KEYS = "from chess_grpo.config import TrainConfig; from chess_grpo.schema import keys; print(len(keys(TrainConfig)))"
STEP = """
import inspect, sys, threading
from chess_grpo.config import TrainConfig
from chess_grpo.engine import EnginePool
from chess_grpo.train import Trainer
entered = set()
def see(frame, event, _):
    code = frame.f_code
    if event == "call" and "/chess_grpo/" in code.co_filename and not code.co_name.startswith("<"): entered.add(code)
config = TrainConfig(max_steps=2, batch_size=8, num_generations=4, match_openings=0, preflight="off", width=32,
                     layers=1, heads=2, search_depth=1)
with EnginePool(1) as engine:
    trainer = Trainer(config, engine)
    trainer.step()
    threading.setprofile(see)
    sys.setprofile(see)
    trainer.step()
    sys.setprofile(None)
settings = "core.py", "schema.py", "config.py"    # no position passes through these
files = {c.co_filename for c in entered if not c.co_filename.endswith(settings)}
print(len(files), sum(len(inspect.getsourcelines(c)[0]) for c in entered))
"""
COMMANDS = "from chess_grpo.cli import COMMANDS; print(len(COMMANDS))"


def part_of(name: str) -> str:
    "The part of the library that a file belongs to."
    folder, *rest = name.split("/")
    return folder if rest else "research" if name == "research.py" else "core"


def public(text: str) -> int:
    "Entries of `__all__`."
    named = [n for n in ast.parse(text).body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "__all__"]
    return len(ast.literal_eval(named[0].value)) if named else 0


def function_lines(text: str) -> list[int]:
    return [n.end_lineno - n.lineno + 1 for n in ast.walk(ast.parse(text))
            if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]


def p90(values: Sequence[int]) -> int: return sorted(values)[int(0.9 * (len(values) - 1))]


def asked(code: str) -> int | None: # None = these modules cannot be imported
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    return None if done.returncode else int(done.stdout)


def words(paths: Sequence[Path]) -> int:
    return sum(len(source_of(json.loads(p.read_text()), "markdown").split()) for p in paths)


def measured() -> dict[str, int | None]:
    texts: dict[str, list[str]] = {}
    for name, text in library().items():
        if not name.endswith("_modidx.py"): texts.setdefault(part_of(name), []).append(text)
    every, pages = [t for part in texts.values() for t in part], notebooks()
    lengths = [n for t in every for n in function_lines(t)]
    lines = {f"lines: {part}": sum(len(t.splitlines()) for t in ts) for part, ts in texts.items()}
    return lines | {
        "lines: all": sum(lines.values()), "modules": len(modules()),
        "public names": sum(map(public, every)),
        "keys of a training run": asked(KEYS), "commands": asked(COMMANDS),
        "notebooks": len(pages), "words of prose": words(pages),
        "columns of a line, p90": p90([len(line) for t in every for line in t.splitlines() if line.strip()]),
        "lines of a function, median": round(statistics.median(lengths)), "lines of a function, p90": p90(lengths),
    }


def main():
    now = measured()
    print(f"{'':28s}{'now':>10s}{'budget':>10s}")
    for name in (*BUDGETS, *(n for n in now if n not in BUDGETS)):
        value, budget = now.get(name), BUDGETS.get(name)
        over = value is not None and budget is not None and value > budget
        print(f"{name:28s}{'?' if value is None else f'{value:,}':>10s}{f'{budget:,}' if budget else '':>10s}"
              f"{'   over' if over else ''}")
    done = subprocess.run([sys.executable, "-c", STEP], cwd=ROOT, capture_output=True, text=True)
    files, lines = done.stdout.split() or "??"
    print(f"one step from positions to weights, the functions that a profiler sees: {files} files (budget 9) beside "
          "core, schema and config, "
          f"{lines} lines (budget 1,600)")


if __name__ == "__main__": main()
