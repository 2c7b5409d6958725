//! The command line: what each subcommand takes, and what it does with it.

use std::path::PathBuf;

use afterfit::Weighting;
use afterfit::weighting::{EmaStart, Window};
use afterfit_nets::checkpoint::{self, Snapshot};
use afterfit_nets::data::{self, Data, Name, Taken};
use afterfit_nets::findings::{Findings, RATIOS};
use afterfit_nets::measure::{Refresher, evaluate};
use afterfit_nets::model::Precision;
use afterfit_nets::net::{Architecture, Kernels};
use afterfit_nets::run::{DialRange, Folder, Settings};
use afterfit_nets::study::{self, Kind, Wanted};
use afterfit_nets::train::{self, Options, Trained};
use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
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
    /// The folder of the run; a run in it is resumed.
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
    /// Epochs [default: 300; noise: 60]; rate drops, kept checkpoints and the dial's start scale with them.
    #[arg(long, value_name = "N")]
    epochs: Option<u64>,
    /// Images in a step.
    #[arg(long, default_value_t = 100, value_name = "N")]
    batch: i64,
    /// The first learning rate.
    #[arg(long, default_value_t = 0.1, value_name = "R")]
    rate: f64,
    /// Epochs after which the rate is divided by ten [default: half and five sixths of all; one beyond the last for none].
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
    /// Strengths λ of the ℓ2 penalty that the dial covers [default: 1e-6..1e-2; noise: 1e-5..1e-1].
    #[arg(long, value_name = "MIN..MAX", value_parser = range)]
    dial: Option<(f64, f64)>,
    /// Nodes of the dial: running sums of all weights kept while training, from which any λ of the range is read afterwards.
    #[arg(long, default_value_t = 16, value_name = "M")]
    dial_nodes: usize,
    /// Epochs before the dial starts [default: a fifth of all; noise: a twentieth]. The penalty pulls toward the weights there.
    #[arg(long, value_name = "N")]
    dial_from: Option<u64>,
    /// Keep no dial.
    #[arg(long, conflicts_with_all = ["dial", "dial_from", "dial_nodes"])]
    no_dial: bool,
    /// The first epoch to keep (and average) a checkpoint of [default: train: 1; else the first after a fifth; noise: a twentieth].
    #[arg(long, value_name = "N")]
    checkpoints_from: Option<u64>,
    /// Replace this share of the training labels by random ones [default: 0; noise: 0.4].
    #[arg(long, value_name = "SHARE")]
    label_noise: Option<f64>,
    /// Hold out this many training images, for choices [default: 0; noise: 5000].
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
    /// Stop once this many epochs are done; the same command without this resumes it.
    #[arg(long, value_name = "N")]
    stop_after: Option<u64>,
    /// Look at the test (and held-out) images every N epochs; 0: only at the end [default: 1; table1: 10].
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
    /// Keep checkpoints from the first epoch on.
    keep_all: bool,
}

const TABLE1: Profile = Profile {
    epochs: 300,
    dial: (1e-6, 1e-2),
    settle: 0.2,
    label_noise: 0.0,
    hold_out: 0,
    evaluate_every: 10,
    keep_all: false,
};
const TRAIN: Profile = Profile { keep_all: true, evaluate_every: 1, ..TABLE1 };
const NOISE: Profile = Profile {
    epochs: 60,
    dial: (1e-5, 1e-1),
    settle: 0.05,
    label_noise: 0.4,
    hold_out: 5000,
    evaluate_every: 1,
    ..TABLE1
};

/// A share of the epochs.
fn share(share: f64, epochs: u64) -> u64 {
    (share * epochs as f64).round() as u64
}

impl Common {
    /// The first epoch whose checkpoint is taken.
    fn first_epoch(&self, profile: &Profile) -> u64 {
        let settled = share(profile.settle, self.epochs.unwrap_or(profile.epochs));
        self.checkpoints_from.unwrap_or(if profile.keep_all { 1 } else { settled + 1 })
    }

    fn settings(&self, profile: &Profile, device: Device) -> Settings {
        let epochs = self.epochs.unwrap_or(profile.epochs);
        let settled = share(profile.settle, epochs);
        let (from, to) = self.dial.unwrap_or(profile.dial);
        let start = self.dial_from.unwrap_or(settled);
        let mut drops = vec![share(0.5, epochs), share(5.0 / 6.0, epochs)];
        drops.dedup();
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
            drops: self.drops.clone().unwrap_or(drops),
            weight_decay: self.weight_decay,
            momentum: self.momentum,
            nesterov: self.nesterov,
            seed: self.seed,
            precision: self.precision.unwrap_or(native),
            checkpoints_from: self.first_epoch(profile),
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

    /// Trains or resumes.
    fn train(&self, profile: &Profile) -> Result<(Settings, Data, Trained)> {
        let device = self.device.device()?;
        let mut settings = self.settings(profile, device);
        settings.validate()?;
        // A run that keeps more will do: `train`'s keeps every epoch.
        if let Ok(there) = Folder(self.out.clone()).settings() {
            settings.checkpoints_from = settings.checkpoints_from.min(there.checkpoints_from);
        }
        let data = settings.data.load(&data::folder(self.data, self.data_folder.as_deref())?, device)?;
        if !device.is_cuda() && self.width >= 32 && !self.quiet {
            eprintln!(
                "note: a step of width {} takes seconds on a CPU; --width 4 is a network to try with",
                self.width
            );
        }
        let options = self.options(profile, settings.epochs);
        let trained = train::train(&settings, &Folder(self.out.clone()), &data, device, options)?;
        if trained.epoch < settings.epochs {
            eprintln!("stopped after {} of {} epochs; without --stop-after it resumes", trained.epoch, settings.epochs);
        }
        Ok((settings, data, trained))
    }

    /// Trains, and when all epochs are done measures and prints what there is.
    fn study(&self, kind: Kind, profile: &Profile) -> Result<Option<(Settings, Findings)>> {
        let (settings, data, trained) = self.train(profile)?;
        if trained.epoch < settings.epochs {
            return Ok(None);
        }
        let folder = Folder(self.out.clone());
        let first = self.first_epoch(profile);
        let found = study::measure(kind, &settings, first, &folder, &data, trained, !self.no_graphs)?;
        study::save(&found, &folder)?;
        print!("{}", found.listing());
        if !self.quiet {
            eprintln!("see {}", self.out.join(format!("{}.png", found.study)).display());
        }
        Ok(Some((settings, found)))
    }
}

#[derive(Args)]
pub(crate) struct Train {
    #[command(flatten)]
    common: Common,
}

impl Train {
    pub(crate) fn run(&self) -> Result<()> {
        let (settings, _, trained) = self.common.train(&TRAIN)?;
        if trained.epoch == settings.epochs && !self.common.quiet {
            let out = self.common.out.display();
            eprintln!("next: afterfit-nets average --run {out} -o averages, then refresh and evaluate them");
            if settings.dial.is_some() {
                eprintln!("or:   afterfit dial read {out}/dial.safetensors --l2 LAMBDA -o model.safetensors");
            }
        }
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
        let folder = Folder(self.run.clone());
        let settings = folder.settings()?;
        let data = settings.data.load(&data::folder(settings.data.name, self.data_folder.as_deref())?, device)?;
        if train::trained_on(&folder).is_some_and(|images| images != data.fingerprint()) {
            eprintln!("note: these are not the images that {} was trained and tested on", self.run.display());
        }
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
    /// The last epoch to average [default: the last kept so far].
    #[arg(long, value_name = "N")]
    to: Option<u64>,
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
        // (A resumed run may have a line for an epoch whose checkpoint is still being written.)
        let is_there = |epoch: &u64| checkpoint::path(&folder.checkpoints(), *epoch).exists();
        let kept = folder.log()?.iter().map(|line| line.epoch).filter(is_there).max().unwrap_or(0);
        ensure!(
            kept > 0,
            "no checkpoint in {} yet: this run keeps those from epoch {} on",
            folder.checkpoints().display(),
            settings.checkpoints_from
        );
        let epochs = self.from.unwrap_or(settings.checkpoints_from)..=self.to.unwrap_or(kept);
        let paths = study::checkpoints(&folder, &settings, epochs)?;
        let mut wanted: Vec<Wanted> = self.ratio.iter().map(|&ratio| Wanted::ratio(ratio)).collect();
        if self.uniform {
            wanted.push(Wanted { kind: "uniform", strength: None, weighting: Weighting::Mean(Window::All) });
        }
        let ema = |&decay: &f64| Wanted {
            kind: "ema",
            strength: Some(decay),
            weighting: Weighting::Ema { decay, start: EmaStart::First },
        };
        wanted.extend(self.ema.iter().map(ema));
        let mut names: Vec<String> = wanted.iter().map(Wanted::file).collect();
        names.sort_unstable();
        let twice = names.windows(2).find(|pair| pair[0] == pair[1]);
        ensure!(twice.is_none(), "two averages would be written to {}", twice.map_or("", |pair| pair[0].as_str()));
        let taken = wanted.iter().map(|wanted| self.out.join(wanted.file())).find(|path| path.exists());
        ensure!(taken.is_none(), "{} is there already", taken.unwrap_or_default().display());
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
        let places = self.places()?;
        let (settings, data, device) = self.existing.open()?;
        let model = train::start(&settings, device);
        let mut refresher = Refresher::new(&data.train, settings.batch, settings.seed, false)?;
        std::fs::create_dir_all(&self.out).with_context(|| self.out.display().to_string())?;
        for (path, place) in self.models.iter().zip(places) {
            checkpoint::load(&model, path)?;
            refresher.refresh(&model)?;
            let metadata = afterfit::checkpoint::Checkpoint::open(path, None)?.metadata;
            Snapshot::of(&model, metadata)?.write(&place)?;
            println!("{}", place.display());
        }
        Ok(())
    }

    /// Where each model goes; none over another, and none over what is there.
    fn places(&self) -> Result<Vec<PathBuf>> {
        let mut places: Vec<PathBuf> = Vec::new();
        for path in &self.models {
            let name = path.file_name().with_context(|| format!("{} has no name", path.display()))?.to_string_lossy();
            // (A name like ratio-0.99 has no ending: only those of model files are taken off.)
            let endings = [".safetensors", ".pth.tar", ".pt", ".pth", ".ckpt", ".bin", ".npz"];
            let stem = endings.iter().find_map(|ending| name.strip_suffix(ending)).unwrap_or(&name);
            let place = self.out.join(format!("{stem}.safetensors"));
            ensure!(!place.exists(), "{} is there already", place.display());
            ensure!(!places.contains(&place), "two models would be written to {}", place.display());
            places.push(place);
        }
        Ok(places)
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
        let mut refresher = match self.refresh {
            true => Some(Refresher::new(&data.train, settings.batch, settings.seed, false)?),
            false => None,
        };
        for path in &self.models {
            checkpoint::load(&model, path)?;
            if let Some(refresher) = &mut refresher {
                refresher.refresh(&model)?;
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

#[derive(Args)]
pub(crate) struct Table1 {
    #[command(flatten)]
    common: Common,
}

impl Table1 {
    pub(crate) fn run(&self) -> Result<()> {
        let Some((settings, found)) = self.common.study(Kind::Table1, &TABLE1)? else { return Ok(()) };
        match found.paper() {
            Some((before, after)) => {
                println!("\nthe paper, at its own settings: {before} % as trained, {after} % after averaging");
            }
            None => println!("\nthe paper has no such entry"),
        }
        let seconds = found.seconds;
        println!(
            "training {:.1} s ({:.2} ms a step); {} checkpoints, four ratios: {:.2} s (opening {:.2}, reading and averaging {:.2}, \
             loading {:.2}, batch norm {:.2}, evaluation {:.2}); the paper: 47 to 58 s for each ratio",
            seconds.training,
            found.step_milliseconds,
            settings.epochs - self.common.first_epoch(&TABLE1) + 1,
            seconds.after_training(),
            seconds.opening,
            seconds.averaging,
            seconds.loading,
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
        ensure!(hold_out > 0, "{hold_out} held-out images: λ is chosen on them, so there must be some");
        ensure!(!self.common.no_dial, "--no-dial: this study is about the dial");
        let Some((_, found)) = self.common.study(Kind::Noise, &NOISE)? else { return Ok(()) };
        let chosen = found.chosen().context("no reading of the dial")?;
        let last = found.row("last", None).context("the last weights were not measured")?;
        let refreshed = found.row("last-refreshed", None).context("the last weights were not refreshed")?;
        println!(
            "\nλ = {:.1e}, chosen on {hold_out} held-out images with noisy labels: {:.2} % on the test images; final weights \
             {:.2} % ({:.2} % with fresh statistics); gained {:+.2} points over the better",
            chosen.strength.unwrap_or(f64::NAN),
            chosen.test.accuracy,
            last.test.accuracy,
            refreshed.test.accuracy,
            found.gained().unwrap_or(f64::NAN)
        );
        Ok(())
    }
}
