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
    #[command(flatten)]
    optimizer: OptimizerArgs,
    /// Print one line of JSON.
    #[arg(long)]
    json: bool,
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
    if args.json {
        return host.json(&found);
    }
    let Plan { nodes, certificate, bytes } = found;
    host.text(&format!(
        "nodes        {nodes}\ncertificate  {} (bound on the error of any weight, relative to the largest move of any weight)\nmemory       {} for the sums in f64\n",
        short(certificate),
        Bytes(bytes)
    ))
}
