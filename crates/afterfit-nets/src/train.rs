//! Training: SGD with checkpoints and a dial on the side, resumable at any saved state.

use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;
use std::thread::JoinHandle;
use std::time::Instant;

use afterfit::checkpoint::{Checkpoint, write_safetensors};
use afterfit::dial::Nodes;
use afterfit::scheme::RateRun;
use anyhow::{Context, Result, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use paper::findings::EpochLine;
use safetensors::Dtype;
use tch::{Device, Kind, Tensor};

use crate::augment::{Augmenter, Epoch};
use crate::checkpoint::{self, Snapshot};
use crate::data::Data;
use crate::dial::{Dial, Saved};
use crate::measure::{evaluate, image_kind};
use crate::model::{Layout, Model};
use crate::net::Net;
use crate::run::{Folder, Settings};
use crate::shim::{self, Graph, Sgd};

/// How a run goes about it; nothing here changes where it ends.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Stop after this many epochs, to go on another time.
    pub stop_after: Option<u64>,
    /// Look at the test (and held-out) images every so many epochs, and at the end.
    pub evaluate_every: u64,
    /// Save everything needed to go on every so many epochs, and at the end.
    pub save_every: u64,
    /// Record each step as a CUDA graph.
    pub graphs: bool,
    /// No progress bar.
    pub quiet: bool,
}

/// What training leaves.
#[derive(Debug)]
pub struct Trained {
    /// The network as it stands.
    pub model: Model,
    /// The dial, once it has started.
    pub dial: Option<Dial>,
    /// Epochs done.
    pub epoch: u64,
    /// What was logged.
    pub log: Vec<EpochLine>,
}

/// The network of a run before training.
#[must_use]
pub fn start(settings: &Settings, device: Device) -> Model {
    let name = settings.data.name;
    let net = Net::new(settings.net, settings.kernels, settings.width, name.channels(), name.classes());
    Model::start(Rc::new(Layout::new(net)), settings.seed, device, settings.precision)
}

/// Batch-norm statistics move by this share towards each batch.
const SHARE: f64 = 0.1;
/// Steps done one by one before they are recorded: cuDNN chooses its kernels in them.
const UNRECORDED: u32 = 3;
/// Steps whose images are prepared together.
const AT_ONCE: i64 = 50;

/// One step of training, on buffers that keep their place so that it can be recorded.
struct Stepper {
    model: Model,
    sgd: Sgd,
    velocity: Option<Tensor>,
    gradient: Tensor,
    rate: Tensor,
    images: Tensor,
    labels: Tensor,
    loss: Tensor,
    right: Tensor,
    graph: Option<Graph>,
    /// Steps to do before recording; `None` where nothing is recorded.
    unrecorded: Option<u32>,
}

impl Stepper {
    fn new(model: Model, settings: &Settings, velocity: Option<Tensor>, graphs: bool) -> Self {
        let device = model.weights.device();
        let name = settings.data.name;
        let zeros = |kind: Kind| Tensor::zeros([], (kind, device));
        let side = crate::data::SIDE;
        let kind = image_kind(model.precision);
        let images = match device.is_cuda() {
            true => Tensor::zeros([settings.batch, side, side, name.channels()], (kind, device)).permute([0, 3, 1, 2]),
            false => Tensor::zeros([settings.batch, name.channels(), side, side], (kind, device)),
        };
        let sgd = Sgd { momentum: settings.momentum, nesterov: settings.nesterov, decay: settings.weight_decay };
        Self {
            sgd,
            velocity,
            gradient: model.weights.zeros_like(),
            rate: zeros(Kind::Float),
            images,
            labels: Tensor::zeros([settings.batch], (Kind::Int64, device)),
            loss: zeros(Kind::Double),
            right: zeros(Kind::Int64),
            graph: None,
            unrecorded: (graphs && device.is_cuda() && shim::has_graphs()).then_some(UNRECORDED),
            model,
        }
    }

    fn step(&mut self, images: &Tensor, labels: &Tensor) -> Result<()> {
        self.images.f_copy_(images)?;
        self.labels.f_copy_(labels)?;
        match (&self.graph, self.unrecorded) {
            (Some(graph), _) => graph.replay(),
            (None, Some(0)) => {
                let graph = Graph::record(|| self.once()).context("a training step could not be recorded")?;
                graph.replay()?;
                self.graph = Some(graph);
                Ok(())
            }
            (None, left) => {
                self.unrecorded = left.map(|left| left - 1);
                self.once()
            }
        }
    }

    fn once(&mut self) -> Result<()> {
        let (scores, loss) = self.model.gradient(&self.images, &self.labels, SHARE, &self.gradient)?;
        let _guard = tch::no_grad_guard();
        self.sgd.step(&mut self.model.weights, &self.gradient, self.velocity.as_mut(), &self.rate)?;
        let _ = self.loss.f_add_(&loss.to_kind(Kind::Double))?;
        let _ = self.right.f_add_(&scores.argmax(1, false).eq_tensor(&self.labels).sum(Kind::Int64))?;
        Ok(())
    }

    /// Sums of loss and of right answers since the last call.
    fn take_totals(&mut self) -> (f64, f64) {
        let totals = (self.loss.double_value(&[]), self.right.double_value(&[]));
        let _ = self.loss.zero_();
        let _ = self.right.zero_();
        totals
    }
}

/// Trains, or goes on with, the run in `folder`.
pub fn train(settings: &Settings, folder: &Folder, data: &Data, device: Device, options: Options) -> Result<Trained> {
    settings.validate()?;
    let images = &data.train;
    let steps = images.len() / settings.batch;
    ensure!(steps > 0, "{} training images do not fill a batch of {}", images.len(), settings.batch);
    folder.open(settings)?;
    if device.is_cuda() {
        tch::Cuda::cudnn_set_benchmark(true);
        if options.graphs && shim::has_graphs() {
            shim::enter_stream()?;
        }
    }
    let model = start(settings, device);
    let resumed = if folder.state().exists() { Some(load_state(&folder.state(), &model, settings)?) } else { None };
    let (mut epoch, velocity, mut dial) = resumed.unwrap_or_else(|| {
        let velocity = (settings.momentum > 0.0).then(|| model.weights.zeros_like());
        (0, velocity, None)
    });
    folder.rewind(epoch)?;
    let mut stepper = Stepper::new(model, settings, velocity, options.graphs);
    let augmenter = Augmenter::new(images);
    let last = options.stop_after.map_or(settings.epochs, |stop| stop.min(settings.epochs));
    let bar = progress(settings.epochs * steps as u64, options.quiet);
    bar.set_position(epoch * steps as u64);
    bar.reset_eta();
    let mut writer: Option<JoinHandle<Result<()>>> = None;
    while epoch < last {
        let rate = settings.rate_in(epoch);
        let _ = stepper.rate.fill_(rate);
        if let Some(range) = settings.dial.filter(|range| dial.is_none() && epoch == range.start) {
            let nodes = Nodes::new(range.from, range.to, range.nodes)?;
            dial = Some(Dial::new(nodes, settings.recurrence(), &stepper.model.weights));
        }
        let began = Instant::now();
        let drawn = Epoch::draw(images.len(), settings.seed, epoch);
        for first in (0..steps).step_by(AT_ONCE as usize) {
            let together = AT_ONCE.min(steps - first);
            let (pixels, order) = augmenter.images(&drawn, first * settings.batch, together * settings.batch);
            let prepared = images.normalized(&pixels, image_kind(settings.precision));
            let labels = images.labels.index_select(0, &order);
            for at in 0..together {
                if let Some(dial) = &mut dial {
                    dial.push(&stepper.model.weights, rate);
                }
                let batch = |tensor: &Tensor| tensor.narrow(0, at * settings.batch, settings.batch);
                stepper.step(&batch(&prepared), &batch(&labels))?;
                bar.inc(1);
            }
        }
        if let Some(dial) = &mut dial {
            dial.flush();
        }
        let (loss, right) = stepper.take_totals();
        let seconds = began.elapsed().as_secs_f64();
        epoch += 1;
        ensure!(loss.is_finite(), "training diverged in epoch {epoch}: its loss is {loss}; try a rate below {rate}");
        let is_last = epoch == settings.epochs;
        let look = options.evaluate_every > 0 && epoch % options.evaluate_every == 0 || is_last;
        let score = |images: &crate::data::Images| -> Result<Option<f64>> {
            let wanted = look && !images.is_empty();
            wanted.then(|| Ok(evaluate(&stepper.model, images)?.accuracy)).transpose()
        };
        let shown = (steps * settings.batch) as f64;
        let line = EpochLine {
            epoch,
            step: epoch * steps as u64,
            rate,
            loss: loss / steps as f64,
            accuracy: 100.0 * right / shown,
            test_accuracy: score(&data.test)?,
            held_out_accuracy: score(&data.held_out)?,
            seconds,
            images_per_second: shown / seconds,
        };
        bar.set_message(message(&line));
        if epoch >= settings.checkpoints_from {
            let snapshot = Snapshot::of(&stepper.model, metadata(settings, &line))?;
            let path = checkpoint::path(&folder.checkpoints(), epoch);
            finish(writer.take())?;
            writer = Some(std::thread::spawn(move || snapshot.write(&path)));
        }
        folder.append(&line)?;
        if is_last || epoch == last || epoch % options.save_every.max(1) == 0 {
            finish(writer.take())?;
            save_state(&folder.state(), &stepper, dial.as_mut(), epoch)?;
        }
    }
    finish(writer)?;
    bar.finish_and_clear();
    if let Some(dial) = dial.as_mut().filter(|_| epoch == settings.epochs && !folder.dial().exists()) {
        let model = &stepper.model;
        dial.write(&folder.dial(), &model.layout, &model.weights, &model.statistics)?;
    }
    Ok(Trained { model: stepper.model, dial, epoch, log: folder.log()? })
}

fn finish(writer: Option<JoinHandle<Result<()>>>) -> Result<()> {
    writer
        .map_or(Ok(()), |writer| writer.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a checkpoint was not written"))))
}

fn progress(steps: u64, quiet: bool) -> ProgressBar {
    let bar = if quiet { ProgressBar::hidden() } else { ProgressBar::new(steps) };
    let style = ProgressStyle::with_template("{bar:25} {percent:>3} %  {msg}  {elapsed} (eta {eta})");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}

fn message(line: &EpochLine) -> String {
    let test = line.test_accuracy.map(|accuracy| format!(", test {accuracy:.2} %")).unwrap_or_default();
    format!(
        "epoch {}: loss {:.4}, accuracy {:.2} %{test}, {:.0} images/s",
        line.epoch, line.loss, line.accuracy, line.images_per_second
    )
}

/// What `afterfit average` needs to know of a checkpoint.
fn metadata(settings: &Settings, line: &EpochLine) -> BTreeMap<String, String> {
    // The rate of the step that comes next, which is what the mass of this checkpoint depends on.
    let rate = settings.rate_in(line.epoch.min(settings.epochs - 1));
    let entries = [
        ("format", "pt".to_owned()),
        ("rate", rate.to_string()),
        ("step", line.step.to_string()),
        ("epoch", line.epoch.to_string()),
        ("weight_decay", settings.weight_decay.to_string()),
        ("momentum", settings.momentum.to_string()),
        ("nesterov", settings.nesterov.to_string()),
        ("net", settings.net.name().to_owned()),
        ("data", settings.data.name.text().to_owned()),
        ("seed", settings.seed.to_string()),
    ];
    entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

/// Everything to go on from, in one file: weights, statistics, velocity, and the dial's sums.
fn save_state(path: &Path, stepper: &Stepper, dial: Option<&mut Dial>, epoch: u64) -> Result<()> {
    let mut parts = vec![
        ("weights".to_owned(), stepper.model.weights.shallow_clone()),
        ("statistics".to_owned(), stepper.model.statistics.shallow_clone()),
    ];
    parts.extend(stepper.velocity.iter().map(|velocity| ("velocity".to_owned(), velocity.shallow_clone())));
    let mut metadata = BTreeMap::from([("epoch".to_owned(), epoch.to_string())]);
    if let Some(dial) = dial {
        let saved = dial.saved();
        metadata.insert("rates".into(), serde_json::to_string(&saved.runs)?);
        metadata.insert("reach".into(), saved.reach.to_string());
        parts.push(("center".into(), saved.center));
        parts.extend((0..saved.sums.size()[0]).map(|node| (format!("sum-{node:03}"), saved.sums.get(node))));
    }
    // Vectors are kept as they lie on this device: a GPU's kernels have their channels last.
    metadata.insert("layout".into(), layout_name(stepper.model.weights.device()).into());
    let tensors: Vec<_> = parts.iter().map(|(name, tensor)| (name.clone(), Dtype::F32, vec![tensor.numel()])).collect();
    write_safetensors(path, &tensors, &metadata, &mut |at, file| {
        let values = Vec::<f32>::try_from(parts[at].1.to_device(Device::Cpu))
            .map_err(|error| std::io::Error::other(error.to_string()))?;
        match cfg!(target_endian = "little") {
            true => file.write_all(bytemuck::cast_slice(&values)),
            false => values.iter().try_for_each(|value| file.write_all(&value.to_le_bytes())),
        }
    })?;
    Ok(())
}

fn layout_name(device: Device) -> &'static str {
    if device.is_cuda() { "channels last" } else { "channels first" }
}

type State = (u64, Option<Tensor>, Option<Dial>);

fn load_state(path: &Path, model: &Model, settings: &Settings) -> Result<State> {
    let state = Checkpoint::open(path, None)?;
    let device = model.weights.device();
    let text = |key: &str| {
        let text = state.metadata.get(key);
        text.with_context(|| format!("{}: its metadata has no key \"{key}\"", path.display()))
    };
    let (found, expected) = (text("layout")?, layout_name(device));
    ensure!(
        found == expected,
        "{}: saved on another kind of device ({found}): go on there, or start again in another folder",
        path.display()
    );
    let read = |name: &str, length: usize| -> Result<Tensor> {
        let tensor = state.tensors.iter().find(|tensor| tensor.name == name);
        let tensor = tensor.with_context(|| format!("{}: tensor {name} is missing", path.display()))?;
        ensure!(
            tensor.shape == [length],
            "{}: tensor {name} has the shape {:?}, not [{length}]",
            path.display(),
            tensor.shape
        );
        Ok(Tensor::from_slice(&state.read_f32(tensor)?).to_device(device))
    };
    let length = model.weights.numel();
    let mut weights = model.weights.shallow_clone();
    weights.copy_(&read("weights", length)?);
    let mut statistics = model.statistics.shallow_clone();
    statistics.copy_(&read("statistics", model.statistics.numel())?);
    let velocity = (settings.momentum > 0.0).then(|| read("velocity", length)).transpose()?;
    let epoch: u64 = text("epoch")?.parse().with_context(|| path.display().to_string())?;
    let range = settings.dial.filter(|range| epoch > range.start);
    let dial = range.map(|range| -> Result<Dial> {
        let runs: Vec<RateRun> = serde_json::from_str(text("rates")?)?;
        let rows: Result<Vec<Tensor>> = (0..range.nodes).map(|node| read(&format!("sum-{node:03}"), length)).collect();
        let saved = Saved {
            center: read("center", length)?,
            sums: Tensor::stack(&rows?, 0),
            runs,
            reach: text("reach")?.parse()?,
        };
        Dial::resume(Nodes::new(range.from, range.to, range.nodes)?, settings.recurrence(), &saved)
    });
    Ok((epoch, velocity, dial.transpose()?))
}
