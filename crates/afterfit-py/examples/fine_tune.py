"""Fine-tuning with Transformers: how much of the pretrained model to forget, chosen after training.

λ pulls toward the pretrained weights. The model here is tiny and its "pretraining" is a few seconds on another text, so that
nothing is downloaded; with a real one, ``model = AutoModelForCausalLM.from_pretrained(…)`` is all that changes.

    pip install './crates/afterfit-py[transformers]' && python fine_tune.py
"""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from afterfit.transformers import DialCallback

torch.manual_seed(0)
vocabulary, length = 32, 16


def texts(jump: int, count: int) -> list[dict[str, torch.Tensor]]:
    """Sequences that go up by `jump`, with some noise."""
    start = torch.randint(vocabulary, (count, 1))
    ids = (start + jump * torch.arange(length)) % vocabulary
    noise = torch.rand(ids.shape) < 0.1
    ids[noise] = torch.randint(vocabulary, (int(noise.sum()),))
    return [{"input_ids": row, "labels": row} for row in ids]


def trainer(model: GPT2LMHeadModel, data: list[dict[str, torch.Tensor]], steps: int, folder: str, **options: object) -> Trainer:
    arguments = TrainingArguments(
        folder, max_steps=steps, per_device_train_batch_size=16, learning_rate=3e-3, report_to=[], use_cpu=True,
        disable_tqdm=True, save_strategy="no", logging_strategy="no",
    )  # fmt: skip
    return Trainer(model=model, args=arguments, train_dataset=data, **options)


def loss(model: GPT2LMHeadModel, data: list[dict[str, torch.Tensor]]) -> float:
    ids = torch.stack([row["input_ids"] for row in data])
    model.eval()
    with torch.no_grad():
        return float(model(input_ids=ids, labels=ids).loss)


config = GPT2Config(vocab_size=vocabulary, n_positions=length, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
old, new = texts(1, 400), texts(3, 64)
old_test, new_test = texts(1, 100), texts(3, 100)
model = GPT2LMHeadModel(config)
trainer(model, old, 150, "pretraining").train()
pretrained = {name: tensor.clone() for name, tensor in model.state_dict().items()}
print(f"pretrained: old {loss(model, old_test):.3f}, new {loss(model, new_test):.3f}")

callback = DialCallback(l2=(0.3, 300.0), center=pretrained, schedule="trainer")
trainer(model, new, 120, "tuning", callbacks=[callback]).train()
print(f"tuned:      old {loss(model, old_test):.3f}, new {loss(model, new_test):.3f}")
for l2 in (1.0, 10.0, 100.0):
    with callback.applied(l2) as reading:
        unspent = f"({100 * reading.unspent:.0f} % unspent)"
        print(f"l2 {l2:5g}:   old {loss(model, old_test):.3f}, new {loss(model, new_test):.3f}   {unspent}")
callback.export(10.0, "tuned-l2-10")
again = GPT2LMHeadModel.from_pretrained("tuned-l2-10")
with callback.applied(10.0):
    assert abs(loss(again, old_test) - loss(model, old_test)) < 1e-5
