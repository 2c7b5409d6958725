//! What comes after averaging: fresh batch-norm statistics, and the accuracy.

use anyhow::{Result, ensure};
use paper::findings::Score;
use tch::{Kind, Tensor};

use crate::augment::{Augmenter, Epoch};
use crate::data::Images;
use crate::model::{Model, Precision};
use crate::net::Mode;
use crate::shim::{self, Graph};

/// The type images are given to a model in.
#[must_use]
pub fn image_kind(precision: Precision) -> Kind {
    match precision {
        Precision::F32 => Kind::Float,
        Precision::Bf16 => Kind::BFloat16,
    }
}

/// Accuracy and loss over images.
pub fn evaluate(model: &Model, images: &Images) -> Result<Score> {
    ensure!(!images.is_empty(), "there are no images to evaluate on");
    let _guard = tch::no_grad_guard();
    let kind = image_kind(model.precision);
    let at_once = if images.labels.device().is_cuda() { 1000 } else { 100 };
    let mut right = Tensor::zeros([], (Kind::Int64, images.labels.device()));
    let mut loss = Tensor::zeros([], (Kind::Double, images.labels.device()));
    let mut start = 0;
    while start < images.len() {
        let count = at_once.min(images.len() - start);
        let batch = images.normalized(&images.pixels.narrow(0, start, count), kind);
        let labels = images.labels.narrow(0, start, count);
        let scores = model.scores(&batch, Mode::Statistics);
        right += scores.argmax(1, false).eq_tensor(&labels).sum(Kind::Int64);
        let total = scores.cross_entropy_loss::<Tensor>(&labels, None, tch::Reduction::Sum, -100, 0.0);
        loss += total.to_kind(Kind::Double);
        start += count;
    }
    let count = images.len() as f64;
    Ok(Score { accuracy: 100.0 * right.double_value(&[]) / count, loss: loss.double_value(&[]) / count })
}

/// One pass of **augmented** training images, kept to refresh the statistics of many models. (Statistics of clean images
/// cost half a point and more.) Memory: 3 kB an image.
#[derive(Debug)]
pub struct Refresher<'a> {
    images: &'a Images,
    pixels: Tensor,
    batch: i64,
    /// A batch's work on a GPU, and the tensors it was recorded with.
    recorded: Option<(Graph, Buffers)>,
}

/// Tensors that keep their place.
#[derive(Debug)]
struct Buffers {
    weights: Tensor,
    statistics: Tensor,
    batch: Tensor,
    total: Tensor,
}

impl<'a> Refresher<'a> {
    /// Draws the pass; batches are of the size trained with.
    #[must_use]
    pub fn new(images: &'a Images, batch: i64, seed: u64) -> Self {
        // No epoch of training has this number.
        let epoch = Epoch::draw(images.len(), seed, u64::MAX);
        let count = images.len() / batch * batch;
        let (pixels, _) = Augmenter::new(images).images(&epoch, 0, count);
        Self { images, pixels, batch, recorded: None }
    }

    /// Replaces a model's batch-norm statistics by their mean over the batches of the pass. With `graphs`, a batch's
    /// work is recorded on a GPU and replayed (the thread must have entered a stream), for this model and whatever
    /// weights are put into it later.
    pub fn refresh(&mut self, model: &Model, graphs: bool) -> Result<()> {
        let _guard = tch::no_grad_guard();
        let count = self.pixels.size()[0] / self.batch;
        let kind = image_kind(model.precision);
        let batch = |at: i64| self.images.normalized(&self.pixels.narrow(0, at * self.batch, self.batch), kind);
        let same = |a: &Tensor, b: &Tensor| a.data_ptr() == b.data_ptr();
        if self.recorded.as_ref().is_some_and(|(_, buffers)| {
            !same(&buffers.weights, &model.weights) || !same(&buffers.statistics, &model.statistics)
        }) {
            self.recorded = None;
        }
        let mut total = match &self.recorded {
            Some((_, buffers)) => buffers.total.shallow_clone(),
            None => model.statistics.zeros_like(),
        };
        let _ = total.zero_();
        // A share of 1 makes the running statistics those of the batch.
        let once = |images: &Tensor, total: &mut Tensor| -> Result<()> {
            let _ = model.scores(images, Mode::Batch(1.0));
            let _ = total.f_add_(&model.statistics)?;
            Ok(())
        };
        for at in 0..count {
            let mut images = batch(at);
            match &mut self.recorded {
                Some((graph, buffers)) => {
                    buffers.batch.copy_(&images);
                    graph.replay()?;
                }
                // cuDNN chooses its kernels in the first batches.
                None if graphs && at >= 3 && model.weights.device().is_cuda() && shim::has_graphs() => {
                    let graph = Graph::record(|| once(&images, &mut total))?;
                    graph.replay()?;
                    let (weights, statistics) = (model.weights.shallow_clone(), model.statistics.shallow_clone());
                    let total = total.shallow_clone();
                    let batch = std::mem::replace(&mut images, Tensor::new());
                    self.recorded = Some((graph, Buffers { weights, statistics, batch, total }));
                }
                None => once(&images, &mut total)?,
            }
        }
        let _ = total.f_div_scalar_(count as f64)?;
        model.statistics.shallow_clone().copy_(&total);
        Ok(())
    }
}
