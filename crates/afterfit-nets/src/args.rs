//! The command line: what each subcommand takes, and what it does with it.

use std::path::{Path, PathBuf};

use afterfit::scheme::{Answer, Weighting};
use afterfit_nets::checkpoint::{self, Snapshot};
use afterfit_nets::data::{self, Data, Name, Taken};
use afterfit_nets::measure::{Refresher, evaluate};
use afterfit_nets::model::Precision;
use afterfit_nets::net::{Architecture, Kernels};
use afterfit_nets::run::{DialRange, Folder, Settings};
use afterfit_nets::study::{self, RATIOS, Study, Wanted};
use afterfit_nets::train::{self, Options, Trained};
use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use paper::findings::{Findings, Row, Seconds, step_milliseconds};
use tch::{Cuda, Device};

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Where {
    /// A GPU if there is one.
    Auto,
    Cpu,
    /// The first GPU.
    Cuda,
}

impl Where {
    fn device(self) -> Result<Device> {
        let available = Cuda::is_available();
        ensure!(
            available || self != Self::Cuda,
            "CUDA is not available: is there a GPU, and is its PyTorch found (LD_LIBRARY_PATH)?"
        );
        Ok(if available && self != Self::Cpu { Device::Cuda(0) } else { Device::Cpu })
    }
}

/// What every kind of training takes. What is not given is the study's own setting.
#[derive(Args)]
struct Common {
    /// The folder of the run; a run in it goes on.
    #[arg(long, short, value_name = "FOLDER")]
    out: PathBuf,
    /// The network.
    #[arg(long, value_enum, default_value = "resnet-18")]
    net: Architecture,
    /// How kernels of convolutions start.
    #[arg(long, value_enum, default_value = "torch")]
    kernels: Kernels,
    /// Channels of the first layer; 64 is the paper's.
    #[arg(long, default_value_t = 64, value_name = "N")]
    width: i64,
    /// The images.
    #[arg(long, value_enum, default_value = "cifar-10")]
    data: Name,
    /// Where they lie, instead of the cache of `afterfit data get`.
    #[arg(long, value_name = "FOLDER")]
    data_folder: Option<PathBuf>,
    /// Epochs; rate drops, kept checkpoints and the dial scale with them.
    #[arg(long, value_name = "N")]
    epochs: Option<u64>,
    /// Images in a step.
    #[arg(long, default_value_t = 100, value_name = "N")]
    batch: i64,
    /// The first rate.
    #[arg(long, default_value_t = 0.1, value_name = "R")]
    rate: f64,
    /// Epochs after which the rate is divided by ten [default: half and five sixths of all].
    #[arg(long, value_delimiter = ',', value_name = "EPOCHS")]
    drops: Option<Vec<u64>>,
    /// Weight decay of the training itself.
    #[arg(long, default_value_t = 5e-4, value_name = "W")]
    weight_decay: f64,
    /// Momentum; 0 is plain SGD, as in the paper.
    #[arg(long, default_value_t = 0.0, value_name = "M")]
    momentum: f64,
    /// torch's `nesterov=True`.
    #[arg(long)]
    nesterov: bool,
    /// Of the first weights, the order of images, their augmentation, label noise and what is held out.
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
    /// What layers compute in [default: bf16 on a GPU, f32 on a CPU].
    #[arg(long, value_enum)]
    precision: Option<Precision>,
    /// Range of the dial.
    #[arg(long, value_name = "MIN..MAX", value_parser = range)]
    dial: Option<(f64, f64)>,
    /// Nodes of the dial.
    #[arg(long, default_value_t = 16, value_name = "M")]
    dial_nodes: usize,
    /// Epochs before the dial starts; the weights there are the centre of its penalty.
    #[arg(long, value_name = "N")]
    dial_from: Option<u64>,
    /// Keep no dial.
    #[arg(long, conflicts_with_all = ["dial", "dial_from"])]
    no_dial: bool,
    /// The first epoch to keep a checkpoint of.
    #[arg(long, value_name = "N")]
    checkpoints_from: Option<u64>,
    /// Replace this share of the training labels by random ones.
    #[arg(long, value_name = "SHARE")]
    label_noise: Option<f64>,
    /// Hold out this many training images, for choices.
    #[arg(long, value_name = "N")]
    hold_out: Option<i64>,
    /// Use only the first N training images.
    #[arg(long, value_name = "N")]
    train_images: Option<i64>,
    /// Use only the first N test images.
    #[arg(long, value_name = "N")]
    test_images: Option<i64>,
    /// Where to compute.
    #[arg(long, value_enum, default_value = "auto")]
    device: Where,
    /// Stop after this many epochs; the same command goes on another time.
    #[arg(long, value_name = "N")]
    stop_after: Option<u64>,
    /// Look at the test images every N epochs (0: only at the end).
    #[arg(long, value_name = "N")]
    evaluate_every: Option<u64>,
    /// Save what is needed to go on every N epochs [default: a tenth of all].
    #[arg(long, value_name = "N")]
    save_every: Option<u64>,
    /// Do not record steps as CUDA graphs.
    #[arg(long)]
    no_graphs: bool,
    /// No progress bar.
    #[arg(long, short)]
    quiet: bool,
}

/// `1e-6..1e-2`.
fn range(text: &str) -> Result<(f64, f64), String> {
    let ends = text.split_once("..").and_then(|(from, to)| Some((from.parse().ok()?, to.parse().ok()?)));
    ends.ok_or_else(|| format!("`{text}` is not MIN..MAX, as in 1e-6..1e-2"))
}

/// What studies set differently.
struct Profile {
    epochs: u64,
    dial: (f64, f64),
    /// The share of the epochs before dial and checkpoints start.
    settle: f64,
    label_noise: f64,
    hold_out: i64,
    evaluate_every: u64,
}

const TABLE1: Profile =
    Profile { epochs: 300, dial: (1e-6, 1e-2), settle: 0.2, label_noise: 0.0, hold_out: 0, evaluate_every: 10 };
const NOISE: Profile =
    Profile { epochs: 60, dial: (1e-5, 1e-1), settle: 0.05, label_noise: 0.4, hold_out: 5000, evaluate_every: 1 };

impl Common {
    fn settings(&self, profile: &Profile, device: Device) -> Settings {
        let epochs = self.epochs.unwrap_or(profile.epochs);
        let share = |share: f64| (share * epochs as f64).round() as u64;
        let settled = share(profile.settle);
        let (from, to) = self.dial.unwrap_or(profile.dial);
        let start = self.dial_from.unwrap_or(settled);
        let native = if device.is_cuda() { Precision::Bf16 } else { Precision::F32 };
        Settings {
            net: self.net,
            kernels: self.kernels,
            width: self.width,
            data: Taken {
                name: self.data,
                train_images: self.train_images,
                test_images: self.test_images,
                label_noise: self.label_noise.unwrap_or(profile.label_noise),
                hold_out: self.hold_out.unwrap_or(profile.hold_out),
                seed: self.seed,
            },
            epochs,
            batch: self.batch,
            rate: self.rate,
            drops: self.drops.clone().unwrap_or_else(|| vec![share(0.5), share(5.0 / 6.0)]),
            weight_decay: self.weight_decay,
            momentum: self.momentum,
            nesterov: self.nesterov,
            seed: self.seed,
            precision: self.precision.unwrap_or(native),
            checkpoints_from: self.checkpoints_from.unwrap_or(settled + 1),
            dial: (!self.no_dial).then_some(DialRange { from, to, nodes: self.dial_nodes, start }),
        }
    }

    fn options(&self, profile: &Profile, epochs: u64) -> Options {
        Options {
            stop_after: self.stop_after,
            evaluate_every: self.evaluate_every.unwrap_or(profile.evaluate_every),
            save_every: self.save_every.unwrap_or(epochs.div_ceil(10)),
            graphs: !self.no_graphs,
            quiet: self.quiet,
        }
    }

    /// Trains or goes on; the study follows only when all epochs are done.
    fn train(&self, profile: &Profile) -> Result<(Settings, Data, Device, Trained)> {
        let device = self.device.device()?;
        let settings = self.settings(profile, device);
        settings.validate()?;
        let data = settings.data.load(&data::folder(self.data, self.data_folder.as_deref())?, device)?;
        let options = self.options(profile, settings.epochs);
        let trained = train::train(&settings, &Folder(self.out.clone()), &data, device, options)?;
        if trained.epoch < settings.epochs {
            eprintln!("stopped after {} of {} epochs; the same command goes on", trained.epoch, settings.epochs);
        }
        Ok((settings, data, device, trained))
    }
}

#[derive(Args)]
pub(crate) struct Train {
    #[command(flatten)]
    common: Common,
}

impl Train {
    pub(crate) fn run(&self) -> Result<()> {
        let (_, _, _, trained) = self.common.train(&Profile { settle: 0.0, ..TABLE1 })?;
        if let Some(line) = trained.log.last() {
            println!("{}", serde_json::to_string(line)?);
        }
        Ok(())
    }
}

/// A run that is there already.
#[derive(Args)]
struct Existing {
    /// The folder of the run.
    #[arg(long, value_name = "FOLDER")]
    run: PathBuf,
    /// Where its images lie, instead of the cache of `afterfit data get`.
    #[arg(long, value_name = "FOLDER")]
    data_folder: Option<PathBuf>,
    /// Where to compute.
    #[arg(long, value_enum, default_value = "auto")]
    device: Where,
}

impl Existing {
    fn open(&self) -> Result<(Settings, Data, Device)> {
        let device = self.device.device()?;
        let settings = Folder(self.run.clone()).settings()?;
        let data = settings.data.load(&data::folder(settings.data.name, self.data_folder.as_deref())?, device)?;
        Ok((settings, data, device))
    }
}

#[derive(Args)]
pub(crate) struct Average {
    /// The folder of the run.
    #[arg(long, value_name = "FOLDER")]
    run: PathBuf,
    /// The first epoch to average [default: the first kept].
    #[arg(long, value_name = "N")]
    from: Option<u64>,
    /// Weights ∝ p^j, the first checkpoint heaviest.
    #[arg(long, value_delimiter = ',', value_name = "P", default_values_t = RATIOS)]
    ratio: Vec<f64>,
    /// The plain mean, too.
    #[arg(long)]
    uniform: bool,
    /// Exponential moving averages with these decays, too.
    #[arg(long, value_delimiter = ',', value_name = "D")]
    ema: Vec<f64>,
    /// Where the models go.
    #[arg(long, short, value_name = "FOLDER")]
    out: PathBuf,
}

impl Average {
    pub(crate) fn run(&self) -> Result<()> {
        let folder = Folder(self.run.clone());
        let settings = folder.settings()?;
        let paths = study::checkpoints(&folder, &settings, self.from.unwrap_or(settings.checkpoints_from))?;
        let mut wanted: Vec<Wanted> = self.ratio.iter().map(|&ratio| Wanted::ratio(ratio)).collect();
        if self.uniform {
            wanted.push(Wanted { kind: "uniform", strength: None, weighting: Weighting::Uniform });
        }
        let ema = |&decay: &f64| Wanted { kind: "ema", strength: Some(decay), weighting: Weighting::Ema(decay) };
        wanted.extend(self.ema.iter().map(ema));
        let (files, opening, seconds) = study::average(&paths, &wanted, &self.out)?;
        files.iter().for_each(|file| println!("{}", file.display()));
        eprintln!(
            "{} checkpoints, {} averages in {:.2} s; refresh their batch-norm statistics before use",
            paths.len(),
            files.len(),
            opening + seconds
        );
        Ok(())
    }
}

#[derive(Args)]
pub(crate) struct Refresh {
    /// Models, in any format `afterfit` reads.
    #[arg(required = true, value_name = "MODEL")]
    models: Vec<PathBuf>,
    #[command(flatten)]
    existing: Existing,
    /// Where the refreshed models go, under their own names.
    #[arg(long, short, value_name = "FOLDER")]
    out: PathBuf,
}

impl Refresh {
    pub(crate) fn run(&self) -> Result<()> {
        let (settings, data, device) = self.existing.open()?;
        let model = train::start(&settings, device);
        let mut refresher = Refresher::new(&data.train, settings.batch, settings.seed);
        std::fs::create_dir_all(&self.out).with_context(|| self.out.display().to_string())?;
        let places: Result<Vec<PathBuf>> = self.models.iter().map(|path| self.place(path)).collect();
        for (path, place) in self.models.iter().zip(places?) {
            checkpoint::load(&model, path)?;
            refresher.refresh(&model, false)?;
            let metadata = afterfit::checkpoint::Checkpoint::open(path, None)?.metadata;
            Snapshot::of(&model, metadata)?.write(&place)?;
            println!("{}", place.display());
        }
        Ok(())
    }

    fn place(&self, path: &Path) -> Result<PathBuf> {
        let name = path.file_stem().with_context(|| format!("{} is not a file", path.display()))?;
        // (`with_extension` would cut a name like ratio-0.99.)
        let place = self.out.join(format!("{}.safetensors", name.to_string_lossy()));
        ensure!(!place.exists(), "{} is there already", place.display());
        Ok(place)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum On {
    Test,
    HeldOut,
    Train,
}

#[derive(Args)]
pub(crate) struct Evaluate {
    /// Models, in any format `afterfit` reads.
    #[arg(required = true, value_name = "MODEL")]
    models: Vec<PathBuf>,
    #[command(flatten)]
    existing: Existing,
    /// Refresh batch-norm statistics first (in memory).
    #[arg(long)]
    refresh: bool,
    /// Which images.
    #[arg(long, value_enum, default_value = "test")]
    on: On,
    /// Print the accuracy alone, a line a model, as `afterfit average --eval` takes it.
    #[arg(long, short)]
    quiet: bool,
}

impl Evaluate {
    pub(crate) fn run(&self) -> Result<()> {
        let (settings, data, device) = self.existing.open()?;
        let images = match self.on {
            On::Test => &data.test,
            On::HeldOut => &data.held_out,
            On::Train => &data.train,
        };
        let model = train::start(&settings, device);
        let mut refresher = self.refresh.then(|| Refresher::new(&data.train, settings.batch, settings.seed));
        for path in &self.models {
            checkpoint::load(&model, path)?;
            if let Some(refresher) = &mut refresher {
                refresher.refresh(&model, false)?;
            }
            let score = evaluate(&model, images)?;
            match self.quiet {
                true => println!("{}", score.accuracy),
                false => println!("{:>6.2} %  loss {:.4}  {}", score.accuracy, score.loss, path.display()),
            }
        }
        Ok(())
    }
}

/// Of a run's checkpoints beside ratios: the plain mean, EMA, SWA over the last quarter.
fn comparators(settings: &Settings) -> [Wanted; 3] {
    let count = (settings.epochs - settings.checkpoints_from + 1) as usize;
    let start = count - count.div_ceil(4);
    let swa_epoch = settings.checkpoints_from + start as u64;
    [
        Wanted { kind: "uniform", strength: None, weighting: Weighting::Uniform },
        Wanted { kind: "ema", strength: Some(0.9), weighting: Weighting::Ema(0.9) },
        Wanted { kind: "swa", strength: Some(swa_epoch as f64), weighting: Weighting::Swa { start, every: 1 } },
    ]
}

/// Strengths read off a dial, from end to end of its range.
const READINGS: usize = 17;

/// Everything there is to measure after a run: the last weights, ratios, comparators, the dial.
fn findings(study_name: &str, run: (Settings, Data, Device, Trained), common: &Common) -> Result<Findings> {
    let (settings, data, device, trained) = run;
    let Trained { model, dial, log, .. } = trained;
    let out = &common.out;
    let folder = Folder(out.clone());
    let mut study = Study::new(&data, &settings, &model, !common.no_graphs);
    let mut rows = vec![study.as_it_is("last", None, &model.weights, &model.statistics)?];
    study.seconds = Default::default();
    let paths = study::checkpoints(&folder, &settings, settings.checkpoints_from)?;
    let averages = out.join("averages");
    let mut seconds = Seconds::default();
    if study_name == "table1" {
        rows.extend(study.averages(&paths, &RATIOS.map(Wanted::ratio), &averages)?);
        seconds = study.seconds;
    }
    seconds.training = log.iter().map(|line| line.seconds).sum();
    rows.extend(study.averages(&paths, &comparators(&settings), &averages)?);
    let (test, held_out) = study.refreshed(&model.weights)?;
    rows.push(Row { kind: "last-refreshed".into(), test, held_out, ..rows[0].clone() });
    // The epoch that does best on the held-out images, measured like the others.
    let best = log.iter().filter(|line| line.epoch >= settings.checkpoints_from && line.held_out_accuracy.is_some());
    let best = best.max_by(|a, b| a.held_out_accuracy.unwrap_or(0.0).total_cmp(&b.held_out_accuracy.unwrap_or(0.0)));
    if let Some(line) = best {
        let kept = model.with(model.weights.copy());
        checkpoint::load(&kept, &checkpoint::path(&folder.checkpoints(), line.epoch))?;
        rows.push(study.as_it_is("epoch", Some(line.epoch as f64), &kept.weights, &kept.statistics)?);
    }
    if let Some(mut dial) = dial {
        rows.extend(study.readings(&mut dial, &model.weights, READINGS)?);
    }
    let dial_start = settings.dial.map_or(0, |dial| dial.start);
    Ok(Findings {
        study: study_name.into(),
        device: study::device_name(device),
        step_milliseconds: step_milliseconds(&log, dial_start),
        wrong_labels: data.wrong,
        seconds,
        rows,
        log,
        settings: serde_json::to_value(&settings)?,
    })
}

#[derive(Args)]
pub(crate) struct Table1 {
    #[command(flatten)]
    common: Common,
}

impl Table1 {
    pub(crate) fn run(&self) -> Result<()> {
        let run = self.common.train(&TABLE1)?;
        if run.3.epoch < run.0.epochs {
            return Ok(());
        }
        let settings = run.0.clone();
        let found = findings("table1", run, &self.common)?;
        study::save(&found, &Folder(self.common.out.clone()))?;
        print!("{}", found.listing());
        match found.paper() {
            Some((before, after)) => println!("\nthe paper: {before} % as trained, {after} % after averaging"),
            None => println!("\nthe paper has no such entry"),
        }
        let seconds = found.seconds;
        let after = seconds.opening + seconds.averaging + seconds.refreshing + seconds.evaluating;
        println!(
            "training {:.1} s ({:.2} ms a step); {} checkpoints, four ratios: {after:.2} s (opening {:.2}, reading and \
             averaging {:.2}, batch norm {:.2}, evaluation {:.2}); the paper: 47 to 58 s for each ratio",
            seconds.training,
            found.step_milliseconds,
            settings.epochs - settings.checkpoints_from + 1,
            seconds.opening,
            seconds.averaging,
            seconds.refreshing,
            seconds.evaluating
        );
        Ok(())
    }
}

#[derive(Args)]
pub(crate) struct Noise {
    #[command(flatten)]
    common: Common,
}

impl Noise {
    pub(crate) fn run(&self) -> Result<()> {
        let hold_out = self.common.hold_out.unwrap_or(NOISE.hold_out);
        ensure!(hold_out > 0, "--hold-out 0: λ is chosen on held-out images, so there must be some");
        ensure!(!self.common.no_dial, "--no-dial: this study is about the dial");
        let run = self.common.train(&NOISE)?;
        if run.3.epoch < run.0.epochs {
            return Ok(());
        }
        let hold_out = run.0.data.hold_out;
        let found = findings("noise", run, &self.common)?;
        study::save(&found, &Folder(self.common.out.clone()))?;
        print!("{}", found.listing());
        let chosen = found.chosen(found.dial(Answer::Regularized)).context("no reading of the dial")?;
        let last = found.row("last", None).context("the last weights were not measured")?;
        println!(
            "\nλ = {:.1e}, chosen on {} held-out images with noisy labels: {:.2} % on the test images; final weights \
             {:.2} %; gained {:+.2} points",
            chosen.strength.unwrap_or(f64::NAN),
            hold_out,
            chosen.test.accuracy,
            last.test.accuracy,
            chosen.test.accuracy - last.test.accuracy
        );
        Ok(())
    }
}
