"""The networks of the studies: a small GPT of bytes, low-rank adapters for it, and ResNet-18 for 32 × 32 pixels."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.into, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        rows, length, width = x.shape
        q, k, v = self.into(x).view(rows, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(rows, length, width))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.wide = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.first(x))
        return x + self.wide(self.second(x))


class Gpt(nn.Module):
    """A decoder of bytes. No dropout: what keeps it from learning by heart is what the studies are about."""

    def __init__(self, width: int, layers: int, heads: int, length: int, vocabulary: int = 256) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.token(ids) + self.place(torch.arange(ids.shape[1], device=ids.device))
        return self.head(self.norm(self.blocks(x)))


class Adapter(nn.Module):
    """A linear layer that stays as it is, plus `share · B A` (LoRA): B starts at zero, so the model starts as it was."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base, self.share = base, 1.0
        self.a = nn.Parameter(torch.randn(rank, base.in_features, device=base.weight.device) / base.in_features**0.5)
        self.b = nn.Parameter(torch.zeros(base.out_features, rank, device=base.weight.device))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.share * nn.functional.linear(nn.functional.linear(x, self.a), self.b)


def with_adapters(model: nn.Module, rank: int) -> nn.Module:
    """The model with an adapter at every linear layer, in place; nothing else is trained any more."""
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                setattr(module, name, Adapter(child, rank))
    return model


def with_peft(model: nn.Module, rank: int) -> nn.Module:
    """The same by the library peft, whose A starts smaller; an alpha of the rank is a scale of 1."""
    from peft import LoraConfig, get_peft_model  # a friend that not everyone has

    linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    return get_peft_model(model, LoraConfig(r=rank, lora_alpha=rank, target_modules=linear))


def set_share(model: nn.Module, share: float) -> None:
    """How much of the adapters counts."""
    for module in model.modules():
        if isinstance(module, Adapter):
            module.share = share
        elif hasattr(module, "set_scale"):  # peft's
            module.set_scale("default", share)


def resnet(width: int) -> nn.Module:
    """ResNet-18 as it is used for 32 × 32 pixels, 64 wide; narrower: a stand-in, where a CPU has seconds."""
    if width < 64:
        return Narrow(width)
    from torchvision.models import resnet18  # a friend that not everyone has

    model = resnet18(num_classes=10)
    model.conv1, model.maxpool = nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.Identity()
    return model


class Narrow(nn.Module):
    """Three convolutions with batch norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for into, out in ((3, width), (width, 2 * width), (2 * width, 4 * width)):
            layers += [nn.Conv2d(into, out, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU()]
        self.features, self.fc = nn.Sequential(*layers), nn.Linear(4 * width, 10)

    def forward(self, images: Tensor) -> Tensor:
        return self.fc(self.features(images).mean((2, 3)))


class Loss(nn.Module):
    """Cross-entropy of a model's scores. One module, so that a GPU can record it as one graph."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.model(inputs).flatten(0, -2).float(), targets.flatten())
