//! `afterfit theory`: what the theorems promise.

use afterfit::theory::{self, Noise, Setting, flow};
use anyhow::Result;
use clap::{Subcommand, ValueEnum};
use serde::Serialize;
use serde_json::json as object;

use crate::host::Host;
use crate::output::{Advice, short};

#[derive(Subcommand)]
pub(crate) enum Command {
    /// How far one stochastic run's average may lie from its mean (Theorems 1–3, claim 3).
    #[command(allow_negative_numbers = true, after_help = crate::examples::THEORY_BOUND)]
    Bound(Bound),
    /// The strengths between which the average of a non-quadratic loss lies (Theorem 4).
    #[command(allow_negative_numbers = true, after_help = crate::examples::THEORY_BRACKET)]
    Bracket(Bracket),
    /// Continuous time: the path, its regularized twin and the mass spent, on one eigenvalue (appendix A).
    #[command(allow_negative_numbers = true, after_help = crate::examples::THEORY_FLOW)]
    Flow(Flow),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum NoiseKind {
    /// The mean square of the noise is at most σ².
    Variance,
    /// The noise never exceeds σ: a bound logarithmic in δ.
    Bounded,
}

#[derive(clap::Args)]
pub(crate) struct Bound {
    /// sgd (Theorem 1), preconditioned (2) or nesterov-paper (3).
    #[arg(long, value_name = "NAME", default_value = "sgd", value_parser = crate::optimizer::names(), hide_possible_values = true)]
    optimizer: String,
    /// Rate η (the smallest, if it varies).
    #[arg(long, value_name = "R")]
    rate: f64,
    /// The largest rate, if it varies.
    #[arg(long, value_name = "R")]
    largest_rate: Option<f64>,
    /// Strength λ.
    #[arg(long, value_name = "L")]
    l2: f64,
    /// Smallest curvature α; for nesterov-paper, the α its momentum is made from.
    #[arg(long, value_name = "A")]
    alpha: f64,
    /// Largest curvature β.
    #[arg(long, value_name = "B")]
    beta: f64,
    /// Size σ of the gradient noise.
    #[arg(long, value_name = "S")]
    sigma: f64,
    /// The bound may fail with this probability.
    #[arg(long, value_name = "P")]
    delta: f64,
    /// What is known about the noise.
    #[arg(long, value_enum, default_value_t = NoiseKind::Variance)]
    noise: NoiseKind,
    /// Condition number of Q, for preconditioned.
    #[arg(long, value_name = "C")]
    condition: Option<f64>,
    /// Smallest eigenvalue of the Hessian, for nesterov-paper; must exceed α.
    #[arg(long, value_name = "E")]
    lambda_min: Option<f64>,
    /// Print one line of JSON.
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
pub(crate) struct Bracket {
    /// Rate η.
    #[arg(long, value_name = "R")]
    rate: f64,
    /// Strength λ of the average.
    #[arg(long, value_name = "L")]
    l2: f64,
    /// Smallest curvature α.
    #[arg(long, value_name = "A")]
    alpha: f64,
    /// Largest curvature β.
    #[arg(long, value_name = "B")]
    beta: f64,
    /// The loss is a sum of one-dimensional losses: then the entry-wise box is a theorem.
    #[arg(long)]
    separable: bool,
    /// Print one line of JSON.
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
pub(crate) struct Flow {
    /// Eigenvalue σ of the Hessian.
    #[arg(long, value_name = "E")]
    eigenvalue: f64,
    /// Strength λ.
    #[arg(long, value_name = "L")]
    l2: f64,
    /// Time t.
    #[arg(long, value_name = "T")]
    time: f64,
    /// Nesterov flow with this α; gradient flow without it.
    #[arg(long, value_name = "A")]
    alpha: Option<f64>,
    /// Print one line of JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(command: &Command, host: &mut Host<'_>) -> Result<()> {
    match command {
        Command::Bound(args) => bound(args, host),
        Command::Bracket(args) => bracket(args, host),
        Command::Flow(args) => flow(args, host),
    }
}

fn bound(args: &Bound, host: &mut Host<'_>) -> Result<()> {
    let setting = Setting {
        rate: args.rate,
        largest_rate: args.largest_rate.unwrap_or(args.rate),
        l2: args.l2,
        alpha: args.alpha,
        beta: args.beta,
        sigma: args.sigma,
        delta: args.delta,
        noise: match args.noise {
            NoiseKind::Variance => Noise::Variance,
            NoiseKind::Bounded => Noise::Bounded,
        },
    };
    let need = |value: Option<f64>, option: &str, what: &str| {
        value.ok_or_else(|| Advice::error(format!("this bound requires {option}"), format!("{option} is {what}")))
    };
    let epsilon = match args.optimizer.as_str() {
        "sgd" => theory::sgd_deviation(&setting)?,
        "preconditioned" => {
            theory::psgd_deviation(&setting, need(args.condition, "--condition", "the condition number of Q")?)?
        }
        "nesterov-paper" => theory::nsgd_deviation(
            &setting,
            need(args.lambda_min, "--lambda-min", "the smallest eigenvalue of the Hessian")?,
        )?,
        _ => {
            return Err(Advice::error(
                "no deviation bound is known for this optimizer",
                "bounds exist for --optimizer sgd, preconditioned and nesterov-paper",
            ));
        }
    };
    if args.json {
        return host.json(&object!({ "epsilon": epsilon }));
    }
    host.text(&format!("with probability {}, ‖P·w̃ − E[P·w̃]‖ ≤ {}\n", short(1.0 - args.delta), short(epsilon)))
}

#[derive(Serialize)]
struct BracketOutput {
    lambda_1: f64,
    lambda_2: f64,
    theorem: bool,
}

fn bracket(args: &Bracket, host: &mut Host<'_>) -> Result<()> {
    let found = theory::bracket(args.rate, args.l2, args.alpha, args.beta, args.separable)?;
    let theory::Bracket { lambda_1, lambda_2, theorem, .. } = found;
    if args.json {
        return host.json(&BracketOutput { lambda_1, lambda_2, theorem });
    }
    let standing = if theorem {
        "a theorem for separable losses, entry by entry"
    } else {
        "not a theorem for this loss: the proof covers separable losses (--separable), and others can leave the box"
    };
    host.text(&format!("between the strengths {} and {}\n{standing}\n", short(lambda_2), short(lambda_1)))
}

fn flow(args: &Flow, host: &mut Host<'_>) -> Result<()> {
    let (path, regularized, mass) = match args.alpha {
        None => (
            flow::gradient(args.eigenvalue, args.time)?,
            flow::gradient(args.eigenvalue + args.l2, args.time)?,
            flow::gradient_mass(args.l2, args.time)?,
        ),
        Some(alpha) => (
            flow::nesterov(args.eigenvalue, alpha, args.time)?,
            flow::nesterov(args.eigenvalue + args.l2, alpha + args.l2, args.time)?,
            flow::nesterov_mass(alpha, args.l2, args.time)?,
        ),
    };
    let averaged = match args.alpha {
        None => flow::gradient_averaged(args.eigenvalue, args.l2, args.time)?,
        Some(alpha) => flow::nesterov_averaged(args.eigenvalue, alpha, args.l2, args.time)?,
    };
    if args.json {
        return host.json(&object!({ "path": path, "regularized": regularized, "averaged": averaged, "mass": mass }));
    }
    host.text(&format!(
        "per unit of the linear term a, at time {}:\npath w         {}\nregularized ŵ  {}\naveraged w̃     {}\nmass P         {}\n",
        short(args.time),
        short(path),
        short(regularized),
        short(averaged),
        short(mass)
    ))
}
