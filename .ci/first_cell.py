"The cell that makes `import chess_grpo` work, or says what is missing; and does it, where the package is hidden?"
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from project import ROOT, SMOKE, VERSION, notebooks, source_of

FIRST = '''\
#| eval: false
REPO = ""    #@param {type:"string"}
import importlib, pathlib, subprocess, sys
try: importlib.import_module("chess_grpo.engine")
except ImportError:
    here = pathlib.Path.cwd()
    checkout = [p for p in (here, *here.parents) if (p/"nbs/start.ipynb").exists()]
    wheel = [p.as_uri() for p in here.glob("chess_grpo-VERSION-*.whl")]
    git = [f"git+{REPO}@vVERSION"] if REPO else []
    if not checkout + wheel + git:
        raise SystemExit("Set REPO above to the address of chess_grpo's git repository, and run this cell again.")
    what = ["-e", f"{checkout[0]}EXTRA"] if checkout else [f"chess_grpoEXTRA @ {(wheel + git)[0]}"]
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", *whatBESIDE], check=True)
    sys.path += map(str, checkout)
    if "google.colab" in sys.modules and not pathlib.Path("/usr/games/stockfish").exists():
        subprocess.run(["apt-get", "-qq", "install", "stockfish"], check=True)'''.replace("VERSION", VERSION)

EXTRAS = {
    "text": re.compile(r"(chess_grpo\.|default_exp )(text\b|preflight\.trl|integrations\.hub)"
                       r"|^\s*(import|from) (trl|transformers|datasets|tokenizers)\b", re.M),
    "ray": re.compile(r"default_exp integrations\.fleet|import .*\b(Fleet|start_node)\b", re.M)}
BESIDE = {"fastcore": "fastcore", "pgx": "pgx", "stockfish": "stockfish", "berserk": "berserk", "lm_eval": "lm_eval",
          "verifiers": "verifiers uv", "openenv": "openenv-core[core]"}    # imported name: what brings it


def first_cell(notebook: dict) -> str:
    "The text of this notebook's first cell: the same everywhere, but for the packages that it needs."
    code = source_of(notebook, "code")
    extra = ",".join(x for x, needs in EXTRAS.items() if needs.search(code))
    beside = [p for x, names in BESIDE.items() for p in names.split()
              if re.search(rf"^\s*(import|from) {x}\b|^#\| {x}$|import_module\(.{x}.\)", code, re.M)]
    return FIRST.replace("EXTRA", f"[{extra}]" if extra else "").replace(
        "BESIDE", "".join(f', "{p}"' for p in beside))


def is_first_cell(cell: dict) -> bool:
    text = "".join(cell["source"])
    return text.startswith("#| eval: false\n") and "chess_grpo" in text and "install" in text


def first_cells(write: bool = False) -> list[str]:
    "Notebooks whose first cell is another one; `write` = put that right."
    wrong = []
    for path in notebooks():
        notebook = json.loads(path.read_text())
        cells = [c for c in notebook["cells"] if is_first_cell(c)]
        right = first_cell(notebook)
        if path == ROOT/"nbs/index.ipynb" or ["".join(c["source"]) for c in cells] == [right]: continue
        if len(cells) != 1: wrong.append(f"{path.relative_to(ROOT)} has {len(cells)} cells that install, not one")
        elif not write: wrong.append(f"{path.relative_to(ROOT)} has another first cell: make export")
        else:
            cells[0]["source"] = right.splitlines(keepends=True)
            path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")
    return wrong


def repository(to: Path) -> Path:
    "The working tree as a git repository of one commit, with the tag of this version."
    listed = subprocess.run(["git", "ls-files", "-coz", "--exclude-standard"], cwd=ROOT, check=True,
                            capture_output=True, text=True).stdout.split("\0")
    for path in (p for p in listed if (ROOT/p).is_file()):
        (to/path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT/path, to/path)
    env = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull}    # without anybody's hooks and keys
    who = ["-c", "user.name=check", "-c", "user.email=check@localhost"]
    for words in (["init"], ["add", "--all", "--force"], [*who, "commit", "-m", "all"], ["tag", f"v{VERSION}"]):
        subprocess.run(["git", *words], cwd=to, check=True, capture_output=True, env=env)
    return to


def without_it(folder: Path) -> tuple[Path, dict]:
    "A Python that has the packages of this one, but not chess_grpo; and its environment."
    # a .pth adds a folder, but does not read the .pth of the editable package in there
    venv.create(folder, symlinks=True)
    (site_packages,) = folder.glob("lib/python*/site-packages")
    (site_packages/"others.pth").write_text(sysconfig.get_paths()["purelib"])
    return folder/"bin"/"python", {k: v for k, v in SMOKE.items() if k != "PYTHONPATH"}


def ways_to_install(folder: Path, repo: Path) -> list[str]:
    "Does a first cell use a checkout, then a wheel, and else fail with a sentence?"
    cell = first_cell({"cells": []}) + "\nimport chess_grpo\nprint(chess_grpo.__file__)"
    nothing, wheel = folder/"nothing", folder/"wheel"
    nothing.mkdir()
    subprocess.run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", wheel, repo], check=True)
    size, found = sum(p.stat().st_size for p in wheel.glob("*.whl")) / 1e6, []
    if size > 14: found.append(f"the wheel has {size:.1f} MB; 14 is the limit")
    for where, expected in ((repo/"nbs", str(repo)), (wheel, "site-packages"), (nothing, "")):
        python, env = without_it(folder/f"python-{where.name}")
        done = subprocess.run([python, "-c", cell], cwd=where, env=env, capture_output=True, text=True)
        ok = expected in done.stdout and not done.returncode if expected else \
            done.returncode and done.stderr.startswith("Set REPO") and done.stderr.count("\n") == 1
        if not ok: found.append(f"the first cell does not work in {where.name}: {done.stdout}{done.stderr[-1500:]}")
    return found


def run_elsewhere(notebook: Path, folder: Path, repo: Path) -> str: # what is wrong
    "Run a notebook where nothing lies beside it and the package is hidden: its first cell gets a git address."
    python, env = without_it(folder/notebook.stem/"python")
    address = f"file://localhost{repo}"    # without a host, earlier versions of pip refuse it
    text = notebook.read_text().replace('REPO = \\"\\"', f'REPO = \\"{address}\\"')
    (folder/notebook.stem/notebook.name).write_text(text)
    words = [python, "-m", "nbconvert", "--to", "notebook", "--execute", "--inplace", notebook.name]
    start = time.monotonic()
    done = subprocess.run(words, cwd=folder/notebook.stem, env=env, capture_output=True, text=True)
    print(f"{notebook.name} from a git address: {time.monotonic() - start:.0f} s", flush=True)
    if done.returncode: return f"{notebook.name} does not run from a git address: {done.stderr[-1500:]}"
    own = list(python.parent.parent.glob("lib/*/site-packages/chess_grpo"))
    return "" if own else f"{notebook.name} installed nothing, and ran"


def elsewhere(names: tuple[str, ...] = ("start",)) -> list[str]:
    "First cells, and notebooks by what their first cells installed."
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        folder = Path(folder)
        repo = repository(folder/"repo")
        found = ways_to_install(folder, repo)
        chosen = [p for p in notebooks() if p.stem in names]
        return found + [w for w in pool.map(lambda p: run_elsewhere(p, folder, repo), chosen) if w]


def notes() -> list[str]:
    return elsewhere(("start", *(p.stem for p in ROOT.glob("nbs/research/00[0-4]_*.ipynb"))))
