//! `afterfit completions` and `afterfit man`: what packagers install beside the program, made from the definition of its options.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap_complete::Shell;

use crate::output::{self, Folders, existing};

#[derive(clap::Args)]
pub(crate) struct Completions {
    /// The shell.
    #[arg(value_enum)]
    shell: Shell,
}

#[derive(clap::Args)]
pub(crate) struct Man {
    /// The folder to write to, made if it is missing.
    #[arg(value_parser = crate::place::local())]
    folder: PathBuf,
    /// Replace pages that exist.
    #[arg(long)]
    force: bool,
}

/// Prints the completions of a shell.
pub(crate) fn completions(args: &Completions, mut command: clap::Command) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "afterfit", &mut script);
    output::data(&String::from_utf8(script)?)
}

/// Writes a page for the command and one for each subcommand.
pub(crate) fn man(args: &Man, mut command: clap::Command) -> Result<()> {
    command.build();
    let mut pages = Vec::new();
    render(&command, &mut pages)?;
    let files: Vec<PathBuf> = pages.iter().map(|(name, _)| args.folder.join(name)).collect();
    let folders = Folders::make(&args.folder)?;
    output::require_outputs(&files.iter().collect::<Vec<_>>(), &[], args.force)?;
    for (file, (_, page)) in files.iter().zip(&pages) {
        output::write_file(file, page, existing(args.force)).with_context(|| file.display().to_string())?;
    }
    folders.keep();
    output::text(&format!("wrote {} pages to {}\n", pages.len(), args.folder.display()))
}

/// Pages of a command and of those under it, by the names of their files.
fn render(command: &clap::Command, pages: &mut Vec<(String, Vec<u8>)>) -> Result<()> {
    let page = clap_mangen::Man::new(command.clone());
    let mut text = Vec::new();
    page.render(&mut text)?;
    pages.push((page.get_filename(), text));
    for subcommand in command.get_subcommands().filter(|one| one.get_name() != "help" && !one.is_hide_set()) {
        render(subcommand, pages)?;
    }
    Ok(())
}
