"""accelerate, peft, diffusers and sentence-transformers: folders with several models, adapters, pipelines."""

from __future__ import annotations

import copy
from pathlib import Path

import diffusers
import numpy as np
import torch
from accelerate import Accelerator, load_checkpoint_in_model
from accelerate.state import AcceleratorState, GradientState, PartialState
from accelerate.utils import ProjectConfiguration
from datasets import Dataset
from diffusers import DDPMScheduler, DiffusionPipeline, LDMPipeline, UNet2DModel, VQModel
from peft import LoraConfig, PeftModel, TaskType, get_peft_model, get_peft_model_state_dict
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments, losses
from sentence_transformers import models as parts
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim import lr_scheduler as schedulers
from transformers import BertConfig, BertModel, BertTokenizerFast

from .hf_trainer import Keeper, bert, train
from .nets import EPOCHS, PER_EPOCH, Net, batches, forward
from .record import Record, doubles, recording
from .trial import Trial, case, grouped

STEPS = EPOCHS * PER_EPOCH
diffusers.utils.logging.disable_progress_bar()


# ------------------------------------------------------------------ accelerate


def accelerator(folder: Path, **settings: object) -> Accelerator:
    """A new one: accelerate keeps its state in singletons."""
    for kind in (AcceleratorState, PartialState, GradientState):
        kind._reset_state()
    return Accelerator(cpu=True, project_config=ProjectConfiguration(str(folder), **settings))


def states(
    t: Trial,
    record: Record,
    nets: list[Net],
    optimizers: list[Optimizer],
    scheduler: object | None,
    name: str | None = None,
    **saving: object,
) -> str:
    """`save_state` after every epoch; by accelerate's own numbers, or under a name. Returns the folder of the folders."""
    made = accelerator(t.folder / "run", automatic_checkpoint_naming=name is None)
    prepared = made.prepare(*nets, *optimizers, *([scheduler] if scheduler else []))
    prepared = prepared if isinstance(prepared, tuple) else (prepared,)
    everything, data = torch.nn.ModuleList(nets) if len(nets) > 1 else nets[0], batches()
    for epoch in range(EPOCHS):
        for _ in range(PER_EPOCH):
            x, y = next(data)
            made.backward(sum(torch.nn.functional.cross_entropy(net(x), y) for net in prepared[: len(nets)]))
            for one in prepared[len(nets) :]:
                one.step()
            for one in prepared[len(nets) : len(nets) + len(optimizers)]:
                one.zero_grad()
        record.keep(everything)
        made.save_state(None if name is None else str(t.folder / "run" / name.format(epoch)), **saving)
    return "run" if name else "run/checkpoints"


@case("accelerate")
def folders_numbered_by_accelerate(t: Trial) -> None:
    """`checkpoint_0/` is not step 0: optimizer.bin and scheduler.bin say which step it is."""
    net = Net()
    optimizer = AdamW(net.parameters(), lr=2e-3)
    with recording() as record:
        run = states(t, record, [net], [optimizer], schedulers.CosineAnnealingLR(optimizer, STEPS))
    t.weights(run, record)
    expected = t.written(run, "out", record)
    load_checkpoint_in_model(net, t.folder / "out")
    t.loaded("`load_checkpoint_in_model`", net.state_dict(), expected)
    forward(net)


@case("accelerate")
def a_pickle_instead_of_safetensors(t: Trial) -> None:
    net = Net()
    optimizer = SGD(net.parameters(), lr=0.05, momentum=0.9)
    with recording() as record:
        run = states(t, record, [net], [optimizer], schedulers.OneCycleLR(optimizer, 0.1, total_steps=STEPS), safe_serialization=False)
    t.weights(run, record)
    expected = t.written(run, "out", record)
    load_checkpoint_in_model(net, t.folder / "out")
    t.loaded("`load_checkpoint_in_model`", net.state_dict(), expected)


@case("accelerate")
def two_models_and_two_optimizers(t: Trial) -> None:
    """`model_1.safetensors` and `optimizer_1.bin` are part of it."""
    nets = [Net(), Net(norm=True)]
    optimizers = [Adam(nets[0].parameters(), lr=1e-3), SGD(nets[1].parameters(), lr=0.05, momentum=0.9)]
    with recording() as record:
        run = states(t, record, nets, optimizers, None)
    t.weights(run, record)
    expected = t.written(run, "out", record)
    load_checkpoint_in_model(nets[0], str(t.folder / "out/model.safetensors"))
    load_checkpoint_in_model(nets[1], str(t.folder / "out/model_1.safetensors"))
    t.loaded("`load_checkpoint_in_model`, each", torch.nn.ModuleList(nets).state_dict(), expected)


@case("accelerate")
def folders_named_after_epochs(t: Trial) -> None:
    """accelerate's examples save `epoch_0`; SGD counts no steps."""
    net = Net()
    with recording() as record:
        run = states(t, record, [net], [SGD(net.parameters(), lr=0.05)], None, "epoch_{}")
    used = t.weights(run, record, otherwise=("--steps-per-epoch", PER_EPOCH, "--epochs-from", 0))
    expected = t.written(run, "out", record, *used)
    load_checkpoint_in_model(net, t.folder / "out")
    t.loaded("`load_checkpoint_in_model`", net.state_dict(), expected)


# ------------------------------------------------------------------ peft


def deltas(model: PeftModel) -> dict[str, np.ndarray]:
    """What each adapter adds to its matrix: scaling·BA, as peft computes it."""
    return {name: doubles(layer.get_delta_weight("default")) for name, layer in model.named_modules() if hasattr(layer, "get_delta_weight")}


class Adapters(Keeper):
    """Keeps what peft saves: the adapter alone; and what it adds."""

    def __init__(self, record: Record) -> None:
        super().__init__(record)
        self.deltas: list[dict[str, np.ndarray]] = []

    def on_save(self, args, state, control, model=None, **_) -> None:
        self.record.keep(get_peft_model_state_dict(model))
        self.deltas.append(deltas(model))


def lora_run(t: Trial, record: Record) -> tuple[torch.nn.Module, Adapters]:
    """The base model and what was kept of its adapters."""
    base = bert()
    config = LoraConfig(task_type=TaskType.SEQ_CLS, r=4, lora_alpha=8, target_modules=["query", "value"], init_lora_weights="gaussian")
    keeper = Adapters(record)
    train(t.folder / "run", record, get_peft_model(copy.deepcopy(base), config), keeper=keeper, learning_rate=1e-2, warmup_steps=20)
    return base, keeper


@case("peft")
def lora_plain(t: Trial) -> None:
    """A and B averaged apart, and a note that says so."""
    with recording() as record:
        base, _ = lora_run(t, record)
    t.weights("run", record)
    t.notes("run", record, "lora", "--lora exact")
    expected = t.written("run", "out", record)
    model = PeftModel.from_pretrained(base, t.folder / "out")
    t.loaded("`PeftModel.from_pretrained`", get_peft_model_state_dict(model), expected)


def mean_deltas(t: Trial, record: Record, keeper: Adapters, base: torch.nn.Module, *flags: object) -> tuple[dict, dict]:
    """The deltas of the loaded average, and the average of the deltas."""
    used = ("--lora", "exact", *flags)
    t.weights("run", record, *used)
    l2 = record.strengths()[1]
    said = t.average("run", "-o", "out", "--l2", f"{l2:.17g}", *used)
    assert not isinstance(said, str), f"refused: {said}"
    expected = {name: sum(w * one[name] for w, one in zip(said["weights"][0], keeper.deltas)) for name in keeper.deltas[0]}
    model = PeftModel.from_pretrained(base, t.folder / "out")
    whole = {name: value for name, value in record.average(grouped(said["weights"][0])).items() if "lora_" not in name}
    assert whole, "the head is trained whole, beside the adapters"
    t.loaded("`PeftModel.from_pretrained`", get_peft_model_state_dict(model), whole)
    return deltas(model), expected


@case("peft")
def lora_exact_at_the_same_rank(t: Trial) -> None:
    """The best matrix of that rank (Eckart and Young), and its error told."""
    with recording() as record:
        base, keeper = lora_run(t, record)
    found, expected = mean_deltas(t, record, keeper, base)
    for name, mean in expected.items():
        left, sizes, right = np.linalg.svd(mean)
        best = (left[:, :4] * sizes[:4]) @ right[:4]
        assert np.abs(found[name] - best).max() <= 1e-5 * np.abs(best).max(), name
    t.notes("run", record, "rank", "error", flags=("--lora", "exact"))


@case("peft")
def lora_exact_at_a_larger_rank(t: Trial) -> None:
    """Enough rank for the whole mean: `adapter_config.json` says the new rank."""
    with recording() as record:
        base, keeper = lora_run(t, record)
    found, expected = mean_deltas(t, record, keeper, base, "--lora-rank", 16)
    for name, mean in expected.items():
        assert np.abs(found[name] - mean).max() <= 1e-5 * np.abs(mean).max(), name


# ------------------------------------------------------------------ diffusers


def unet() -> UNet2DModel:
    blocks = {"down_block_types": ("DownBlock2D", "DownBlock2D"), "up_block_types": ("UpBlock2D", "UpBlock2D")}
    return UNet2DModel(8, 3, 3, block_out_channels=(8, 8), layers_per_block=1, norm_num_groups=4, **blocks)


def noise_step(net: UNet2DModel, random: torch.Generator) -> torch.Tensor:
    x, noise = torch.randn(2, 3, 8, 8, generator=random), torch.randn(2, 3, 8, 8, generator=random)
    return (net(x + noise, torch.tensor([3, 7])).sample - noise).square().mean()


def loads_unet(t: Trial, folder: Path, expected: dict) -> None:
    net = UNet2DModel.from_pretrained(folder, subfolder="unet", use_safetensors=True)
    t.loaded("`UNet2DModel.from_pretrained(…, subfolder=…)`", net.state_dict(), expected)
    with torch.no_grad():
        assert net(torch.zeros(1, 3, 8, 8), 1).sample.isfinite().all()


def training_script(t: Trial, record: Record, ema: bool) -> None:
    """The order of diffusers' examples: accelerate's save_state with a hook that calls save_pretrained."""
    made, net = accelerator(t.folder / "run"), unet()
    optimizer = AdamW(net.parameters(), lr=1e-3)
    scheduler = schedulers.LambdaLR(optimizer, lambda k: min(1, (k + 1) / 20) * (1 - k / 120))
    prepared, optimizer, scheduler = made.prepare(net, optimizer, scheduler)

    def hook(models: list, weights: list, folder: str) -> None:
        for model in models:
            made.unwrap_model(model).save_pretrained(Path(folder) / "unet")
            weights.pop()
        if ema:
            unet().save_pretrained(Path(folder) / "unet_ema")

    made.register_save_state_pre_hook(hook)
    random = torch.Generator().manual_seed(6)
    for step in range(1, 101):
        made.backward(noise_step(prepared, random))
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        if step % 10 == 0:
            record.keep(net)
            made.save_state(str(t.folder / f"run/checkpoint-{step}"))


@case("diffusers")
def a_training_scripts_checkpoints(t: Trial) -> None:
    with recording() as record:
        training_script(t, record, ema=False)
    used = t.weights("run", record, otherwise=("--rates", t.rates(record)))
    loads_unet(t, t.folder / "out", t.written("run", "out", record, *used))


@case("diffusers")
def a_training_script_with_an_ema(t: Trial) -> None:
    """`unet_ema` is left out with a note."""
    with recording() as record:
        training_script(t, record, ema=True)
    used = t.weights("run", record, otherwise=("--rates", t.rates(record)))
    t.notes("run", record, "unet_ema", flags=used)
    loads_unet(t, t.folder / "out", t.written("run", "out", record, *used))


@case("diffusers")
def whole_pipelines(t: Trial) -> None:
    """Every part of a pipeline, the one that was trained and the one that was not; rates are nowhere."""
    sizes = {"block_out_channels": (8,), "down_block_types": ("DownEncoderBlock2D",), "up_block_types": ("UpDecoderBlock2D",)}
    vqvae, net = VQModel(3, 3, latent_channels=3, norm_num_groups=4, num_vq_embeddings=8, **sizes), unet()
    optimizer, random = SGD(net.parameters(), lr=0.01), torch.Generator().manual_seed(6)
    with recording() as record:
        for step in range(1, 61):
            noise_step(net, random).backward()
            optimizer.step()
            optimizer.zero_grad()
            if step % 10 == 0:
                record.keep(net)
                LDMPipeline(vqvae=vqvae, unet=net, scheduler=DDPMScheduler()).save_pretrained(t.folder / f"run/pipeline-{step}")
    used = t.weights("run", record, otherwise=("--rate", 0.01, "--optimizer", "sgd"))
    expected = t.written("run", "out", record, *used)
    pipeline = DiffusionPipeline.from_pretrained(t.folder / "out")
    t.loaded("`DiffusionPipeline.from_pretrained`", pipeline.unet.state_dict(), expected)
    t.loaded(
        "`DiffusionPipeline.from_pretrained`",
        pipeline.vqvae.state_dict(),
        {name: doubles(value) for name, value in vqvae.state_dict().items()},
    )
    one = t.written("run/*/unet", "one", record, *used)
    t.loaded("`UNet2DModel.from_pretrained`", UNet2DModel.from_pretrained(t.folder / "one").state_dict(), one)


# ------------------------------------------------------------------ sentence-transformers


@case("sentence-transformers")
def sentences_with_a_dense_layer(t: Trial) -> None:
    """`2_Dense` is trained too, and saved in a folder of its own."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "red", "green", "blue", "cat", "dog", "runs", "sleeps"]
    base = t.folder / "base"
    base.mkdir()
    (base / "vocab.txt").write_text("\n".join(words))
    BertTokenizerFast(str(base / "vocab.txt")).save_pretrained(base)
    config = BertConfig(
        vocab_size=len(words), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, max_position_embeddings=16
    )
    BertModel(config).save_pretrained(base)
    transformer = parts.Transformer(str(base))
    model = SentenceTransformer(modules=[transformer, parts.Pooling(16), parts.Dense(16, 8)], device="cpu")
    pairs = {
        "anchor": ["red cat", "green dog", "blue cat", "red dog"] * 16,
        "positive": ["cat red", "dog green", "cat blue", "dog red"] * 16,
    }
    settings = {
        "max_steps": 120,
        "save_steps": 15,
        "logging_steps": 5,
        "warmup_steps": 20,
        "learning_rate": 1e-3,
        "per_device_train_batch_size": 4,
    }
    args = SentenceTransformerTrainingArguments(
        str(t.folder / "run"), **settings, use_cpu=True, disable_tqdm=True, report_to="none", dataloader_pin_memory=False
    )
    with recording() as record:
        trainer = SentenceTransformerTrainer(
            model, args, Dataset.from_dict(pairs), loss=losses.MultipleNegativesRankingLoss(model), callbacks=[Keeper(record)]
        )
        trainer.remove_callback(next(c for c in trainer.callback_handler.callbacks if type(c).__name__ == "PrinterCallback"))
        trainer.train()
    t.weights("run", record)
    expected = t.written("run", "out", record)
    found = SentenceTransformer(str(t.folder / "out"), device="cpu")
    t.loaded("`SentenceTransformer`", found.state_dict(), expected)
    assert np.isfinite(found.encode(["red cat"])).all()
