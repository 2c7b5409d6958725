//! VGG-16 with batch norm and the ResNet-18 for small images, by the names torchvision gives their tensors.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use tch::Tensor;

/// Which network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub enum Architecture {
    /// ResNet-18 with a 3×3 first layer and no pooling after it (11 173 962 weights for 10 classes).
    #[value(name = "resnet-18")]
    #[serde(rename = "resnet-18")]
    ResNet18,
    /// VGG-16 with batch norm and a head of 512-512-512-classes (15 253 578 weights for 10 classes).
    #[value(name = "vgg-16")]
    #[serde(rename = "vgg-16")]
    Vgg16,
}

impl Architecture {
    /// As on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::ResNet18 => "resnet-18",
            Self::Vgg16 => "vgg-16",
        }
    }
}

/// How kernels of convolutions start. Batch norms make their scale irrelevant to what a layer computes, not to how fast it
/// learns: the smaller they start, the larger a step is beside them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kernels {
    /// PyTorch's default: uniform within ±1/√(inputs · area).
    Torch,
    /// He et al.'s: normal, with variance 2/(outputs · area).
    He,
}

/// How a tensor starts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Start {
    /// Normal, of this standard deviation.
    Normal(f64),
    /// Uniform between ± this.
    Uniform(f64),
    /// All the same.
    Constant(f64),
}

/// One trainable tensor.
#[derive(Debug, Clone, PartialEq)]
pub struct Slot {
    /// Its name in a checkpoint.
    pub name: String,
    /// Its shape.
    pub shape: Vec<i64>,
    /// Of a batch norm: these stay f32 where the rest is computed in bf16.
    pub is_norm: bool,
    pub(crate) start: Start,
}

/// The running mean and variance of one batch norm.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Statistic {
    /// The batch norm's name.
    pub name: String,
    /// Channels.
    pub width: i64,
}

impl Statistic {
    /// Its mean and variance, as torch names them.
    #[must_use]
    pub fn names(&self) -> [String; 2] {
        ["running_mean", "running_var"].map(|what| format!("{}.{what}", self.name))
    }
}

#[derive(Debug)]
struct Conv {
    weight: usize,
    bias: Option<usize>,
    stride: i64,
    padding: i64,
}

#[derive(Debug)]
struct Norm {
    scale: usize,
    shift: usize,
    statistic: usize,
}

#[derive(Debug)]
struct Linear {
    weight: usize,
    bias: usize,
}

#[derive(Debug)]
struct Block {
    first: (Conv, Norm),
    second: (Conv, Norm),
    shortcut: Option<(Conv, Norm)>,
}

#[derive(Debug)]
enum Layers {
    ResNet {
        stem: (Conv, Norm),
        blocks: Vec<Block>,
        head: Linear,
    },
    /// `None` is a pooling.
    Vgg {
        features: Vec<Option<(Conv, Norm)>>,
        head: Vec<Linear>,
    },
}

/// A network's shape: what tensors it has, and how an image passes through them.
#[derive(Debug)]
pub struct Net {
    /// The trainable tensors.
    pub slots: Vec<Slot>,
    /// The batch norms.
    pub statistics: Vec<Statistic>,
    layers: Layers,
}

/// Whether batch norms use the batch (and take it into their running statistics), or their statistics.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Mode {
    /// The batch; statistics move by this share toward it.
    Batch(f64),
    /// The statistics.
    Statistics,
}

/// The tensors an image passes through.
#[derive(Debug)]
pub struct Tensors<'a> {
    /// One for each slot.
    pub weights: &'a [Tensor],
    /// Mean and variance of each batch norm.
    pub statistics: &'a [(Tensor, Tensor)],
}

const EPSILON: f64 = 1e-5;

struct Builder {
    kernels: Kernels,
    slots: Vec<Slot>,
    statistics: Vec<Statistic>,
}

impl Builder {
    fn slot(&mut self, name: String, shape: &[i64], is_norm: bool, start: Start) -> usize {
        self.slots.push(Slot { name, shape: shape.to_vec(), is_norm, start });
        self.slots.len() - 1
    }

    fn conv(&mut self, name: &str, [from, to, size]: [i64; 3], stride: i64, bias: bool) -> Conv {
        let area = size * size;
        let (start, bias_start) = match self.kernels {
            Kernels::Torch => {
                let start = Start::Uniform(1.0 / ((from * area) as f64).sqrt());
                (start, start)
            }
            Kernels::He => (Start::Normal((2.0 / (to * area) as f64).sqrt()), Start::Constant(0.0)),
        };
        let weight = self.slot(format!("{name}.weight"), &[to, from, size, size], false, start);
        let bias = bias.then(|| self.slot(format!("{name}.bias"), &[to], false, bias_start));
        Conv { weight, bias, stride, padding: size / 2 }
    }

    fn norm(&mut self, name: &str, width: i64) -> Norm {
        let scale = self.slot(format!("{name}.weight"), &[width], true, Start::Constant(1.0));
        let shift = self.slot(format!("{name}.bias"), &[width], true, Start::Constant(0.0));
        self.statistics.push(Statistic { name: name.into(), width });
        Norm { scale, shift, statistic: self.statistics.len() - 1 }
    }

    fn linear(&mut self, name: &str, from: i64, to: i64) -> Linear {
        let start = Start::Uniform(1.0 / (from as f64).sqrt());
        let weight = self.slot(format!("{name}.weight"), &[to, from], false, start);
        Linear { weight, bias: self.slot(format!("{name}.bias"), &[to], false, start) }
    }
}

impl Net {
    /// A network for images of `channels` × 32 × 32. `width` is the number of channels of its first layer, 64 in the
    /// paper; the others scale with it.
    #[must_use]
    pub fn new(architecture: Architecture, kernels: Kernels, width: i64, channels: i64, classes: i64) -> Self {
        let mut builder = Builder { kernels, slots: Vec::new(), statistics: Vec::new() };
        let layers = match architecture {
            Architecture::ResNet18 => resnet(&mut builder, width, channels, classes),
            Architecture::Vgg16 => vgg(&mut builder, width, channels, classes),
        };
        Self { slots: builder.slots, statistics: builder.statistics, layers }
    }

    /// How many numbers are trained.
    #[cfg(test)]
    fn parameters(&self) -> i64 {
        self.slots.iter().map(|slot| slot.shape.iter().product::<i64>()).sum()
    }

    /// The scores of a batch of images.
    pub fn forward(&self, tensors: &Tensors<'_>, images: &Tensor, mode: Mode) -> Tensor {
        match &self.layers {
            Layers::ResNet { stem, blocks, head } => {
                let mut x = tensors.layer(stem, images, mode).relu_();
                for block in blocks {
                    let inner = tensors.layer(&block.first, &x, mode).relu_();
                    let mut inner = tensors.layer(&block.second, &inner, mode);
                    let around = match &block.shortcut {
                        Some(shortcut) => tensors.layer(shortcut, &x, mode),
                        None => x,
                    };
                    x = inner.g_add_(&around).relu_();
                }
                tensors.linear(head, &x.mean_dim([2_i64, 3].as_slice(), false, None))
            }
            Layers::Vgg { features, head } => {
                let mut x = images.shallow_clone();
                for feature in features {
                    x = match feature {
                        Some(layer) => tensors.layer(layer, &x, mode).relu_(),
                        None => x.max_pool2d([2, 2], [2, 2], [0, 0], [1, 1], false),
                    };
                }
                let mut x = x.flatten(1, -1);
                for (i, linear) in head.iter().enumerate() {
                    x = tensors.linear(linear, &x);
                    if i + 1 < head.len() {
                        x = x.relu_();
                    }
                }
                x
            }
        }
    }
}

impl Tensors<'_> {
    fn layer(&self, (conv, norm): &(Conv, Norm), x: &Tensor, mode: Mode) -> Tensor {
        let (stride, padding) = ([conv.stride; 2], [conv.padding; 2]);
        let bias = conv.bias.map(|bias| &self.weights[bias]);
        let x = x.conv2d(&self.weights[conv.weight], bias, stride, padding, [1, 1], 1);
        let (mean, variance) = &self.statistics[norm.statistic];
        let (is_training, share) = match mode {
            Mode::Batch(share) => (true, share),
            Mode::Statistics => (false, 0.0),
        };
        let (scale, shift) = (&self.weights[norm.scale], &self.weights[norm.shift]);
        x.batch_norm(Some(scale), Some(shift), Some(mean), Some(variance), is_training, share, EPSILON, true)
    }

    fn linear(&self, linear: &Linear, x: &Tensor) -> Tensor {
        x.linear(&self.weights[linear.weight], Some(&self.weights[linear.bias]))
    }
}

fn resnet(builder: &mut Builder, width: i64, channels: i64, classes: i64) -> Layers {
    let stem = (builder.conv("conv1", [channels, width, 3], 1, false), builder.norm("bn1", width));
    let mut blocks = Vec::new();
    let mut from = width;
    for stage in 1..=4 {
        let to = width << (stage - 1);
        for index in 0..2 {
            let stride = if stage > 1 && index == 0 { 2 } else { 1 };
            let name = format!("layer{stage}.{index}");
            let conv = |builder: &mut Builder, part: &str, shape, stride| {
                builder.conv(&format!("{name}.{part}"), shape, stride, false)
            };
            let first = (conv(builder, "conv1", [from, to, 3], stride), builder.norm(&format!("{name}.bn1"), to));
            let second = (conv(builder, "conv2", [to, to, 3], 1), builder.norm(&format!("{name}.bn2"), to));
            let shortcut = (stride > 1 || from != to).then(|| {
                (
                    conv(builder, "downsample.0", [from, to, 1], stride),
                    builder.norm(&format!("{name}.downsample.1"), to),
                )
            });
            blocks.push(Block { first, second, shortcut });
            from = to;
        }
    }
    Layers::ResNet { stem, blocks, head: builder.linear("fc", from, classes) }
}

fn vgg(builder: &mut Builder, width: i64, channels: i64, classes: i64) -> Layers {
    // 2 × 64, 2 × 128, 3 × 256, 3 × 512, 3 × 512, a pooling after each.
    let stages = [(2, 1), (2, 2), (3, 4), (3, 8), (3, 8)];
    let (mut features, mut from, mut at) = (Vec::new(), channels, 0);
    for (count, times) in stages {
        for _ in 0..count {
            let to = width * times;
            let conv = builder.conv(&format!("features.{at}"), [from, to, 3], 1, true);
            features.push(Some((conv, builder.norm(&format!("features.{}", at + 1), to))));
            at += 3;
            from = to;
        }
        features.push(None);
        at += 1;
    }
    let head = [(0, from), (3, from), (6, classes)];
    let head = head.map(|(at, to)| builder.linear(&format!("classifier.{at}"), from, to));
    Layers::Vgg { features, head: head.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_the_paper() {
        assert_eq!(Net::new(Architecture::ResNet18, Kernels::Torch, 64, 3, 10).parameters(), 11_173_962);
        assert_eq!(Net::new(Architecture::ResNet18, Kernels::Torch, 64, 3, 100).parameters(), 11_220_132);
        // torchvision's vgg16_bn without its head: 14 723 136; the head: 2 × (512² + 512) + 512·10 + 10.
        assert_eq!(
            Net::new(Architecture::Vgg16, Kernels::Torch, 64, 3, 10).parameters(),
            14_723_136 + 2 * (512 * 512 + 512) + 5130
        );
    }

    #[test]
    fn names_are_torchvisions() {
        let names = |architecture| -> Vec<String> {
            Net::new(architecture, Kernels::Torch, 4, 3, 10).slots.into_iter().map(|slot| slot.name).collect()
        };
        let resnet = names(Architecture::ResNet18);
        for name in ["conv1.weight", "bn1.bias", "layer1.0.conv1.weight", "layer2.0.downsample.1.weight", "fc.bias"] {
            assert!(resnet.iter().any(|known| known == name), "{name}");
        }
        let vgg = names(Architecture::Vgg16);
        for name in ["features.0.weight", "features.1.bias", "features.41.weight", "classifier.6.bias"] {
            assert!(vgg.iter().any(|known| known == name), "{name}");
        }
    }
}
