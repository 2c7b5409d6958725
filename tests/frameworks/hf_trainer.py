"""Transformers' Trainer: its folders `checkpoint-N`, its groups, its schedules, what lies beside them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import LambdaLR
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    get_cosine_schedule_with_warmup,
)

from .record import Record, recording
from .trial import Trial, case, contents

STEPS, EVERY = 200, 20
LOADS = "`from_pretrained`"


def bert(**settings: object) -> BertForSequenceClassification:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "vocab_size": 32}
    return BertForSequenceClassification(BertConfig(max_position_embeddings=16, **sizes, **settings))


def rows(count: int = 64) -> list[dict]:
    words = torch.randint(0, 32, (count, 6), generator=torch.Generator().manual_seed(2))
    return [{"input_ids": row, "attention_mask": torch.ones_like(row), "labels": int(row[0] > 15)} for row in words]


class Keeper(TrainerCallback):
    """Tells the record when the Trainer has saved."""

    def __init__(self, record: Record) -> None:
        self.record = record

    def on_save(self, args, state, control, model=None, **_) -> None:
        self.record.keep(model)


def train(
    folder: Path, record: Record, model: torch.nn.Module, *, kind: type[Trainer] = Trainer, optimizers: Callable | None = None, resume: bool = False,
    keeper: TrainerCallback | None = None, callback: TrainerCallback | None = None, data: list[dict] | None = None, **settings: object,
) -> Trainer:  # fmt: skip
    """Trains and saves; `optimizers` makes an optimizer and a scheduler of the model."""
    usual = {
        "max_steps": STEPS,
        "save_steps": EVERY,
        "logging_steps": 5,
        "learning_rate": 2e-3,
        "per_device_train_batch_size": 8,
        "seed": 3,
    }
    settings = usual | {"disable_tqdm": True, "report_to": "none", "use_cpu": True, "dataloader_pin_memory": False} | settings
    made = {"optimizers": optimizers(model)} if optimizers else {}
    trainer = kind(
        model,
        TrainingArguments(str(folder), **settings),
        train_dataset=data or rows(),
        eval_dataset=rows(16),
        callbacks=[keeper or Keeper(record), *([callback] if callback else [])],
        **made,
    )
    trainer.remove_callback(
        next(c for c in trainer.callback_handler.callbacks if type(c).__name__ in ("PrinterCallback", "ProgressCallback"))
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def check(
    t: Trial,
    record: Record,
    *flags: object,
    otherwise: tuple[object, ...] = (),
    tolerance: float = 2e-6,
    kind: type = BertForSequenceClassification,
) -> None:
    """Weights, and the average back into the class that made the run."""
    used = t.weights("run", record, *flags, otherwise=otherwise)
    expected = t.written("run", "out", record, *used)
    model = kind.from_pretrained(t.folder / "out")
    t.loaded(LOADS, model.state_dict(), expected, tolerance)
    with torch.no_grad():
        assert model(input_ids=torch.zeros(2, 5, dtype=torch.long)).logits.isfinite().all()


@case("transformers")
def adamw_warm_up_and_linear_after_save_model(t: Trial) -> None:
    """The final model lies beside the checkpoints: still a run."""
    with recording() as record:
        train(t.folder / "run", record, bert(), warmup_steps=40, weight_decay=0.1).save_model()
    check(t, record)


@case("transformers")
def adamw_cosine_logged_as_rarely_as_saved(t: Trial) -> None:
    with recording() as record:
        train(t.folder / "run", record, bert(), warmup_steps=40, lr_scheduler_type="cosine", logging_steps=EVERY)
    check(t, record)


@case("transformers")
def adamw_cosine_never_logged(t: Trial) -> None:
    """No log: the schedule's settings in training_args.bin are run again."""
    with recording() as record:
        train(t.folder / "run", record, bert(), lr_scheduler_type="cosine", logging_strategy="no")
    check(t, record)


@case("transformers")
def a_warm_up_that_ended_before_the_first_checkpoint(t: Trial) -> None:
    with recording() as record:
        train(t.folder / "run", record, bert(), warmup_steps=30, save_steps=40, lr_scheduler_type="constant_with_warmup", logging_steps=10)
    check(t, record)


@case("transformers")
def save_total_limit_rotated_the_start_away(t: Trial) -> None:
    with recording() as record:
        train(t.folder / "run", record, bert(), save_total_limit=4, warmup_steps=40)
    record = record.only([-4, -3, -2, -1])
    t.notes("run", record, "start", "missing")
    check(t, record)


@case("transformers")
def saved_every_epoch(t: Trial) -> None:
    with recording() as record:
        train(
            t.folder / "run",
            record,
            bert(),
            max_steps=-1,
            num_train_epochs=12,
            save_strategy="epoch",
            gradient_accumulation_steps=2,
            lr_scheduler_type="polynomial",
        )
    check(t, record)


@case("transformers")
def sharded_folders(t: Trial) -> None:
    class Sharded(Trainer):
        def _save(self, output_dir: str | None = None, state_dict: dict | None = None) -> None:
            super()._save(output_dir, state_dict)
            (Path(output_dir) / "model.safetensors").unlink()
            self.model.save_pretrained(output_dir, max_shard_size="6KB")

    with recording() as record:
        train(t.folder / "run", record, bert(), kind=Sharded, warmup_steps=40)
    assert len(list((t.folder / "run/checkpoint-20").glob("model-*.safetensors"))) > 1
    check(t, record)
    assert (t.folder / "out/model.safetensors.index.json").exists()


def heads(model: torch.nn.Module, head: float, **settings: object) -> list[dict]:
    body = [value for name, value in model.named_parameters() if not name.startswith("classifier")]
    return [{"params": body, **settings}, {"params": list(model.classifier.parameters()), "lr": head}]


@case("transformers")
def a_head_of_ten_times_the_rate(t: Trial) -> None:
    """In proportion: one mass, and the head's λ is a tenth."""

    def made(model: torch.nn.Module) -> tuple:
        optimizer = AdamW(heads(model, 1e-2), lr=1e-3)
        return optimizer, get_cosine_schedule_with_warmup(optimizer, 40, STEPS)

    with recording() as record:
        train(t.folder / "run", record, bert(), optimizers=made)
    check(t, record)


@case("transformers")
def a_head_with_a_schedule_of_its_own(t: Trial) -> None:
    """Out of proportion: a mass each."""

    def made(model: torch.nn.Module) -> tuple:
        optimizer = AdamW(heads(model, 5e-3), lr=1e-3)
        return optimizer, LambdaLR(optimizer, [lambda k: 1 - k / STEPS, lambda _: 1.0])

    with recording() as record:
        train(t.folder / "run", record, bert(), optimizers=made, logging_steps=1)
    assert len(record.weights(1.0)) == 2
    check(t, record)


@case("transformers")
def a_body_frozen_by_a_rate_of_0(t: Trial) -> None:
    """The first group's rate is 0: the second one speaks."""

    def made(model: torch.nn.Module) -> tuple:
        optimizer = AdamW(heads(model, 5e-3), lr=0.0)
        return optimizer, get_cosine_schedule_with_warmup(optimizer, 0, STEPS)

    with recording() as record:
        train(t.folder / "run", record, bert(), optimizers=made)
    check(t, record)


@case("transformers")
def sgd_with_momentum(t: Trial) -> None:
    def made(model: torch.nn.Module) -> tuple:
        optimizer = SGD(model.parameters(), lr=0.02, momentum=0.9)
        return optimizer, get_cosine_schedule_with_warmup(optimizer, 40, STEPS)

    with recording() as record:
        train(t.folder / "run", record, bert(), optimizers=made)
    check(t, record)


@case("transformers")
def save_only_model(t: Trial) -> None:
    """No optimizer state: steps and rates are in trainer_state.json, the kind of optimizer is not."""
    with recording() as record:
        train(t.folder / "run", record, bert(), save_only_model=True, warmup_steps=40)
    check(t, record, otherwise=("--optimizer", "adam"))


@case("transformers")
def save_only_model_rarely_logged(t: Trial) -> None:
    """The first log is long after the warm-up: the settings in training_args.bin are run again, and agree with it."""
    with recording() as record:
        kind = {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr": 2e-4}}
        train(t.folder / "run", record, bert(), save_only_model=True, warmup_steps=20, logging_steps=70, **kind)
    check(t, record)


@case("transformers")
def save_only_model_of_a_schedule_of_ones_own(t: Trial) -> None:
    """The log contradicts the settings, and starts late: nobody knows the warm-up."""

    def made(model: torch.nn.Module) -> tuple:
        optimizer = AdamW(model.parameters(), lr=2e-3)
        return optimizer, LambdaLR(optimizer, lambda step: min((step + 1) / 40, 1.0) * (1 - step / STEPS) ** 2)

    with recording() as record:
        train(t.folder / "run", record, bert(), optimizers=made, save_only_model=True, logging_steps=60)
    check(t, record, otherwise=("--rates", t.rates(record)))
    assert "refused" in t.did[0], t.did


@case("transformers")
def resumed_for_a_longer_schedule(t: Trial) -> None:
    """Trained to its end, then resumed for twice as long: each file's scheduler made the steps before it."""
    with recording() as record:
        train(t.folder / "run", record, bert(), warmup_steps=10, max_steps=STEPS // 2, logging_steps=50)
        train(t.folder / "run", record, bert(), warmup_steps=10, logging_steps=50, resume=True)
    check(t, record.joined())


class Interrupted(TrainerCallback):
    def on_step_end(self, args, state, control, **_) -> None:
        control.should_training_stop = state.global_step >= STEPS // 2


@case("transformers")
def resumed_in_the_middle(t: Trial) -> None:
    """Two optimizers made one path."""
    with recording() as record:
        train(t.folder / "run", record, bert(), warmup_steps=40, callback=Interrupted())
        train(t.folder / "run", record, bert(), warmup_steps=40, resume=True)
    check(t, record.joined())


@case("transformers")
def warm_up_stable_decay(t: Trial) -> None:
    shape = {"num_decay_steps": 60, "num_stable_steps": 110}
    with recording() as record:
        train(
            t.folder / "run",
            record,
            bert(),
            warmup_steps=30,
            lr_scheduler_type="warmup_stable_decay",
            lr_scheduler_kwargs=shape,
            logging_steps=10,
        )
    check(t, record)


@case("transformers")
def plateau_of_the_evaluation(t: Trial) -> None:
    """No rates in the file of the scheduler, all in the log."""
    often = {
        "eval_strategy": "steps",
        "eval_steps": EVERY,
        "lr_scheduler_type": "reduce_lr_on_plateau",
        "lr_scheduler_kwargs": {"factor": 0.3, "patience": 0, "threshold": 0.6},
    }
    with recording() as record:
        train(t.folder / "run", record, bert(), metric_for_best_model="loss", **often)
    assert len(set(record.paths()[0][0].raw)) > 2
    check(t, record)


@case("transformers")
def the_best_is_kept_and_loaded(t: Trial) -> None:
    """load_best_model_at_end with two kept: the best and the last, wherever the best is."""
    often = {"eval_strategy": "steps", "eval_steps": EVERY, "load_best_model_at_end": True, "save_total_limit": 2, "learning_rate": 1e-2}
    with recording() as record:
        train(t.folder / "run", record, bert(), **often)
    left = sorted(int(path.name.removeprefix("checkpoint-")) for path in (t.folder / "run").glob("checkpoint-*"))
    check(t, record.only([step // EVERY - 1 for step in left]))


@case("transformers")
def tied_embeddings(t: Trial) -> None:
    """A causal model writes its embedding once."""
    model = GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=32, n_positions=16, bos_token_id=0, eos_token_id=0))
    texts = [{"input_ids": row["input_ids"], "labels": row["input_ids"]} for row in rows()]
    with recording() as record:
        train(t.folder / "run", record, model, warmup_steps=20, data=texts)
    check(t, record, kind=GPT2LMHeadModel)


@case("transformers")
def adafactor(t: Trial) -> None:
    """Weighted like descent with the rates it was given."""
    with recording() as record:
        train(t.folder / "run", record, bert(), optim="adafactor", lr_scheduler_type="cosine", warmup_steps=20)
    check(t, record)


@case("transformers")
def bfloat16_weights(t: Trial) -> None:
    with recording() as record:
        train(t.folder / "run", record, bert().to(torch.bfloat16), warmup_steps=20)
    check(t, record, tolerance=5e-3)


@case("transformers")
def fine_tuning_with_a_named_start(t: Trial) -> None:
    """--start: the pretrained model is w_0."""
    model = bert()
    with recording() as record:
        record.keep(model)
        model.save_pretrained(t.folder / "pretrained")
        train(t.folder / "run", record, model, warmup_steps=20)
    check(t, record, "--start", "pretrained")


@case("transformers")
def a_dial_of_a_run_reads_as_a_model(t: Trial) -> None:
    """`average --dial`, then `dial read -o folder`: configuration files and all."""
    with recording() as record:
        train(t.folder / "run", record, bert(), warmup_steps=20)
    least, l2, most = record.strengths()
    made = t.average("run", "-o", "run.dial", "--dial", f"{least:.17g}..{most:.17g}")
    assert not isinstance(made, str), f"refused: {made}"
    done = t.run("dial", "read", "run.dial", "-o", "out", "--l2", f"{l2:.17g}", "--json")
    assert done.returncode == 0, done.stderr
    expected, error = record.average(record.weights(l2)), json.loads(done.stdout)["outputs"][0]["error"]
    # The dial's own bound, and what weights may be off by.
    moved = max(np.abs(state[name] - record.kept[0][name]).max() for state in record.kept for name in state)
    model = BertForSequenceClassification.from_pretrained(t.folder / "out")
    t.loaded(f"`dial read`, {LOADS}", model.state_dict(), expected, error + 0.02 * moved + 2e-6)
    t.disk, t.did = contents(t.folder / "run"), ["a dial within its bound"]


@case("transformers")
def optimizers_deleted_to_save_space(t: Trial) -> None:
    """Only the last checkpoint keeps its optimizer.pt: what the others lack is not a group that was added later."""
    with recording() as record:
        train(t.folder / "run", record, bert(), warmup_steps=40, weight_decay=0.1)
    for file in sorted((t.folder / "run").glob("checkpoint-*/optimizer.pt")):
        if f"checkpoint-{STEPS}" not in str(file):
            file.unlink()
    check(t, record)


@case("transformers")
def restarts_rarely_logged(t: Trial) -> None:
    with recording() as record:
        settings = {"lr_scheduler_type": "cosine_with_restarts", "lr_scheduler_kwargs": {"num_cycles": 3}}
        train(t.folder / "run", record, bert(), warmup_steps=20, logging_steps=50, **settings)
    check(t, record)


@case("transformers")
def a_polynomial_and_a_least_rate(t: Trial) -> None:
    with recording() as record:
        settings = {"lr_scheduler_type": "polynomial", "lr_scheduler_kwargs": {"power": 2.0, "lr_end": 1e-5}}
        train(t.folder / "run", record, bert(), logging_steps=50, **settings)
    check(t, record)


@case("transformers")
def a_cosine_with_a_least_rate_and_a_log_with_nan(t: Trial) -> None:
    """Python writes NaN into trainer_state.json, which is not JSON."""
    with recording() as record:
        settings = {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr": 2e-4}}
        train(t.folder / "run", record, bert(), logging_steps=50, **settings)
    for file in (t.folder / "run").glob("checkpoint-*/trainer_state.json"):
        file.write_text(file.read_text().replace('"grad_norm": ', '"grad_norm": NaN, "before": '))
    check(t, record)
