"""Check that library and README are what the notebooks export, and the style; then run every notebook and count.

    python .ci/check.py            the whole check, at CHESS_GRPO_SCALE or smoke
    python .ci/check.py board      only notebooks with "board" in their path
    python .ci/check.py --export   write chess_grpo/ and README.md instead
    python .ci/check.py --nbdev3   only: does nbdev 3 export the same library? (in an environment of its own)
"""
import ast
import configparser
import importlib.metadata
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
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
LIBRARY = ROOT/"chess_grpo"
NBDEV3 = "nbdev==3.3.26"
MADE = shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints", "runs")    # what notebooks make while they run


SETTINGS = configparser.ConfigParser()
SETTINGS.read(ROOT/"settings.ini")
INSTALL = re.compile(r'%pip install -q (\\"[^"]+"|[^\s"]+)')    # of a notebook's first cell


# what needs the extra `text`
HEAVY = re.compile(r"chess_grpo[./](hub|text(?!\.(answers|tasks)))|studies\.(manual_grpo_step|same_as_trl)"
                   r"|(import|from) (trl|transformers|datasets)\b|text-data|default_exp (text(?!\.answers)|trl|hub)")
FLEET = re.compile(r"default_exp fleet|import (.*, )?(Fleet|start_node)")    # and the extra `ray`
# environments of their own
OTHERS = [(x, re.compile(rf"default_exp {x.replace('-', '_')}")) for x in ("verifiers", "openenv", "lm-eval")]


def installs(write: bool = False) -> list[str]:
    "Notebooks install this package by its name and version (settings.ini), and no more of it than they need."
    name, version = SETTINGS["DEFAULT"]["lib_name"], SETTINGS["DEFAULT"]["version"]
    ours, wrong = re.compile(rf'\\"{name}(\[[a-z,-]+\])?==[^"\\]+\\"'), []
    for path in sorted(ROOT.glob("nbs/**/*.ipynb")):
        text = path.read_text()
        extra = ",".join(x for x, needs in (("ray", FLEET), ("text", HEAVY), *OTHERS) if needs.search(text))
        extra = f"[{extra}]" if extra else ""
        right = ours.sub(lambda m: f'\\"{name}{extra}=={version}\\"', text)
        if write and right != text: path.write_text(right)
        odd = [m[1] for m in INSTALL.finditer(right) if not ours.fullmatch(m[1])]
        rel = path.relative_to(ROOT)
        if odd: wrong.append(f"{rel} installs {odd[0]}, not {name}=={version}")
        elif right != text and not write: wrong.append(f"{rel} should install {name}{extra}=={version}: make export")
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
    (ROOT/"data/commands.json").write_text(option_names())


def option_names() -> str:
    "What the command line knows before anything is loaded: data/commands.json."
    ask = "import json; from chess_grpo.command import option_names; print(json.dumps(option_names(), indent=1))"
    return subprocess.run([sys.executable, "-c", ask], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def in_step() -> list[str]:
    "What is out of step with the notebooks; the export is left in place, so that git diff shows it."
    before, path, names = library(), ROOT/"README.md", ROOT/"data/commands.json"
    was, known = (p.read_text() if p.exists() else "" for p in (path, names))
    export()
    after = library()
    stale = [f"chess_grpo/{n} is out of step with the notebooks: commit what make export writes"
             for n in sorted(before.keys() | after.keys()) if before.get(n) != after.get(n)]
    if known != names.read_text():
        stale.append("data/commands.json is out of step with nbs/api/64_command: commit what make export writes")
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
    "No line of the library is over 120 columns; nbdev wraps `__all__` itself, at 130, and writes its index, `_modidx`."
    def most(line: str) -> int: return 130 if line.startswith("__all__") else 120
    return [f"chess_grpo/{n}:{i} has {len(l)} columns; {most(l)} is the limit" for n, text in library().items()
            for i, l in enumerate(text.splitlines(), 1) if len(l) > most(l) and n != "_modidx.py"]


def brought(extras: str = "") -> set[str]:
    "Modules that settings.ini brings, with the extras whose names match, and what those bring."
    todo = [Requirement(x) for k, v in SETTINGS["DEFAULT"].items() for x in v.split()
            if k == "requirements" or re.fullmatch(f"({extras})_requirements", k)]
    seen: dict[str, set[str]] = {}
    while todo:
        r = todo.pop()
        if r.name in seen and r.extras <= seen[r.name]: continue
        seen[r.name] = seen.get(r.name, set()) | r.extras
        try: needs = map(Requirement, importlib.metadata.requires(r.name) or [])
        except importlib.metadata.PackageNotFoundError: continue    # of an extra that is not here
        todo += [n for n in needs if not n.marker or any(n.marker.evaluate({"extra": e}) for e in (*r.extras, ""))]
    names = {re.sub(r"[-_.]+", "-", n).lower() for n in seen}
    return {m for m, made_by in importlib.metadata.packages_distributions().items()
            if names & {re.sub(r"[-_.]+", "-", d).lower() for d in made_by}} | {*sys.stdlib_module_names, LIBRARY.name}


def undeclared() -> list[str]:
    "What the library imports as it is loaded, and no requirement brings: it works here, and not where it is installed."
    base, text, found = brought(), brought("text"), []
    for name, source in library().items():
        bring = text if HEAVY.search(f"chess_grpo/{name[:-3]}".replace("/", ".")) else base
        for node in ast.parse(source).body:
            words = [a.name for a in node.names] if isinstance(node, ast.Import) else \
                [node.module] if isinstance(node, ast.ImportFrom) and not node.level else []
            found += [f"chess_grpo/{name} imports {w}, which no requirement brings" for w in words
                      if w.split(".")[0] not in bring]
    return found


# ![](x), [](x), and [name]: x at the beginning of a line
LINK = re.compile(r"\]\(([^)\s]+)\)|^\[[^\]]+\]: (\S+)", re.MULTILINE)
OURS = re.compile(r"https://(?:github\.com|colab\.research\.google\.com/github|raw\.githubusercontent\.com)/"
                  r"chess-grpo/chess_grpo/(?:(?:blob|tree)/)?main/([^#?]+)")


def slug(heading: str) -> str: return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def broken_links() -> list[str]:
    "Links of notebooks and pages that lead nowhere, as far as this checkout can tell."
    pages = {p: "\n\n".join(c.source for c in nbformat.read(p, 4).cells if c.cell_type == "markdown")
             for p in sorted(ROOT.glob("nbs/**/*.ipynb"))}
    pages |= {p: p.read_text() for p in (*ROOT.glob("*.md"), ROOT/"data/README.md")}
    found = []
    for page, text in pages.items():
        anchors = {slug(line.lstrip("#")) for line in text.splitlines() if line.startswith("#")}
        for link in (a or b for a, b in LINK.findall(text)):
            ours = OURS.match(link)
            path, _, anchor = link.partition("#")
            target = ROOT/ours[1] if ours else page.parent/path
            lost = anchor not in anchors if not path else (ours or "://" not in link) and not target.exists()
            if lost and not link.startswith("mailto:"): found.append(f"{page.relative_to(ROOT)} links to {link}")
    return found


def bad_headings() -> list[str]:
    "A page has one title, at its beginning, and no heading skips a level."
    found = []
    for p in sorted(ROOT.glob("nbs/**/*.ipynb")):
        cells = [re.sub(r"```.*?```", "", c.source, flags=re.S) for c in nbformat.read(p, 4).cells
                 if c.cell_type == "markdown"]
        levels = [len(m[1]) for c in cells for m in re.finditer(r"^(#+) ", c, re.MULTILINE)]
        skips = any(b > a + 1 for a, b in zip(levels, levels[1:]))
        if levels[:1] != [1] or levels.count(1) != 1 or skips:
            found.append(f"{p.relative_to(ROOT)} has headings of the levels {levels[:12]}")
    return found


def in_sidebar() -> list[str]:
    "Every page has its place in the site, and only one."
    listed = re.findall(r"- (\S+\.ipynb)", (ROOT/"nbs/sidebar.yml").read_text())
    pages = {str(p.relative_to(ROOT/"nbs")) for p in ROOT.glob("nbs/**/*.ipynb")}
    twice = {p for p in listed if listed.count(p) > 1}
    return [f"nbs/sidebar.yml does not list {p} once" for p in sorted(pages ^ set(listed) | twice)]


# a process of its own: it runs exported cells and imports
SITE = """
import multiprocessing, pathlib, warnings
import torch, matplotlib
from execnb.nbio import read_nb
from nbdev.processors import FilterDefaults
warnings.simplefilter("ignore")

def page(p):
    try: FilterDefaults().nb_proc(read_nb(p)).process()
    except Exception as e: return f"{p} makes no page of the site: {' '.join(str(e).split())[:200]}"

if __name__ == "__main__":
    torch.set_num_threads(1)
    pages = sorted(pathlib.Path("nbs").glob("**/*.ipynb"))
    with multiprocessing.get_context("fork").Pool(2, maxtasksperchild=1) as pool:
        print(*filter(None, pool.imap(page, pages)), sep="\\n")
"""


def site() -> list[str]:
    "Notebooks that nbdev cannot make a page of: what `nbdev_docs` does before quarto draws them."
    with tempfile.NamedTemporaryFile("w", suffix=".py") as f:
        f.write(SITE)
        f.flush()
        done = subprocess.run([sys.executable, f.name], cwd=ROOT, capture_output=True, text=True)
    if done.returncode: return [f"the site could not be tried: {done.stderr[-500:]}"]
    return [line for line in done.stdout.splitlines() if "makes no page" in line]


def from_wheel() -> list[str]:
    "Does the notebook that a newcomer opens first run from the wheel alone, elsewhere, with the torch that is here?"
    with tempfile.TemporaryDirectory() as folder:
        copy, lib, work = (Path(folder)/name for name in ("copy", "lib", "work"))
        for name in ("chess_grpo", "data"): shutil.copytree(ROOT/name, copy/name, ignore=MADE)
        for p in ROOT.glob("*.*"): shutil.copy(p, copy) if p.is_file() else None
        work.mkdir()
        shutil.copy(ROOT/"nbs/start.ipynb", work)
        pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
        env = {"CHESS_GRPO_SCALE": "smoke", "WANDB_MODE": "offline", "OMP_NUM_THREADS": "1", **os.environ,
               "PYTHONPATH": str(lib)}
        run = [sys.executable, "-m", "nbconvert", "--to", "notebook", "--execute", "--inplace", "start.ipynb"]
        where = [sys.executable, "-c", "import chess_grpo; print(chess_grpo.__file__)"]
        done = None
        for words in ([*pip, "wheel", "--no-deps", "-w", folder, str(copy)],
                      [*pip, "install", "--no-deps", "--target", str(lib), "--find-links", folder, "--no-index",
                       SETTINGS["DEFAULT"]["lib_name"]], where, run):
            done = subprocess.run(words, cwd=work, env=env, capture_output=True, text=True)
            if done.returncode: return [f"nbs/start.ipynb does not run from the wheel: {done.stderr[-1500:]}"]
            if words is where and str(lib) not in done.stdout: return [f"not the wheel was tried: {done.stdout}"]
    return []


def same_with_nbdev3() -> list[str]:
    "nbdev 3 reads pyproject.toml; does it export the same? Its own index of symbols (_modidx) has another form."
    with tempfile.TemporaryDirectory() as folder:
        copy, bin3 = Path(folder)/"copy", Path(folder)/"venv"/"bin"
        copy.mkdir()
        for name in ("nbs", "chess_grpo"): shutil.copytree(ROOT/name, copy/name, ignore=MADE)
        for name in ("settings.ini", "pyproject.toml", "README.md"): shutil.copy(ROOT/name, copy)
        subprocess.run([sys.executable, "-m", "venv", bin3.parent], check=True)
        subprocess.run([bin3/"pip", "install", "--quiet", NBDEV3], check=True, stderr=subprocess.DEVNULL)
        subprocess.run(["git", "init", "--quiet", "."], cwd=copy, check=True)
        subprocess.run([bin3/"nbdev-export"], cwd=copy, check=True, env={**os.environ, "PYTHONPATH": ""})
        ours, theirs = library(), library(copy/"chess_grpo")
    return [f"nbdev 3 exports another chess_grpo/{n}" for n in sorted(ours.keys() | theirs.keys())
            if n != "_modidx.py" and ours.get(n) != theirs.get(n)]


def run(notebook: Path, all_of_them: int, done: list) -> bool:
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
    done.append(name)
    print(f"{'ok    ' if ok else 'FAILED'} {seconds:5.0f} s  {len(done):3d} of {all_of_them}  {name}", flush=True)
    if not ok: print(problem + p.stdout[-6000:] + p.stderr[-6000:], flush=True)
    return ok


def chosen(words: list[str]) -> list[Path]:
    every = [p for p in sorted(ROOT.glob("nbs/**/*.ipynb")) if ".ipynb_checkpoints" not in p.parts]
    return [p for p in every if any(w in str(p) for w in words or [""])]


def much_code(notebook: Path) -> int:
    "Its characters: what takes long to run is mostly long."
    return sum(len(c.source) for c in nbformat.read(notebook, 4).cells if c.cell_type == "code")


def main() -> int:
    words = sys.argv[1:]
    if "--export" in words:
        export()
        return 0
    checks = installs, in_step, in_style, narrow, undeclared, numbered_once, broken_links, bad_headings, in_sidebar
    wrong = same_with_nbdev3() if "--nbdev3" in words else [line for f in checks for line in f()]
    if not words: wrong += site()
    for line in wrong: print(line, flush=True)
    if "--nbdev3" in words: return 1 if wrong else 0
    notebooks = sorted(chosen(words), key=much_code, reverse=True)    # so that both are busy to the end
    often = f", about {round(60 * len(notebooks) / len(chosen([])))} minutes on two cores" if len(notebooks) > 5 else ""
    print(f"{len(notebooks)} notebooks, two at a time{often}", flush=True)
    done: list[Path] = []
    with ThreadPoolExecutor(2) as pool:
        apart = [pool.submit(f) for f in (from_wheel, same_with_nbdev3) if not words]
        results = list(pool.map(lambda p: run(p, len(notebooks), done), notebooks))
    for f in apart:
        try: wrong += f.result()
        except (OSError, subprocess.CalledProcessError) as e: wrong.append(f"a check could not be made: {e}")
    # again, where a log's end is all that one sees
    for line in wrong: print(line)
    for path, ok in zip(notebooks, results):
        if not ok: print(f"FAILED {path.relative_to(ROOT)}")
    failed = results.count(False) + len(wrong)
    print(f"{results.count(True)} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__": sys.exit(main())
