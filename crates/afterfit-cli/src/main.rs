//! The `afterfit` command: parses, calls the library, prints. One file per subcommand.
//!
//! Data go to stdout, messages to stderr. A failure prints `error: …` (and `hint: …` where there is one) and exits
//! with 1; a wrong command line exits with 2.

mod average;
mod data;
mod demo;
mod dial;
mod evaluate;
mod fit;
mod inspect;
mod layout;
mod optimizer;
mod output;
mod plan;
mod predict;
mod report;
mod strengths;
mod table;
mod theory;
mod weights;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Fit once. Choose the regularization afterwards.
#[derive(Parser)]
#[command(name = "afterfit", version, arg_required_else_help = true, max_term_width = 100)]
struct Cli {
    /// Threads to use for everything (0, the default: one per core).
    #[arg(long, global = true, value_name = "N")]
    threads: Option<usize>,
    #[command(subcommand)]
    command: Command,
}

/// More than any machine this runs on has use for.
const MOST_THREADS: usize = 512;

#[derive(Subcommand)]
enum Command {
    /// Handwritten digits, one training run, every strength: see what this does.
    Demo(demo::Args),
    /// Fit a model to a table: one training run, every strength λ, the best one chosen.
    #[command(allow_negative_numbers = true)]
    Fit(Box<fit::Args>),
    /// Predict with a saved model.
    Predict(predict::Args),
    /// Average checkpoints of a network: every strength in one pass.
    #[command(allow_negative_numbers = true)]
    Average(Box<average::Args>),
    /// Read models off a dial.
    #[command(subcommand, allow_negative_numbers = true)]
    Dial(dial::Command),
    /// Say what a model, dial or checkpoint file holds.
    Inspect(inspect::Args),
    /// Well-known data sets.
    #[command(subcommand)]
    Data(data::Command),
    /// The weight each iterate gets for a strength λ.
    #[command(allow_negative_numbers = true)]
    Weights(weights::Args),
    /// What the theorems promise: deviation bounds, brackets, continuous-time flows.
    #[command(subcommand, allow_negative_numbers = true)]
    Theory(theory::Command),
    /// Nodes, memory and certified error of a dial, before training.
    #[command(allow_negative_numbers = true)]
    Plan(plan::Args),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if output::is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            output::report(&error);
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> anyhow::Result<()> {
    if let Some(threads) = cli.threads {
        if threads > MOST_THREADS {
            let message = format!("--threads {threads} is more than the {MOST_THREADS} this starts");
            return Err(output::Advice::error(message, "leave it out for one per core"));
        }
        afterfit::set_threads(threads)?;
    }
    match cli.command {
        Command::Demo(args) => demo::run(&args),
        Command::Fit(args) => fit::run(&args),
        Command::Predict(args) => predict::run(&args),
        Command::Average(args) => average::run(&args),
        Command::Dial(command) => dial::run(&command),
        Command::Inspect(args) => inspect::run(&args),
        Command::Data(command) => data::run(&command),
        Command::Weights(args) => weights::run(&args),
        Command::Theory(command) => theory::run(&command),
        Command::Plan(args) => plan::run(&args),
    }
}
