"""Check that library, README and first cells are what the notebooks say; then run every notebook.

    python .ci/check.py            the whole check, at CHESS_GRPO_SCALE or smoke
    python .ci/check.py board      only notebooks with "board" in their path
    python .ci/check.py --export   write chess_grpo/, README.md and the first cells instead
    python .ci/check.py --size     only print how large the library is, beside its budgets
    python .ci/check.py --notes    only run `start` and the five notes from a git address
    python .ci/check.py --nbdev3   only compare with the library that nbdev 3 exports
"""
import ast
import importlib.metadata
import json
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Iterator

import nbformat
from nbconvert import MarkdownExporter
from packaging.requirements import Requirement

from first_cell import EXTRAS, elsewhere, first_cells, notes, repository
from project import BIN, LIBRARY, ROOT, SETTINGS, SMOKE, library, modules, notebooks, source_of

NBDEV3 = "nbdev==3.3.26"


def readme() -> str:
    "README.md, as nbs/index.ipynb makes it; its pictures lie in nbs/images."
    notebook = nbformat.read(ROOT/"nbs/index.ipynb", 4)
    notebook.metadata.language_info = {"name": "python"}
    text, _ = MarkdownExporter().from_notebook_node(notebook)
    return text.strip().replace("](images/", "](nbs/images/") + "\n"


def export():
    first_cells(write=True)
    subprocess.run([BIN/"nbdev_export"], cwd=ROOT, check=True)
    (ROOT/"README.md").write_text(readme())


def in_step() -> list[str]:
    "What is out of step with the notebooks; the export is left in place, so that git diff shows it."
    wrong, before, was = first_cells(), library(), (ROOT/"README.md").read_text()
    export()
    after = library()
    wrong += [f"chess_grpo/{n} is out of step with the notebooks: commit what make export writes"
              for n in sorted(before.keys() | after.keys()) if before.get(n) != after.get(n)]
    if shipped_totals() not in was: wrong.append(f"README.md does not say what data/claims says: {shipped_totals()}")
    if was != readme():
        wrong.append("README.md is out of step with nbs/index.ipynb: commit what make export writes")
    return wrong


def shipped_totals() -> str:
    ask = "from chess_grpo.research import totals; print(totals(root='nowhere'))"
    done = subprocess.run([sys.executable, "-c", ask], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip() or done.stderr[-200:]


def in_style() -> list[str]:
    "What ruff finds in notebooks and library; its rules are in pyproject.toml."
    ruff = [BIN/"ruff", "check", "--quiet", "--output-format", "concise", "nbs", "chess_grpo", ".ci"]
    done = subprocess.run(ruff, cwd=ROOT, capture_output=True, text=True)
    return [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]


def narrow() -> list[str]:
    "No line of the library is over 120 columns; nbdev wraps `__all__` itself, at 130, and writes its index, `_modidx`."
    def most(line: str) -> int: return 130 if line.startswith("__all__") else 120
    return [f"chess_grpo/{n}:{i} has {len(l)} columns; {most(l)} is the limit" for n, text in library().items()
            for i, l in enumerate(text.splitlines(), 1) if len(l) > most(l) and n != "_modidx.py"]


# a module imports only from floors before its own
FLOORS = [floor.split() for floor in (
    "core", "schema stats", "log board", "engine", "rewards loss", "model positions", "rollout learner config",
    "labels", "evaluate", "report", "train pretrain", "cli")]
FLOOR = {name: i for i, names in enumerate(FLOORS) for name in names}


def imports(name: str, tree: ast.AST, whole: bool) -> Iterator[str]:
    "Modules of this library that a module imports as it is loaded; `whole` = inside functions too."
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ImportFrom):
            above = ["chess_grpo", *name.split(".")][:-node.level] if node.level else []
            path = ".".join([*above, *filter(None, [node.module])])
            yield from (path.removeprefix("chess_grpo.") if path != "chess_grpo" else a.name for a in node.names
                        if path.split(".")[0] == "chess_grpo")
        elif isinstance(node, ast.Import):
            yield from (a.name.removeprefix("chess_grpo.") for a in node.names if a.name.startswith("chess_grpo."))
        elif whole or not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            yield from imports(name, node, whole)


def layers() -> list[str]:
    "Imports that the layout does not allow."
    known, found = modules(), []
    for name, text in known.items():
        mine, *sub = name.split(".")
        if not sub and mine not in (*FLOOR, "research"): found.append(f"chess_grpo/{mine}.py has no floor")
        if name != "research" and "research" in imports(name, ast.parse(text), whole=True):
            found.append(f"{name} imports research, which only notebooks may")
        for target in sorted(set(imports(name, ast.parse(text), whole=False)) & known.keys()):
            other, *below = target.split(".")
            if target == name: found.append(f"{name} imports itself")
            elif target == "research": pass    # said above
            elif sub and below and other != mine: found.append(f"{name} imports {target}, of another subpackage")
            elif not sub and below and FLOOR.get(mine, 99) < FLOOR["train"]:
                found.append(f"{name} imports the subpackage's {target} as it is loaded")
            elif not sub and not below and FLOOR.get(mine, 99) <= FLOOR.get(target, 99):
                found.append(f"{name} imports {target}, which is not on a smaller floor")
    return found


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
    for name, source in modules().items():
        bring = text if EXTRAS["text"].search(f"chess_grpo.{name}") else base
        for node in ast.parse(source).body:
            words = [a.name for a in node.names] if isinstance(node, ast.Import) else \
                [node.module] if isinstance(node, ast.ImportFrom) and not node.level else []
            found += [f"{name} imports {w}, which no requirement brings" for w in words if w.split(".")[0] not in bring]
    return found


# ![](x), [](x), and [name]: x at the beginning of a line
LINK = re.compile(r"\]\(([^)\s]+)\)|^\[[^\]]+\]: (\S+)", re.MULTILINE)
OURS = re.compile(r"https://(?:github\.com|colab\.research\.google\.com/github|raw\.githubusercontent\.com)/"
                  r"chess-grpo/chess_grpo/(?:(?:blob|tree)/)?main/([^#?]+)")


def slug(heading: str) -> str: return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def pages() -> dict[Path, str]:
    "The prose of notebooks and of the other pages."
    found = {p: source_of(json.loads(p.read_text()), "markdown") for p in notebooks()}
    return found | {p: p.read_text() for p in (*ROOT.glob("*.md"), ROOT/"data/README.md")}


def broken_links() -> list[str]:
    "Links of notebooks and pages that lead nowhere, as far as this checkout can tell."
    found = []
    for page, text in pages().items():
        anchors = {slug(line.lstrip("#")) for line in text.splitlines() if line.startswith("#")}
        for link in (a or b for a, b in LINK.findall(text)):
            ours = OURS.match(link)
            path, _, anchor = link.partition("#")
            target = ROOT/ours[1] if ours else page.parent/path
            lost = anchor not in anchors if not path else (ours or "://" not in link) and not target.exists()
            if lost and not link.startswith("mailto:"): found.append(f"{page.relative_to(ROOT)} links to {link}")
    return found


def names_an_index() -> list[str]:
    "No page and no message installs chess_grpo from a package index: the name there is not ours."
    bad = re.compile(r"pip3? install(?! -e)[^`\n]*?\bchess[_-]grpo\b(?!\S* @ )\S*")
    texts = {str(p.relative_to(ROOT)): text for p, text in pages().items()} | library()
    return [f"{name} says {m[0][:40]!r}" for name, text in texts.items() for m in bad.finditer(text)]


def bad_headings() -> list[str]:
    "A page has one title, at its beginning, and no heading skips a level."
    found = []
    for p in notebooks():
        text = re.sub(r"```.*?```", "", source_of(json.loads(p.read_text()), "markdown"), flags=re.S)
        levels = [len(m[1]) for m in re.finditer(r"^(#+) ", text, re.MULTILINE)]
        skips = any(b > a + 1 for a, b in zip(levels, levels[1:]))
        if levels[:1] != [1] or levels.count(1) != 1 or skips:
            found.append(f"{p.relative_to(ROOT)} has headings of the levels {levels[:12]}")
    return found


def in_sidebar() -> list[str]:
    "Every page has its place in the site, and only one; no two of a folder have the same number."
    listed = re.findall(r"- (\S+\.ipynb)", (ROOT/"nbs/sidebar.yml").read_text())
    have = {str(p.relative_to(ROOT/"nbs")) for p in notebooks()}
    twice = {p for p in listed if listed.count(p) > 1}
    numbers = [m[0] for p in have if (m := re.match(r"(.*/)?\d+_", p))]
    return [*(f"nbs/sidebar.yml does not list {p} once" for p in sorted(have ^ set(listed) | twice)),
            *(f"nbs/{n} is the beginning of more than one name" for n in sorted(set(numbers)) if numbers.count(n) > 1)]


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


def same_with_nbdev3() -> list[str]:
    "nbdev 3 reads pyproject.toml; does it export the same? Its own index of symbols (_modidx) has another form."
    with tempfile.TemporaryDirectory() as folder:
        copy, bin3 = repository(Path(folder)/"copy"), Path(folder)/"venv"/"bin"
        subprocess.run([sys.executable, "-m", "venv", bin3.parent], check=True)
        subprocess.run([bin3/"pip", "install", "--quiet", NBDEV3], check=True, stderr=subprocess.DEVNULL)
        subprocess.run([bin3/"nbdev-export"], cwd=copy, check=True, env={**os.environ, "PYTHONPATH": ""})
        ours, theirs = library(), library(copy/"chess_grpo")
    return [f"nbdev 3 exports another chess_grpo/{n}" for n in sorted(ours.keys() | theirs.keys())
            if n != "_modidx.py" and ours.get(n) != theirs.get(n)]


# a process that has loaded what every notebook needs, and is copied for each of them
SERVER = multiprocessing.get_context("forkserver")


def tested(notebook: Path, out: Path):
    "What `nbdev_test` does, in a copy of the server; ends it, whatever threads a notebook has left."
    os.chdir(ROOT)
    with open(out, "w") as f:
        for stream in (1, 2): os.dup2(f.fileno(), stream)
    from nbdev.test import nbdev_test
    try: nbdev_test(path=str(notebook), n_workers=0)
    except SystemExit as e: failed = bool(e.code)
    else: failed = False
    for stream in (sys.stdout, sys.stderr): stream.flush()
    os._exit(failed)


def run(notebook: Path, all_of_them: int, done: list) -> bool:
    "One notebook, in a process of its own."
    start, problem = time.monotonic(), ""
    try: nbformat.validate(nbformat.read(notebook, 4))
    except nbformat.ValidationError as e: problem = str(e)
    with tempfile.NamedTemporaryFile() as out:
        p = SERVER.Process(target=tested, args=(notebook, out.name))
        p.start()
        p.join()
        printed = Path(out.name).read_text(errors="replace")
    ok = p.exitcode == 0 and not problem
    name, seconds = notebook.relative_to(ROOT), time.monotonic() - start
    done.append(name)
    print(f"{'ok    ' if ok else 'FAILED'} {seconds:5.0f} s  {len(done):3d} of {all_of_them}  {name}", flush=True)
    if not ok: print(problem + printed[-9000:], flush=True)
    return ok


def gpu_script() -> list[str]:
    "Does what runs on a card run here?"
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, ROOT/".ci/gpu.py", "--device", "cpu", "--small", "--out", folder]
        done = subprocess.run(words, cwd=folder, env=SMOKE, capture_output=True, text=True)
    return [f"make gpu: {done.stdout[-1500:]}{done.stderr[-1500:]}"] if done.returncode else []


def much_code(notebook: Path) -> int:
    "Its characters: what takes long to run is mostly long."
    return len(source_of(json.loads(notebook.read_text()), "code"))


def run_all(words: list[str], wrong: list[str]) -> int:
    "Notebooks two at a time, the longest first, so that both cores are busy to the end; what failed again at the end."
    chosen = sorted((p for p in notebooks() if any(w in str(p) for w in words or [""])), key=much_code, reverse=True)
    start, done = time.monotonic(), []
    os.environ.update(SMOKE)
    SERVER.set_forkserver_preload(["torch", "nbdev.test"])
    sys.warnoptions.append("ignore::UserWarning:multiprocessing.resource_tracker")    # of processes that end at once
    with ThreadPoolExecutor(1) as other, ThreadPoolExecutor(2) as pair:
        apart = None if words else other.submit(lambda: elsewhere() + gpu_script())
        passed = list(pair.map(lambda p: run(p, len(chosen), done), chosen))
        try: wrong += apart.result() if apart else []
        except (OSError, subprocess.CalledProcessError) as e: wrong.append(f"first cells could not be tried: {e}")
    for line in wrong: print(line)
    for path, ok in zip(chosen, passed):
        if not ok: print(f"FAILED {path.relative_to(ROOT)}")
    failed = passed.count(False) + len(wrong)
    print(f"{passed.count(True)} passed, {failed} failed, in {(time.monotonic() - start) / 60:.1f} minutes")
    return failed


def main() -> int:
    words = sys.argv[1:]
    if "--export" in words: return export() or 0
    if "--size" in words: return subprocess.run([sys.executable, ROOT/".ci/size.py"], cwd=ROOT).returncode
    alone = {"--notes": notes, "--nbdev3": same_with_nbdev3}
    checks = [alone[w] for w in words if w in alone] or [
        in_step, in_style, narrow, layers, undeclared, broken_links, names_an_index, bad_headings, in_sidebar]
    wrong = [line for f in checks for line in f()] + (site() if not words else [])
    for line in wrong: print(line, flush=True)
    return bool(wrong) if alone.keys() & set(words) else bool(run_all(words, wrong))


if __name__ == "__main__": sys.exit(main())
