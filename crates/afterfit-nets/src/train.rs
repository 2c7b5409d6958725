//! Training: SGD with checkpoints and a dial on the side, resumable at any saved state.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::thread::JoinHandle;
use std::time::Instant;

use crate::findings::EpochLine;
use afterfit::checkpoint::Checkpoint;
use afterfit::dial::DialFile;
use afterfit::files::safetensors::{write_f32, write_safetensors};
use afterfit::{Nodes, Rates};
use anyhow::{Context, Result, ensure};
use indicatif::{ProgressBar, ProgressStyle};
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
use crate::shim::{self, Recorder, Sgd};

/// How a run goes about it. On a CPU nothing here changes where it ends; on a GPU sums are not the same twice anyway.
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
    Model::start(Rc::new(Layout::new(net, device.is_cuda())), settings.seed, device, settings.precision)
}

/// Batch-norm statistics move by this share toward each batch.
const SHARE: f64 = 0.1;
/// Steps whose images are prepared together.
const AT_ONCE: i64 = 50;

/// One step of training, on buffers that keep their place so that it can be recorded.
struct Step {
    model: Model,
    sgd: Sgd,
    velocity: Option<Tensor>,
    gradient: Tensor,
    rate: Tensor,
    images: Tensor,
    labels: Tensor,
    loss: Tensor,
    right: Tensor,
}

impl Step {
    fn new(model: Model, settings: &Settings, velocity: Option<Tensor>) -> Self {
        let device = model.weights.device();
        let (channels, side) = (settings.data.name.channels(), crate::data::SIDE);
        let zeros = |kind: Kind| Tensor::zeros([], (kind, device));
        let kind = image_kind(model.precision);
        let images = match model.layout.channels_last {
            true => Tensor::zeros([settings.batch, side, side, channels], (kind, device)).permute([0, 3, 1, 2]),
            false => Tensor::zeros([settings.batch, channels, side, side], (kind, device)),
        };
        Self {
            sgd: Sgd { momentum: settings.momentum, nesterov: settings.nesterov, decay: settings.weight_decay },
            velocity,
            gradient: model.weights.zeros_like(),
            rate: zeros(Kind::Float),
            images,
            labels: Tensor::zeros([settings.batch], (Kind::Int64, device)),
            loss: zeros(Kind::Double),
            right: zeros(Kind::Int64),
            model,
        }
    }

    fn take(&mut self) -> Result<()> {
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

/// Writes checkpoints while training continues. What was begun is finished, also when training fails.
#[derive(Default)]
struct Writer(Option<JoinHandle<Result<()>>>);

impl Writer {
    fn write(&mut self, snapshot: Snapshot, path: PathBuf) -> Result<()> {
        self.finish()?;
        self.0 = Some(std::thread::spawn(move || snapshot.write(&path)));
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        let lost = |_| Err(anyhow::anyhow!("a checkpoint was not written"));
        self.0.take().map_or(Ok(()), |writer| writer.join().unwrap_or_else(lost))
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.finish();
    }
}

/// Trains, or resumes, the run in `folder`. Memory on the device: the images twice (3 and 5 kB each), and vectors of all
/// weights: three (four with momentum), and for the dial one a node, one an iterate of a block (32 on a GPU, 8 on a CPU), and one
/// more.
pub fn train(settings: &Settings, folder: &Folder, data: &Data, device: Device, options: Options) -> Result<Trained> {
    settings.validate()?;
    let images = &data.train;
    let steps = images.len() / settings.batch;
    ensure!(steps > 0, "{} training images do not fill a batch of {}", images.len(), settings.batch);
    let _lock = folder.open(settings)?;
    let fingerprint = data.fingerprint();
    if device.is_cuda() {
        tch::Cuda::cudnn_set_benchmark(true);
        if options.graphs && shim::has_graphs() {
            shim::enter_stream()?;
        }
    }
    let model = start(settings, device);
    let (mut epoch, velocity, mut dial) = match folder.state().exists() {
        true => load_state(&folder.state(), &model, settings, steps as u64, fingerprint)?,
        false => {
            // (A run that was killed before it could save anything starts again.)
            let done = folder.log()?.len();
            ensure!(
                done == 0 || done == 1 && settings.epochs > 1,
                "{} is missing: without it this run of {done} epochs can neither go on nor be measured again; start another \
                 in a folder of its own",
                folder.state().display()
            );
            (0, (settings.momentum > 0.0).then(|| model.weights.zeros_like()), None)
        }
    };
    folder.rewind(epoch)?;
    let mut step = Step::new(model, settings, velocity);
    let mut recorder = Recorder::new(options.graphs, device);
    let augmenter = Augmenter::new(images);
    let last = options.stop_after.map_or(settings.epochs, |stop| stop.min(settings.epochs));
    let bar = progress(settings.epochs * steps as u64, options.quiet);
    bar.set_position(epoch * steps as u64);
    bar.reset_eta();
    let mut writer = Writer::default();
    while epoch < last {
        let rate = settings.rate_in(epoch);
        let _ = step.rate.fill_(rate);
        if let Some(range) = settings.dial.filter(|range| dial.is_none() && epoch == range.start) {
            let nodes = Nodes::new(range.from, range.to, range.nodes)?;
            dial = Some(Dial::new(
                nodes,
                &settings.path(range.start..settings.epochs, steps as u64),
                &step.model.weights,
            )?);
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
                    dial.push(&step.model.weights, rate)?;
                }
                let batch = |tensor: &Tensor| tensor.narrow(0, at * settings.batch, settings.batch);
                step.images.f_copy_(&batch(&prepared))?;
                step.labels.f_copy_(&batch(&labels))?;
                recorder.run(|| step.take())?;
                bar.inc(1);
            }
        }
        if let Some(dial) = &mut dial {
            dial.flush();
        }
        let (loss, right) = step.take_totals();
        let seconds = began.elapsed().as_secs_f64();
        epoch += 1;
        let is_finite = step.model.weights.isfinite().all().int64_value(&[]) == 1;
        ensure!(
            loss.is_finite() && is_finite,
            "training diverged in epoch {epoch}: its loss sums to {loss}; try a rate below {rate}"
        );
        let is_last = epoch == settings.epochs;
        let look = options.evaluate_every > 0 && epoch % options.evaluate_every == 0 || is_last;
        let score = |images: &crate::data::Images| -> Result<Option<f64>> {
            let wanted = look && !images.is_empty();
            let score = || evaluate(&step.model, images).with_context(|| format!("epoch {epoch}, at a rate of {rate}"));
            wanted.then(|| Ok(score()?.accuracy)).transpose()
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
        if !options.quiet && bar.is_hidden() {
            // Not a terminal: a line an epoch, whether or not anyone still reads it.
            let _ = writeln!(std::io::stderr(), "{}", message(&line));
        }
        if epoch >= settings.checkpoints_from {
            let snapshot = Snapshot::of(&step.model, metadata(settings, &line))?;
            writer.write(snapshot, checkpoint::path(&folder.checkpoints(), epoch))?;
        }
        folder.append(&line)?;
        if epoch == 1 || is_last || epoch == last || epoch % options.save_every.max(1) == 0 {
            writer.finish()?;
            save_state(&folder.state(), &step, dial.as_mut(), epoch, fingerprint)?;
        }
    }
    writer.finish()?;
    bar.finish_and_clear();
    let is_there = || DialFile::open(&folder.dial()).is_ok();
    if let Some(dial) = dial.as_mut().filter(|_| epoch == settings.epochs && !is_there()) {
        dial.write(&folder.dial(), &step.model, &settings.remarks())?;
    }
    Ok(Trained { model: step.model, dial, epoch, log: folder.log()? })
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

/// Everything needed to resume, in one file: weights, statistics, velocity, and the dial's sums.
fn save_state(path: &Path, step: &Step, dial: Option<&mut Dial>, epoch: u64, fingerprint: i64) -> Result<()> {
    let mut parts = vec![
        ("weights".to_owned(), step.model.weights.shallow_clone()),
        ("statistics".to_owned(), step.model.statistics.shallow_clone()),
    ];
    parts.extend(step.velocity.iter().map(|velocity| ("velocity".to_owned(), velocity.shallow_clone())));
    let mut metadata =
        BTreeMap::from([("epoch".to_owned(), epoch.to_string()), ("images".to_owned(), fingerprint.to_string())]);
    if let Some(dial) = dial {
        let saved = dial.saved();
        metadata.insert("rates".into(), serde_json::to_string(&saved.rates)?);
        metadata.insert("masses".into(), serde_json::to_string(&saved.masses)?);
        metadata.insert("reach".into(), saved.reach.to_string());
        parts.push(("center".into(), saved.center));
        parts.extend((0..saved.sums.size()[0]).map(|node| (format!("sum-{node:03}"), saved.sums.get(node))));
    }
    // Vectors are kept as they lie on this device: a GPU's kernels have their channels last.
    metadata.insert("layout".into(), layout_name(&step.model).into());
    let tensors: Vec<_> = parts.iter().map(|(name, tensor)| (name.clone(), Dtype::F32, vec![tensor.numel()])).collect();
    write_safetensors(path, &tensors, &metadata, &mut |at, file| {
        let values = Vec::<f32>::try_from(parts[at].1.to_device(Device::Cpu))
            .map_err(|error| std::io::Error::other(error.to_string()))?;
        write_f32(file, &values)
    })?;
    Ok(())
}

/// The fingerprint of the images a run was trained on, where its state is still there.
#[must_use]
pub fn trained_on(folder: &Folder) -> Option<i64> {
    Checkpoint::open(&folder.state(), None).ok()?.metadata.get("images")?.parse().ok()
}

fn layout_name(model: &Model) -> &'static str {
    if model.layout.channels_last { "channels last" } else { "channels first" }
}

type State = (u64, Option<Tensor>, Option<Dial>);

fn load_state(path: &Path, model: &Model, settings: &Settings, steps: u64, fingerprint: i64) -> Result<State> {
    let state = Checkpoint::open(path, None)?;
    let device = model.weights.device();
    let text = |key: &str| {
        let text = state.metadata.get(key);
        text.with_context(|| format!("{}: its metadata has no key \"{key}\"", path.display()))
    };
    let (found, expected) = (text("layout")?, layout_name(model));
    ensure!(
        found == expected,
        "{}: saved on another kind of device ({found}): go on there, or start again in another folder",
        path.display()
    );
    let number = |key: &str| -> Result<f64> {
        text(key)?.parse().with_context(|| format!("{}: its {key} is no number", path.display()))
    };
    ensure!(
        text("images")? == &fingerprint.to_string(),
        "{}: this run was trained on other images than those given now",
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
        let values = Tensor::from_slice(&state.read_f32(tensor)?).to_device(device);
        let is_finite = values.isfinite().all().int64_value(&[]) == 1;
        ensure!(is_finite, "{}: tensor {name} holds numbers that are not finite", path.display());
        Ok(values)
    };
    let length = model.weights.numel();
    let mut weights = model.weights.shallow_clone();
    weights.copy_(&read("weights", length)?);
    let mut statistics = model.statistics.shallow_clone();
    statistics.copy_(&read("statistics", model.statistics.numel())?);
    let velocity = (settings.momentum > 0.0).then(|| read("velocity", length)).transpose()?;
    let epoch = number("epoch")? as u64;
    ensure!(
        (1..=settings.epochs).contains(&epoch),
        "{}: its epoch is {epoch}: this run has 1 to {}",
        path.display(),
        settings.epochs
    );
    let range = settings.dial.filter(|range| epoch > range.start);
    let dial = range.map(|range| -> Result<Dial> {
        let rates: Rates = serde_json::from_str(text("rates")?).with_context(|| path.display().to_string())?;
        let masses: Vec<f64> = serde_json::from_str(text("masses")?).with_context(|| path.display().to_string())?;
        let expected = settings.path(range.start..epoch, steps).rates;
        ensure!(rates == expected, "{}: its rates are not those of this run", path.display());
        let reach = number("reach")?;
        ensure!(reach >= 0.0 && reach.is_finite(), "{}: its reach is {reach}", path.display());
        let sums = Tensor::zeros([range.nodes as i64, length as i64], (Kind::Float, device));
        for node in 0..range.nodes {
            sums.get(node as i64).f_copy_(&read(&format!("sum-{node:03}"), length)?)?;
        }
        let saved = Saved { center: read("center", length)?, sums, rates, masses, reach };
        let nodes = Nodes::new(range.from, range.to, range.nodes)?;
        Dial::resume(nodes, &settings.path(range.start..settings.epochs, steps), saved)
    });
    Ok((epoch, velocity, dial.transpose()?))
}
