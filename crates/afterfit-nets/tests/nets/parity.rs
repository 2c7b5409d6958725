//! The same weights and images give PyTorch's scores, loss, gradients and steps (`fixtures/make.py`).

use std::collections::HashMap;
use std::path::Path;
use std::rc::Rc;

use afterfit_nets::model::{Layout, Model, Precision};
use afterfit_nets::net::{Architecture, Kernels, Mode, Net};
use afterfit_nets::shim::Sgd;
use tch::{Device, Kind, Tensor};

const TOLERANCE: f64 = 1e-5;

fn off(ours: &Tensor, theirs: &Tensor) -> f64 {
    assert_eq!(ours.size(), theirs.size());
    (ours - theirs).abs().max().double_value(&[])
}

fn require_close(what: &str, ours: &Tensor, theirs: &Tensor) {
    require_within(TOLERANCE, what, ours, theirs);
}

fn require_within(tolerance: f64, what: &str, ours: &Tensor, theirs: &Tensor) {
    let scale = theirs.abs().max().double_value(&[]).max(1.0);
    let off = off(ours, theirs);
    assert!(off <= tolerance * scale, "{what} is off by {off:e}");
}

fn compare(architecture: Architecture, channels_last: bool) {
    let file = format!("tests/fixtures/parity-{}.safetensors", architecture.name());
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    let theirs: HashMap<String, Tensor> = Tensor::read_safetensors(path).expect("the fixture").into_iter().collect();
    let layout = Rc::new(Layout::new(Net::new(architecture, Kernels::Torch, 2, 3, 10), channels_last));
    let mut model = Model::start(layout.clone(), 5, Device::Cpu, Precision::F32);
    let mut given = 0;
    for (name, value) in &theirs {
        if let Some(name) = name.strip_prefix("before/") {
            assert!(model.set(name, value).expect("a tensor of the right shape"), "{name}");
            given += 1;
        }
    }
    assert_eq!(given, model.names().len(), "the fixture covers the whole network");

    let gradient = model.weights.zeros_like();
    let (images, labels) = (&theirs["images"], &theirs["labels"]);
    let (scores, loss) = model.gradient(images, labels, 0.1, &gradient).expect("a gradient");
    require_close("scores", &scores, &theirs["scores"]);
    require_close("loss", &loss, &theirs["loss"]);
    for (index, slot) in layout.net.slots.iter().enumerate() {
        let name = format!("gradient/{}", slot.name);
        require_close(&name, &layout.view(&gradient, index), &theirs[&name]);
    }

    let check = |model: &Model, prefix: &str, tolerance: f64| {
        for (index, slot) in layout.net.slots.iter().enumerate() {
            let name = format!("{prefix}/{}", slot.name);
            require_within(tolerance, &name, &layout.view(&model.weights, index), &theirs[&name]);
        }
        let statistics = layout.statistics(&model.statistics);
        for (statistic, (mean, variance)) in layout.net.statistics.iter().zip(&statistics) {
            require_within(tolerance, "a mean", mean, &theirs[&format!("{prefix}/{}.running_mean", statistic.name)]);
            require_within(
                tolerance,
                "a variance",
                variance,
                &theirs[&format!("{prefix}/{}.running_var", statistic.name)],
            );
        }
    };
    let number = |value: f64| Tensor::from(value).to_kind(Kind::Float);
    let plain = Sgd { momentum: 0.0, nesterov: false, decay: 5e-4 };
    plain.step(&mut model.weights, &gradient, None, &number(0.1)).expect("a step");
    check(&model, "after", TOLERANCE);
    require_close("scores by statistics", &model.scores(images, Mode::Statistics), &theirs["evaluated"]);

    let (weights, statistics) = (model.weights.copy(), model.statistics.copy());
    for (name, nesterov) in [("heavy-ball", false), ("nesterov", true)] {
        model.weights.copy_(&weights);
        model.statistics.copy_(&statistics);
        let sgd = Sgd { momentum: 0.9, nesterov, decay: 5e-4 };
        let mut velocity = model.weights.zeros_like();
        for _ in 0..3 {
            let _ = model.gradient(images, labels, 0.1, &gradient).expect("a gradient");
            sgd.step(&mut model.weights, &gradient, Some(&mut velocity), &number(0.01)).expect("a step");
        }
        // Other sums in other orders: three steps through batch norms of eight images magnify the last digits.
        check(&model, name, if channels_last { 1e-3 } else { TOLERANCE });
    }
}

/// The layout of CPUs, and that of GPUs.
#[test]
fn resnet_18_is_pytorchs() {
    compare(Architecture::ResNet18, false);
    compare(Architecture::ResNet18, true);
}

#[test]
fn vgg_16_is_pytorchs() {
    compare(Architecture::Vgg16, false);
    compare(Architecture::Vgg16, true);
}

/// Layers in bf16, weights and gradients in f32: near what f32 gives, and not the same.
#[test]
fn bf16_is_near() {
    let layout = Rc::new(Layout::new(Net::new(Architecture::ResNet18, Kernels::Torch, 4, 3, 10), true));
    let images = Tensor::randn([16, 3, 32, 32], (Kind::Float, Device::Cpu));
    let labels = Tensor::arange(16, (Kind::Int64, Device::Cpu)).remainder(10);
    let [(loss, gradient), (near, close)] = [Precision::F32, Precision::Bf16].map(|precision| {
        let model = Model::start(layout.clone(), 5, Device::Cpu, precision);
        let gradient = model.weights.zeros_like();
        let kind = if precision == Precision::F32 { Kind::Float } else { Kind::BFloat16 };
        let (_, loss) = model.gradient(&images.to_kind(kind), &labels, 0.1, &gradient).expect("a gradient");
        assert_eq!(gradient.kind(), Kind::Float);
        (loss.double_value(&[]), gradient)
    });
    assert!((loss - near).abs() < 0.05, "{loss}, {near}");
    let cosine = (&gradient * &close).sum(Kind::Double) / (gradient.norm() * close.norm());
    assert!(cosine.double_value(&[]) > 0.9, "{}", cosine.double_value(&[]));
    assert!(off(&gradient, &close) > 0.0);
}
