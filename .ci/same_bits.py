"""Does a redesign change what is computed? Runs the same things with two checkouts and compares every number.

    python .ci/same_bits.py keep /tmp/before [SECTION...]     run, keep the figures
    python .ci/same_bits.py compare /tmp/before /tmp/after    what differs

Run it with PYTHONPATH set to the checkout in question, with the same number of threads each time.
"""
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

SMALL = "--width 32 --layers 2 --heads 2 --batch 16 --group 4 --wandb no --match_openings 0 --processes 2".split()
HARD = SMALL + ("--steps 5 --depth 4 --value yes --teacher_ply 0.3 --teacher_game 0.7 --updates 2 --sync_every 2 --kl exact "
                "--kl_coef 0.02 --kl_old exact --kl_old_coef 0.01 --kl_target 0.001 --entropy_floor 2.9 --patience 2 --dropout 0.1 "
                "--resample 1 --reward_change yes --reward_negative 1.5 --eval_every 2 --save_every 2 --preflight off "
                "--advantage_scale all --live_random_last 0.2 --endings_last 0.1 --warmup 2").split()
ROLLBACK = SMALL + ("--steps 8 --entropy_floor 9 --entropy_action rollback --patience 2 --save_every 1 --eval_every 4 --preflight off "
                    "--nonfinite rollback --root_noise 0.2 --reward tanh --balance 300 --book yes --advantage_credit return --depth 3 "
                    "--advantage_baseline leave_one_out --aggregate sequence --ratio sequence --clip_high 0.3 --dual_clip 3 --kl k1 --kl_coef 0.01 "
                    "--kl_ratio yes --kl_grad no --keep_every 3 --schedule cosine").split()
VALUE = SMALL + "--steps 4 --value yes --advantage_baseline value --preflight off --freeze 1 --schedule constant --reward linear".split()
PREFLIGHTS = [[], ["--learner_temperature", "1.3"], ["--dropout", "0.1"], ["--learner_temperature", "1.3", "--dropout", "0.1"],
              ["--depth", "3", "--reward_change", "yes", "--kl_coef", "0.05", "--kl", "k1", "--entropy_estimate", "minus_log_prob"],
              ["--learning_rate", "1e-9", "--value", "yes", "--balance", "200"], ["--temperature", "1.4", "--teacher_ply", "0.2", "--depth", "2", "--sync_every", "4"]]

MAIN = [sys.executable, "-c", "import sys; from chess_grpo.command import main; sys.exit(main())"]


def run(words, **env):
    p = subprocess.run([*MAIN, *words], env=os.environ | {"WANDB_MODE": "offline"} | env, capture_output=True, text=True)
    if p.returncode not in (0, 1, 2): raise SystemExit(f"{words}: {p.returncode}\n{p.stdout[-3000:]}{p.stderr[-3000:]}")
    return p


def weights(path):
    from safetensors import safe_open
    with safe_open(path, "pt") as f:
        return {k: hashlib.sha256(f.get_tensor(k).contiguous().view(-1).numpy().tobytes()).hexdigest() for k in sorted(f.keys())}


def kept(folder):
    "All a run left, but for times."
    folder = Path(folder)
    rows = [json.loads(l) for l in (folder/"metrics.jsonl").read_text().splitlines()]
    out = {"rows": [{k: v for k, v in r.items() if not k.startswith("time/") and k != "seconds"} for r in rows]}
    out["policy"] = weights(folder/"policy.safetensors")
    if (folder/"state.safetensors").exists(): out["state"] = weights(folder/"state.safetensors")
    s = json.loads((folder/"summary.json").read_text())
    out["summary"] = {k: v for k, v in s.items() if k not in ("seconds", "positions_a_second")}
    out["files"] = sorted(p.name for p in folder.iterdir() if p.suffix != "" and p.name != "wandb")
    for p in sorted(folder.glob("*.pgn")): out[p.name] = [l for l in p.read_text().splitlines() if l and not l.startswith("[Date")]
    return out


def section_train():
    p = run(["train"]); assert p.returncode == 0, p.stderr
    return {**kept("runs/grpo"), "table": p.stdout.splitlines()[-12:-1]}


def section_hard():
    run(["train", "--name", "hard", *HARD]); run(["train", "--name", "back", *ROLLBACK]); run(["train", "--name", "value", *VALUE])
    out = {n: kept(f"runs/{n}") for n in ("hard", "back", "value")}
    run(["train", "--resume", "runs/hard", "--steps", "9"]); run(["train", "--resume", "runs/back", "--steps", "12"])
    return out | {f"{n} resumed": kept(f"runs/{n}") for n in ("hard", "back")}


def section_two():
    words = ["train", "--name", "two", *HARD, "--batch", "16"]
    script = Path("two.py"); script.write_text("import sys\nfrom chess_grpo.command import main\nsys.exit(main())\n")
    p = subprocess.run([str(Path(sys.executable).parent/"accelerate"), "launch", "--cpu", "--num_processes", "2", str(script), *words],
                       env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    assert p.returncode == 0, p.stderr[-3000:]
    return kept("runs/two")


def section_notes():
    out = {}
    for note in ("000", "001", "002", "004"):
        p = run(["train", "--note", note, "--name", f"n{note}", *SMALL, "--steps", "3", "--depth", "4", "--preflight", "warn", "--start", "", "--eval_every", "2", "--processes", "2"])
        out[note] = {**kept(f"runs/n{note}"), "said": [l for l in p.stdout.splitlines() if not l.startswith("report:")]}
    return out


def section_preflight():
    return {" ".join(w): [(p := run(["preflight", *w])).stdout, p.returncode] for w in PREFLIGHTS}


def section_pretrain():
    run("label --folder runs/shards --shards 2 --positions 300 --depth 1".split())
    run("pretrain --width 32 --layers 1 --heads 2 --steps 20 --valid 100 --batch 32 --eval_every 10 --match_openings 4 --value yes --dropout 0.1".split())
    run("pretrain --name adam --width 32 --layers 1 --heads 2 --steps 10 --valid 100 --batch 32 --eval_every 10 --match_openings 0 --optimizer adamw --target best --smoothing 0.1".split())
    p = run(["evaluate", "runs/pretrain/policy.safetensors", "--against", "random", "--openings", "4"])
    return {"a": kept("runs/pretrain"), "b": kept("runs/adam"), "evaluate": p.stdout, "labels": {f.name: weights(f) for f in sorted(Path("runs/shards").glob("*.safetensors"))}}


def module(*names):
    import importlib
    for n in names:
        try: return importlib.import_module(f"chess_grpo.{n}")
        except ModuleNotFoundError: continue
    raise SystemExit(f"none of {names}")


def digest(t): return hashlib.sha256(t.detach().cpu().contiguous().view(-1).numpy().tobytes()).hexdigest()


def section_rollout():
    from chess_grpo.core import generator
    from chess_grpo.engine import EnginePool
    from chess_grpo.policy import PolicyConfig, new_policy
    sampler, positions = module("sampler"), module("starts", "positions")
    policy, boards, out = new_policy(PolicyConfig(width=32, layers=1, heads=2), 0).eval(), positions.random_starts(12, generator(0)), {}
    import inspect
    plies = "plies" if "plies" in inspect.signature(sampler.sample).parameters else "depth"
    with EnginePool(2) as pool:
        for name, more in {"plain": {}, "teacher": {"teacher_ply": .5, "teacher_depth": 2}, "noise": {"root_noise": .25}}.items():
            r = sampler.sample(policy, boards, pool, generator(1), group=4, **{plies: 5}, **more)
            out[name] = [digest(x) for x in (r.actions, r.log_probs, r.rewards, r.mask, r.forced, r.index, r.scores.cp, r.scores.mate)]
    actions, rewards = sampler.plain_sample(policy, boards.fens(), generator(1), 4, 5)
    return out | {"twin": [digest(actions), digest(rewards)]}


def section_text():
    from dataclasses import replace
    from chess_grpo.core import data_path
    from chess_grpo.engine import EnginePool
    try: from chess_grpo import text as t; t.TextTrainer
    except AttributeError:
        import types
        rooms = [module(f"text.{n}") for n in ("tasks", "samples", "rewards", "fit", "model", "train")]
        t = types.SimpleNamespace(**{k: v for m in rooms for k, v in vars(m).items() if not k.startswith("__")})
    from chess_grpo.loss import LossConfig
    out = {}
    with EnginePool(2) as engine:
        def config(**more):
            if hasattr(t.TextConfig, "of"): return t.TextConfig.of(batch=3, group=4, depth=2).but(**more)
            return replace(t.TextConfig(batch=3, group=4, depth=2), **more)
        samples = t.make_samples(40, 40, 3, engine, depth=2)
        out["samples"] = hashlib.sha256("\n".join(s.text for s in samples).encode()).hexdigest()
        prompts = {k: [s.prompt for s in samples if s.task == k] for k in ("P", "A")}
        for name, more in {"plain": {}, "bugs": {"dropout": True, "learner_temperature": 1.3, "retokenise": True}, "exact": {"updates": 2, "loss": LossConfig(kl="exact", kl_coef=.05, entropy_coef=.01)}}.items():
            model, tokenizer = t.load_text_model(data_path("text_model.safetensors"))
            import torch
            torch.manual_seed(5)
            trainer = t.TextTrainer(model, tokenizer, prompts, engine, config(**more))
            out[name] = [{k: v for k, v in trainer.step().items() if not k.startswith("time")} for _ in range(5)]
            out[name + " weights"] = {k: digest(v) for k, v in model.state_dict().items()}
            i = trainer.preflight()
            out[name + " preflight"] = str(i)
        model = t.small_model(width=32, layers=1, heads=2)
        out["fit"] = t.fit_text(model, t.chess_tokenizer(), samples, steps=12, batch=8)
        out["answers"] = {k: v.tolist() for k, v in t.answers(model, t.chess_tokenizer(), samples[:30]).items()}
    return out


def section_verdicts():
    out = {}
    for note in ("000", "001", "002", "003", "004"):
        p = run(["reproduce", note, "--scale", "smoke"], OMP_NUM_THREADS="1", CHESS_GRPO_SCALE="smoke")
        if p.returncode: out[note] = p.stderr[-3000:]; continue
        out[note] = [{k: v for k, v in row.items() if k != "seconds"} for row in json.loads(Path(f"runs/claims/{note}.json").read_text())]
    return out


def keep(folder, names):
    folder = Path(folder).resolve(); folder.mkdir(parents=True, exist_ok=True)
    for name in names or [k[8:] for k in globals() if k.startswith("section_")]:
        work = folder/f"work_{name}"
        if work.exists():
            import shutil; shutil.rmtree(work)
        work.mkdir(); os.chdir(work)
        found = globals()[f"section_{name}"]()
        (folder/f"{name}.json").write_text(json.dumps(found, indent=1, sort_keys=True, default=str))
        print("kept", name, flush=True)


def differences(a, b, at=""):
    if type(a) is type(b) is dict:
        for k in sorted(a.keys() | b.keys()):
            if k not in a or k not in b: yield f"{at}/{k}: only {'before' if k in a else 'after'}"
            else: yield from differences(a[k], b[k], f"{at}/{k}")
    elif type(a) is type(b) is list and len(a) == len(b):
        for i, (x, y) in enumerate(zip(a, b)): yield from differences(x, y, f"{at}[{i}]")
    elif a != b and not (a != a and b != b): yield f"{at}: {str(a)[:300]} -> {str(b)[:300]}"


def compare(before, after):
    different = 0
    for p in sorted(Path(before).glob("*.json")):
        q = Path(after)/p.name
        if not q.exists(): print(f"{p.stem}: not run after"); continue
        found = list(differences(json.loads(p.read_text()), json.loads(q.read_text())))
        print(f"{p.stem}: {'the same' if not found else f'{len(found)} differences'}")
        for line in found[:12]: print("   ", line)
        different += bool(found)
    return different


if __name__ == "__main__":
    if sys.argv[1] == "keep": keep(sys.argv[2], sys.argv[3:])
    else: sys.exit(compare(sys.argv[2], sys.argv[3]))
