//! `afterfit weights`: the weight of each iterate.

use std::fmt::Write;

use afterfit::scheme::{Answer, PathInfo, Scheme, Weighting};
use anyhow::Result;
use serde::Serialize;

use crate::output::{Advice, json, short, text};
use crate::recurrence;

/// More steps than a listing can hold.
const MOST_STEPS: u64 = 10_000_000;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    optimizer: recurrence::OptimizerArgs,
    /// Rate η, the same at every step.
    #[arg(long, value_name = "R")]
    rate: f64,
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
    ratio: f64,
    weights: Vec<f64>,
    remaining: f64,
    exact: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let recurrence = args.optimizer.recurrence()?;
    if args.steps > MOST_STEPS {
        return Err(Advice::error(
            format!("--steps {} is more than the {MOST_STEPS} that can be listed", args.steps),
            "the weights fall by the same ratio at every step: fewer steps show it",
        ));
    }
    let info = PathInfo {
        recurrence,
        rates: vec![args.rate; args.steps as usize],
        quadratic: true,
        stochastic: false,
        shape: [1, 1],
        factors: None,
    };
    let scheme = Scheme::new(&info)?;
    let ratio = afterfit::theory::convergence_factor(recurrence, args.l2, args.rate)?;
    let mut weights = scheme.weights(Weighting::L2(args.l2), Answer::Regularized)?;
    let remaining = weights.pop().unwrap_or(1.0);
    let output = Output { l2: args.l2, ratio, weights, remaining, exact: true };
    if args.json {
        return json(&output);
    }
    let (penalty, l2) = (recurrence.penalty(), short(args.l2));
    let mut table = format!("penalty  λ·{penalty} with λ = {l2} and c = w_0 (exact on a quadratic loss)\n");
    let _ = writeln!(table, "ratio    {ratio:.9} from one weight to the next\n\n   k  weight of w_k");
    let shown = output.weights.len().min(20);
    for (k, weight) in output.weights[..shown].iter().enumerate() {
        let _ = writeln!(table, "{k:>4}  {weight:.6e}");
    }
    if shown < output.weights.len() {
        let _ = writeln!(table, "   …  {} more (--json lists all)", output.weights.len() - shown);
    }
    let _ = writeln!(table, "{:>4}  {remaining:.6e}  what remains, given to the last iterate", args.steps);
    text(&table)
}
