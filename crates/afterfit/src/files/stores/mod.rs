//! Object stores: `s3://`, `gs://`, `az://` and `https://` wherever a path is taken.
//!
//! **A store is a folder whose files are read from elsewhere.** What a command names is listed once and laid out in a temporary
//! folder, the *mirror*: every object is an empty file of its name, length and time, and no bytes. So whatever asks for names, sizes and
//! folders (which files are a checkpoint, which is which step, what is beside them) works as on a disk, and only
//! `open_plain` of `source.rs` knows the difference: it finds an object in the place of a file. Outputs are
//! written into the mirror under their names, and what is new in it is sent when all is done.

mod object;
mod upload;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use futures_util::TryStreamExt;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::http::HttpBuilder;
use object_store::path::Path as Key;
use object_store::{ClientConfigKey, ObjectMeta, ObjectStore, ObjectStoreExt, RetryConfig};
use tempfile::TempDir;
use thiserror::Error;

use super::temporary::{self, Registered};
use super::text::sentence;
pub(crate) use object::{Cursor, Object};
pub use upload::{is_to_stop, stop_sending};

/// Stores by the beginning of their URLs.
const SCHEMES: [&str; 9] = ["s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "https", "http"];
/// Objects below what one argument names.
const MOST_OBJECTS: usize = 100_000;
/// A file of every mirror, older than any other: whatever clears a temporary folder takes it first.
const GUARD: &str = "guard";
/// Bytes of a part of a name on a disk.
const LONGEST_NAME: usize = 255;
/// A request that has not ended by then is sent again (`AWS_TIMEOUT` and its like say otherwise).
const REQUEST: Duration = Duration::from_secs(120);
const CONNECT: Duration = Duration::from_secs(10);
/// How often a request is sent again, and how long after the first time.
const RETRIES: usize = 8;
const GIVE_UP: Duration = Duration::from_secs(600);

/// How many million bytes the blocks of all files may take that are being read, if this variable says so.
const MEMORY: &str = "AFTERFIT_STORE_MB";
/// Else this share of the free memory, where all cores are used; and so much at least.
const MEMORY_SHARE: u64 = 4;
const LEAST_MEMORY: u64 = 64_000_000;

/// What goes wrong with a store.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StoreError {
    /// It is none that is known, or says too much.
    #[error("{url}: {reason}")]
    Url {
        /// As it was given, without what must not be shown.
        url: String,
        /// What is wrong.
        reason: String,
    },
    /// The store refused, or cannot be reached.
    #[error("{url}: {reason}")]
    Store {
        /// Of what.
        url: String,
        /// In its words.
        reason: String,
    },
    /// It was asked to stop before everything was sent.
    #[error("{url}: stopped before everything was sent")]
    Stopped {
        /// Where to.
        url: String,
    },
    /// The variable that says how much memory reading may take says something else.
    #[error("{MEMORY} is `{0}`: it takes a number of megabytes, at least 1")]
    Memory(String),
    /// The folder for the mirror cannot be made.
    #[error("a temporary folder for the store's names: {0}")]
    Mirror(std::io::Error),
}

/// The URL that a path is, if it is one, whether or not its store is known. (Python's paths have one slash where there were
/// two.)
#[must_use]
pub fn url_of(path: &Path) -> Option<String> {
    let (scheme, rest) = path.to_str()?.split_once(":/")?;
    let scheme = scheme.to_ascii_lowercase();
    let is_name = scheme.len() > 1
        && scheme.starts_with(|first: char| first.is_ascii_alphabetic())
        && scheme.chars().all(|one| one.is_ascii_alphanumeric() || "+-.".contains(one));
    let is_url = SCHEMES.contains(&&*scheme) || is_name && rest.starts_with('/');
    is_url.then(|| format!("{scheme}://{}", rest.strip_prefix('/').unwrap_or(rest)))
}

/// What all blocks in memory may take. (A process with some of the cores is one of several as a rule.)
fn memory() -> Result<u64, StoreError> {
    let Some(said) = std::env::var_os(MEMORY) else {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get) as u64;
        let used = (rayon::current_num_threads() as u64).min(cores);
        return Ok((super::free_memory() / MEMORY_SHARE / cores * used).max(LEAST_MEMORY));
    };
    let megabytes = said.to_str().and_then(|text| text.parse::<u32>().ok()).filter(|megabytes| *megabytes > 0);
    let unread = || StoreError::Memory(sentence(&said.to_string_lossy()).into_owned());
    megabytes.map(|megabytes| u64::from(megabytes) * 1_000_000).ok_or_else(unread)
}

/// A URL taken apart.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    scheme: String,
    /// Bucket, container or host.
    bucket: String,
    key: String,
}

impl Place {
    fn parse(url: &str) -> Result<Self, StoreError> {
        let (scheme, rest) = url.split_once("://").unwrap_or_default();
        let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
        // Without what may be a password: it must not be shown.
        let shown = || {
            let last = rest.rsplit_once('@').map_or(rest, |(_, last)| last);
            format!("{scheme}://{}", last.split(['?', '#']).next().unwrap_or_default())
        };
        let error = |reason: &str| Err(StoreError::Url { url: sentence(&shown()).into_owned(), reason: reason.into() });
        if !SCHEMES.contains(&scheme) {
            return error("no store of this name is known: s3://, gs://, az:// and https:// are");
        }
        if bucket.is_empty() {
            return error("no bucket is named: s3://BUCKET/NAME");
        }
        let is_azure = scheme.starts_with("ab") || scheme.starts_with("az");
        let is_web = scheme.starts_with("http");
        let has_user = rest.rsplit_once('@').is_some_and(|(user, _)| user.contains(':'))
            || bucket.contains('@') && !is_azure
            || bucket.split_once(':').is_some_and(|(_, port)| !is_web || port.parse::<u16>().is_err());
        // (In other stores it is part of a pattern.)
        let has_query = rest.split_once('?').is_some_and(|(_, query)| is_azure || is_web || query.contains('='));
        if has_user || has_query || bucket.contains(['?', '#']) {
            return error(
                "a URL with a password or a signature in it would end up in records and histories: give credentials by the usual variables (AWS_ACCESS_KEY_ID, …)",
            );
        }
        let key = match Key::from_url_path(key) {
            Ok(plain) if is_web => plain.to_string(),
            _ => key.strip_suffix('/').unwrap_or(key).to_owned(),
        };
        if key.split('/').any(|part| matches!(part, "." | "..")) || key.contains("//") || key.starts_with('/') {
            return error("names of objects have no . or .. in them here, nor parts without a name (//)");
        }
        Ok(Self { scheme: scheme.into(), bucket: bucket.into(), key })
    }

    fn url(&self) -> String {
        format!("{}://{}/{}", self.scheme, self.bucket, self.key)
    }

    /// Where it is in a mirror.
    fn within(&self, mirror: &Path) -> PathBuf {
        let mut path = mirror.join(&self.scheme);
        path.push(&self.bucket);
        path.extend(self.key.split('/').filter(|part| !part.is_empty()));
        path
    }

    /// With its last part replaced by nothing.
    fn parent(&self) -> Self {
        let key = self.key.rsplit_once('/').map_or("", |(above, _)| above);
        Self { key: key.into(), ..self.clone() }
    }

    /// What to list: itself; of a pattern that is no object's name, the part in front of it.
    fn plain(&self) -> Result<Self, StoreError> {
        let is_pattern = |text: &str| text.contains(['*', '?', '[']);
        if !is_pattern(&self.key) || self.find()?.is_some() {
            return Ok(self.clone());
        }
        let parts = self.key.split('/').take_while(|part| !is_pattern(part));
        Ok(Self { key: parts.collect::<Vec<_>>().join("/"), ..self.clone() })
    }

    fn name(&self) -> Result<Key, StoreError> {
        Key::parse(&self.key).map_err(|error| StoreError::Url { url: self.url(), reason: error.to_string() })
    }

    /// The object of this name, if there is one.
    fn find(&self) -> Result<Option<ObjectMeta>, StoreError> {
        let (store, name) = (self.open()?, self.name()?);
        match wait(store.head(&name)) {
            Ok(object) => Ok(Some(object)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(self.refused(&error)),
        }
    }

    /// A client, with what the usual variables say.
    fn open(&self) -> Result<Arc<dyn ObjectStore>, StoreError> {
        type Clients = BTreeMap<(String, u64), Arc<dyn ObjectStore>>;
        static OPEN: Mutex<Clients> = Mutex::new(BTreeMap::new());
        let name = format!("{}://{}", self.scheme, self.bucket);
        let known = (name.clone(), settings());
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(store) = open.get(&known) {
            return Ok(store.clone());
        }
        // (A secret that was read from a file with its line's end: the client would panic.)
        let is_odd = |value: &std::ffi::OsStr| value.to_str().is_none_or(|text| text.chars().any(char::is_control));
        if let Some((name, _)) = variables().find(|(_, value)| is_odd(value)) {
            let reason = format!("the variable {name} holds a line's end, or another character that is no text");
            return Err(StoreError::Url { url: self.url(), reason });
        }
        let retry = RetryConfig { max_retries: RETRIES, retry_timeout: GIVE_UP, ..RetryConfig::default() };
        // What the variables do not say. (A store of one's own is often spoken to without TLS.)
        let client = |variables: &str, plain: bool| {
            let settings = [
                (ClientConfigKey::Timeout, format!("{} s", REQUEST.as_secs())),
                (ClientConfigKey::ConnectTimeout, format!("{} s", CONNECT.as_secs())),
                (ClientConfigKey::AllowHttp, plain.to_string()),
            ];
            // (Nothing says it of a web server.)
            let is_said = |key: &ClientConfigKey| {
                let name = format!("{variables}{}", key.as_ref().to_ascii_uppercase());
                !variables.is_empty() && std::env::var_os(name).is_some()
            };
            settings.into_iter().filter(move |(key, _)| !is_said(key)).collect::<Vec<_>>()
        };
        // (TLS by ring: nothing but a C compiler is needed to build it.)
        let _ = rustls::crypto::ring::default_provider().install_default();
        let made = match self.scheme.as_str() {
            "s3" | "s3a" => {
                let mut builder = AmazonS3Builder::from_env().with_bucket_name(&self.bucket).with_retry(retry);
                let endpoint = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"];
                let endpoint = endpoint.into_iter().find_map(|name| std::env::var(name).ok());
                let plain = endpoint.as_deref().is_some_and(|endpoint| endpoint.starts_with("http://"));
                for (key, value) in client("AWS_", plain) {
                    builder = builder.with_config(AmazonS3ConfigKey::Client(key), value);
                }
                if let Some(endpoint) = endpoint {
                    builder = builder.with_endpoint(endpoint);
                }
                builder.build().map(|store| Arc::new(store) as Arc<dyn ObjectStore>)
            }
            "gs" => {
                let mut builder =
                    GoogleCloudStorageBuilder::from_env().with_bucket_name(&self.bucket).with_retry(retry);
                for (key, value) in client("GOOGLE_", false) {
                    builder = builder.with_config(GoogleConfigKey::Client(key), value);
                }
                builder.build().map(|store| Arc::new(store) as _)
            }
            "https" | "http" => {
                let mut builder = HttpBuilder::new().with_url(&name).with_retry(retry);
                for (key, value) in client("", self.scheme == "http") {
                    builder = builder.with_config(key, value);
                }
                builder.build().map(|store| Arc::new(store) as _)
            }
            _ => {
                let mut builder = MicrosoftAzureBuilder::from_env().with_url(&name).with_retry(retry);
                for (key, value) in client("AZURE_", false) {
                    builder = builder.with_config(AzureConfigKey::Client(key), value);
                }
                builder.build().map(|store| Arc::new(store) as _)
            }
        };
        let store = made.map_err(|error| self.refused(&error))?;
        // (One that was made with other variables is not asked for again.)
        open.retain(|(bucket, _), _| *bucket != known.0);
        open.insert(known, store.clone());
        Ok(store)
    }

    fn refused(&self, error: &object_store::Error) -> StoreError {
        StoreError::Store { url: self.url(), reason: in_words(error) }
    }

    /// Objects of this name, directly in its folder (unless that is among those `seen`), and below it.
    fn list(&self, seen: &mut BTreeSet<String>) -> Result<Vec<ObjectMeta>, StoreError> {
        let (store, key) = (self.open()?, self.name()?);
        let mut found = Vec::from_iter(if self.key.is_empty() { None } else { self.find()? });
        // A web server has no listings.
        if self.scheme.starts_with("http") {
            return Ok(found);
        }
        let refused = |error| self.refused(&error);
        wait(async {
            let mut below = store.list(Some(&key));
            while let Some(object) = below.try_next().await.map_err(refused)? {
                // (An object `NAME/` is how some tools make a folder.)
                if object.location != key {
                    found.push(object);
                }
                if found.len() > MOST_OBJECTS {
                    let reason = format!("more than {MOST_OBJECTS} objects are below this name: name one further down");
                    return Err(StoreError::Store { url: self.url(), reason });
                }
            }
            // What lies beside an object says which step it is of.
            if found.len() == 1 && found[0].location == key {
                let parent = self.parent();
                if seen.insert(parent.url()) {
                    let folder = parent.name()?;
                    let beside = store.list_with_delimiter(Some(&folder)).await.map_err(refused)?.objects;
                    let is_beside = |object: &ObjectMeta| object.location != key && object.location != folder;
                    found.extend(beside.into_iter().filter(is_beside));
                }
            }
            Ok(found)
        })
    }
}

/// The variables that stores' clients read.
fn variables() -> impl Iterator<Item = (String, std::ffi::OsString)> {
    let is_ours = |name: &String| ["AWS_", "GOOGLE_", "AZURE_"].iter().any(|first| name.starts_with(first));
    std::env::vars_os().filter_map(move |(name, value)| Some((name.into_string().ok().filter(is_ours)?, value)))
}

/// What the variables of stores say, as a number: a client made before they changed is not used after.
fn settings() -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut said: Vec<_> = variables().collect();
    said.sort();
    let mut hasher = DefaultHasher::new();
    said.hash(&mut hasher);
    hasher.finish()
}

/// What a store's answer says of an error, and no more: one about a token may quote it.
fn without_page(text: &str) -> String {
    let plain = text.split(['<', '{']).next().unwrap_or_default().trim_end_matches([' ', ':', '\n']);
    let between = |tag: &str| {
        let (_, rest) = text.split_once(&format!("<{tag}>"))?;
        rest.split_once(&format!("</{tag}>")).map(|(found, _)| found)
    };
    match (between("Code"), between("Message")) {
        (Some(code), message) => {
            format!("{plain}: {code}{}{}", if message.is_some() { ", " } else { "" }, message.unwrap_or_default())
        }
        _ => plain.to_owned(),
    }
}

/// An error of a store in a line; its own text may quote a page of a server's answer.
fn in_words(error: &object_store::Error) -> String {
    use object_store::Error as E;
    let cause = |error: &dyn std::error::Error| {
        let mut last = error.to_string();
        let mut next = error.source();
        while let Some(inner) = next {
            last = inner.to_string();
            next = inner.source();
        }
        sentence(&without_page(&last)).into_owned()
    };
    match error {
        E::NotFound { .. } => "there is no such object or bucket".into(),
        E::PermissionDenied { .. } => "the store refuses access with these credentials".into(),
        E::Unauthenticated { .. } => {
            "the store asks for credentials: set the usual variables (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, …)"
                .into()
        }
        E::Generic { source, .. } if source.to_string().contains("NoSuchBucket") => "there is no such bucket".into(),
        E::Generic { source, .. } => {
            let (text, cause) = (sentence(&without_page(&source.to_string())).into_owned(), cause(&**source));
            if text.contains(&cause) { text } else { format!("{text}: {cause}") }
        }
        other => sentence(&without_page(&other.to_string())).into_owned(),
    }
}

/// Where requests run.
fn runtime() -> &'static tokio::runtime::Runtime {
    static RUNTIME: OnceLock<tokio::runtime::Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        // (A core each for what comes in, checked and decrypted, as far as there are some.)
        let threads = std::thread::available_parallelism().map_or(2, |cores| cores.get().clamp(2, 16));
        let made = builder.worker_threads(threads).thread_name("afterfit-store").enable_all().build();
        #[expect(clippy::expect_used, reason = "a process that cannot start threads cannot go on")]
        made.expect("threads for requests")
    })
}

fn wait<F: Future>(work: F) -> F::Output {
    runtime().block_on(work)
}

/// Mirrors whose names may still be in a message: each is asked for in every line that is printed.
const MOST_MIRRORS: usize = 64;

/// Mirrors in use, and the objects that their files stand for.
#[derive(Debug, Default)]
struct Known {
    mirrors: Vec<PathBuf>,
    /// With the time of the file: one that was written in its place is another.
    objects: BTreeMap<PathBuf, (Arc<Object>, SystemTime)>,
}

impl Known {
    fn remember(&mut self, mirror: PathBuf) {
        if self.mirrors.len() >= MOST_MIRRORS {
            let unused = |old: &PathBuf| !old.exists();
            let unused = self.mirrors.iter().position(unused);
            unused.map(|at| self.mirrors.remove(at));
        }
        self.mirrors.push(mirror);
    }
}

fn known() -> MutexGuard<'static, Known> {
    static KNOWN: OnceLock<Mutex<Known>> = OnceLock::new();
    KNOWN.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether any mirror was ever made: nearly always not, and nobody has to ask further.
static USED: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);

fn is_used() -> bool {
    USED.load(std::sync::atomic::Ordering::Relaxed)
}

/// The object that a file stands for.
pub(super) fn object_of(path: &Path) -> Option<Arc<Object>> {
    if !is_used() {
        return None;
    }
    let (object, made) = known().objects.get(path).cloned()?;
    (modified(path) == Some(made)).then_some(object)
}

fn modified(path: &Path) -> Option<SystemTime> {
    path.metadata().and_then(|details| details.modified()).ok()
}

/// Whether a path is one of a mirror.
#[cfg(feature = "checkpoints")]
pub(super) fn is_mirrored(path: &Path) -> bool {
    is_used() && known().mirrors.iter().any(|mirror| path.starts_with(mirror))
}

/// Text in which places in a mirror are named by what they stand for.
#[must_use]
pub fn by_url(text: &str) -> std::borrow::Cow<'_, str> {
    let mut shown = std::borrow::Cow::Borrowed(text);
    if is_used() {
        for mirror in &known().mirrors {
            let mirror = mirror.to_string_lossy();
            if shown.contains(&*mirror) {
                let mut text = shown.into_owned();
                for scheme in SCHEMES {
                    text = text.replace(&format!("{mirror}/{scheme}/"), &format!("{scheme}://"));
                }
                shown = std::borrow::Cow::Owned(text);
            }
        }
    }
    shown
}

thread_local! {
    /// What this thread's command named, before it begins.
    static NAMED: RefCell<Option<Session>> = const { RefCell::new(None) };
}

/// The folder that stands for stores.
#[derive(Debug)]
struct Mirror {
    folder: TempDir,
    /// Says to others that it is in use.
    _lock: Option<File>,
    _registered: Registered,
}

/// What a command reads from stores and writes to them.
#[derive(Debug, Default)]
pub struct Session {
    mirror: Option<Mirror>,
    /// The first URL that is none.
    refused: Option<StoreError>,
    inputs: Vec<Place>,
    outputs: Vec<Place>,
    /// Where only a file will do.
    misplaced: Vec<Place>,
    /// What is laid out for the outputs: it was there before.
    before: BTreeMap<PathBuf, (Key, SystemTime)>,
    /// Whether objects stay that the command removed.
    removes_nothing: bool,
}

/// A URL among a command's inputs, as the file or folder it will be once [`Session::lay_out`] was called, which also says
/// what is wrong with it.
#[must_use]
pub fn input(url: &str) -> PathBuf {
    name(url, |session| &mut session.inputs)
}

/// A URL among a command's outputs: where to write it, once [`Session::lay_out`] was called.
#[must_use]
pub fn output(url: &str) -> PathBuf {
    name(url, |session| &mut session.outputs)
}

/// A URL where only a file will do: what [`Session::lay_out`] refuses.
#[must_use]
pub fn elsewhere(url: &str) -> PathBuf {
    name(url, |session| &mut session.misplaced)
}

/// A file, or what stands for an object as long as the session lasts.
pub fn at_hand(path: PathBuf) -> Result<(PathBuf, Option<Session>), StoreError> {
    at_place(path, input)
}

/// Where to write a file, or what is sent when its session is told to.
pub fn on_its_way(path: PathBuf) -> Result<(PathBuf, Option<Session>), StoreError> {
    at_place(path, output)
}

fn at_place(path: PathBuf, named: impl FnOnce(&str) -> PathBuf) -> Result<(PathBuf, Option<Session>), StoreError> {
    let Some(url) = url_of(&path) else { return Ok((path, None)) };
    let path = named(&url);
    let mut session = Session::take();
    if let Some(session) = &mut session {
        session.lay_out()?;
    }
    Ok((path, session))
}

fn name(url: &str, list: impl FnOnce(&mut Session) -> &mut Vec<Place>) -> PathBuf {
    NAMED.with_borrow_mut(|named| {
        let session = named.get_or_insert_default();
        let known = Place::parse(url).and_then(|place| Ok((place.within(session.mirror()?), place)));
        match known {
            Ok((path, place)) => {
                let places = list(session);
                if !places.contains(&place) {
                    places.push(place);
                }
                // (A folder by its name, as on a disk.)
                if url.ends_with('/') { path.join("") } else { path }
            }
            Err(error) => {
                session.refused.get_or_insert(error);
                PathBuf::new()
            }
        }
    })
}

impl Session {
    /// The folder that stands for stores, made when it is first asked for.
    fn mirror(&mut self) -> Result<&Path, StoreError> {
        if self.mirror.is_none() {
            // (Its real name: others compare it with those of files.)
            let home = std::env::temp_dir().canonicalize().map_err(StoreError::Mirror)?;
            let (folder, lock, registered) = temporary::folder(&home).map_err(StoreError::Mirror)?;
            // Outputs lie in it for a while, in a place that is everybody's.
            #[cfg(unix)]
            {
                use std::os::unix::fs::PermissionsExt;
                let own = std::fs::Permissions::from_mode(0o700);
                std::fs::set_permissions(folder.path(), own).map_err(StoreError::Mirror)?;
            }
            let guard = File::create(folder.path().join(GUARD)).map_err(StoreError::Mirror)?;
            guard.set_modified(SystemTime::UNIX_EPOCH).map_err(StoreError::Mirror)?;
            USED.store(true, std::sync::atomic::Ordering::Relaxed);
            known().remember(folder.path().into());
            self.mirror = Some(Mirror { folder, _lock: lock, _registered: registered });
        }
        Ok(self.root())
    }

    fn root(&self) -> &Path {
        self.mirror.as_ref().map_or(Path::new(""), |mirror| mirror.folder.path())
    }

    /// What this thread named so far, if anything.
    #[must_use]
    pub fn take() -> Option<Self> {
        NAMED.take()
    }

    /// Lists what was named, so that it can be found.
    pub fn lay_out(&mut self) -> Result<(), StoreError> {
        if let Some(error) = self.refused.take() {
            return Err(error);
        }
        if let Some(place) = self.misplaced.first() {
            let reason = "it must be on this machine: copy it here first";
            return Err(StoreError::Url { url: place.url(), reason: reason.into() });
        }
        object::set_memory(memory()?);
        let mut seen = BTreeSet::new();
        for place in self.inputs.clone() {
            let listed = place.plain()?;
            let found = listed.list(&mut seen)?;
            self.stand_in(&listed, &found)?;
        }
        for place in self.outputs.clone() {
            place.require_writable()?;
            let above = place.within(self.root());
            std::fs::create_dir_all(above.parent().unwrap_or(&above)).map_err(StoreError::Mirror)?;
            let found = place.list(&mut seen)?;
            self.stand_in(&place, &found)?;
            let root = place.within(self.root());
            for object in &found {
                let path = Place { key: object.location.to_string(), ..place.clone() }.within(self.root());
                if path.starts_with(&root)
                    && let Some(modified) = modified(&path)
                {
                    self.before.insert(path, (object.location.clone(), modified));
                }
            }
        }
        Ok(())
    }

    /// Empty files for objects.
    fn stand_in(&self, place: &Place, found: &[ObjectMeta]) -> Result<(), StoreError> {
        let store = place.open()?;
        // (A name that others have in front of theirs is how some tools make a folder.)
        let above = |object: &ObjectMeta| {
            let key = object.location.as_ref();
            let ends = key.match_indices('/').map(|(at, _)| key[..at].to_owned());
            ends.collect::<Vec<_>>()
        };
        let folders: BTreeSet<String> = found.iter().flat_map(above).collect();
        for object in found {
            let key = object.location.to_string();
            let is_folder = folders.contains(&key);
            let place = Place { key, ..place.clone() };
            let path = place.within(self.root());
            // (What no file can be named after is no checkpoint.)
            if path.exists() || place.key.split('/').any(|part| part.len() > LONGEST_NAME) {
                continue;
            }
            let made = || {
                if is_folder {
                    return std::fs::create_dir_all(&path);
                }
                std::fs::create_dir_all(path.parent().unwrap_or(&path))?;
                let file = File::create(&path)?;
                file.set_len(object.size)?;
                file.set_modified(object.last_modified.into())
            };
            made().map_err(|error| StoreError::Store {
                url: place.url(),
                reason: format!("there cannot be a file of this name: {error}"),
            })?;
            if let Some(made) = modified(&path).filter(|_| !is_folder) {
                known().objects.insert(path, (Arc::new(Object::new(store.clone(), object)), made));
            }
        }
        Ok(())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let Some(mirror) = &self.mirror else { return };
        let mut known = known();
        let mirror = mirror.folder.path();
        // (The mirror keeps its name: errors may still tell of what was in it.)
        known.objects.retain(|path, _| !path.starts_with(mirror));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn urls_are_taken_apart_and_secrets_are_refused_unseen() {
        let place = Place::parse("s3://bucket/run/step-1/").unwrap();
        assert_eq!((place.bucket.as_str(), place.key.as_str()), ("bucket", "run/step-1"));
        assert_eq!(place.within(Path::new("/m")), Path::new("/m/s3/bucket/run/step-1"));
        assert_eq!(Place::parse("https://host:8080/my%20model.pt").unwrap().key, "my model.pt");
        assert!(Place::parse("s3://b/step-?.pt").is_ok() && Place::parse("az://container/x").is_ok());
        let hadoop = "abfss://container@account.dfs.core.windows.net/x";
        assert!(Place::parse(hadoop).unwrap().open().is_ok());
        assert!(Place::parse("abfss://container@account/x").unwrap().open().is_err());
        let refused = |url: &str| Place::parse(url).unwrap_err().to_string();
        for url in [
            "https://host/x.pt?X-Amz-Signature=hush",
            "https://hush@host/x.pt",
            "s3://b/x.pt?X-Amz-Signature=hush",
            "s3://key:hush@bucket/x",
            "s3://key:hu/hush@bucket/x",
            "s3://key:hush/x",
            "abfss://container:hush@account/x",
        ] {
            let error = refused(url);
            assert!((!error.contains("hush") || url.ends_with("hush/x")) && error.contains("credentials"), "{error}");
        }
        for url in ["s3:///x", "s3://b/a/../b", "s3://b//x", "s3://b/a//x", "hf://b/x"] {
            refused(url);
        }
        let url = |text: &str| url_of(Path::new(text));
        assert_eq!(url("gs:/b/x"), Some("gs://b/x".into()));
        assert_eq!((url("C:/b"), url("./s3://x"), url("gs://b/x")), (None, None, Some("gs://b/x".into())));
        assert_eq!(
            (url("HTTPS://b/x"), url("hf://b/x"), url("a:/x")),
            (Some("https://b/x".into()), Some("hf://b/x".into()), None)
        );
    }

    #[test]
    fn answers_of_stores_are_quoted_without_their_pages() {
        let page = "status code: 400 Bad Request: <?xml?><Error><Code>ExpiredToken</Code><Message>It is old.</Message><Token-0>hush</Token-0></Error>";
        assert_eq!(without_page(page), "status code: 400 Bad Request: ExpiredToken, It is old.");
        assert_eq!(without_page("refused: {\"token\": \"hush\"}"), "refused");
    }
}
