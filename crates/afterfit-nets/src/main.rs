//! The `afterfit-nets` command: the paper's networks, trained once, regularized afterwards.

mod args;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// VGG-16 and ResNet-18 on CIFAR or Fashion-MNIST: train once, choose the regularization afterwards.
///
/// While a network trains, a dial takes in every iterate; afterwards any strength λ of an ℓ2 penalty can be read off it, with no
/// retraining (Wu, Braverman, Yang, ICML 2020, "the paper").
#[derive(Parser)]
#[command(name = "afterfit-nets", version, arg_required_else_help = true, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Train a network: a checkpoint an epoch, and a dial of every iterate. Resumes a run that stopped in the folder.
    #[command(allow_negative_numbers = true)]
    Train(args::Train),
    /// Average a run's checkpoints, every strength in one pass (`afterfit average` does the same to any checkpoints).
    #[command(allow_negative_numbers = true)]
    Average(args::Average),
    /// Recompute the batch-norm statistics of averaged models on a run's augmented training images.
    Refresh(args::Refresh),
    /// Accuracy and loss of models of a run.
    Evaluate(args::Evaluate),
    /// One entry of the paper's Table 1: train, average, refresh, evaluate; and the dial beside it.
    #[command(allow_negative_numbers = true)]
    Table1(args::Table1),
    /// Noisy labels: a trained network memorizes them, and the dial of the same run does not.
    #[command(allow_negative_numbers = true)]
    Noise(args::Noise),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    // tch panics where libtorch fails (no memory left on the GPU, most often), with pages of its call stack.
    std::panic::set_hook(Box::new(|panic| {
        let payload = panic.payload();
        let text = payload.downcast_ref::<String>().map(String::as_str).or(payload.downcast_ref::<&str>().copied());
        let text = text.unwrap_or("something unexpected happened");
        if text.contains("printing to stdout: Broken pipe") {
            // Whoever read our output has had enough.
            std::process::exit(0);
        }
        match text.split_once("Torch(\"") {
            Some((_, torch)) => eprintln!("error: libtorch: {}", torch.split("\\n").next().unwrap_or_default()),
            None => eprintln!("error: {text} (a bug; {})", panic.location().map_or(String::new(), ToString::to_string)),
        }
    }));
    match std::panic::catch_unwind(|| run(cli)) {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(error)) => {
            eprintln!("error: {}", in_a_line(&error));
            ExitCode::FAILURE
        }
        Err(_) => ExitCode::FAILURE,
    }
}

fn run(cli: Cli) -> anyhow::Result<()> {
    match cli.command {
        Command::Train(args) => args.run(),
        Command::Average(args) => args.run(),
        Command::Refresh(args) => args.run(),
        Command::Evaluate(args) => args.run(),
        Command::Table1(args) => args.run(),
        Command::Noise(args) => args.run(),
    }
}

/// An error and its causes, without those that the one before has said already.
fn in_a_line(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if !text.ends_with(&cause) {
            text.push_str(if text.is_empty() { "" } else { ": " });
            text.push_str(&cause);
        }
    }
    text
}
