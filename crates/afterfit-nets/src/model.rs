//! A network with its numbers: all weights in one vector, all batch-norm statistics in another.

use std::rc::Rc;
use std::sync::Mutex;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use tch::{Device, Kind, Tensor};

use crate::net::{Mode, Net, Start, Statistic, Tensors};

/// What layers compute in. Weights, statistics and sums are f32 always.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// 32 bits (on a GPU cuDNN multiplies with 19 of them).
    F32,
    /// 16 bits: fast on GPUs, slow on CPUs.
    Bf16,
}

/// Tensors start at multiples of this many numbers: fast kernels require aligned addresses. What is between is 0, and stays 0.
const ALIGNMENT: i64 = 64;

/// Where each tensor lies in the vector of all weights: those computed in the run's precision first, batch norms after.
#[derive(Debug)]
pub struct Layout {
    /// The network.
    pub net: Net,
    /// Kernels of convolutions lie in the vector with their channels last, as cuDNN requires them.
    pub channels_last: bool,
    offsets: Vec<i64>,
    /// Numbers that are not of batch norms.
    matrices: i64,
    total: i64,
    statistics: i64,
}

impl Layout {
    /// The layout of a network.
    #[must_use]
    pub fn new(net: Net, channels_last: bool) -> Self {
        let mut offsets = vec![0; net.slots.len()];
        let (mut at, mut matrices) = (0, 0);
        for norms in [false, true] {
            for (slot, offset) in net.slots.iter().zip(&mut offsets).filter(|(slot, _)| slot.is_norm == norms) {
                *offset = at;
                at = aligned(at + slot.shape.iter().product::<i64>());
            }
            matrices = if norms { matrices } else { at };
        }
        let statistics = 2 * net.statistics.iter().map(|statistic| statistic.width).sum::<i64>();
        Self { net, channels_last, offsets, matrices, total: at, statistics }
    }

    /// Slot `index` as a view into `vector`, which holds all weights (or only those that are not of batch norms).
    pub fn view(&self, vector: &Tensor, index: usize) -> Tensor {
        let slot = &self.net.slots[index];
        let piece = vector.narrow(0, self.offsets[index], slot.shape.iter().product());
        match slot.shape[..] {
            [to, from, height, width] if self.channels_last => {
                piece.view([to, height, width, from]).permute([0, 3, 1, 2])
            }
            _ => piece.view(&slot.shape[..]),
        }
    }

    /// A tensor shaped like slot `index` as its stretch of the vector.
    fn stretch(&self, tensor: &Tensor, index: usize) -> Tensor {
        match self.net.slots[index].shape.len() {
            4 if self.channels_last => tensor.permute([0, 2, 3, 1]).reshape([-1]),
            _ => tensor.reshape([-1]),
        }
    }

    /// Mean and variance of each batch norm, as views.
    #[must_use]
    pub fn statistics(&self, vector: &Tensor) -> Vec<(Tensor, Tensor)> {
        let mut at = 0;
        let views = self.net.statistics.iter().map(|statistic| {
            let view = |start| vector.narrow(0, start, statistic.width);
            at += 2 * statistic.width;
            (view(at - 2 * statistic.width), view(at - statistic.width))
        });
        views.collect()
    }

    /// Every slot's numbers in the order and layout of a checkpoint, one after the other.
    pub fn in_file_order(&self, vector: &Tensor) -> Tensor {
        let pieces: Vec<Tensor> =
            (0..self.net.slots.len()).map(|index| self.view(vector, index).contiguous().view(-1)).collect();
        Tensor::cat(&pieces, 0)
    }
}

static SEEDING: Mutex<()> = Mutex::new(());

fn aligned(at: i64) -> i64 {
    (at + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT
}

/// A network and its numbers. Memory: the weights, once.
#[derive(Debug)]
pub struct Model {
    /// Where things lie.
    pub layout: Rc<Layout>,
    /// All weights.
    pub weights: Tensor,
    /// All running means and variances.
    pub statistics: Tensor,
    /// What layers compute in.
    pub precision: Precision,
}

impl Model {
    /// A network before training. The same seed starts the same network on every device.
    #[must_use]
    pub fn start(layout: Rc<Layout>, seed: u64, device: Device, precision: Precision) -> Self {
        // libtorch has one generator for all threads.
        let _alone = SEEDING.lock();
        tch::manual_seed(seed as i64);
        let weights = Tensor::zeros([layout.total], (Kind::Float, device));
        for (index, slot) in layout.net.slots.iter().enumerate() {
            let mut values = Tensor::zeros(&slot.shape[..], (Kind::Float, Device::Cpu));
            let _ = match slot.start {
                Start::Normal(deviation) => values.normal_(0.0, deviation),
                Start::Uniform(bound) => values.uniform_(-bound, bound),
                Start::Constant(value) => values.fill_(value),
            };
            layout.view(&weights, index).copy_(&values);
        }
        let statistics = Tensor::zeros([layout.statistics], (Kind::Float, device));
        let model = Self { layout, weights, statistics, precision };
        model.reset_statistics();
        model
    }

    /// The same network with other weights and statistics of its own.
    #[must_use]
    pub fn with(&self, weights: Tensor) -> Self {
        Self { layout: self.layout.clone(), weights, statistics: self.statistics.copy(), precision: self.precision }
    }

    /// Means of 0, variances of 1.
    pub fn reset_statistics(&self) {
        for (mut mean, mut variance) in self.layout.statistics(&self.statistics) {
            let _ = mean.fill_(0.0);
            let _ = variance.fill_(1.0);
        }
    }

    /// The weights as layers take them.
    fn tensors(&self) -> Vec<Tensor> {
        let low = (self.precision == Precision::Bf16)
            .then(|| self.weights.narrow(0, 0, self.layout.matrices).to_kind(Kind::BFloat16));
        let vector = |is_norm: bool| low.as_ref().filter(|_| !is_norm).unwrap_or(&self.weights);
        let slots = self.layout.net.slots.iter().enumerate();
        slots.map(|(index, slot)| self.layout.view(vector(slot.is_norm), index)).collect()
    }

    /// Scores, in f32.
    pub fn scores(&self, images: &Tensor, mode: Mode) -> Tensor {
        self.scores_with(&self.tensors(), images, mode)
    }

    fn scores_with(&self, weights: &[Tensor], images: &Tensor, mode: Mode) -> Tensor {
        let statistics = self.layout.statistics(&self.statistics);
        let tensors = Tensors { weights, statistics: &statistics };
        self.layout.net.forward(&tensors, images, mode).to_kind(Kind::Float)
    }

    /// Scores and mean loss of a batch, and the gradient of the loss, written into `gradient`. Statistics move by
    /// `share` toward the batch's.
    pub fn gradient(
        &self,
        images: &Tensor,
        labels: &Tensor,
        share: f64,
        gradient: &Tensor,
    ) -> Result<(Tensor, Tensor)> {
        let leaves: Vec<Tensor> = self.tensors().iter().map(|tensor| tensor.detach().set_requires_grad(true)).collect();
        let scores = self.scores_with(&leaves, images, Mode::Batch(share));
        let loss = scores.f_cross_entropy_loss::<Tensor>(labels, None, tch::Reduction::Mean, -100, 0.0)?;
        let gradients = Tensor::f_run_backward(&[&loss], &leaves, false, false)?;
        // One copy for all tensors of a kind: those of convolutions first, those of batch norms after.
        for norms in [false, true] {
            let (start, length) = match norms {
                false => (0, self.layout.matrices),
                true => (self.layout.matrices, self.layout.total - self.layout.matrices),
            };
            let slots = self.layout.net.slots.iter().enumerate().filter(|(_, slot)| slot.is_norm == norms);
            let mut pieces = Vec::new();
            for (index, _) in slots {
                let piece = self.layout.stretch(&gradients[index], index);
                let count = piece.size()[0];
                let gap = aligned(count) - count;
                let nothing = (gap > 0).then(|| piece.new_zeros([gap], (piece.kind(), piece.device())));
                pieces.push(piece);
                pieces.extend(nothing);
            }
            gradient.narrow(0, start, length).f_copy_(&Tensor::f_cat(&pieces, 0)?)?;
        }
        Ok((scores.detach(), loss.detach()))
    }

    /// Sets a weight or a statistic by its name in a checkpoint; `false` for a name that is neither.
    pub fn set(&self, name: &str, values: &Tensor) -> Result<bool> {
        let put = |mut view: Tensor| -> Result<bool> {
            let (found, expected) = (values.size(), view.size());
            ensure!(found == expected, "tensor {name} has the shape {found:?}: this network's is {expected:?}");
            view.f_copy_(values).with_context(|| format!("tensor {name}"))?;
            Ok(true)
        };
        if let Some(index) = self.layout.net.slots.iter().position(|slot| slot.name == name) {
            return put(self.layout.view(&self.weights, index));
        }
        let views = self.layout.statistics(&self.statistics);
        for (statistic, (mean, variance)) in self.layout.net.statistics.iter().zip(views) {
            for (own, view) in statistic.names().into_iter().zip([mean, variance]) {
                if own == name {
                    return put(view);
                }
            }
        }
        Ok(false)
    }

    /// Names of everything a checkpoint must hold.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        let net = &self.layout.net;
        let statistics = net.statistics.iter().flat_map(Statistic::names);
        net.slots.iter().map(|slot| slot.name.clone()).chain(statistics).collect()
    }
}
