//! Outputs as files: what may be written, what counts as there already, what goes again.

use std::path::Path;

use afterfit::checkpoint::{Checkpoint, Series};
use anyhow::{Context, Result};
use serde_json::Value;

use super::{Args, OutputRow, Planned};
use crate::output::Advice;

/// An output that exists counts as done only if it was made the same way.
pub(super) fn require_same(plan: &Planned, record: &str) -> Result<()> {
    let wanted: Value = serde_json::from_str(record)?;
    let made = Checkpoint::open(&plan.path, None).ok();
    let made = made.and_then(|made| serde_json::from_str::<Value>(made.metadata.get("afterfit")?).ok());
    let same = |key: &str| made.as_ref().and_then(|made| made.get(key)).is_some_and(|found| *found == wanted[key]);
    if ["weights", "inputs", "dtype"].iter().all(|key| same(key)) {
        return Ok(());
    }
    Err(Advice::error(
        format!("{} exists, but was not made from these checkpoints with these weights", plan.path.display()),
        "use --force to replace it, or another OUT",
    ))
}

pub(super) fn require_free(args: &Args, series: &Series, planned: &[Planned], folders: bool) -> Result<()> {
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
        if !args.force && !args.skip_existing {
            return Err(Advice::error(
                format!("{name} exists already"),
                "use --force to replace it, or --skip-existing to keep it",
            ));
        }
        // A folder is replaced as a whole: it must be one that afterfit made.
        if folders && !Checkpoint::open(&plan.path, None).is_ok_and(|made| made.is_average()) {
            return Err(Advice::error(
                format!("{name} is a folder that afterfit did not make"),
                "name another, or remove it",
            ));
        }
    }
    let folder = args.output.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !folder.is_dir() {
        return Err(Advice::error(format!("there is no folder {}", folder.display()), "make it first"));
    }
    Ok(())
}

/// Makes OUT where several outputs go into it; says whether it did.
pub(super) fn make_folder(args: &Args, outputs: usize) -> Result<bool> {
    let wanted = outputs > 1 || args.output.as_os_str().to_string_lossy().ends_with('/');
    if !wanted || args.output.is_dir() {
        return Ok(false);
    }
    std::fs::create_dir(&args.output).map_err(|error| {
        Advice::error(format!("{}: {error}", args.output.display()), "name a folder that can be made")
    })?;
    Ok(true)
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
