//! What is written: with whose permissions, over what, out of which files, and what becomes of temporary ones.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use afterfit::checkpoint::{Average, DialSetting, Format, Layout, Series, sidecars};
use afterfit::dial::DialFile;
use afterfit::files::FileError;
use afterfit::files::atomic::{self, Draft, Existing, FolderDraft};
use afterfit::files::safetensors::write_safetensors;
use afterfit::{Answer, Groups, Nodes, Optimizer, PathInfo, Rates, Target};
use safetensors::Dtype;

use crate::checkpoints::{PLAIN, write};

/// Checkpoints of one tensor, saved as files.
fn saved(folder: &Path, models: &[&[f32]]) -> Vec<PathBuf> {
    let save = |(k, values): (usize, &&[f32])| {
        let path = folder.join(format!("step-{k}.safetensors"));
        let tensors = [("w".to_owned(), Dtype::F32, vec![values.len()])];
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        write_safetensors(&path, &tensors, &Default::default(), &mut |_, file| file.write_all(&bytes)).unwrap();
        path
    };
    models.iter().enumerate().map(save).collect()
}

/// A header that no reader takes is refused while there is nothing to lose.
#[test]
fn headers_beyond_what_is_read_are_not_written() {
    let here = tempfile::tempdir().unwrap();
    let path = here.path().join("long.safetensors");
    let tensors = [("x".repeat(100_000_000), Dtype::F32, vec![0])];
    let error = write_safetensors(&path, &tensors, &Default::default(), &mut |_, _| Ok(())).unwrap_err();
    assert!(error.to_string().contains("and readers take 100000000"), "{error}");
    assert!(names(here.path()).is_empty());
}

fn bits(file: &Path) -> Vec<u32> {
    let bytes = std::fs::read(file).unwrap();
    let found = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    found.tensor("w").unwrap().data().chunks(4).map(|b| u32::from_le_bytes(b.try_into().unwrap())).collect()
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Writes with something happening in the middle.
fn write_while(series: &Series, path: &Path, layout: &Layout, then: &(dyn Fn() + Sync)) -> Result<(), String> {
    let once = std::sync::Once::new();
    let average = Average { path: path.into(), weights: vec![vec![0.5, 0.5]], record: "{}".into() };
    let written = series.write(&[average], layout, &|_| once.call_once(then));
    assert!(once.is_completed());
    written.map(drop).map_err(|error| error.to_string())
}

#[test]
fn what_appears_during_a_run_is_never_replaced_unasked() {
    let here = tempfile::tempdir().unwrap();
    let at = |name: &str| here.path().join(name);
    let series = Series::open(&saved(here.path(), &[&[1.0; 8], &[3.0; 8]]), None, &[]).unwrap();
    let keep = Layout { existing: Existing::Keep, ..PLAIN };
    let sharded = Layout { shard_bytes: Some(16), ..keep.clone() };
    let make_folder = |name: &str| {
        std::fs::create_dir(at(name)).unwrap();
        std::fs::write(at(name).join("precious"), name).unwrap();
    };
    // A file, under a file's name and under a folder's; a folder, under both.
    for layout in [&keep, &sharded] {
        let error = write_while(&series, &at("a"), layout, &|| std::fs::write(at("a"), "precious").unwrap());
        assert!(error.unwrap_err().contains("appeared or was replaced during this run"));
        assert_eq!(std::fs::read_to_string(at("a")).unwrap(), "precious");
        std::fs::remove_file(at("a")).unwrap();
        let error = write_while(&series, &at("b"), layout, &|| make_folder("b"));
        assert!(error.unwrap_err().contains("appeared or was replaced during this run"));
        assert_eq!(names(&at("b")), ["precious"]);
        std::fs::remove_dir_all(at("b")).unwrap();
    }
    // An empty folder is nothing to lose. Of several outputs none appears if one cannot.
    write_while(&series, &at("c"), &sharded, &|| std::fs::create_dir(at("c")).unwrap()).unwrap();
    assert!(at("c/model.safetensors").exists());
    let average = |name: &str| Average { path: at(name), weights: vec![vec![0.5, 0.5]], record: "{}".into() };
    let appear = |_| std::fs::write(at("e.safetensors"), "precious").unwrap();
    series.write(&[average("d.safetensors"), average("e.safetensors")], &keep, &appear).unwrap_err();
    assert!(!at("d.safetensors").exists());
    // Forced, a file is replaced whenever it came, and a folder only if it is the one that was there.
    let force = Layout { existing: Existing::Replace, ..keep };
    write_while(&series, &at("e.safetensors"), &force, &|| std::fs::write(at("e.safetensors"), "x").unwrap()).unwrap();
    assert_eq!(bits(&at("e.safetensors"))[0], 2.0_f32.to_bits());
    let force = Layout { existing: Existing::Replace, ..sharded };
    make_folder("f");
    write_while(&series, &at("f"), &force, &|| ()).unwrap();
    assert_eq!(names(&at("f")), ["model.safetensors"]);
    // (Windows does not tell one folder from another that has its name.)
    #[cfg(unix)]
    {
        let swap = || {
            std::fs::rename(at("f"), at("g")).unwrap();
            make_folder("f");
        };
        assert!(
            write_while(&series, &at("f"), &force, &swap)
                .unwrap_err()
                .contains("appeared or was replaced during this run")
        );
        assert_eq!((names(&at("f")), names(&at("g"))), (vec!["precious".into()], vec!["model.safetensors".into()]));
        // Also where the system gives the new folder the old one's number: its entries have changed since.
        let add = || std::fs::write(at("g/precious"), "mine").unwrap();
        assert!(
            write_while(&series, &at("g"), &force, &add)
                .unwrap_err()
                .contains("appeared or was replaced during this run")
        );
        assert_eq!(names(&at("g")), ["model.safetensors", "precious"]);
    }
    // Models and dials, too; nothing temporary stays.
    let error = atomic::write(&at("e.safetensors"), b"x", Existing::Keep).unwrap_err();
    assert!(matches!(error, FileError::Appeared { .. }), "{error}");
    assert!(names(here.path()).iter().all(|name| !name.starts_with(".afterfit-")));
}

#[test]
fn inputs_that_change_during_a_run_are_named() {
    let here = tempfile::tempdir().unwrap();
    let at = |name: &str| here.path().join(name);
    let paths = saved(here.path(), &[&[1.0; 8], &[3.0; 8]]);
    let series = Series::open(&paths, None, &[]).unwrap();
    let touch = || {
        let mut file = std::fs::File::options().append(true).open(&paths[1]).unwrap();
        file.write_all(b"more").unwrap();
    };
    let error = write_while(&series, &at("out.safetensors"), &PLAIN, &touch).unwrap_err();
    assert!(error.contains("step-1.safetensors changed while it was read") && error.contains("bytes"), "{error}");
    assert!(!at("out.safetensors").exists());
    // Replaced or removed is not changed: what was opened is still what is read.
    let paths = saved(here.path(), &[&[1.0; 8], &[3.0; 8]]);
    let series = Series::open(&paths, None, &[]).unwrap();
    write_while(&series, &at("out.safetensors"), &PLAIN, &|| std::fs::remove_file(&paths[1]).unwrap()).unwrap();
    assert_eq!(bits(&at("out.safetensors")), [2.0_f32.to_bits(); 8]);
}

#[test]
fn what_never_changed_comes_out_bit_for_bit_also_minus_zero() {
    let here = tempfile::tempdir().unwrap();
    let at = |name: &str| here.path().join(name);
    let model = |moves: f32| vec![-0.0_f32, 0.0, 1e-42, -1.5, moves];
    let models = [model(1.0), model(2.0), model(4.0)];
    let paths = saved(here.path(), &models.iter().map(Vec::as_slice).collect::<Vec<_>>());
    let series = Series::open(&paths, None, &[]).unwrap();
    let expected: Vec<u32> = model(0.0)[..4].iter().map(|value| value.to_bits()).collect();
    for (at_, weights) in [[0.2, 0.3, 0.5], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [-1.0, 1.0, 1.0]].iter().enumerate() {
        let out = at(&format!("{at_}.safetensors"));
        write(&series, weights, &out, &PLAIN).unwrap();
        assert_eq!(bits(&out)[..4], expected, "{weights:?}");
    }
    let (nodes, kept) = (Nodes::new(0.1, 1.0, 4).unwrap(), [0, 5, 10]);
    let groups = Groups::new(vec![PathInfo::new(Optimizer::Sgd, Rates::constant(0.1, 10))]).unwrap();
    let existing = Existing::Keep;
    let setting = DialSetting { nodes: &nodes, groups: &groups, kept: &kept, remarks: &[], doubt: None, existing };
    series.write_dial(&at("run.dial"), &setting, None, &|_| {}).unwrap();
    let dial = DialFile::open(&at("run.dial")).unwrap();
    let mut averages = [Average { path: at("read.safetensors"), weights: Vec::new(), record: "{}".into() }];
    let series = dial.series(&at("run.dial"));
    dial.write(&series, &[Target::L2(0.3)], Answer::Regularized, &mut averages, &PLAIN, &|_| {}).unwrap();
    assert_eq!(bits(&at("read.safetensors"))[..2], expected[..2]);
}

#[test]
fn a_tensor_that_safetensors_cannot_name_is_refused_by_name() {
    let here = tempfile::tempdir().unwrap();
    let at = |name: &str| here.path().join(name);
    for k in 0..2 {
        let mut zip = zip::ZipWriter::new(std::fs::File::create(at(&format!("step-{k}.npz"))).unwrap());
        for name in ["__metadata__", "w"] {
            zip.start_file(format!("{name}.npy"), zip::write::SimpleFileOptions::default()).unwrap();
            let header = format!("{:<117}\n", "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }");
            zip.write_all(b"\x93NUMPY\x01\x00\x76\x00").unwrap();
            zip.write_all(header.as_bytes()).unwrap();
            zip.write_all(&(k as f32).to_le_bytes()).unwrap();
        }
        zip.finish().unwrap();
    }
    let series = Series::open(&[at("step-0.npz"), at("step-1.npz")], None, &[]).unwrap();
    for layout in [PLAIN, Layout { shard_bytes: Some(4), ..PLAIN }] {
        let error = write(&series, &[0.5, 0.5], &at("out.safetensors"), &layout).unwrap_err().to_string();
        assert!(error.contains("tensor __metadata__") && error.contains("--format pt"), "{error}");
        assert!(!at("out.safetensors").exists());
    }
    for (name, format) in [("out.npz", Format::Npz), ("out.pt", Format::Torch)] {
        write(&series, &[0.5, 0.5], &at(name), &Layout { format, ..PLAIN }).unwrap();
        assert_eq!(Series::open(&[at(name)], None, &[]).unwrap().tensors.len(), 2);
    }
    // A dial's tensors have names of their own.
    let nodes = Nodes::new(0.1, 1.0, 4).unwrap();
    let groups = Groups::new(vec![PathInfo::new(Optimizer::Sgd, Rates::constant(0.1, 10))]).unwrap();
    let existing = Existing::Keep;
    let setting = DialSetting { nodes: &nodes, groups: &groups, kept: &[0, 10], remarks: &[], doubt: None, existing };
    series.write_dial(&at("run.dial"), &setting, None, &|_| {}).unwrap();
    assert_eq!(DialFile::open(&at("run.dial")).unwrap().parts.len(), 2);
}

#[cfg(unix)]
mod unix {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    /// A sharded checkpoint folder.
    fn checkpoint(folder: &Path) {
        std::fs::create_dir_all(folder).unwrap();
        saved(folder, &[&[1.0; 8]]);
        std::fs::rename(folder.join("step-0.safetensors"), folder.join("model.safetensors")).unwrap();
    }

    #[test]
    fn links_lead_nowhere_outside_of_the_checkpoint() {
        let here = tempfile::tempdir().unwrap();
        let at = |name: &str| here.path().join(name);
        std::fs::write(at("secret"), "secret").unwrap();
        // Hugging Face's layout: links into blobs are followed, others are not.
        let snapshot = at("models--x/snapshots/0a1b");
        checkpoint(&snapshot);
        std::fs::create_dir(at("models--x/blobs")).unwrap();
        std::fs::write(at("models--x/blobs/beef"), "{}").unwrap();
        symlink("../../blobs/beef", snapshot.join("config.json")).unwrap();
        symlink("config.json", snapshot.join("same.json")).unwrap();
        symlink("/proc/self/environ", snapshot.join("vocab.txt")).unwrap();
        symlink("../../../secret", snapshot.join("merges.txt")).unwrap();
        symlink("/etc/passwd", at("models--x/blobs/evil")).unwrap();
        symlink("../../blobs/evil", snapshot.join("chat.txt")).unwrap();
        let sort = |(mut copied, mut left): (Vec<String>, Vec<String>)| {
            copied.sort();
            left.sort();
            (copied, left)
        };
        let (copied, left) = sort(sidecars(&snapshot).unwrap());
        assert_eq!(copied, ["config.json", "same.json"]);
        assert_eq!(left, ["chat.txt", "merges.txt", "vocab.txt"]);
        // A file's permissions are not taken along.
        std::fs::write(snapshot.join("run.sh"), "id").unwrap();
        std::fs::set_permissions(snapshot.join("run.sh"), std::fs::Permissions::from_mode(0o6755)).unwrap();
        let series = Series::open(std::slice::from_ref(&snapshot), None, &[]).unwrap();
        write(&series, &[1.0], &at("out"), &PLAIN).unwrap();
        assert_eq!(names(&at("out")), ["config.json", "model.safetensors", "run.sh", "same.json"]);
        assert!(at("out/config.json").symlink_metadata().unwrap().is_file());
        let mode = at("out/run.sh").metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o7111, 0, "{mode:o}");
        // A cache whose blobs are a link is none, and neither is a folder of another name.
        std::fs::rename(at("models--x/blobs"), at("elsewhere")).unwrap();
        symlink(at("elsewhere"), at("models--x/blobs")).unwrap();
        assert_eq!(sort(sidecars(&snapshot).unwrap()).0, ["run.sh"]);
        checkpoint(&at("a/b/c"));
        std::fs::create_dir(at("a/blobs")).unwrap();
        std::fs::write(at("a/blobs/beef"), "{}").unwrap();
        symlink("../../blobs/beef", at("a/b/c/config.json")).unwrap();
        assert_eq!(sidecars(&at("a/b/c")).unwrap().1, ["config.json"]);
        // A subfolder that is a link out is left alone whole.
        checkpoint(&at("pipe/unet"));
        std::fs::write(at("pipe/model_index.json"), "{\"unet\":[\"d\",\"U\"],\"vae\":[\"d\",\"V\"]}").unwrap();
        std::fs::create_dir(at("outside")).unwrap();
        std::fs::write(at("outside/config.json"), "secret").unwrap();
        symlink(at("outside"), at("pipe/vae")).unwrap();
        let (copied, _) = sidecars(&at("pipe")).unwrap();
        assert!(!copied.iter().any(|name| name.starts_with("vae")), "{copied:?}");
    }

    fn age(path: &Path, hours: u64) {
        let then = SystemTime::now() - Duration::from_secs(3600 * hours);
        std::fs::File::open(path).unwrap().set_modified(then).unwrap();
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_sweep_takes_what_killed_runs_left_and_nothing_alive() {
        let here = tempfile::tempdir().unwrap();
        let at = |name: &str| here.path().join(name);
        let boot: String = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
        let boot: String = boot.chars().filter(char::is_ascii_hexdigit).take(12).collect();
        // Alive: locked, however old. (The lock is the kernel's: it holds in every namespace.)
        let (file, folder) =
            (Draft::create(&at("x"), Existing::Keep).unwrap(), FolderDraft::create(&at("y"), Existing::Keep).unwrap());
        let living = names(here.path());
        assert_eq!(living.len(), 2);
        assert!(living.iter().all(|name| name.starts_with(&format!(".afterfit-{boot}-"))), "{living:?}");
        std::fs::write(folder.folder().join("shard"), "x").unwrap();
        age(&folder.folder().join("shard"), 100);
        living.iter().for_each(|name| age(&at(name), 100));
        let make = |name: &str, hours: u64| {
            std::fs::write(at(name), "x").unwrap();
            age(&at(name), hours);
        };
        let make_folder = |name: &str, hours: u64, inside: u64| {
            std::fs::create_dir(at(name)).unwrap();
            std::fs::write(at(name).join("shard"), "x").unwrap();
            age(&at(name).join("shard"), inside);
            age(&at(name), hours);
        };
        make(&format!(".afterfit-{boot}-dead"), 1);
        make(&format!(".afterfit-{boot}-young"), 0);
        make(".afterfit-0123456789ab-other", 2);
        make(".afterfit-0123456789ab-gone", 30);
        make_folder(&format!(".afterfit-{boot}-killed"), 2, 2);
        make_folder(&format!(".afterfit-{boot}-writing"), 2, 0);
        make_folder(".afterfit-0123456789ab-far", 30, 3);
        make("notes.txt", 100);
        symlink("notes.txt", at(&format!(".afterfit-{boot}-link"))).unwrap();
        atomic::write(&at("new"), b"x", Existing::Keep).unwrap();
        let mut expected = living;
        expected.extend([
            format!(".afterfit-{boot}-young"),
            format!(".afterfit-{boot}-writing"),
            format!(".afterfit-{boot}-link"),
            ".afterfit-0123456789ab-other".into(),
            ".afterfit-0123456789ab-far".into(),
            "notes.txt".into(),
            "new".into(),
        ]);
        expected.sort();
        assert_eq!(names(here.path()), expected);
        drop((file, folder));
        assert_eq!(names(here.path()).len(), expected.len() - 2);
    }
}
