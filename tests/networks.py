"""The networks of afterfit-nets as PyTorch modules, by name: those its parity fixtures are made with."""

import importlib.util
from pathlib import Path

MAKER = Path(__file__).parent.parent / "crates/afterfit-nets/tests/fixtures/make.py"


def modules():
    spec = importlib.util.spec_from_file_location("make", MAKER)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return {"resnet-18": module.ResNet18, "vgg-16": module.Vgg16}
