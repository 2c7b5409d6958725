//! Which averages are asked for, and the weights of each.

use std::path::PathBuf;

use afterfit::checkpoint::Provenance;
use afterfit::schedule::Shape;
use afterfit::weighting::{EmaStart, Window, decay_of_half_life, gamma_of};
use afterfit::{Answer, Status, Weighting};
use anyhow::{Context, Result};

use crate::layout::ANSWERS;
use crate::output::{Advice, Work};
use crate::strengths::{Strengths, choice};

/// Every way to weight checkpoints.
#[derive(clap::Args)]
#[command(next_help_heading = "Strengths")]
pub(crate) struct StrengthArgs {
    /// Strengths λ of an ℓ2 penalty (requires rates): a list, a range such as 1e-5..1e-2:16, or auto: 16 values from 0.1 to 30
    /// divided by the sum of the rates.
    #[arg(long, value_name = "LIST|RANGE|auto")]
    l2: Option<L2>,
    /// Weights ∝ ratio^j over the checkpoints, the first heaviest (the paper's deep nets).
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    ratio: Vec<f64>,
    /// The plain mean (of --window, where one is given).
    #[arg(long)]
    uniform: bool,
    /// The plain mean of the last N checkpoints.
    #[arg(long, value_name = "N", value_delimiter = ',')]
    last: Vec<usize>,
    /// Exponential moving average, the latest checkpoint heaviest: its decay per step.
    #[arg(long, value_name = "DECAY", value_delimiter = ',')]
    ema: Vec<f64>,
    /// Exponential moving average, by its half-life in steps.
    #[arg(long, value_name = "STEPS", value_delimiter = ',')]
    half_life: Vec<f64>,
    /// How an EMA starts [default: first].
    #[arg(long, value_parser = choice(STARTS), value_name = "HOW")]
    ema_start: Option<EmaStart>,
    /// EMA whose decay grows like 1 − t^(−POWER) up to that of --ema, as ema-pytorch and timm warm it up.
    #[arg(long, value_name = "POWER", requires = "ema", conflicts_with_all = ["half_life", "ema_start"], num_args = 0..=1, default_missing_value = "0.6666666666666666")]
    ema_warmup: Option<f64>,
    /// Power-function EMA (Karras et al. 2024), by its width: 0.05 is narrow, 0.25 wide.
    #[arg(long, value_name = "SIGMA_REL", value_delimiter = ',')]
    power_ema: Vec<f64>,
    /// The same, by its exponent γ.
    #[arg(long, value_name = "GAMMA", value_delimiter = ',')]
    power_ema_gamma: Vec<f64>,
    /// Merge that stands in for a decay of the rate over --window: linear, 1-sqrt or cosine (WSM, Megatron-LM).
    #[arg(long, value_name = "SHAPE", value_delimiter = ',')]
    anneal: Vec<Shape>,
    /// The model of a run whose rate decays like this over --window (requires rates).
    #[arg(long, value_name = "SHAPE", value_delimiter = ',')]
    schedule: Vec<Shape>,
    /// Which checkpoints --uniform, --anneal and --schedule take: 10 (the last ten), 20% (of the steps), 500steps, 1000..2000 [default: all; 20% for --anneal and --schedule].
    #[arg(long, value_name = "WINDOW")]
    window: Option<Window>,
    /// WiSE-FT: (1 − A) × the first checkpoint + A × the last.
    #[arg(long, value_name = "A", value_delimiter = ',')]
    wise: Vec<f64>,
    /// EMA without its lag (BEMA, with trl's constants).
    #[arg(long)]
    bema: bool,
    /// One checkpoint, by its step.
    #[arg(long, value_name = "STEP", value_delimiter = ',')]
    iterate: Vec<u64>,
    /// Weights by hand: a file with one number for each checkpoint; negative ones are allowed.
    #[arg(value_parser = crate::place::input(), long, value_name = "FILE")]
    weights: Option<PathBuf>,
    /// Whether unspent mass goes to the last checkpoint (regularized, default for --l2) or is left out (normalized, default
    /// for --ratio).
    #[arg(long, value_parser = choice(ANSWERS))]
    answer: Option<Answer>,
}

/// Strengths that are typed, or left to the path.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum L2 {
    Auto,
    Typed(Strengths),
}

impl std::str::FromStr for L2 {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "auto" { Ok(Self::Auto) } else { text.parse().map(Self::Typed) }
    }
}

/// What `auto` spans, over the sum of the rates, and in how many steps.
const AUTO: (f64, f64, usize) = (0.1, 30.0, 16);

impl L2 {
    /// The strengths on this path; some, where there is none yet.
    fn values(&self, path: Option<&Provenance>) -> Result<Vec<f64>> {
        match (self, path) {
            (Self::Typed(strengths), _) => Ok(strengths.values().to_vec()),
            (Self::Auto, None) => Ok(vec![1.0]),
            (Self::Auto, Some(path)) => {
                let total = sum_of_rates(path)?;
                let range = format!("{:.2e}..{:.2e}:{}", AUTO.0 / total, AUTO.1 / total, AUTO.2);
                Ok(range.parse::<Strengths>().map_err(anyhow::Error::msg)?.values().to_vec())
            }
        }
    }

    /// The smallest and the largest.
    pub(super) fn ends(&self, path: &Provenance) -> Result<(f64, f64)> {
        match self {
            Self::Typed(strengths) => Ok(strengths.ends()),
            Self::Auto => {
                let values = self.values(Some(path))?;
                Ok((values[0], values[values.len() - 1]))
            }
        }
    }
}

/// The sum of the rates as a λ meets it, momentum included: `−ln` of the mass that a small λ leaves, over λ.
fn sum_of_rates(path: &Provenance) -> Result<f64> {
    let groups = path.groups.paths();
    let plain = groups[path.groups.reference()].rates.total();
    if !(plain > 0.0 && plain.is_finite()) {
        return Err(Advice::error("the rates of this path are all 0: no λ has an effect", "--uniform needs no rates"));
    }
    let l2 = 1e-4 / plain;
    let left = path.weights(&Weighting::L2(l2), Answer::Regularized)?.remaining.unwrap_or(1.0);
    Ok(-left.ln() / l2)
}

const STARTS: &[(&str, &str, EmaStart)] = &[
    ("first", "At the first checkpoint", EmaStart::First),
    ("update", "As a copy of the second: the first is left out (torch's AveragedModel)", EmaStart::Update),
    ("debiased", "From nothing, divided by its mass (Adam's way)", EmaStart::Debiased),
];

/// One average asked for.
pub(super) struct Asked {
    /// `l2`, `ratio`, `uniform`, `last`, `ema`, `anneal-linear`, …
    pub(super) kind: String,
    pub(super) strength: Option<f64>,
    pub(super) weighting: Weighting,
    pub(super) answer: Answer,
}

/// An average whose weights are known.
pub(super) struct Planned {
    pub(super) kind: String,
    pub(super) strength: Option<f64>,
    pub(super) answer: Answer,
    pub(super) scheme: String,
    pub(super) status: Status,
    /// By mass sequence, then by checkpoint.
    pub(super) weights: Vec<Vec<f64>>,
    pub(super) path: PathBuf,
    /// Mass of steps before the first checkpoint.
    pub(super) before: f64,
    pub(super) remaining: Option<f64>,
    /// What each parameter group is penalized with, where that differs.
    pub(super) group_l2: Vec<f64>,
    /// Whether the checkpoints are too far apart for it.
    pub(super) unresolved: bool,
    /// The share of the weights that hangs on where between checkpoints rates changed.
    pub(super) unplaced: f64,
    /// The share that hangs on a warm-up that nothing hints at.
    pub(super) assumed: f64,
}

impl Planned {
    /// Its place is not known yet.
    pub(super) fn of(Asked { kind, strength, weighting, answer }: Asked, path: &Provenance) -> Result<Self> {
        let found = path.weights(&weighting, answer).map_err(super::advise)?;
        let scheme = match weighting {
            Weighting::L2(_) | Weighting::Schedule { .. } => path.optimizer().to_string(),
            _ => kind.clone(),
        };
        Ok(Self {
            kind,
            strength,
            answer,
            scheme,
            status: found.status,
            weights: found.weights,
            path: PathBuf::new(),
            before: found.before,
            remaining: found.remaining,
            group_l2: found.group_l2,
            unresolved: found.unresolved,
            unplaced: found.unplaced,
            assumed: found.assumed,
        })
    }
}

/// More strengths than one pass should write.
const MOST_OUTPUTS: usize = 1000;
/// Where rates decay unless a window is given.
const ANNEALED: Window = Window::Share(0.2);

impl StrengthArgs {
    /// Whether something needs the rates of the training.
    pub(super) fn need_rates(&self) -> bool {
        self.l2.is_some() || !self.schedule.is_empty()
    }

    /// Whether something counts steps.
    pub(super) fn count_steps(&self) -> bool {
        let lists = [&self.ema, &self.half_life, &self.power_ema, &self.power_ema_gamma];
        let stepped = matches!(self.window, Some(Window::Steps(_) | Window::Range(..)));
        lists.iter().any(|list| !list.is_empty()) || self.bema || !self.iterate.is_empty() || stepped
    }

    /// Whether something asks in which order the checkpoints were saved: a soup of several runs does not.
    pub(super) fn in_time(&self) -> bool {
        let is_soup = |asked: &Asked| ["uniform", "weights"].contains(&asked.kind.as_str());
        self.window.is_some() || !self.list(None).is_ok_and(|list| list.iter().all(is_soup))
    }

    /// Whether anything was asked for.
    pub(super) fn any(&self) -> bool {
        self.list(None).is_ok_and(|list| !list.is_empty()) || self.weights.is_some()
    }

    /// Whether nothing but single checkpoints is asked for.
    pub(super) fn only_iterates(&self) -> bool {
        let is_iterate = |asked: &Asked| matches!(asked.weighting, Weighting::Iterate(_));
        self.list(None).is_ok_and(|list| !list.is_empty() && list.iter().all(is_iterate))
    }

    /// Every average asked for.
    fn list(&self, path: Option<&Provenance>) -> Result<Vec<Asked>> {
        let regularized = self.answer.unwrap_or(Answer::Regularized);
        let normalized = self.answer.unwrap_or(Answer::Normalized);
        let mut list = Vec::new();
        let mut add = |kind: &str, strength: Option<f64>, weighting, answer| {
            list.push(Asked { kind: kind.to_owned(), strength, weighting, answer });
        };
        for &ratio in &self.ratio {
            add("ratio", Some(ratio), Weighting::Ratio(ratio), normalized);
        }
        if self.uniform {
            add("uniform", None, Weighting::Mean(self.window.unwrap_or(Window::All)), Answer::Normalized);
        }
        for &last in &self.last {
            add("last", Some(last as f64), Weighting::Mean(Window::Last(last)), Answer::Normalized);
        }
        let start = self.ema_start.unwrap_or(EmaStart::First);
        for &decay in &self.ema {
            let weighting = match self.ema_warmup {
                Some(power) => Weighting::WarmEma { decay, inv_gamma: 1.0, power, min: 0.0 },
                None => Weighting::Ema { decay, start },
            };
            add("ema", Some(decay), weighting, Answer::Normalized);
        }
        for &steps in &self.half_life {
            let decay = decay_of_half_life(steps)?;
            add("half-life", Some(steps), Weighting::Ema { decay, start }, Answer::Normalized);
        }
        for &sigma in &self.power_ema {
            let gamma = gamma_of(sigma)?;
            add("power-ema", Some(sigma), Weighting::PowerEma { gamma }, Answer::Normalized);
        }
        for &gamma in &self.power_ema_gamma {
            add("power-ema-gamma", Some(gamma), Weighting::PowerEma { gamma }, Answer::Normalized);
        }
        let window = self.window.unwrap_or(ANNEALED);
        for &shape in &self.anneal {
            add(&format!("anneal-{shape}"), None, Weighting::Anneal { shape, window }, Answer::Normalized);
        }
        for &shape in &self.schedule {
            add(&format!("schedule-{shape}"), None, Weighting::Schedule { shape, window }, Answer::Normalized);
        }
        for &share in &self.wise {
            add("wise", Some(share), Weighting::Wise(share), Answer::Normalized);
        }
        if self.bema {
            let weighting = Weighting::Bema { ema_power: 0.5, bias_power: 0.2, lag: 10.0 };
            add("bema", None, weighting, Answer::Normalized);
        }
        for &step in &self.iterate {
            add("iterate", Some(step as f64), Weighting::Iterate(step), Answer::Normalized);
        }
        if let Some(file) = &self.weights {
            add("weights", None, Weighting::Manual(read_weights(file)?), Answer::Normalized);
        }
        for l2 in self.l2.as_ref().map(|l2| l2.values(path)).transpose()?.unwrap_or_default() {
            add("l2", Some(l2), Weighting::L2(l2), regularized);
        }
        Ok(list)
    }
}

/// One number a line, or separated by commas or blanks.
fn read_weights(file: &PathBuf) -> Result<Vec<f64>> {
    let name = || file.display().to_string();
    let details = std::fs::metadata(file).with_context(name)?;
    if !details.is_file() || details.len() > 1 << 24 {
        let what = if details.is_file() { "too large" } else { "no regular file" };
        return Err(Advice::error(format!("{} is {what}", name()), "a list of weights has one number a checkpoint"));
    }
    let text = String::from_utf8(afterfit::files::read(file)?).with_context(name)?;
    let text = text.trim_start_matches('\u{feff}');
    let words = text.split(|c: char| c == ',' || c.is_whitespace()).filter(|word| !word.is_empty());
    let number = |word: &str| {
        let refuse =
            |_| Advice::error(format!("{}: `{word}` is not a weight", name()), "one number for each checkpoint");
        word.parse::<f64>().map_err(refuse)
    };
    let weights: Vec<f64> = words.map(number).collect::<Result<_>>()?;
    let total: f64 = weights.iter().sum();
    if total.is_finite() && (total - 1.0).abs() > 1e-6 {
        return Err(Advice::error(
            format!("{}: the sum of the weights is {total}: it must be 1", name()),
            "divide each by their sum",
        ));
    }
    Ok(weights)
}

pub(super) fn plan(args: &StrengthArgs, path: &Provenance, work: &Work<'_>) -> Result<Vec<Planned>> {
    if args.window.is_some() && !args.uniform && args.anneal.is_empty() && args.schedule.is_empty() {
        return Err(Advice::error(
            "--window has no effect here: no option that was given uses it",
            "add --uniform, --anneal linear or --schedule linear",
        ));
    }
    let asked = args.list(Some(path))?;
    if asked.is_empty() {
        return Err(Advice::error(
            "no strength was asked for",
            "add --l2 auto, or --l2 1e-5..1e-2:16 --rate 0.1, or --ratio 0.9999,0.999,0.99,0.9, or --uniform",
        ));
    }
    if asked.len() > MOST_OUTPUTS {
        return Err(Advice::error(
            format!("{} strengths are more than the {MOST_OUTPUTS} written in one go", asked.len()),
            "a dial holds any number of them: --dial MIN..MAX",
        ));
    }
    work.expect(asked.len() as u64);
    asked.into_iter().map(|asked| work.part(|| Planned::of(asked, path))).collect()
}
