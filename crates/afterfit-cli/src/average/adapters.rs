//! `--lora`: whether adapters' factors or their products are averaged.

use afterfit::checkpoint::{CheckpointError, Series};
use anyhow::Result;
use clap::ValueEnum;

use super::OutputRow;
use crate::output::{Advice, short};

/// Options for LoRA adapters.
#[derive(clap::Args)]
#[command(next_help_heading = "Outputs")]
pub(super) struct LoraArgs {
    /// How to average LoRA adapters: A and B separately (apart), or their products BA, which are the updates (exact)
    /// [default: apart].
    #[arg(long, value_enum, value_name = "HOW")]
    lora: Option<Lora>,
    /// Rank of the averaged products (default: that of the adapters); a larger one cuts off less.
    #[arg(long, value_name = "R", requires = "lora")]
    lora_rank: Option<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Lora {
    /// A and B, each on its own.
    Apart,
    /// Their products, cut off at the rank.
    Exact,
}

impl LoraArgs {
    /// Prepares the series; says what happens to its adapters.
    pub(super) fn prepare(&self, series: &mut Series, notes: &mut Vec<String>) -> Result<()> {
        if self.lora == Some(Lora::Exact) {
            if self.lora_rank == Some(0) {
                return Err(Advice::error("--lora-rank 0 leaves nothing of the adapters", "1 is the smallest rank"));
            }
            let hint = |error: CheckpointError| match &error {
                CheckpointError::Setting(_) => Advice::about(error, "--lora apart averages A and B"),
                _ => error.into(),
            };
            series.average_products(self.lora_rank).map_err(hint)?;
            notes.push(format!(
                "the products BA of the LoRA adapters are averaged and cut back to {}: the error of that is reported when they are written",
                self.rank()
            ));
            return Ok(());
        }
        if self.lora_rank.is_some() {
            return Err(Advice::error("--lora-rank is for averaged products", "add --lora exact"));
        }
        let count = series.adapters();
        if count > 0 {
            notes.push(format!(
                "A and B of {count} LoRA adapters are averaged apart: the product of averages is not the average of the \
                 products BA, which are the updates; --lora exact averages those"
            ));
        }
        Ok(())
    }

    fn rank(&self) -> String {
        self.lora_rank.map_or_else(|| "the adapters' own rank".into(), |rank| format!("rank {rank}"))
    }

    /// What the cut to a rank left out of each output: of those that were written, and of those that were there.
    pub(super) fn report(&self, written: &[f64], there: &[f64], rows: &mut [OutputRow], notes: &mut Vec<String>) {
        for (is_there, errors) in [(false, written), (true, there)] {
            let rows = rows.iter_mut().filter(|row| row.skipped == is_there);
            rows.zip(errors).for_each(|(row, &error)| row.lora_error = Some(error));
        }
        let worst = rows.iter().filter_map(|row| row.lora_error).reduce(f64::max);
        if let Some(worst) = worst {
            let rank = self.rank();
            notes.push(format!(
                "the averages of the products BA are cut off at {rank}: {} % of their norm is lost at most (--lora-rank R keeps more)",
                short(100.0 * worst)
            ));
        }
    }
}
