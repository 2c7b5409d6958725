//! Outputs as files: what may be written, what counts as there already, what goes again.

use std::path::{Path, PathBuf};

use afterfit::checkpoint::{Checkpoint, Layout, Series, strangers};
use afterfit::files::atomic::{Existing, FolderDraft};
use anyhow::{Context, Result};
use serde_json::Value;

use super::show::some_names;
use super::{Args, OutputRow, Planned};
use crate::output::{Advice, Folders, folder_of, is_empty_folder};

/// Refuses, before any work is done, an output that is no file.
pub(super) fn require_named(args: &Args) -> Result<()> {
    if args.output.as_os_str() == "-" {
        return Err(Advice::error(
            "-o - would be stdout, and models are files",
            "name a file, such as average.safetensors; ./- is a file of that name",
        ));
    }
    if args.dial.is_none() {
        args.layout.require_known_ending(&args.output)?;
    }
    Ok(())
}

/// An output that exists counts as done only if it was made the same way.
pub(super) fn require_same(plan: &Planned, record: &str) -> Result<()> {
    let wanted: Value = serde_json::from_str(record)?;
    let made = Checkpoint::open(&plan.path, None).ok();
    let made = made.and_then(|made| serde_json::from_str::<Value>(made.metadata.get("afterfit")?).ok());
    let same = |key: &str| made.as_ref().and_then(|made| made.get(key)).is_some_and(|found| *found == wanted[key]);
    if ["weights", "inputs", "dtype", "made_from"].iter().all(|key| same(key)) {
        return Ok(());
    }
    Err(Advice::error(
        format!(
            "{} exists, but was not made from these checkpoints, as they are now, with these weights and settings",
            plan.path.display()
        ),
        "use --force to replace it, or another OUT",
    ))
}

pub(super) fn require_free(
    args: &Args,
    series: &Series,
    planned: &[Planned],
    layout: &Layout,
    folders: bool,
) -> Result<()> {
    for plan in planned {
        let name = plan.path.display();
        let inputs = series.paths.iter().filter_map(|path| path.canonicalize().ok());
        if let Ok(place) = plan.path.canonicalize()
            && inputs.into_iter().any(|input| input == place || input.starts_with(&place))
        {
            return Err(Advice::error(format!("{name} is an input, too, or holds one"), "name another output"));
        }
        let parent = plan.path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let parents = series.paths.iter().filter(|path| path.is_dir()).filter_map(|path| path.canonicalize().ok());
        if let Ok(place) = parent.canonicalize()
            && parents.into_iter().any(|input| place.starts_with(&input))
        {
            return Err(Advice::error(
                format!("{name} lies inside an input"),
                "name an output outside of the checkpoints' folders",
            ));
        }
        let Ok(details) = plan.path.symlink_metadata() else { continue };
        if details.is_symlink() || !(details.is_file() || details.is_dir()) {
            return Err(Advice::error(format!("{name} is not a plain file"), "name another"));
        }
        if details.is_dir() != folders {
            let is = if folders {
                "a file, and the output is a folder of shards"
            } else {
                "a folder, and the output is a file"
            };
            return Err(Advice::error(format!("{name} is {is}"), "name another"));
        }
        if folders && is_empty_folder(&plan.path) {
            continue;
        }
        if folders && series.is_gathering(&plan.path, layout) {
            // (Those who divide the work look first, and take up what is there. All of it is the output's own.)
            if args.dry_run || args.force {
                continue;
            }
            return Err(Advice::error(
                format!("{name} has files of an average that several machines were making"),
                "call afterfit.ray.average again to finish it, use --force to replace them, or remove them",
            ));
        }
        if !args.force && !args.skip_existing {
            return Err(Advice::error(
                format!("{name} exists already"),
                "use --force to replace it, or --skip-existing to keep it",
            ));
        }
        // A folder is replaced as a whole: it must be one that afterfit made, and hold nothing else.
        if folders {
            let made = Checkpoint::open(&plan.path, None).ok().filter(Checkpoint::is_average);
            let made = made.ok_or_else(|| {
                Advice::error(format!("{name} is a folder that afterfit did not make"), "name another, or remove it")
            })?;
            if args.force {
                require_no_strangers(series, &made)?;
            }
        }
    }
    // What is to become a folder must not be a file.
    let above = args.output.ancestors().skip(1).find(|folder| folder.symlink_metadata().is_ok());
    if let Some(above) = above.filter(|above| !above.is_dir()) {
        return Err(Advice::error(format!("{} is not a folder", above.display()), "name an output in one"));
    }
    Ok(())
}

/// Refuses to replace a folder with files that somebody put there since afterfit made it.
fn require_no_strangers(series: &Series, made: &Checkpoint) -> Result<()> {
    let record = made.metadata.get("afterfit").and_then(|text| serde_json::from_str::<Value>(text).ok());
    let last = record.and_then(|record| record.get("inputs")?.as_array()?.last()?.as_str().map(PathBuf::from));
    let homes: Vec<&Path> = series.home.iter().chain(&last).map(PathBuf::as_path).collect();
    let strangers = strangers(made, &homes)?;
    if strangers.is_empty() {
        return Ok(());
    }
    let (name, named) = (made.path.display(), some_names(&strangers));
    Err(Advice::error(
        format!("{name} holds what afterfit did not put there, and --force replaces the whole folder: {named}"),
        "move it elsewhere, or name another output",
    ))
}

/// Makes OUT where several outputs go into it, and the folders above it.
pub(super) fn make_folders(args: &Args, outputs: usize) -> Result<Folders> {
    let inside = outputs > 1 || args.output.as_os_str().to_string_lossy().ends_with('/');
    Folders::make(if inside { &args.output } else { folder_of(&args.output) })
}

/// A place for the last checkpoint in the form of the outputs, to be evaluated like them; gone when dropped.
pub(super) struct Baseline {
    _folder: FolderDraft,
    pub(super) path: PathBuf,
}

impl Baseline {
    /// Beside an output of the same kind.
    pub(super) fn beside(output: &Path) -> Result<Self> {
        // (A folder that never gets its name.)
        let folder = FolderDraft::create(&folder_of(output).join("last"), Existing::Keep)?;
        let ending = output.extension().and_then(|ending| ending.to_str());
        let path = folder.folder().join(ending.map_or_else(|| "last".to_owned(), |ending| format!("last.{ending}")));
        Ok(Self { _folder: folder, path })
    }
}

pub(super) fn remove_others(rows: &[OutputRow], best: usize) -> Result<()> {
    for (at, row) in rows.iter().enumerate() {
        // What was there before this run is not ours to remove.
        if at == best || row.skipped {
            continue;
        }
        let path = Path::new(&row.path);
        let removed = if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
        removed.with_context(|| row.path.clone())?;
    }
    Ok(())
}
