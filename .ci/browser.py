"""A person at the board, played by a real browser: in JupyterLab, on the local page, on a phone's width.

    python .ci/browser.py [FOLDER]     pictures of what was seen go to FOLDER

It needs jupyterlab and playwright, and a Chromium (of the system, or CHROMIUM=path, or playwright install chromium).
"""
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import chess
import chess.pgn
import nbformat
from playwright.sync_api import Page, sync_playwright

from chess_grpo.engine import EnginePool

# castling, en passant, a promotion and a mate
GAME = ("e2e4 a7a6 e4e5 d7d5 e5d6 g8f6 d6c7 h7h6 c7d8q e8d8 g1f3 b8c6 f1c4 g7g6 e1g1 f6h7 c4f7 c6b4 d2d4 b4a2 d1e1 "
        "c8d7 e1a5 b7b6 a5b6 d8c8 c1f4 a6a5 b6c7").split()
PIECES = {"q": 0, "r": 1, "b": 2, "n": 3}    # in the order of the dialog


class Hand:
    "Moves pieces on a board of a page, by clicks, by dragging, by keys."
    def __init__(self, page: Page, within: str = ""):
        self.page, self.box = page, page.locator(f"{within} .chess-grpo-board").last
        self.svg = self.box.locator("svg.cm-chessboard")
        self.svg.wait_for()
        self.cursor = "a1"    # of the keys

    @property
    def fen(self) -> str: return self.box.get_attribute("data-fen")

    def flipped(self) -> bool:
        squares = {s: self.box.locator(f'[data-square="{s}"]').first.bounding_box() for s in ("a1", "a8")}
        return squares["a1"]["y"] < squares["a8"]["y"]

    def at(self, square: str) -> tuple[float, float]:
        b = self.box.locator(f'[data-square="{square}"]').first.bounding_box()
        return b["x"] + b["width"] / 2, b["y"] + b["height"] / 2

    def settled(self):
        "Until nothing moves any more."
        time.sleep(0.35)

    def click(self, uci: str):
        self.page.mouse.click(*self.at(uci[:2]))
        self.page.mouse.click(*self.at(uci[2:4]))
        self.promote(uci)

    def drag(self, uci: str):
        (x, y), (u, v) = self.at(uci[:2]), self.at(uci[2:4])
        self.page.mouse.move(x, y)
        self.page.mouse.down()
        for i in range(1, 9): self.page.mouse.move(x + (u - x) * i / 8, y + (v - y) * i / 8)
        self.page.mouse.up()
        self.promote(uci)

    def keys(self, uci: str):
        "From where the cursor of the keys is: arrows, then Enter, twice."
        self.svg.focus()
        for square in (uci[:2], uci[2:4]):
            for axis, names in ((0, ("ArrowRight", "ArrowLeft")), (1, ("ArrowUp", "ArrowDown"))):
                steps = ord(square[axis]) - ord(self.cursor[axis])
                for _ in range(abs(steps)): self.page.keyboard.press(names[steps < 0])
            self.cursor = square
            self.page.keyboard.press("Enter")

    def promote(self, uci: str):
        if len(uci) < 5: return
        buttons = self.box.locator(".promotion-dialog-button")
        buttons.first.wait_for()
        time.sleep(0.2)
        buttons.nth(PIECES[uci[4]]).click(force=True)

    def until(self, fen: str):
        "Until the board shows a position, drawn too."
        for _ in range(200):
            if self.fen == fen: break
            time.sleep(0.05)
        assert self.fen == fen, f"the board shows {self.fen}, not {fen}"
        self.settled()
        drawn = {p.get_attribute("data-square"): p.get_attribute("data-piece")
                 for p in self.box.locator("g[data-piece]").all()}
        truth = {chess.square_name(s): ("b", "w")[p.color] + p.symbol().lower()
                 for s, p in chess.Board(fen).piece_map().items()}
        assert drawn == truth, f"drawn {drawn}, not {truth}"


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@contextmanager
def running(words: list, folder: Path, **env: str):
    p = subprocess.Popen([str(w) for w in words], cwd=folder, env=os.environ | env, stdout=subprocess.PIPE,
                         stderr=subprocess.STDOUT, text=True)
    try: yield p
    finally:
        p.terminate()
        try: p.wait(10)
        except subprocess.TimeoutExpired: p.kill()


@contextmanager
def lab(browser, cells: list[str], folder: Path):
    "A notebook in JupyterLab, its cells run."
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in cells])
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "python3", "language": "python"}
    nbformat.write(notebook, folder/"hand.ipynb")
    port = free_port()
    words = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", f"--ServerApp.port={port}",
             "--IdentityProvider.token=", "--LabApp.expose_app_in_browser=True", "--ServerApp.disable_check_xsrf=True"]
    with running(words, folder, JUPYTER_CONFIG_DIR=str(folder/"config")):
        page = browser.new_page(viewport={"width": 1200, "height": 1000})
        page.on("pageerror", lambda e: print("page error:", e))
        for _ in range(120):
            try:
                page.goto(f"http://127.0.0.1:{port}/lab/tree/hand.ipynb")
                break
            except Exception as e:
                if "ERR_CONNECTION_REFUSED" not in str(e): raise
                time.sleep(0.5)
        page.wait_for_selector(".jp-Notebook .jp-CodeCell", timeout=60_000)
        page.wait_for_function("window.jupyterapp.shell.currentWidget?.context?.sessionContext?.session?.kernel",
                               timeout=60_000)
        page.evaluate("void window.jupyterapp.commands.execute('notebook:run-all-cells')")
        yield page
        page.close()


def whole_game(hand: Hand) -> int: # how many illegal moves were tried
    "The game above, one move by clicks, one by dragging, one by keys; an illegal drop before every third."
    board, tried = chess.Board(), 0
    hand.until(board.fen())
    for i, uci in enumerate(GAME):
        if i % 3 == 1:
            own = next(m for m in board.legal_moves)
            bad = next(s for s in chess.SQUARE_NAMES if s[0] + s[1] != uci[:2]
                       and not any(m.uci().startswith(uci[:2] + s) for m in board.legal_moves))
            hand.drag(uci[:2] + bad)
            hand.until(board.fen())
            assert own in board.legal_moves
            tried += 1
        board.push_uci(uci)
        # the promotion by clicks: its dialog is asked with a mouse
        (hand.click, hand.drag, hand.keys)[0 if len(uci) == 5 else i % 3](uci)
        hand.until(board.fen())
    assert board.is_checkmate()
    return tried


def at_the_board(browser, folder: Path, pictures: Path):
    "A board in JupyterLab: a whole game by hand, then what Python knows of it."
    with lab(browser, ["from chess_grpo.ui.sparring import Board\nboard = Board()\nboard"], folder) as page:
        hand = Hand(page, ".jp-OutputArea")
        tried = whole_game(hand)
        page.screenshot(path=pictures/"lab_mate.png")
        page.evaluate("window.jupyterapp.commands.execute('notebook:insert-cell-below')")
        time.sleep(0.5)
        page.keyboard.press("Enter")
        page.keyboard.insert_text("print('MOVES', *[m.uci() for m in board.game.move_stack])")
        page.keyboard.press("Shift+Enter")
        said = page.locator(".jp-OutputArea-output pre", has_text="MOVES").first
        said.wait_for(timeout=20_000)
        assert said.inner_text().splitlines()[0].split()[1:] == GAME, said.inner_text()
        print(f"JupyterLab: {len(GAME)} moves by clicks, drags and keys; {tried} illegal drops fell back")


def against_policy(browser, folder: Path, pictures: Path):
    "A policy in JupyterLab, beaten by a hand that asks Stockfish."
    cells = ["from chess_grpo.ui.sparring import play\nplay('pretrained')"]
    with lab(browser, cells, folder) as page, EnginePool(1) as engine:
        hand, board = Hand(page, ".jp-OutputArea"), chess.Board()
        page.locator("text=would play").wait_for()
        fits(page, hand, pictures)
        page.screenshot(path=pictures/"lab_play.png")
        hand.click("e2e4")
        answered(hand, "e2e4", board)
        page.get_by_role("button", name="Take back").click()
        board = chess.Board()
        hand.until(board.fen())
        page.get_by_text("ask Stockfish").click()
        for i in range(60):
            uci = engine.best_moves([board.fen()], "go depth 8")[0]
            (hand.click, hand.drag)[i % 2](uci)
            answered(hand, uci, board)
            if i == 4: page.screenshot(path=pictures/"lab_engine.png")
            if board.outcome(): break
        assert board.outcome(), "no end after 60 moves"
        end = page.locator("text=checkmate").or_(page.locator("text=a draw"))
        end.first.wait_for()
        page.screenshot(path=pictures/"lab_end.png")
        with page.expect_download() as download: page.get_by_text("Save PGN").click()
        moves = chess.pgn.read_game(open(download.value.path())).end().board().move_stack
        assert moves == board.move_stack
        page.get_by_role("button", name="New game").click()
        hand.until(chess.STARTING_FEN)
        page.get_by_role("button", name="Change sides").click()
        page.locator("text=Black: your move").wait_for()
        time.sleep(1)
        assert hand.flipped()
        page.screenshot(path=pictures/"lab_black.png")
        print(f"JupyterLab: a game against the shipped policy, {len(board.move_stack)} plies: {board.result()}")


def fits(page: Page, hand: Hand, pictures: Path):
    "At 800 pixels and at 600 the whole board is in its cell."
    for width in (800, 600, 1200):
        page.set_viewport_size({"width": width, "height": 1000})
        hand.settled()
        page.screenshot(path=pictures/f"lab_{width}.png")
        board, cell = hand.svg.bounding_box(), page.locator(".jp-OutputArea-output").last.bounding_box()
        over = board["x"] + board["width"] - cell["x"] - cell["width"]
        assert over <= 1, f"the board is {over:.0f} pixels too wide at {width}"


def answered(hand: Hand, uci: str, board: chess.Board):
    "The move stands, and the policy's answer, whatever it is; the board is moved on."
    board.push_uci(uci)
    if board.outcome(): return hand.until(board.fen())
    possible = {}
    for m in list(board.legal_moves):
        board.push(m)
        possible[board.fen()] = m
        board.pop()
    for _ in range(200):
        if hand.fen in possible: break
        time.sleep(0.05)
    assert hand.fen in possible, f"the board shows {hand.fen} after {uci} in {board.fen()}"
    board.push(possible[hand.fen])
    hand.until(board.fen())


RUN = """from chess_grpo.config import TrainConfig
from chess_grpo.train import train
result = train(TrainConfig(
    run_name="seen", preflight="off", max_steps=STEPS, batch_size=16, num_generations=4, width=32, layers=1, heads=2,
    search_depth=1, match_openings=0, eval_steps=20, learning_rate=3e-3, entropy_floor=3.0), watch=True)
print("ENDED", result.steps, result.complete)"""


def watching(browser, folder: Path, pictures: Path):
    "A run in JupyterLab: its panel, its button; then one whose page is closed."
    with lab(browser, [RUN.replace("STEPS", "100000")], folder) as page:
        page.locator("text=/step [0-9]+ of 100000/").wait_for(timeout=60_000)
        time.sleep(12)
        assert page.locator(".jp-OutputArea polyline").count() >= 5
        page.screenshot(path=pictures/"lab_watch.png")
        page.get_by_role("button", name="Stop", exact=True).click()
        page.locator("text=/ENDED [0-9]+ False/").wait_for(timeout=30_000)
        said = "drawing takes" + page.locator("text=/drawing takes/").first.inner_text().split("drawing takes")[1][:5]
    steps = json.loads((folder/"runs/seen/summary.json").read_text())["steps"]
    print(f"JupyterLab: the button ended a run after {steps} steps. {said}")
    with lab(browser, [RUN.replace("STEPS", "150").replace("seen", "alone")], folder) as page:
        page.locator("text=/step [0-9]+ of 150/").wait_for(timeout=60_000)
        page.close()
        for _ in range(240):
            if (folder/"runs/alone/report.html").exists(): break
            time.sleep(0.5)
        assert json.loads((folder/"runs/alone/summary.json").read_text())["complete"]
    print("JupyterLab: a run whose page was closed came to its end")


def on_the_page(browser, folder: Path, pictures: Path):
    "The local page: light, dark, a phone; a promotion and a mate from a position of its own."
    fen = "7k/P4ppp/8/8/8/8/8/K7 w - - 0 1"
    words = [Path(sys.executable).parent/"chess-grpo", "play", "pretrained", "--browser", "no", "--fen", fen]
    for look, width in (("light", 800), ("dark", 800), ("dark", 390)):
        with running(words, folder) as p:
            url = p.stdout.readline().split()[0]
            page = browser.new_page(viewport={"width": width, "height": 850}, color_scheme=look)
            bad = []
            page.on("console", lambda m: bad.append(m.text) if m.type == "error" else None)
            page.on("pageerror", lambda e: bad.append(str(e)))
            page.goto(url)
            hand, board = Hand(page), chess.Board(fen)
            hand.until(fen)
            wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert wide <= 0, f"{wide} pixels too wide at {width}"
            page.screenshot(path=pictures/f"page_{look}_{width}.png")
            hand.click("a7a8q")
            hand.until("Q6k/5ppp/8/8/8/8/8/K7 b - - 0 1")
            page.locator("text=checkmate: White wins").wait_for()
            page.get_by_role("button", name="Take back").click()
            hand.until(fen)
            hand.drag("a7a8n")
            answered(hand, "a7a8n", board)
            p.terminate()
            p.wait()
            page.get_by_role("button", name="New game").click()
            page.locator("text=The program has ended").wait_for()
            assert [e for e in bad if "ERR_CONNECTION" not in e and "Failed to fetch" not in e] == [], bad
            page.close()
    print("local page: light, dark, a phone's width; promotions, a mate, the program's end")


def chromium(playwright):
    "The system's, or playwright's own."
    path = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    return playwright.chromium.launch(executable_path=path, args=["--no-sandbox"] if os.geteuid() == 0 else [])


TESTS = on_the_page, at_the_board, against_policy, watching


def main() -> int:
    pictures = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()).resolve()
    pictures.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = chromium(playwright)
        for test in TESTS:
            with tempfile.TemporaryDirectory() as folder: test(browser, Path(folder), pictures)
        browser.close()
    print(f"pictures in {pictures}")
    return 0


if __name__ == "__main__": sys.exit(main())
