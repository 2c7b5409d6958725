"""What is run, at which size, in which order: the most valuable pieces first. What is claimed stands in claims.py."""

from __future__ import annotations

from typing import Any

GPT = {"world": "texts", "width": 384, "layers": 6, "heads": 6, "length": 256, "rows": 32, "judged": 128, "new_bytes": 160_000}
SMALL_GPT = {"world": "texts", "width": 128, "layers": 4, "heads": 4, "length": 64, "rows": 16, "judged": 128, "new_bytes": 100_000}
TINY_GPT = {"world": "texts", "width": 64, "layers": 2, "heads": 2, "length": 32, "rows": 16, "judged": 96, "new_bytes": 2000}
RESNET = {"world": "pictures", "width": 64, "rows": 128, "images": 10_000, "judged": 2000}
TINY_NET = {"world": "pictures", "width": 8, "rows": 32, "images": 500, "judged": 400}

# What each size of each study is made with. A piece adds what differs from run to run.
SIZES: dict[str, dict[str, dict[str, Any]]] = {
    "full": {
        "finetune/gpt": GPT
        | {"pretrain_steps": 2500, "pretrain_rate": 1e-3, "steps": 800, "every": 10, "readings": 49, "rank": 16},
        "finetune/resnet": RESNET
        | {"pretrain_steps": 2500, "pretrain_rate": 1e-3, "steps": 400, "every": 10, "readings": 49, "new_images": 500},
        "decay/gpt": GPT | {"old_bytes": 500_000, "rate": 1e-3, "steps": 2000, "every": 50, "readings": 40, "l2": [0.02, 60.0]},
        "decay/resnet": RESNET
        | {"noise": 0.4, "rate": 1e-3, "steps": 2000, "every": 50, "readings": 30, "l2": [0.02, 60.0], "refresh": 20},
        "anneal/gpt/overfits": GPT
        | {"old_bytes": 1_000_000, "rate": 1e-3, "decay": 0.1, "optimizer": "adam", "steps": 2500, "every": 10, "look": 50}
        | {"windows": [0.4, 0.2]},
        "anneal/gpt/improves": GPT
        | {"rate": 1e-3, "decay": 0.1, "optimizer": "adam", "steps": 1200, "every": 10, "look": 50, "windows": [0.4, 0.2]},
        "anneal/resnet/overfits": RESNET
        | {"noise": 0.4, "rate": 0.05, "decay": 0.0, "optimizer": "sgd", "steps": 2000, "every": 10, "look": 50}
        | {"windows": [0.4, 0.2], "refresh": 20},
        "anneal/resnet/improves": RESNET
        | {"rate": 0.05, "decay": 5e-4, "optimizer": "sgd", "steps": 1200, "every": 10, "look": 50}
        | {"windows": [0.4, 0.2], "refresh": 20},
    },
}  # fmt: skip
# Minutes on a CPU.
SIZES["small"] = {
    "finetune/gpt": SMALL_GPT
    | {"pretrain_steps": 1500, "pretrain_rate": 2e-3, "steps": 300, "every": 10, "readings": 25, "rank": 8},
    "decay/gpt": SMALL_GPT | {"old_bytes": 30_000, "rate": 2e-3, "steps": 1000, "every": 50, "readings": 25, "l2": [0.02, 60.0]},
    "anneal/gpt/overfits": SMALL_GPT
    | {"old_bytes": 30_000, "rate": 2e-3, "decay": 0.1, "optimizer": "adam", "steps": 800, "every": 10, "look": 50}
    | {"windows": [0.2]},
    "anneal/gpt/improves": SMALL_GPT
    | {"rate": 2e-3, "decay": 0.1, "optimizer": "adam", "steps": 500, "every": 10, "look": 50, "windows": [0.2]},
}  # fmt: skip
# Seconds, for the tests.
SIZES["tiny"] = {
    "finetune/gpt": TINY_GPT
    | {"pretrain_steps": 400, "pretrain_rate": 3e-3, "steps": 400, "every": 20, "readings": 13, "rank": 4},
    "finetune/resnet": TINY_NET
    | {"pretrain_steps": 60, "pretrain_rate": 3e-3, "steps": 30, "every": 10, "readings": 9, "new_images": 50},
    "decay/gpt": TINY_GPT | {"old_bytes": 4000, "rate": 3e-3, "steps": 400, "every": 20, "readings": 13, "l2": [0.02, 60.0]},
    "decay/resnet": TINY_NET
    | {"noise": 0.4, "rate": 1e-3, "steps": 40, "every": 5, "readings": 5, "l2": [0.1, 100.0], "refresh": 3},
    "anneal/gpt/overfits": TINY_GPT
    | {"old_bytes": 4000, "rate": 3e-3, "decay": 0.1, "optimizer": "adam", "steps": 300, "every": 5, "look": 50}
    | {"windows": [0.2]},
    "anneal/gpt/improves": TINY_GPT
    | {"rate": 3e-3, "decay": 0.1, "optimizer": "adam", "steps": 300, "every": 5, "look": 50, "windows": [0.2]},
    "anneal/resnet/improves": TINY_NET
    | {"rate": 0.02, "decay": 5e-4, "optimizer": "sgd", "steps": 40, "every": 5, "look": 20, "windows": [0.4], "refresh": 3},
}  # fmt: skip

# Of the full size; smaller models take larger steps. λ times the sum of the rates is 0.08 to 400 for Adam and 0.5 to 1600 for
# SGD (whose rate counts tenfold with momentum 0.9).
RATES = {("gpt", "adam", "full"): 1e-4, ("gpt", "sgd", "full"): 0.02, ("gpt", "adam", "lora"): 1e-3, ("gpt", "sgd", "lora"): 0.1}
RATES |= {("resnet", "adam", "full"): 1e-4, ("resnet", "sgd", "full"): 0.005}
RANGES = {("gpt", "adam", "full"): (1.0, 5000.0), ("gpt", "sgd", "full"): (3e-3, 10.0)}
RANGES |= {("gpt", "adam", "lora"): (0.1, 500.0), ("gpt", "sgd", "lora"): (6e-4, 2.0)}
RANGES |= {("resnet", "adam", "full"): (1.0, 5000.0), ("resnet", "sgd", "full"): (3e-3, 30.0)}
PULLS = {"adam": [3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0], "sgd": [0.03, 0.1, 0.3, 0.6, 1.0, 2.0]}
LORA_PULLS = [0.3, 1.0, 3.0, 10.0, 30.0, 100.0]
SHARES = [0.03125, 0.125, 0.25, 0.5]
DECAYS = [0.1, 0.3, 0.6, 1.0, 1.8, 3.0, 6.0, 12.0]

Piece = dict[str, Any]


def finetune(size: str, seeds: list[int], model: str = "gpt") -> list[list[Piece]]:
    """Stages: within one, seeds take turns."""
    stages: list[list[Piece]] = []

    def stage(**piece: Any) -> None:
        settings = {"study": "finetune", "model": model, **piece}
        stages.append([{**settings, "seed": seed} for seed in seeds])

    def run(method: str, optimizer: str, weights: str, scale: float = 1.0, **more: Any) -> None:
        rate = RATES[model, optimizer, weights] * scale
        if size != "full":
            rate *= 5 if optimizer == "adam" and weights == "full" else 2  # smaller models take larger steps
        stage(method=method, optimizer=optimizer, weights=weights, rate=rate, **more)

    def ranged(optimizer: str, weights: str) -> list[float]:
        low, high = RANGES[model, optimizer, weights]
        return [low, high] if size == "full" else [low, high / 2]

    stage(method="pretrain")
    run("dial", "adam", "full", l2=ranged("adam", "full"))
    if size != "full":
        for strength in (3.0, 300.0):
            run("l2sp", "adam", "full", strength=strength)
        run("replay", "adam", "full", share=0.25)
        run("dial", "sgd", "full", l2=ranged("sgd", "full"))
        if model == "gpt":
            run("dial", "adam", "lora", l2=ranged("adam", "lora"))
        return stages
    for strength in PULLS["adam"]:
        run("l2sp", "adam", "full", strength=strength)
    run("dial", "sgd", "full", l2=ranged("sgd", "full"))
    for share in SHARES:
        run("replay", "adam", "full", share=share)
    if model == "gpt":
        run("dial", "adam", "lora", l2=ranged("adam", "lora"))
        run("dial", "sgd", "lora", l2=ranged("sgd", "lora"))
    for strength in PULLS["adam"]:
        run("l2sp", "adam", "full", scale=3.0, strength=strength / 3)
    for strength in PULLS["sgd"]:
        run("l2sp", "sgd", "full", strength=strength)
    if model == "gpt":
        for strength in LORA_PULLS:
            run("l2sp", "adam", "lora", strength=strength)
    for strength in PULLS["sgd"]:
        run("l2sp", "sgd", "full", scale=3.0, strength=strength)
    for strength in PULLS["adam"][2:]:
        run("l2sp", "adam", "full", scale=0.5, strength=strength)
    return stages


def decay(size: str, seeds: list[int], model: str = "gpt") -> list[list[Piece]]:
    methods: list[Piece] = [{"method": "dial"}]
    if size != "full":
        methods += [{"method": "adamw", "decay": value} for value in (0.3, 3.0)]
        return [[{"study": "decay", "model": model, **method, "seed": seed} for seed in seeds] for method in methods]
    # From the middle outwards: what is cut off is what matters least.
    methods += [
        {"method": "adamw", "decay": value}
        for value in sorted(DECAYS, key=lambda value: abs(value / 1.34 - 1) + abs(1.34 / value - 1))
    ]
    if model == "gpt":
        methods += [{"method": "to-start", "decay": value} for value in (0.3, 1.0, 3.0, 6.0)]
    return [[{"study": "decay", "model": model, **method, "seed": seed} for seed in seeds] for method in methods]


def anneal(size: str, seeds: list[int], model: str = "gpt") -> list[list[Piece]]:
    regimes = [regime for regime in ("improves", "overfits") if f"anneal/{model}/{regime}" in SIZES[size]]
    return [[{"study": "anneal", "model": model, "regime": regime, "seed": seed} for seed in seeds] for regime in regimes]


def name(piece: Piece) -> str:
    """Of the size a piece takes."""
    return "/".join(piece[key] for key in ("study", "model", "regime") if key in piece)


STUDIES = {"finetune": finetune, "decay": decay, "anneal": anneal}


def pieces(study: str, size: str, seeds: list[int]) -> list[Piece]:
    """`finetune`, `decay/resnet`, …: all pieces in their order."""
    kind, _, model = study.partition("/")
    return [piece for stage in STUDIES[kind](size, seeds, model or "gpt") for piece in stage]


def steps(piece: Piece, size: str) -> int:
    """About how many steps a piece takes, looks included: whether it still fits."""
    settings = SIZES[size][name(piece)]
    if piece.get("method") == "pretrain":
        return settings["pretrain_steps"]
    if piece["study"] == "anneal":
        return round(settings["steps"] * (1 + 3 * sum(settings["windows"]) + 0.1))
    return round(settings["steps"] * (1.6 if piece["method"] == "dial" else 1.15))
