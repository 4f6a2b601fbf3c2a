"""Check that library and README are what the notebooks export, and the style; then run every notebook and count.

    python .ci/check.py            the whole check, at CHESS_GRPO_SCALE or smoke
    python .ci/check.py board      only notebooks with "board" in their path
    python .ci/check.py --export   write chess_grpo/ and README.md instead
    python .ci/check.py --nbdev3   only: does nbdev 3 export the same library? (in an environment of its own)
"""
import configparser
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nbformat
from nbconvert import MarkdownExporter

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
LIBRARY = ROOT/"chess_grpo"
NBDEV3 = "nbdev==3.3.26"


SETTINGS = configparser.ConfigParser()
SETTINGS.read(ROOT/"settings.ini")
INSTALL = re.compile(r'%pip install -q (\\"[^"]+"|[^\s"]+)')    # of a notebook's first cell


def installs(write: bool = False) -> list[str]:
    "Notebooks install this package by its name and version, and both stand in settings.ini alone."
    name, version = SETTINGS["DEFAULT"]["lib_name"], SETTINGS["DEFAULT"]["version"]
    ours, wrong = re.compile(rf'\\"{name}(\[text\])?==[^"\\]+\\"'), []
    for path in sorted(ROOT.glob("nbs/**/*.ipynb")):
        text = path.read_text()
        right = ours.sub(lambda m: f'\\"{name}{m[1] or ""}=={version}\\"', text)
        if write and right != text: path.write_text(right)
        odd = [m[1] for m in INSTALL.finditer(right) if not ours.fullmatch(m[1])]
        rel = path.relative_to(ROOT)
        if odd: wrong.append(f"{rel} installs {odd[0]}, not {name}=={version}")
        elif right != text and not write: wrong.append(f"{rel} installs another version than {version}: make export")
    return wrong


def readme() -> str:
    "README.md, as nbs/index.ipynb makes it; its pictures lie in nbs/images."
    notebook = nbformat.read(ROOT/"nbs/index.ipynb", 4)
    notebook.metadata.language_info = {"name": "python"}
    text, _ = MarkdownExporter().from_notebook_node(notebook)
    return text.strip().replace("](images/", "](nbs/images/") + "\n"


def library(folder: Path = LIBRARY) -> dict[str, str]:
    return {str(p.relative_to(folder)): p.read_text() for p in sorted(folder.rglob("*.py"))}


def export():
    installs(write=True)
    subprocess.run([BIN/"nbdev_export"], cwd=ROOT, check=True)
    (ROOT/"README.md").write_text(readme())


def in_step() -> list[str]:
    "What is out of step with the notebooks; the export is left in place, so that git diff shows it."
    before, path = library(), ROOT/"README.md"
    was = path.read_text() if path.exists() else ""
    export()
    after = library()
    stale = [f"chess_grpo/{n} is out of step with the notebooks: commit what make export writes"
             for n in sorted(before.keys() | after.keys()) if before.get(n) != after.get(n)]
    if shipped_totals() not in was:
        stale.append(f"README.md does not say what data/claims says: {shipped_totals()}")
    if was != readme():
        stale.append("README.md is out of step with nbs/index.ipynb: commit what make export writes")
    return stale


def shipped_totals() -> str:
    ask = "from chess_grpo.claims import totals; print(totals(root='nowhere'))"
    done = subprocess.run([sys.executable, "-c", ask], cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def in_style() -> list[str]:
    "What ruff finds in notebooks and library; its rules are in pyproject.toml."
    ruff = [BIN/"ruff", "check", "--quiet", "--output-format", "concise", "nbs", "chess_grpo", ".ci/check.py"]
    done = subprocess.run(ruff, cwd=ROOT, capture_output=True, text=True)
    return [l for l in (done.stdout + done.stderr).splitlines() if l.strip()]


def numbered_once() -> list[str]:
    "A room's number is its place in the house: no two rooms have the same."
    rooms = [p.name for p in sorted(ROOT.glob("nbs/api/*.ipynb"))]
    numbers = [r.split("_")[0] for r in rooms]
    return [f"nbs/api/{r} has a number that another room has" for r, n in zip(rooms, numbers) if numbers.count(n) > 1]


def narrow() -> list[str]:
    "No line of the library is over 120 columns, but those that nbdev wraps itself: `__all__` and `_modidx`."
    return [f"chess_grpo/{n}:{i} has {len(l)} columns; 120 is the limit" for n, text in library().items()
            for i, l in enumerate(text.splitlines(), 1)
            if len(l) > 120 and not l.startswith("__all__") and n != "_modidx.py"]


def same_with_nbdev3() -> list[str]:
    "nbdev 3 reads pyproject.toml; does it export the same? Its own index of symbols (_modidx) has another form."
    with tempfile.TemporaryDirectory() as folder:
        copy, bin3 = Path(folder)/"copy", Path(folder)/"venv"/"bin"
        copy.mkdir()
        for name in ("nbs", "chess_grpo"): shutil.copytree(ROOT/name, copy/name)
        for name in ("settings.ini", "pyproject.toml", "README.md"): shutil.copy(ROOT/name, copy)
        subprocess.run([sys.executable, "-m", "venv", bin3.parent], check=True)
        subprocess.run([bin3/"pip", "install", "--quiet", NBDEV3], check=True, stderr=subprocess.DEVNULL)
        subprocess.run(["git", "init", "--quiet", "."], cwd=copy, check=True)
        subprocess.run([bin3/"nbdev-export"], cwd=copy, check=True, env={**os.environ, "PYTHONPATH": ""})
        ours, theirs = library(), library(copy/"chess_grpo")
    return [f"nbdev 3 exports another chess_grpo/{n}" for n in sorted(ours.keys() | theirs.keys())
            if n != "_modidx.py" and ours.get(n) != theirs.get(n)]


def run(notebook: Path) -> bool:
    "One notebook, in a process of its own."
    start, problem = time.monotonic(), ""
    try: nbformat.validate(nbformat.read(notebook, 4))
    except nbformat.ValidationError as e: problem = str(e)
    # two run at once
    env = {"WANDB_MODE": "offline", "CHESS_GRPO_SCALE": "smoke", "OMP_NUM_THREADS": "1", **os.environ}
    words = [BIN/"nbdev_test", "--path", notebook, "--n_workers", "0"]
    p = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True)
    ok = p.returncode == 0 and not problem
    name, seconds = notebook.relative_to(ROOT), time.monotonic() - start
    print(f"{'ok    ' if ok else 'FAILED'} {seconds:5.0f} s  {name}", flush=True)
    if not ok: print(problem + p.stdout[-6000:] + p.stderr[-6000:], flush=True)
    return ok


def chosen(words: list[str]) -> list[Path]:
    every = [p for p in sorted(ROOT.glob("nbs/**/*.ipynb")) if ".ipynb_checkpoints" not in p.parts]
    return [p for p in every if any(w in str(p) for w in words or [""])]


def main() -> int:
    words = sys.argv[1:]
    if "--export" in words:
        export()
        return 0
    checks = installs, in_step, in_style, narrow, numbered_once
    wrong = same_with_nbdev3() if "--nbdev3" in words else [line for f in checks for line in f()]
    if not words: wrong += same_with_nbdev3()
    for line in wrong: print(line, flush=True)
    if "--nbdev3" in words: return 1 if wrong else 0
    notebooks = chosen(words)
    print(f"{len(notebooks)} notebooks, two at a time; all of them take about 15 minutes on two cores", flush=True)
    with ThreadPoolExecutor(2) as pool: results = list(pool.map(run, notebooks))
    failed = results.count(False) + len(wrong)
    print(f"{results.count(True)} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__": sys.exit(main())
