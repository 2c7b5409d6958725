//! `afterfit weights`: the weight of each iterate.

use std::fmt::Write;

use afterfit::checkpoint::RateSource;
use afterfit::path::Rule;
use afterfit::{Answer, PathInfo, Standing};
use anyhow::Result;
use serde::Serialize;

use crate::host::Host;
use crate::optimizer::OptimizerArgs;
use crate::output::{Advice, short};

/// More steps than a listing can hold.
const MOST_STEPS: u64 = 10_000_000;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    optimizer: OptimizerArgs,
    /// Rate η: 0.1, or 0.1,150:0.01 (from step 150 on, 0.01).
    #[arg(long, value_name = "SCHEDULE")]
    rate: RateSource,
    /// Strength λ, next to a mean loss.
    #[arg(long, value_name = "L")]
    l2: f64,
    /// Steps K taken; weights are those of w_0 … w_{K−1}.
    #[arg(long, value_name = "K")]
    steps: u64,
    /// Print one line of JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Output {
    l2: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    ratio: Option<f64>,
    weights: Vec<f64>,
    remaining: f64,
    exact: bool,
}

pub(crate) fn run(args: &Args, host: &mut Host<'_>) -> Result<()> {
    let optimizer = args.optimizer.named("sgd", None)?;
    if args.steps > MOST_STEPS {
        return Err(Advice::error(
            format!("--steps {} is more than the {MOST_STEPS} that can be listed", args.steps),
            "the weights fall by the same ratio at every step: fewer steps show it",
        ));
    }
    let rates = args.rate.rates(args.steps)?;
    let path = PathInfo::quadratic(optimizer, rates);
    let mut weights = path.weights(args.l2, Answer::Regularized)?;
    // With momentum under a schedule, and for Adam, every weight has its own.
    let ratio =
        match path.rates.at(0).filter(|&rate| rate > 0.0 && path.rule() == Rule::Closed && path.rates.is_constant()) {
            Some(rate) => Some(afterfit::theory::convergence_factor(optimizer, args.l2, rate)?),
            None => None,
        };
    let remaining = weights.pop().unwrap_or(1.0);
    let output = Output { l2: args.l2, ratio, weights, remaining, exact: path.status().standing == Standing::Exact };
    if args.json {
        return host.json(&output);
    }
    let (penalty, l2) = (optimizer.penalty(), short(args.l2));
    let how = match (output.exact, path.status()) {
        (true, _) => "exact on a quadratic loss".to_owned(),
        (false, status) => format!("{}: {}", status.standing, status.reason),
    };
    let mut table = format!("penalty  λ·{penalty} with λ = {l2} and c = w_0 ({how})\n");
    if let Some(ratio) = ratio {
        let _ = writeln!(table, "ratio    {ratio:.9} from one weight to the next");
    }
    table.push_str("\n   k  weight of w_k\n");
    let shown = output.weights.len().min(20);
    for (k, weight) in output.weights[..shown].iter().enumerate() {
        let _ = writeln!(table, "{k:>4}  {weight:.6e}");
    }
    if shown < output.weights.len() {
        let _ = writeln!(table, "   …  {} more (--json lists all)", output.weights.len() - shown);
    }
    let _ = writeln!(table, "{:>4}  {remaining:.6e}  what remains, given to the last iterate", args.steps);
    host.text(&table)
}
