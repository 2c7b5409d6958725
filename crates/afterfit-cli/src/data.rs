//! `afterfit data get`: well-known data sets.

use afterfit::datasets::{Dataset, fetch};
use anyhow::Result;
use clap::Subcommand;
use clap::builder::{PossibleValue, PossibleValuesParser};

use crate::output::{self, Advice};

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Fetch a data set into the cache folder (AFTERFIT_DATA, or afterfit under the user's cache folder).
    #[command(after_help = crate::examples::DATA_GET)]
    Get(Get),
}

#[derive(clap::Args)]
pub(crate) struct Get {
    /// Which one.
    #[arg(value_parser = names())]
    name: String,
}

fn names() -> PossibleValuesParser {
    Dataset::ALL.map(|dataset| PossibleValue::new(dataset.name()).help(dataset.about())).into()
}

pub(crate) fn run(command: &Command) -> Result<()> {
    let Command::Get(Get { name }) = command;
    let folder = fetch(name.parse()?, &|message| output::say(message)).map_err(|error| match &error.hint {
        Some(hint) => Advice::error(error.to_string(), hint.clone()),
        None => error.into(),
    })?;
    output::text(&format!("{}\n", folder.display()))
}
