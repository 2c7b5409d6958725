//! What comes after averaging: fresh batch-norm statistics, and the accuracy.

use crate::findings::Score;
use anyhow::{Result, ensure};
use tch::{Kind, Tensor};

use crate::augment::{Augmenter, Epoch, REFRESHING};
use crate::data::Images;
use crate::model::{Model, Precision};
use crate::net::Mode;
use crate::shim::Recorder;

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
    ensure!(!images.is_empty(), "there are no such images to evaluate on (this run holds none out)");
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
    let loss = loss.double_value(&[]);
    ensure!(loss.is_finite(), "the model's loss is {loss}: it holds numbers that are not finite, or huge ones");
    Ok(Score { accuracy: 100.0 * right.double_value(&[]) / count, loss: loss / count })
}

/// One pass of **augmented** training images, kept to refresh the statistics of many models. (Statistics of clean images
/// cost half a point and more.) Memory: 3 kB an image.
#[derive(Debug)]
pub struct Refresher<'a> {
    images: &'a Images,
    pixels: Tensor,
    batch: i64,
    graphs: bool,
    work: Option<Work>,
}

/// A batch's work, and the tensors it is done with.
#[derive(Debug)]
struct Work {
    recorder: Recorder,
    weights: Tensor,
    statistics: Tensor,
    batch: Tensor,
    total: Tensor,
}

impl<'a> Refresher<'a> {
    /// Draws the pass; batches are of the size trained with. With `graphs`, a batch's work is recorded on a GPU (the
    /// thread must have entered a stream).
    pub fn new(images: &'a Images, batch: i64, seed: u64, graphs: bool) -> Result<Self> {
        let count = images.len() / batch * batch;
        ensure!(count > 0, "{} training images do not fill a batch of {batch}", images.len());
        let epoch = Epoch::draw(images.len(), seed, REFRESHING);
        let (pixels, _) = Augmenter::new(images).images(&epoch, 0, count);
        Ok(Self { images, pixels, batch, graphs, work: None })
    }

    /// Replaces a model's batch-norm statistics by their mean over the batches of the pass.
    pub fn refresh(&mut self, model: &Model) -> Result<()> {
        let _guard = tch::no_grad_guard();
        let kind = image_kind(model.precision);
        let (images, pixels, size) = (self.images, &self.pixels, self.batch);
        let batch = |at: i64| images.normalized(&pixels.narrow(0, at * size, size), kind);
        // What was recorded is good for the very tensors it was recorded with.
        let is_same = |a: &Tensor, b: &Tensor| a.data_ptr() == b.data_ptr();
        let is_mine =
            |work: &Work| is_same(&work.weights, &model.weights) && is_same(&work.statistics, &model.statistics);
        let mut work = self.work.take().filter(is_mine).unwrap_or_else(|| Work {
            recorder: Recorder::new(self.graphs, model.weights.device()),
            weights: model.weights.shallow_clone(),
            statistics: model.statistics.shallow_clone(),
            batch: batch(0),
            total: model.statistics.zeros_like(),
        });
        let _ = work.total.zero_();
        let count = pixels.size()[0] / size;
        for at in 0..count {
            work.batch.f_copy_(&batch(at))?;
            let (images, total) = (&work.batch, &mut work.total);
            work.recorder.run(|| {
                // A share of 1 makes the running statistics those of the batch.
                let _ = model.scores(images, Mode::Batch(1.0));
                let _ = total.f_add_(&model.statistics)?;
                Ok(())
            })?;
        }
        work.statistics.f_copy_(&(&work.total / count as f64))?;
        self.work = Some(work);
        Ok(())
    }
}
