//! Outputs on their way into a store. Every file is sent in parts first, and only when all parts of all files are there are
//! they given their names: what fails before leaves nothing under any of them.

use std::collections::VecDeque;
use std::fs::File;
use std::path::{Path, PathBuf};

use object_store::path::Path as Key;
use object_store::{MultipartUpload, ObjectStoreExt, PutPayload};

use super::{Place, Session, StoreError, in_words, wait};
use crate::files::atomic::Existing;
use crate::files::source::read_at;

/// Bytes of a part; a file has at most ten thousand.
const PART: u64 = 8 << 20;
const MOST_PARTS: u64 = 9000;
/// Parts on their way at a time.
const IN_FLIGHT: usize = 8;

struct Sending {
    url: String,
    upload: Box<dyn MultipartUpload>,
}

impl Session {
    /// Sends what the command wrote: new files and changed ones. What it removed is removed, too. Returns bytes sent;
    /// `progress` hears of each part.
    pub fn send(self, existing: Existing, progress: &dyn Fn(u64)) -> Result<u64, StoreError> {
        let files = self.written();
        let gone: Vec<PathBuf> = self.before.keys().filter(|path| !path.exists()).cloned().collect();
        wait(async {
            let mut sending = Vec::new();
            let mut bytes = 0;
            for (place, path) in &files {
                let sent = match send_parts(place, path, progress, &mut sending).await {
                    Ok(sent) => sent,
                    Err(error) => return Err(abort(sending, error).await),
                };
                bytes += sent;
            }
            if existing == Existing::Keep {
                for (place, path) in &files {
                    if self.before.contains_key(path) {
                        continue;
                    }
                    let at = Key::from(place.key.as_str());
                    if place.open()?.head(&at).await.is_ok() {
                        let reason = "was not there when this run began: it is left as it is, and nothing is written under its name";
                        let error = StoreError::Store { url: place.url(), reason: reason.into() };
                        return Err(abort(sending, error).await);
                    }
                }
            }
            let mut sending: VecDeque<Sending> = sending.into();
            while let Some(mut next) = sending.pop_front() {
                if let Err(error) = next.upload.complete().await {
                    let error = StoreError::Store { url: next.url.clone(), reason: in_words(&error) };
                    sending.push_front(next);
                    return Err(abort(sending.into(), error).await);
                }
            }
            for path in gone {
                let Some((key, _)) = self.before.get(&path) else { continue };
                let place = self.place_of(&path).map(|place| Place { key: key.to_string(), ..place });
                if let Some(place) = place {
                    place.open()?.delete(key).await.map_err(|error| place.refused(&error))?;
                }
            }
            Ok(bytes)
        })
    }

    /// Bytes of what is to be sent.
    #[must_use]
    pub fn bytes_to_send(&self) -> u64 {
        let size = |path: &PathBuf| path.metadata().map_or(0, |details| details.len());
        self.written().iter().map(|(_, path)| size(path)).sum()
    }

    /// What the command wrote: files that were not there before, and those that are others now.
    fn written(&self) -> Vec<(Place, PathBuf)> {
        let mut files = Vec::new();
        for place in &self.outputs {
            let mut found = Vec::new();
            walk(&place.within(self.root()), &mut found);
            for path in found {
                let inside = path.strip_prefix(self.root().join(&place.scheme).join(&place.bucket));
                let key = inside.ok().and_then(Path::to_str).unwrap_or_default().replace('\\', "/");
                files.push((Place { key, ..place.clone() }, path));
            }
        }
        // A folder of shards is one when its index is there.
        files.sort_by_key(|(place, path)| (place.key.ends_with(".index.json"), path.clone()));
        files.dedup_by(|(_, a), (_, b)| a == b);
        let is_new = |path: &PathBuf| {
            let modified = path.metadata().and_then(|details| details.modified()).ok();
            self.before.get(path).is_none_or(|(_, before)| Some(*before) != modified)
        };
        files.retain(|(_, path)| is_new(path));
        files
    }

    /// Whether anything is to be sent at all.
    #[must_use]
    pub fn has_outputs(&self) -> bool {
        !self.outputs.is_empty()
    }

    fn place_of(&self, path: &Path) -> Option<Place> {
        let mut parts = path.strip_prefix(self.root()).ok()?.iter().map(|part| part.to_str());
        let (scheme, bucket) = (parts.next()??.to_owned(), parts.next()??.to_owned());
        Some(Place { scheme, bucket, key: String::new() })
    }
}

async fn send_parts(
    place: &Place,
    path: &Path,
    progress: &dyn Fn(u64),
    sending: &mut Vec<Sending>,
) -> Result<u64, StoreError> {
    let refused = |error: object_store::Error| place.refused(&error);
    let local = |error| StoreError::Store { url: place.url(), reason: format!("the file to send: {error}") };
    let store = place.open()?;
    let key = Key::parse(&place.key).map_err(|error| refused(error.into()))?;
    let file = File::open(path).map_err(local)?;
    let length = file.metadata().map_err(local)?.len();
    let upload = store.put_multipart(&key).await.map_err(refused)?;
    sending.push(Sending { url: place.url(), upload });
    let Some(Sending { upload, .. }) = sending.last_mut() else { return Ok(0) };
    let part = PART.max(length.div_ceil(MOST_PARTS));
    let mut waiting = VecDeque::new();
    let mut from = 0;
    // (An empty file is one empty part.)
    while from < length || from == 0 {
        let mut bytes = vec![0; part.min(length - from) as usize];
        read_at(&file, &mut bytes, from).map_err(local)?;
        let count = bytes.len() as u64;
        waiting.push_back((count, tokio::spawn(upload.put_part(PutPayload::from(bytes)))));
        from += count.max(1);
        while waiting.len() >= IN_FLIGHT || (from >= length && !waiting.is_empty()) {
            let Some((count, next)) = waiting.pop_front() else { break };
            match next.await {
                Ok(sent) => sent.map_err(refused)?,
                Err(error) => return Err(refused(error.into())),
            }
            progress(count);
        }
    }
    Ok(length)
}

/// Takes back what was sent.
async fn abort(sending: Vec<Sending>, error: StoreError) -> StoreError {
    for mut one in sending {
        // (What cannot be taken back is parts without a name, which stores remove by a rule.)
        let _ = one.upload.abort().await;
    }
    error
}

/// Files below, or the file itself. (What cannot be listed was not written.)
fn walk(path: &Path, found: &mut Vec<PathBuf>) {
    if path.is_file() {
        found.push(path.into());
    }
    for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
        walk(&entry.path(), found);
    }
}
