//! Outputs on their way into a store. Every file is sent in parts first, and only when all parts of all files are there are
//! they given their names: what fails before leaves nothing under any of them.

use std::collections::VecDeque;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use object_store::path::Path as Key;
use object_store::{MultipartUpload, ObjectStoreExt, PutPayload};

use super::{GUARD, Place, Session, StoreError, in_words, known, modified, object_of, wait};
use crate::files::atomic::Existing;
use crate::files::source::read_at;

/// Bytes of a part; a file has at most ten thousand.
const PART: u64 = 8 << 20;
const MOST_PARTS: u64 = 9000;
/// Parts on their way at a time.
const IN_FLIGHT: usize = 8;

/// Whether something is being sent, and is to stop.
struct Sends;

static SENDS: AtomicUsize = AtomicUsize::new(0);
static IS_TO_STOP: AtomicBool = AtomicBool::new(false);
/// How long the parts of what is stopped may take to be taken back.
const STOPS_WITHIN: Duration = Duration::from_secs(5);

impl Sends {
    fn begin() -> Self {
        SENDS.fetch_add(1, Ordering::Relaxed);
        Self
    }

    fn is_to_stop() -> bool {
        IS_TO_STOP.load(Ordering::Relaxed)
    }
}

impl Drop for Sends {
    fn drop(&mut self) {
        SENDS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Whether the process is about to end early.
pub fn is_to_stop() -> bool {
    Sends::is_to_stop()
}

/// Before a process ends early: takes back the parts of what is being sent, as far as that is quickly done.
pub fn stop_sending() {
    IS_TO_STOP.store(true, Ordering::Relaxed);
    let asked = Instant::now();
    while SENDS.load(Ordering::Relaxed) > 0 && asked.elapsed() < STOPS_WITHIN {
        std::thread::sleep(Duration::from_millis(10));
    }
}

struct Sending {
    url: String,
    upload: Box<dyn MultipartUpload>,
}

impl Place {
    /// Refuses what cannot be written to, before there is anything to write.
    pub(super) fn require_writable(&self) -> Result<(), StoreError> {
        if self.scheme.starts_with("http") {
            let reason = "nothing can be written to a web server: s3://, gs:// and az:// are for that";
            return Err(StoreError::Url { url: self.url(), reason: reason.into() });
        }
        let (store, inside) = (self.open()?, Key::from(format!("{}/afterfit", self.key)));
        let names = if self.key.is_empty() { vec![inside] } else { vec![self.name()?, inside] };
        wait(async {
            let mut refused = None;
            // (Who may write into a folder may not write an object of its name.)
            for name in &names {
                match store.put_multipart(name).await {
                    Ok(mut upload) => {
                        // (Nothing was sent: what cannot be taken back has no parts.)
                        let _ = upload.abort().await;
                        return Ok(());
                    }
                    Err(error) => refused = refused.or(Some(error)),
                }
            }
            refused.map_or(Ok(()), |error| Err(self.refused(&error)))
        })
    }
}

/// What makes a checkpoint of the files of a folder.
fn is_list(key: &str) -> bool {
    key.ends_with("index.json") || key.rsplit('/').next() == Some(".metadata")
}

impl Session {
    /// Sends what the command wrote: new files and changed ones. What it removed is removed, too. Returns bytes sent;
    /// `progress` hears of each part and says whether to go on. What cannot be sent is kept on this machine.
    pub fn send(self, existing: Existing, progress: &dyn Fn(u64) -> bool) -> Result<u64, StoreError> {
        let _sending = Sends::begin();
        let progress = |bytes| progress(bytes) && !Sends::is_to_stop();
        self.sent(existing, &progress).map_err(|error| {
            if matches!(error, StoreError::Stopped { .. }) {
                return error;
            }
            let kept =
                self.keep().map(|kept| format!(" (the outputs are kept in {})", kept.display())).unwrap_or_default();
            match error {
                StoreError::Store { url, reason } => StoreError::Store { url, reason: reason + &kept },
                StoreError::Mirror(error) => {
                    StoreError::Mirror(std::io::Error::new(error.kind(), format!("{error}{kept}")))
                }
                error => error,
            }
        })
    }

    /// Objects stay that the command removed: it failed, and may have been at replacing them.
    pub fn remove_nothing(&mut self) {
        self.removes_nothing = true;
    }

    /// What the command removed. An error if it was something else that did: then nobody knows what is missing.
    fn removed(&self) -> Result<Vec<PathBuf>, StoreError> {
        let gone = |path: &&PathBuf| !self.removes_nothing && !path.exists();
        let gone = self.before.keys().filter(gone).cloned().collect();
        match self.root().join(GUARD).exists() {
            true => Ok(gone),
            false => Err(StoreError::Mirror(std::io::Error::new(
                std::io::ErrorKind::NotFound,
                "it was cleared while it was in use, so that nothing is sent",
            ))),
        }
    }

    fn sent(&self, existing: Existing, progress: &dyn Fn(u64) -> bool) -> Result<u64, StoreError> {
        let files = self.written();
        let gone = self.removed()?;
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
            let ready = async {
                self.make_way(existing, &files).await?;
                self.delete(gone.iter().filter(|path| is_list(&path.to_string_lossy()))).await
            };
            if let Err(error) = ready.await {
                return Err(abort(sending, error).await);
            }
            let count = sending.len();
            let mut sending: VecDeque<Sending> = sending.into();
            while let Some(mut next) = sending.pop_front() {
                if let Err(error) = next.upload.complete().await {
                    let mut reason = in_words(&error);
                    if sending.len() + 1 < count {
                        let there = count - sending.len() - 1;
                        reason = format!("{reason} ({there} of {count} files have their names already)");
                    }
                    let error = StoreError::Store { url: next.url.clone(), reason };
                    sending.push_front(next);
                    return Err(abort(sending.into(), error).await);
                }
            }
            self.delete(gone.iter().filter(|path| !is_list(&path.to_string_lossy()))).await?;
            Ok(bytes)
        })
    }

    /// Removes objects that the command removed.
    async fn delete(&self, paths: impl Iterator<Item = &PathBuf>) -> Result<(), StoreError> {
        for path in paths {
            let (Some((key, _)), Some(place)) = (self.before.get(path), self.place_of(path)) else { continue };
            match place.open()?.delete(key).await {
                Ok(()) | Err(object_store::Error::NotFound { .. }) => {}
                Err(error) => return Err(Place { key: key.to_string(), ..place }.refused(&error)),
            }
        }
        Ok(())
    }

    /// Refuses names that were taken in the meantime; takes the old list of files away, so that nobody ever takes new and
    /// old files for one checkpoint.
    async fn make_way(&self, existing: Existing, files: &[(Place, PathBuf)]) -> Result<(), StoreError> {
        for (place, path) in files {
            let is_there = self.before.contains_key(path);
            let (store, key) = (place.open()?, place.name()?);
            if existing == Existing::Keep && !is_there {
                let reason = match store.head(&key).await {
                    Err(object_store::Error::NotFound { .. }) => continue,
                    Err(error) => in_words(&error),
                    Ok(_) => {
                        "was not there when this run began: it is left as it is, and nothing is written under its name"
                            .into()
                    }
                };
                return Err(StoreError::Store { url: place.url(), reason });
            }
            if is_there && files.len() > 1 && is_list(&place.key) {
                match store.delete(&key).await {
                    Ok(()) | Err(object_store::Error::NotFound { .. }) => {}
                    Err(error) => return Err(place.refused(&error)),
                }
            }
        }
        Ok(())
    }

    /// Lays what was made aside under a name that nothing sweeps; where.
    fn keep(mut self) -> Option<PathBuf> {
        known().objects.retain(|path, (_, made)| {
            let is_ours = path.starts_with(self.root());
            if is_ours && modified(path) == Some(*made) {
                let _ = std::fs::remove_file(path);
            }
            !is_ours
        });
        let folder = self.mirror.take()?.folder;
        let kept = folder
            .path()
            .with_file_name(format!("unsent-{}", folder.path().file_name()?.to_str()?.trim_start_matches('.')));
        std::fs::rename(folder.path(), &kept).ok()?;
        Some(kept)
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
        files.sort_by_key(|(place, path)| (is_list(&place.key), path.clone()));
        files.dedup_by(|(_, a), (_, b)| a == b);
        // (Nor is what stands for an object that is gone by now.)
        let is_new = |path: &PathBuf| {
            let is_before = self.before.get(path).is_some_and(|(_, before)| Some(*before) == modified(path));
            !is_before && object_of(path).is_none()
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
    progress: &dyn Fn(u64) -> bool,
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
    let mut failed = None;
    // (An empty file is one empty part.)
    while failed.is_none() && (from < length || from == 0) || !waiting.is_empty() {
        if failed.is_none() && waiting.len() < IN_FLIGHT && (from < length || from == 0) {
            let mut bytes = vec![0; part.min(length - from) as usize];
            if let Err(error) = read_at(&file, &mut bytes, from) {
                failed = Some(local(error));
                continue;
            }
            let count = bytes.len() as u64;
            waiting.push_back((count, tokio::spawn(upload.put_part(PutPayload::from(bytes)))));
            from += count.max(1);
            continue;
        }
        let Some((count, next)) = waiting.pop_front() else { break };
        // (After a failure the parts that are on their way are waited for: what arrives later could not be taken back.)
        let sent = next.await.map_err(object_store::Error::from).and_then(|sent| sent);
        let stopped = || StoreError::Stopped { url: place.url() };
        match sent {
            Ok(()) if progress(count) => {}
            Ok(()) => failed = failed.or_else(|| Some(stopped())),
            Err(error) => failed = failed.or_else(|| Some(refused(error))),
        }
    }
    failed.map_or(Ok(length), Err)
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
