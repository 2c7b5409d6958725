//! `afterfit plan`: what a dial would cost and how good it would be.

use afterfit::checkpoint::RateSource;
use afterfit::plan::{Plan, plan};
use afterfit::{Family, PathInfo};
use anyhow::Result;

use crate::host::Host;
use crate::optimizer::OptimizerArgs;
use crate::output::{Advice, Bytes, short};
use crate::strengths::Strengths;

/// A plan looks at every step for every node and strength: a bound on its time.
const MOST_STEPS: u64 = 1_000_000;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The range of strengths to be read off the dial, like 1e-5..1e-2.
    #[arg(long, value_name = "RANGE")]
    l2: Strengths,
    /// Rate η of the training run: 0.1, or 0.1,50000:0.01 (from step 50000 on, 0.01).
    #[arg(long, value_name = "SCHEDULE")]
    rate: RateSource,
    /// Steps of the training run.
    #[arg(long, value_name = "K")]
    steps: u64,
    /// Weights of the model.
    #[arg(long, value_name = "N")]
    params: u64,
    /// Error allowed in any weight, relative to the largest move of any weight.
    #[arg(long, value_name = "T", default_value_t = 1e-3)]
    tolerance: f64,
    /// Type of the sums: f64, as dials in Rust have them, or f32, as those of f32 models in PyTorch.
    #[arg(long, value_enum, value_name = "TYPE", default_value_t = Number::F64)]
    dtype: Number,
    /// Count the center and N iterates that wait to be added, too: all that a dial in PyTorch made with block=N keeps.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    block: Option<u64>,
    #[command(flatten)]
    optimizer: OptimizerArgs,
    /// Print one line of JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Number {
    F32,
    F64,
}

impl Number {
    fn size(self) -> u64 {
        match self {
            Number::F32 => 4,
            Number::F64 => 8,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Number::F32 => "f32",
            Number::F64 => "f64",
        }
    }
}

pub(crate) fn run(args: &Args, host: &mut Host<'_>) -> Result<()> {
    let (from, to) = args.l2.ends();
    if args.steps > MOST_STEPS {
        return Err(Advice::error(
            format!("--steps {} is more than the {MOST_STEPS} this plans for", args.steps),
            "steps count only through rate × steps: plan with ten times the rate and a tenth of the steps",
        ));
    }
    let path = PathInfo::new(args.optimizer.named("sgd", None)?, args.rate.rates(args.steps)?);
    let found = plan(Family::L2, from, to, &path, args.params as usize, args.tolerance)?;
    let beside = args.block.map_or(0, |block| block.saturating_add(1));
    let vectors = (found.nodes as u64).saturating_add(beside);
    let bytes = args.dtype.size().saturating_mul(vectors).saturating_mul(args.params);
    if args.json {
        return host.json(&Plan { bytes, ..found });
    }
    let what = match args.block {
        None => format!("the sums in {}", args.dtype.name()),
        Some(block) => format!("the sums, the center and {block} iterates that wait, in {}", args.dtype.name()),
    };
    host.text(&format!(
        "nodes        {}\ncertificate  {} (bound on the error of any weight, relative to the largest move of any weight)\nmemory       {} for {what}\n",
        found.nodes,
        short(found.certificate),
        Bytes(bytes)
    ))
}
