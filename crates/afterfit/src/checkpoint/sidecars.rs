//! The small files beside a checkpoint's weights that a user needs to load it, and which of them are copied into outputs.
//!
//! A link in a stranger's folder may lead anywhere. Followed are those that stay inside the checkpoint's own folder, and those
//! of Hugging Face's cache (`models--x/snapshots/REVISION/config.json` → `models--x/blobs/HASH`), where `blobs` is a
//! folder and no link itself. Bytes are copied, and no permission bits: outputs follow the umask.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::folder::{ENDINGS, is_training_file, may_hold_weights, names};
use super::parts::{components, is_copy};
use super::{Checkpoint, Result, distributed, lora};
use crate::files::FileError;
use crate::files::atomic::make_folders_of;
use crate::files::source::open_plain;

/// A sidecar file is a configuration or a vocabulary.
const MOST_SIDECAR: u64 = 256 << 20;

/// Files beside the weights that a user needs to load them: configuration, vocabulary, also those in the subfolders of a
/// pipeline (`vae/config.json`). Second, those that are left alone: links that lead out of the model's own folders, subfolders
/// that are no models, what is no plain file, and what is larger than any configuration.
pub fn sidecars(folder: &Path) -> Result<(Vec<String>, Vec<String>)> {
    let (mut copied, mut left) = (Vec::new(), Vec::new());
    let inside = names(folder)?;
    let trusted = trusted(folder);
    let components = components(folder, &inside);
    let is_other = |name: &&String| {
        folder.join(name).symlink_metadata().is_ok_and(|details| details.is_dir()) && !components.contains(name)
    };
    left.extend(inside.iter().filter(is_other).map(|name| format!("{name}/")));
    sidecars_in(folder, "", &inside, &trusted, &mut copied, &mut left);
    for name in components.iter().filter(|name| !is_copy(name)) {
        // (A subfolder that is a link out is left alone as a whole.)
        if !leads_into(&folder.join(name), &trusted) {
            left.push(name.clone());
            continue;
        }
        let inside = names(&folder.join(name))?;
        sidecars_in(folder, &format!("{name}/"), &inside, &trusted, &mut copied, &mut left);
    }
    Ok((copied, left))
}

/// Entries of an average's folder that afterfit did not put there: neither weights of it nor a copy, to the byte, of what lies in the
/// folders that its small files may have come from. Who replaces the folder would lose them.
pub fn strangers(average: &Checkpoint, homes: &[&Path]) -> Result<Vec<String>> {
    let folder = &average.path;
    let mut homes_of: HashMap<String, Vec<PathBuf>> = HashMap::new();
    for home in homes.iter().filter(|home| home.is_dir()) {
        for name in sidecars(home)?.0 {
            homes_of.entry(name.clone()).or_default().push(home.join(name));
        }
    }
    let (copied, left) = sidecars(folder)?;
    // (One that was edited since is nobody's copy.)
    let is_copy = |name: &String| {
        homes_of.get(name).is_some_and(|homes| homes.iter().any(|home| alike(home, &folder.join(name))))
    };
    let own = |name: &String| average.files.iter().any(|file| file.path() == folder.join(name));
    let weights = names(folder)?.into_iter().filter(|name| may_hold_weights(name) && !own(name));
    Ok(copied.into_iter().filter(|name| !is_copy(name)).chain(left).chain(weights).collect())
}

/// Whether a small file holds the same bytes as another, or what a new rank of adapters makes of them.
fn alike(one: &Path, other: &Path) -> bool {
    let read = |path: &Path| {
        let mut bytes = Vec::new();
        std::io::Read::take(open_plain(path).ok()?, MOST_SIDECAR + 1).read_to_end(&mut bytes).ok()?;
        Some(bytes)
    };
    let (Some(from), Some(bytes)) = (read(one), read(other)) else { return false };
    from == bytes || one.ends_with(lora::CONFIG) && lora::is_rewritten(&bytes, &from)
}

/// Where links may lead: into the checkpoint's own folder, and into the blobs of a cache it is a snapshot of.
fn trusted(folder: &Path) -> Vec<PathBuf> {
    let Ok(own) = folder.canonicalize() else { return Vec::new() };
    let mut trusted = Vec::new();
    if let Some(snapshots) = own.parent().filter(|parent| parent.ends_with("snapshots"))
        && let Some(model) = snapshots.parent()
    {
        let blobs = model.join("blobs");
        if blobs.symlink_metadata().is_ok_and(|details| details.is_dir()) {
            trusted.push(blobs);
        }
    }
    trusted.push(own);
    trusted
}

fn leads_into(path: &Path, trusted: &[PathBuf]) -> bool {
    path.canonicalize().is_ok_and(|target| trusted.iter().any(|folder| target.starts_with(folder)))
}

fn sidecars_in(
    folder: &Path,
    prefix: &str,
    inside: &[String],
    trusted: &[PathBuf],
    copied: &mut Vec<String>,
    left: &mut Vec<String>,
) {
    for name in inside {
        let name = format!("{prefix}{name}");
        let path = folder.join(&name);
        let Ok(details) = path.symlink_metadata() else { continue };
        let is_weight = ENDINGS
            .iter()
            .chain(&[".h5", ".msgpack", ".onnx", ".index.json", ".gguf", distributed::ENDING])
            .any(|ending| name.ends_with(ending));
        if is_weight || name == distributed::RECORD || prefix.is_empty() && is_training_file(&name) || details.is_dir()
        {
            continue;
        }
        if details.is_symlink() {
            if path.is_dir() {
                continue;
            }
            if !leads_into(&path, trusted) || !path.is_file() {
                left.push(name);
                continue;
            }
        } else if !details.is_file() {
            left.push(name);
            continue;
        }
        if std::fs::metadata(&path).is_ok_and(|details| details.len() <= MOST_SIDECAR) {
            copied.push(name);
        } else {
            left.push(name);
        }
    }
}

/// Copies them: their bytes, and nothing else of them.
pub(super) fn copy(from: &Path, to: &Path) -> Result<()> {
    let trusted = trusted(from);
    for name in sidecars(from)?.0 {
        let (source, target) = (from.join(&name), to.join(&name));
        make_folders_of(&name, to).map_err(FileError::io(&target))?;
        // (Looked at once more, and opened where it really is: a link changed since then leads nowhere new.)
        let real = source.canonicalize().map_err(FileError::io(&source))?;
        if !trusted.iter().any(|folder| real.starts_with(folder)) {
            return Err(FileError::malformed(&source, "a link that leads out of the checkpoint").into());
        }
        let mut bytes = std::io::Read::take(open_plain(&real)?, MOST_SIDECAR + 1);
        let mut file = File::options().write(true).create_new(true).open(&target).map_err(FileError::io(&target))?;
        std::io::copy(&mut bytes, &mut file).map_err(FileError::io(&source))?;
    }
    Ok(())
}
