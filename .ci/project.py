"What the scripts of this folder share: where things are, and what is in them."
import configparser
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
LIBRARY = ROOT/"chess_grpo"
SETTINGS = configparser.ConfigParser()
SETTINGS.read(ROOT/"settings.ini")
VERSION = SETTINGS["DEFAULT"]["version"]
SMOKE = {"WANDB_MODE": "disabled", "CHESS_GRPO_SCALE": "smoke", "OMP_NUM_THREADS": "1", **os.environ}


def library(folder: Path = LIBRARY) -> dict[str, str]:
    return {str(p.relative_to(folder)): p.read_text() for p in sorted(folder.rglob("*.py"))}


def modules() -> dict[str, str]:
    "Source by name, such as text.model, without what nbdev writes for itself."
    named = {n[:-3].replace("/", "."): text for n, text in library().items()}
    return {n: text for n, text in named.items() if n.split(".")[-1] not in ("__init__", "_modidx")}


def notebooks() -> list[Path]:
    return [p for p in sorted(ROOT.glob("nbs/**/*.ipynb")) if ".ipynb_checkpoints" not in p.parts]


def source_of(notebook: dict, kind: str) -> str:
    return "\n\n".join("".join(c["source"]) for c in notebook["cells"] if c["cell_type"] == kind)
