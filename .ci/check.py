"""Check that library and README are what the notebooks export, then run every notebook as a test and count them.

    python .ci/check.py            the whole check, at CHESS_GRPO_SCALE or smoke
    python .ci/check.py board      only notebooks with "board" in their path
    python .ci/check.py --export   write chess_grpo/ and README.md instead
"""
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nbformat
from nbconvert import MarkdownExporter

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
LIBRARY = ROOT/"chess_grpo"


def readme() -> str:
    "README.md, as nbs/index.ipynb makes it; its pictures lie in nbs/images."
    notebook = nbformat.read(ROOT/"nbs/index.ipynb", 4)
    notebook.metadata.language_info = {"name": "python"}
    text, _ = MarkdownExporter().from_notebook_node(notebook)
    return text.strip().replace("](images/", "](nbs/images/") + "\n"


def library() -> dict[str, str]: return {p.name: p.read_text() for p in sorted(LIBRARY.glob("*.py"))}


def export():
    subprocess.run([BIN/"nbdev_export"], cwd=ROOT, check=True)
    (ROOT/"README.md").write_text(readme())


def in_step() -> list[str]:
    "What is out of step with the notebooks; the export is left in place, so that git diff shows it."
    before, was = library(), (ROOT/"README.md").read_text() if (ROOT/"README.md").exists() else ""
    export()
    after = library()
    stale = [f"chess_grpo/{n} is out of step with the notebooks: commit what make export writes" for n in sorted(before.keys() | after.keys()) if before.get(n) != after.get(n)]
    totals = subprocess.run([sys.executable, "-c", "from chess_grpo.claims import totals; print(totals(root='nowhere'))"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()
    stale += [] if totals in was else [f"README.md does not say what data/claims says: {totals}"]
    return stale + (["README.md is out of step with nbs/index.ipynb: commit what make export writes"] if was != readme() else [])


def run(notebook: Path) -> bool:
    "One notebook, in a process of its own."
    start = time.monotonic()
    try: nbformat.validate(nbformat.read(notebook, 4)); problem = ""
    except nbformat.ValidationError as e: problem = str(e)
    env = {"WANDB_MODE": "offline", "CHESS_GRPO_SCALE": "smoke", "OMP_NUM_THREADS": "1", **os.environ}    # two run at once
    p = subprocess.run([BIN/"nbdev_test", "--path", notebook, "--n_workers", "0"], cwd=ROOT, env=env, capture_output=True, text=True)
    ok = p.returncode == 0 and not problem
    print(f"{'ok    ' if ok else 'FAILED'} {time.monotonic() - start:5.0f} s  {notebook.relative_to(ROOT)}", flush=True)
    if not ok: print(problem + p.stdout[-6000:] + p.stderr[-6000:], flush=True)
    return ok


def main() -> int:
    if "--export" in sys.argv: export(); return 0
    stale = in_step()
    for line in stale: print(line, flush=True)
    chosen = sys.argv[1:] or [""]
    notebooks = [p for p in sorted(ROOT.glob("nbs/**/*.ipynb")) if ".ipynb_checkpoints" not in p.parts and any(c in str(p) for c in chosen)]
    with ThreadPoolExecutor(2) as pool: results = list(pool.map(run, notebooks))
    failed = results.count(False) + len(stale)
    print(f"{results.count(True)} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__": sys.exit(main())
