"""Hugging Face's trainer gives the numbers of the bare loop, and its own weights back."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from problem import STRENGTHS, Problem, flat
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, get_cosine_schedule_with_warmup

import afterfit
from afterfit._afterfit import main
from afterfit.torch import Dial
from afterfit.transformers import DialCallback

pytestmark = pytest.mark.filterwarnings("ignore")
STEPS, RANGE = 24, (0.1, 100.0)


def model() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=24, n_positions=8, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        )
    ).double()  # fmt: skip


def data() -> list[dict[str, torch.Tensor]]:
    """The same row sixteen times: its order in a batch does not matter."""
    row = torch.randint(24, (8,), generator=torch.Generator().manual_seed(1))
    return [{"input_ids": row, "labels": row} for _ in range(16)]


def train(
    folder: Path, callback: DialCallback, resume: str | None = None, net: GPT2LMHeadModel | None = None, others=(), **options
):
    arguments = TrainingArguments(
        str(folder), per_device_train_batch_size=16, learning_rate=1e-2, warmup_steps=4, lr_scheduler_type="cosine",
        max_steps=STEPS, max_grad_norm=0.0, weight_decay=0.01, adam_epsilon=1e-3, report_to=[], use_cpu=True, disable_tqdm=True,
        logging_strategy="no", **{"save_strategy": "no", **options},
    )  # fmt: skip
    net = model() if net is None else net
    Trainer(model=net, args=arguments, train_dataset=data(), callbacks=[callback, *others]).train(resume_from_checkpoint=resume)
    return net


@pytest.mark.parametrize("schedule", [None, "trainer"])
def test_the_numbers_are_those_of_the_bare_loop(schedule: str | None, tmp_path: Path) -> None:
    callback = DialCallback(l2=RANGE, nodes=10, schedule=schedule)
    trained = train(tmp_path, callback)
    net = model()
    decay = [p for n, p in net.named_parameters() if p.ndim > 1]
    plain = [p for n, p in net.named_parameters() if p.ndim <= 1]
    groups = [{"params": decay, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-2, eps=1e-3)
    scheduler = get_cosine_schedule_with_warmup(optimizer, 4, STEPS)
    dial = Dial(net, optimizer, l2=RANGE, nodes=10, steps=STEPS, schedule=scheduler if schedule else None)
    rows = data()
    ids = torch.stack([row["input_ids"] for row in rows])
    for _ in range(STEPS):
        optimizer.zero_grad()
        # (The trainer divides by the number of labels, the first of each row included.)
        net(input_ids=ids, labels=ids, num_items_in_batch=torch.tensor(ids.numel())).loss.backward()
        optimizer.step()
        scheduler.step()
    assert callback.dial.steps == STEPS
    assert torch.allclose(flat(trained.state_dict()), flat(net.state_dict()), atol=1e-5)
    for l2 in (0.3, 3.0, 30.0):
        one, two = callback.read(l2), dial.read(l2)
        assert torch.allclose(flat(one.state_dict()), flat(two.state_dict()), atol=1e-5)
        assert one.status == two.status and one.certificate == pytest.approx(two.certificate, rel=1e-6)
    assert main(["afterfit", "dial", "info", str(tmp_path / "run.dial")]) == 0


@pytest.mark.parametrize("schedule", [None, "trainer"])
def test_a_linear_model_is_ridge(schedule: str | None, tmp_path: Path) -> None:
    from problem import RANGE as SPAN

    problem, steps = Problem(), 700

    class Linear(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = problem.model(split=2)

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": problem.loss(self.weights)}

    def setting(net: Linear):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.15, momentum=0.8)
        return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 400, gamma=0.5 if schedule else 1.0)

    net, callback = Linear(), DialCallback(l2=SPAN, tolerance=1e-9, schedule=schedule, quadratic=True)
    arguments = TrainingArguments(
        str(tmp_path), per_device_train_batch_size=1, max_steps=steps, max_grad_norm=0.0, report_to=[], use_cpu=True,
        disable_tqdm=True, logging_strategy="no", save_strategy="no",
    )  # fmt: skip
    rows = [{"x": 0.0}] * steps
    Trainer(model=net, args=arguments, train_dataset=rows, optimizers=setting(net), callbacks=[callback]).train()
    bare = Linear()
    optimizer, scheduler = setting(bare)
    dial = Dial(bare, optimizer, l2=SPAN, tolerance=1e-9, steps=steps, schedule=scheduler if schedule else None, quadratic=True)
    problem.train(bare.weights, optimizer, steps, scheduler)
    for l2 in STRENGTHS:
        one, two = callback.read(l2), dial.read(l2)
        assert torch.allclose(flat(one.state_dict()), flat(two.state_dict()), rtol=0, atol=1e-12), l2
        assert torch.allclose(flat(one.state_dict()), problem.ridge(l2), rtol=0, atol=1e-6), l2
        assert one.status == two.status and one.status.standing == "exact"


def test_interrupted_is_uninterrupted(tmp_path: Path) -> None:
    whole = DialCallback(l2=RANGE, nodes=10)
    trained = train(tmp_path / "whole", whole, save_strategy="steps", save_steps=10)
    assert sorted(path.name for path in (tmp_path / "whole").glob("checkpoint-*/afterfit-dial.pt")) != []
    resumed = DialCallback(l2=RANGE, nodes=10)
    again = train(tmp_path / "whole", resumed, str(tmp_path / "whole" / "checkpoint-10"), save_strategy="steps", save_steps=10)
    assert resumed.dial.steps == STEPS
    assert torch.equal(flat(again.state_dict()), flat(trained.state_dict()))
    for l2 in (0.3, 3.0, 30.0):
        assert torch.equal(flat(resumed.read(l2).state_dict()), flat(whole.read(l2).state_dict()))


def test_a_file_that_was_cut_short_is_said(tmp_path: Path) -> None:
    train(tmp_path, DialCallback(l2=RANGE, nodes=4), save_strategy="steps", save_steps=10)
    folder = tmp_path / "checkpoint-10"
    file = folder / "afterfit-dial.pt"
    whole = file.read_bytes()
    for content in (whole[: len(whole) // 2], whole[:3], b"", b"no file of torch's"):
        file.write_bytes(content)
        with pytest.raises(afterfit.CheckpointError, match="afterfit-dial.pt: it cannot be read, and may be cut short: "):
            train(tmp_path, DialCallback(l2=RANGE, nodes=4), str(folder))
    torch.save({"format": 1}, file)
    with pytest.raises(afterfit.CheckpointError, match="'courses' is missing"):
        train(tmp_path, DialCallback(l2=RANGE, nodes=4), str(folder))


def test_export_is_a_pretrained_folder(tmp_path: Path) -> None:
    callback = DialCallback(l2=RANGE, nodes=10)
    trained = train(tmp_path / "run", callback)
    raw = flat(trained.state_dict()).clone()
    reading = callback.export(3.0, tmp_path / "exported")
    assert torch.equal(flat(trained.state_dict()), raw)
    again = GPT2LMHeadModel.from_pretrained(tmp_path / "exported")
    assert torch.equal(flat(again.state_dict()), flat(reading.state_dict()))


@pytest.mark.filterwarnings("default:the weights held NaN")
def test_weights_that_are_nan_do_not_stop_the_trainer(tmp_path: Path) -> None:
    class Poison(TrainerCallback):
        def on_step_end(self, args, state, control, model=None, **kwargs) -> None:
            if state.global_step == 9:
                with torch.no_grad():
                    next(model.parameters()).fill_(float("nan"))

    callback = DialCallback(l2=RANGE, nodes=4)
    with pytest.warns(UserWarning, match="the weights held NaN .* the dial is not in this checkpoint"):
        train(tmp_path, callback, save_strategy="steps", save_steps=8, others=[Poison()])
    assert callback.dial.steps == STEPS
    assert [path.parent.name for path in tmp_path.glob("checkpoint-*/afterfit-dial.pt")] == ["checkpoint-8"]
    assert not (tmp_path / "run.dial").exists()
    with pytest.raises(TypeError, match="unexpected keyword argument 'model'"):
        DialCallback(l2=RANGE, model=None)


def test_rotation_is_warned_of(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="save_total_limit=1"):
        train(tmp_path, DialCallback(l2=RANGE, nodes=4), save_strategy="steps", save_steps=12, save_total_limit=1)


def test_adapters_only_have_sums_of_what_trains(tmp_path: Path) -> None:
    import peft

    net = peft.get_peft_model(model(), peft.LoraConfig(target_modules=["c_attn"], r=2, fan_in_fan_out=True))
    callback = DialCallback(l2=RANGE, nodes=6)
    train(tmp_path, callback, net=net)
    names = [slot.name for _, slot in callback.dial._courses[0].slots()]
    assert len(names) == 2 and all("lora_" in name for name in names)


def test_deepspeed_is_refused() -> None:
    with pytest.raises(ValueError, match="under DeepSpeed no hook sees the weights"):
        DialCallback(l2=RANGE).on_train_begin(SimpleNamespace(deepspeed={"zero_optimization": {}}), None, None)
