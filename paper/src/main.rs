//! The paper's figures, ours beside theirs: `cargo run --release -p paper -- all`.

mod bounds;
mod check;
mod dial;
mod experiment;
mod flow;
mod kernel;
mod lasso;
mod mnist;
mod page;
mod toy;
mod trained;

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};
use clap::{Parser, ValueEnum};

use experiment::Outcome;

/// Reproduces the figures of "Obtaining Adjustable Regularization for Free via Iterate Averaging" (ICML 2020).
#[derive(Parser)]
#[command(name = "paper", arg_required_else_help = true)]
struct Cli {
    /// What to run; `check` compares the tables of earlier runs with the stored numbers.
    #[arg(value_enum, required = true)]
    names: Vec<Name>,
    /// Images for fig4, fig5 and kernel.
    #[arg(long, value_enum, default_value_t = Data::Mnist)]
    data: Data,
    /// Where results go.
    #[arg(long, value_name = "FOLDER", default_value_os_t = default_out())]
    out: PathBuf,
    /// `check` skips tables that are not there.
    #[arg(long)]
    partial: bool,
    /// Seed of everything random.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Data {
    /// Handwritten digits.
    Mnist,
    /// Pieces of clothing.
    FashionMnist,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Name {
    All,
    Fig1,
    Fig2,
    Fig3,
    Fig4,
    Fig5,
    Fig6,
    Kernel,
    Bounds,
    Flow,
    Dial,
    /// Networks trained on a GPU, from their stored results.
    Table1,
    /// Likewise.
    Noise,
    Check,
    /// Writes the numbers that `check` compares with.
    Remember,
}

const EVERY: [Name; 12] = [
    Name::Fig1,
    Name::Fig2,
    Name::Fig3,
    Name::Fig4,
    Name::Fig5,
    Name::Fig6,
    Name::Kernel,
    Name::Bounds,
    Name::Flow,
    Name::Dial,
    Name::Table1,
    Name::Noise,
];

fn default_out() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("out")
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    std::fs::create_dir_all(&cli.out).with_context(|| cli.out.display().to_string())?;
    let mut names = Vec::new();
    for &name in &cli.names {
        match name {
            Name::All => names.extend(EVERY),
            other => names.push(other),
        }
    }
    let bar = indicatif::ProgressBar::new(names.len() as u64);
    bar.set_style(indicatif::ProgressStyle::with_template("{bar:30} {pos}/{len} {msg} {elapsed}")?);
    let start = Instant::now();
    let mut images = None;
    let mut unmet = 0;
    for name in names {
        let began = Instant::now();
        let tick = |what: &str| bar.set_message(what.to_owned());
        tick(&format!("{name:?}"));
        match name {
            Name::Check => {
                bar.suspend(|| check::check(&cli.out, cli.partial))?;
                bar.inc(1);
                continue;
            }
            Name::Remember => {
                check::remember(&cli.out)?;
                bar.inc(1);
                continue;
            }
            _ => {}
        }
        if matches!(name, Name::Fig4 | Name::Fig5 | Name::Kernel) && images.is_none() {
            tick("images");
            let data = if cli.data == Data::Mnist { "mnist" } else { "fashion-mnist" };
            images = Some(mnist::load(data, "train")?);
        }
        let outcome = run(name, images.as_ref(), cli.seed, &tick)?;
        experiment::save(&outcome, &cli.out)?;
        bar.suspend(|| {
            eprintln!("{:<8} {:>6.1} s  {}", outcome.name, began.elapsed().as_secs_f64(), outcome.title);
            for number in outcome.numbers.iter().filter(|number| number.holds == Some(false)) {
                unmet += 1;
                eprintln!("    NOT MET: {}: {:.3e} ({})", number.what, number.ours, number.claimed);
            }
        });
        bar.inc(1);
    }
    bar.finish_and_clear();
    page::write(&cli.out)?;
    eprintln!("{:.1} s; see {}", start.elapsed().as_secs_f64(), cli.out.join("index.html").display());
    anyhow::ensure!(unmet == 0, "{unmet} claims are not met");
    Ok(())
}

fn run(name: Name, images: Option<&mnist::Images>, seed: u64, tick: &dyn Fn(&str)) -> Result<Outcome> {
    let images = || images.context("images are loaded first");
    Ok(match name {
        Name::Fig1 => toy::fig1()?,
        Name::Fig2 => toy::fig2()?,
        Name::Fig3 => toy::fig3()?,
        Name::Fig4 => mnist::fig4(images()?, seed, tick)?,
        Name::Fig5 => mnist::fig5(images()?, seed, tick)?,
        Name::Fig6 => lasso::fig6()?,
        Name::Kernel => kernel::kernel(images()?, tick)?,
        Name::Bounds => bounds::bounds(seed, tick)?,
        Name::Flow => flow::flow()?,
        Name::Dial => dial::dial(tick)?,
        Name::Table1 => trained::table1()?,
        Name::Noise => trained::noise()?,
        Name::All | Name::Check | Name::Remember => anyhow::bail!("{name:?} is not an experiment"),
    })
}
