//! The `afterfit` command: parses, calls the library, prints. One file per subcommand.
//!
//! Data go to stdout, messages to stderr. A failure prints `error: …` (and `hint: …` where there is one) and exits
//! with 1; a wrong command line exits with 2; one that is told to stop removes its temporary files and exits with 128 and the
//! signal's number, 130 for Ctrl-C.

mod average;
mod data;
mod demo;
mod dial;
mod evaluate;
mod examples;
mod fit;
mod host;
mod inspect;
mod later;
mod layout;
mod manual;
mod optimizer;
mod output;
pub mod page;
mod place;
mod plan;
mod predict;
mod report;
mod serve;
mod signals;
mod strengths;
mod table;
mod theory;
mod weights;

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue};
use clap::{CommandFactory, Parser, Subcommand};

use host::Host;
pub use host::{Caller, Evaluate};
use later::Later;

/// Fit once. Choose the regularization afterwards.
#[derive(Parser)]
#[command(name = "afterfit", version, arg_required_else_help = true, max_term_width = 100, after_help = examples::ALL)]
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
    /// Fit 40 models to handwritten digits and write a page with a slider: see what this does.
    #[command(after_help = examples::DEMO)]
    Demo(Later<demo::Args>),
    /// Fit a model to a table at every strength λ, each with a certificate, and choose the best.
    #[command(allow_negative_numbers = true, after_help = examples::FIT)]
    Fit(Later<Box<fit::Args>>),
    /// Predict with a saved model.
    ///
    /// Prints one line per row of the table. A row with missing values gets an empty prediction (null in JSON) where the model
    /// was fitted with `--missing drop`. An unseen category counts as none of the known ones, with a warning.
    #[command(after_help = examples::PREDICT)]
    Predict(Later<predict::Args>),
    /// Average checkpoints of a network: every strength in one pass over the files.
    #[command(allow_negative_numbers = true, after_help = examples::AVERAGE)]
    Average(Later<Box<average::Args>>),
    /// Read models off a dial.
    #[command(subcommand, allow_negative_numbers = true, after_help = examples::DIAL)]
    Dial(Later<dial::Command>),
    /// Open a page on this machine whose slider reads models off a dial and evaluates them.
    #[command(after_help = examples::SERVE)]
    Serve(Later<serve::Args>),
    /// Show what a model, dial or checkpoint file contains.
    #[command(after_help = examples::INSPECT)]
    Inspect(Later<inspect::Args>),
    /// Fetch well-known data sets.
    #[command(subcommand, after_help = examples::DATA_GET)]
    Data(Later<data::Command>),
    /// Print the weight each iterate gets for a strength λ.
    #[command(allow_negative_numbers = true, after_help = examples::WEIGHTS)]
    Weights(Later<weights::Args>),
    /// Compute what the theorems promise: deviation bounds, brackets, continuous-time flows.
    #[command(subcommand, allow_negative_numbers = true, after_help = examples::THEORY_BRACKET)]
    Theory(Later<theory::Command>),
    /// Plan a dial before training: its sums, memory and certified error.
    #[command(allow_negative_numbers = true, after_help = examples::PLAN)]
    Plan(Later<plan::Args>),
    /// Print completions for a shell.
    #[command(after_help = examples::COMPLETIONS)]
    Completions(Later<manual::Completions>),
    /// Write manual pages.
    #[command(after_help = examples::MAN)]
    Man(Later<manual::Man>),
}

/// The command with these arguments, the program's name first; returns its exit code.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    signals::watch();
    let line: Vec<OsString> = arguments.into_iter().collect();
    let cli = match parse(&line) {
        Ok(cli) => cli,
        Err(error) => {
            drop(afterfit::files::stores::Session::take());
            // (Help and the version are not errors, and go to stdout.)
            let _ = error.print();
            return u8::try_from(error.exit_code()).unwrap_or(2);
        }
    };
    match run(cli, &mut Host::terminal(line)) {
        Ok(()) => 0,
        Err(error) if output::is_closed_pipe(&error) => 0,
        Err(error) => {
            output::report(&error);
            1
        }
    }
}

/// Where the strength is called by its letter, the error says what it is called here.
fn parse(line: &[OsString]) -> Result<Cli, clap::Error> {
    Cli::try_parse_from(line).map_err(|mut error| {
        if let Some(ContextValue::String(name)) = error.get(ContextKind::InvalidArg)
            && name.split('=').next() == Some("--lambda")
        {
            // (What clap takes for similar is in its usage, too.)
            error.remove(ContextKind::SuggestedArg);
            error.remove(ContextKind::Usage);
            let tip = "the strength λ is given with '--l2'".to_owned().into();
            error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip]));
        }
        error
    })
}

/// A command that did not succeed, in the words it would have printed.
#[derive(Debug)]
pub struct Failure {
    /// What went wrong.
    pub message: String,
    /// What to do about it.
    pub hint: Option<String>,
    /// The error itself; the library's own is among its causes. `None`: the arguments were wrong.
    pub error: Option<anyhow::Error>,
}

/// The command with these arguments, in the process of a program that calls it: what goes to stdout otherwise. (`average`,
/// `plan`, `theory` and `weights` leave stdout alone.) No signal is watched, and the process continues.
pub fn call(arguments: impl IntoIterator<Item = OsString>, caller: Caller<'_>) -> Result<String, Failure> {
    let line: Vec<OsString> = arguments.into_iter().collect();
    let cli = parse(&line).map_err(|error| {
        drop(afterfit::files::stores::Session::take());
        let text = error.to_string();
        let first = text.split("\n\n").next().unwrap_or(&text);
        let message = first.trim_start_matches("error: ").trim_end().to_owned();
        Failure { message, hint: None, error: None }
    })?;
    let mut host = Host::caller(caller, line);
    match run(cli, &mut host) {
        Ok(()) => Ok(host.said()),
        Err(error) => {
            let (message, hint) = output::in_words(&error);
            Err(Failure { message, hint, error: Some(error) })
        }
    }
}

/// The strengths that `--l2 TEXT` means: a list, or a range such as `1e-4..1e2:50`.
pub fn strengths(text: &str) -> Result<Vec<f64>, String> {
    text.parse::<strengths::Strengths>().map(|strengths| strengths.values().to_vec())
}

/// What a page shows of a dial's file.
pub fn page_of_dial(file: &std::path::Path) -> anyhow::Result<page::Page> {
    dial::page(&afterfit::dial::DialFile::open(file)?, file)
}

fn run(cli: Cli, host: &mut Host<'_>) -> anyhow::Result<()> {
    if let Some(threads) = cli.threads {
        if threads > MOST_THREADS {
            let message = format!("--threads {threads} is more than the {MOST_THREADS} this starts");
            return Err(output::Advice::error(message, "leave it out for one per core"));
        }
        afterfit::set_threads(threads)?;
    }
    let said = |names: &[&str]| {
        let given =
            |argument: &OsString| argument.to_str().is_some_and(|text| names.iter().any(|name| text.starts_with(name)));
        host.line.iter().any(given)
    };
    // (A task of many that is run again finds what it sent the first time.)
    let forced = said(&["--force", "--files=", "--join"]);
    let quiet = said(&["-q", "--quiet"]);
    let watch = host.watch();
    place::between(output::existing(forced), quiet, &watch, || dispatch(cli.command, host))
}

fn dispatch(command: Command, host: &mut Host<'_>) -> anyhow::Result<()> {
    match command {
        Command::Demo(Later(args)) => demo::run(&args),
        Command::Fit(Later(args)) => fit::run(&args, host),
        Command::Predict(Later(args)) => predict::run(&args),
        Command::Average(Later(args)) => average::run(&args, host),
        Command::Dial(Later(command)) => dial::run(&command),
        Command::Serve(Later(args)) => serve::run(&args),
        Command::Inspect(Later(args)) => inspect::run(&args),
        Command::Data(Later(command)) => data::run(&command),
        Command::Weights(Later(args)) => weights::run(&args, host),
        Command::Theory(Later(command)) => theory::run(&command, host),
        Command::Plan(Later(args)) => plan::run(&args, host),
        Command::Completions(Later(args)) => manual::completions(&args, Cli::command()),
        Command::Man(Later(args)) => manual::man(&args, Cli::command()),
    }
}
