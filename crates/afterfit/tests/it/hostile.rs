//! Files made to hurt: each is refused with a clear message, in bounded time and memory, with nothing written.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use afterfit::checkpoint::{Checkpoint, Layout, Series, expand, fuzzing};
use afterfit::dial::DialFile;
use safetensors::Dtype;
use safetensors::tensor::TensorView;

use crate::checkpoints::{PLAIN, files, fixtures, write};

fn put(folder: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

/// A safetensors file of this header and data.
fn safetensors(header: &str, data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend(vec![0; data]);
    bytes
}

/// A zip archive of stored or packed entries.
fn zipped(entries: &[(&str, &[u8])], packed: bool) -> Vec<u8> {
    let mut zip = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    let method = if packed { zip::CompressionMethod::Deflated } else { zip::CompressionMethod::Stored };
    for (name, bytes) in entries {
        zip.start_file(*name, zip::write::SimpleFileOptions::default().compression_method(method)).unwrap();
        zip.write_all(bytes).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

/// A PyTorch archive around a pickle.
fn torch(pickle: &[u8]) -> Vec<u8> {
    zipped(&[("a/data.pkl", pickle), ("a/data/0", &[0; 16]), ("a/version", b"3\n")], false)
}

/// A pickled dictionary {"w": tensor} whose shape, strides and offset are given as pickle code.
fn tensor_pickle(offset: &[u8], shape: &[u8], strides: &[u8]) -> Vec<u8> {
    let mut bytes = b"\x80\x02}X\x01\0\0\0wctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpuK\x04tQ".to_vec();
    bytes.extend(offset);
    bytes.extend(shape);
    bytes.extend(strides);
    bytes.extend(b"\x89NtRs.");
    bytes
}

#[track_caller]
fn refused(path: &Path, words: &str) {
    let error = Checkpoint::open(path, None).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains(words), "{}: `{error}` does not say `{words}`", path.display());
}

#[test]
fn broken_safetensors() {
    let folder = tempfile::tempdir().unwrap();
    let entry = |name: &str, from: usize, to: usize| {
        format!("\"{name}\":{{\"dtype\":\"F32\",\"shape\":[{}],\"data_offsets\":[{from},{to}]}}", (to - from) / 4)
    };
    for (name, bytes, words) in [
        ("empty", Vec::new(), "the file is empty"),
        ("magic", b"hello, I am not a checkpoint".to_vec(), "neither safetensors nor a PyTorch file nor npz"),
        ("lfs", b"version https://git-lfs.github.com/spec/v1".to_vec(), "git-lfs pointer"),
        (
            "lie",
            {
                let mut b = safetensors("{}", 0);
                b[..8].copy_from_slice(&(1_u64 << 60).to_le_bytes());
                b
            },
            "claims a header of 1152921504606846976 bytes",
        ),
        ("cut", safetensors(&format!("{{{}}}", entry("w", 0, 400)), 396), "496 bytes long, but its header describes"),
        ("long", safetensors(&format!("{{{}}}", entry("w", 0, 4)), 8), "bytes long, but its header describes"),
        ("json", safetensors("{\"w\":", 4), "not a safetensors file"),
        ("overlap", safetensors(&format!("{{{},{}}}", entry("a", 0, 8), entry("b", 4, 12)), 12), "invalid offset"),
        ("hole", safetensors(&format!("{{{},{}}}", entry("a", 0, 4), entry("b", 8, 12)), 12), "invalid offset"),
        (
            "huge",
            safetensors("{\"w\":{\"dtype\":\"F32\",\"shape\":[1152921504606846976,16],\"data_offsets\":[0,4]}}", 4),
            "not a safetensors file",
        ),
        (
            "backwards",
            safetensors("{\"w\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[8,4]}}", 8),
            "not a safetensors file",
        ),
        ("twice", safetensors(&format!("{{{},{}}}", entry("w", 0, 4), entry("w", 0, 4)), 4), "\"w\" occurs twice"),
        ("none", safetensors("{}", 0), "no tensor in it"),
        (
            "packed",
            safetensors("{\"w\":{\"dtype\":\"F4\",\"shape\":[8],\"data_offsets\":[0,4]}}", 4),
            "packs several numbers into a byte",
        ),
        ("type", safetensors("{\"w\":{\"dtype\":\"X9\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4), "unknown variant"),
    ] {
        let words = if name == "cut" { "bytes long, but its header describes" } else { words };
        refused(&put(folder.path(), name, &bytes), &words.replace("invalid offset", "nvalid"));
    }
    // Nesting that would overflow a recursive parser's stack.
    let deep = format!("{{\"w\":{}", "[".repeat(100_000));
    refused(&put(folder.path(), "deep", &safetensors(&deep, 0)), "not a safetensors file");
}

#[test]
fn broken_archives() {
    let folder = tempfile::tempdir().unwrap();
    let good = std::fs::read(&files("plain")[0]).unwrap();
    // Cut anywhere, a file is refused (or, cut in its last bytes of slack, read whole): never a panic, never a hang.
    for length in (0..good.len()).step_by(97) {
        let _ = Checkpoint::open(&put(folder.path(), "cut.pt", &good[..length]), None);
    }
    refused(&put(folder.path(), "half.pt", &good[..good.len() / 2]), "broken zip archive");
    refused(&put(folder.path(), "other.zip", &zipped(&[("x.txt", b"x")], false)), "neither PyTorch's");
    refused(
        &put(folder.path(), "script.pt", &zipped(&[("a/data.pkl", b"N."), ("a/constants.pkl", b"N.")], false)),
        "TorchScript",
    );
    refused(
        &put(folder.path(), "big.pt", &zipped(&[("a/data.pkl", b"N."), ("a/byteorder", b"big")], false)),
        "big-endian",
    );
    // A bomb: 200 MB of zeros in an archive of 200 kB.
    let header = b"\x93NUMPY\x01\x00\x46\x00{'descr': '<f4', 'fortran_order': False, 'shape': (50000000,), }       \n";
    let mut bomb = header.to_vec();
    bomb.resize(header.len() + 200_000_000, 0);
    let bomb = zipped(&[("w.npy", &bomb)], true);
    assert!(bomb.len() < 1_000_000);
    refused(&put(folder.path(), "bomb.npz", &bomb), "more than the");
    for (name, bytes, words) in [
        ("lie.npz", &b"\x93NUMPY\x02\x00\xff\xff\xff\x7f{'descr'"[..], "claims a header"),
        (
            "short.npz",
            b"\x93NUMPY\x01\x00\x46\x00{'descr': '<f4', 'fortran_order': False, 'shape': (1152921504606846976,)}\n",
            "does not fit the bytes",
        ),
        ("junk.npz", b"junk", "not an npy array"),
    ] {
        refused(&put(folder.path(), name, &zipped(&[("w.npy", bytes)], false)), words);
    }
    let shape = |shape: &str, kind: &str| {
        let mut text = format!("{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}");
        let padded = (text.len() + 11).next_multiple_of(64) - 11;
        text.push_str(&" ".repeat(padded - text.len()));
        text.push('\n');
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((text.len() as u16).to_le_bytes());
        bytes.extend(text.as_bytes());
        bytes.extend([0; 16]);
        zipped(&[("w.npy", &bytes)], false)
    };
    assert_eq!(
        Checkpoint::open(&put(folder.path(), "good.npz", &shape("(4,)", "<f4")), None).unwrap().tensors[0].shape,
        [4]
    );
    refused(&put(folder.path(), "s.npz", &shape("(5,)", "<f4")), "does not fit the");
    refused(
        &put(folder.path(), "s.npz", &shape("(1152921504606846976, 1152921504606846976)", "<f4")),
        "does not fit the",
    );
    refused(&put(folder.path(), "s.npz", &shape("(4,)", ">f4")), "not supported");
    refused(&put(folder.path(), "s.npz", &shape("(2,)", "<U2")), "not supported");
    refused(&put(folder.path(), "s.npz", &shape("(2,)", "|O")), "");
}

#[test]
fn hostile_pickles() {
    let folder = tempfile::tempdir().unwrap();
    let mut cyclic = b"\x80\x02}q\0X\x01\0\0\0ah\0s.".to_vec();
    for (name, pickle, words) in [
        ("system", b"cos\nsystem\n(S'touch pwned'\ntR.".to_vec(), "asks to call os.system: refused"),
        (
            "posix",
            b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x0btouch pwned\x85R.".to_vec(),
            "asks to call posix.system",
        ),
        ("eval", b"c__builtin__\neval\n(S'1'\ntR.".to_vec(), "asks to call __builtin__.eval"),
        ("inst", b"(S'ls'\nios\nsystem\n.".to_vec(), "asks to call os.system"),
        ("sub", b"\x80\x02csubprocess\nPopen\n.".to_vec(), "asks to call subprocess.Popen"),
        ("cut", b"\x80\x02}X\xff\xff\xff\x7fabc".to_vec(), ""),
        ("stack", b"\x80\x02R.".to_vec(), "an empty stack"),
        ("memo", b"\x80\x02h\x07.".to_vec(), "never made"),
        ("mark", b"\x80\x02(t}u.".to_vec(), "end without a beginning"),
        ("odd", b"\x80\x02}(K\x01u.".to_vec(), "a key without a value"),
        ("byte", b"\x80\x02\xff.".to_vec(), "not a pickle instruction"),
        ("none", b"\x80\x02N.".to_vec(), "no tensor in it"),
        ("module", b"\x80\x02cmymodel\nNet\n)\x81}X\x01\0\0\0aK\x01sb.".to_vec(), "save its state_dict() instead"),
        // 2^60 elements, negative sizes, strides out of the storage.
        ("shape", tensor_pickle(b"K\0", b"\x8a\x08\0\0\0\0\0\0\0\x10\x85", b"K\x01\x85"), "reaches beyond its storage"),
        ("negative", tensor_pickle(b"K\0", b"J\xff\xff\xff\xff\x85", b"K\x01\x85"), "not made of sizes"),
        ("offset", tensor_pickle(b"K\x03", b"K\x02\x85", b"K\x01\x85"), "reaches beyond its storage"),
        ("stride", tensor_pickle(b"K\0", b"K\x02\x85", b"K\x05\x85"), "reaches beyond its storage"),
        ("expand", tensor_pickle(b"K\0", b"\x8a\x08\0\0\0\0\0\0\0\x10\x85", b"K\0\x85"), "makes more of its storage"),
        ("ranks", tensor_pickle(b"K\0", b"K\x02\x85", b")"), "1 sizes and 0 strides"),
        (
            "sparse",
            b"\x80\x02}X\x01\0\0\0wctorch._utils\n_rebuild_sparse_tensor\n)Rs.".to_vec(),
            "sparse tensors are not supported",
        ),
        ("cycle", std::mem::take(&mut cyclic), "there is no tensor in it"),
    ] {
        refused(&put(folder.path(), &format!("{name}.pt"), &torch(&pickle)), words);
    }
    assert!(!Path::new("pwned").exists());
    // Deep nesting, and dictionaries that share each other 2^50 times over.
    let mut deep = vec![b'}'; 0];
    deep.extend(b"\x80\x02");
    deep.extend(b"}X\x01\0\0\0a".repeat(200_000));
    deep.extend(b"N");
    deep.extend(b"s".repeat(200_000));
    deep.push(b'.');
    refused(&put(folder.path(), "deep.pt", &torch(&deep)), "there is no tensor in it");
    let mut laughs = b"\x80\x02}q\0".to_vec();
    for level in 1..=30_u8 {
        laughs.extend([b'}', b'q', level]);
        for key in [b'a', b'b', b'c', b'd'] {
            laughs.extend([b'X', 1, 0, 0, 0, key, b'h', level - 1, b's']);
        }
    }
    laughs.push(b'.');
    refused(&put(folder.path(), "laughs.pt", &torch(&laughs)), "more than 1000000 entries");
    // A flood of values.
    let mut flood = b"\x80\x02".to_vec();
    flood.extend(vec![b'N'; 5_000_000]);
    flood.push(b'.');
    refused(&put(folder.path(), "flood.pt", &torch(&flood)), "bytes of memory, which is what a file of this size may");
    // Lists copied into dictionaries, and long names recalled from the memo, each for a few bytes.
    let mut copies = b"\x80\x02](".to_vec();
    copies.extend(b"NN\x86".repeat(100_000));
    copies.extend(b"e\x85q\x01ccollections\nOrderedDict\nq\x02");
    copies.extend(b"h\x02h\x01R0".repeat(10_000));
    copies.push(b'.');
    refused(&put(folder.path(), "copies.pt", &torch(&copies)), "bytes of memory");
    let mut names = b"\x80\x04X\0\0\x10\0".to_vec();
    names.extend(vec![b'a'; 1 << 20]);
    names.extend(b"q\x01");
    names.extend(b"h\x01h\x01\x930".repeat(100_000));
    names.push(b'.');
    refused(&put(folder.path(), "names.pt", &torch(&names)), "far too long");
    // The old format: a magic number that is not PyTorch's; cut files.
    refused(&put(folder.path(), "magic.pt", b"\x80\x02K\x01."), "not one that PyTorch wrote");
    let good = std::fs::read(&files("legacy")[0]).unwrap();
    for length in (2..good.len()).step_by(53) {
        assert!(Checkpoint::open(&put(folder.path(), "cut.pt", &good[..length]), None).is_err(), "{length}");
    }
}

#[test]
fn hostile_folders() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let secret = put(
        at,
        "secret.safetensors",
        &safetensors("{\"w\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4),
    );
    let index = |map: &str| {
        let model = at.join("model");
        std::fs::create_dir_all(&model).unwrap();
        put(&model, "model.safetensors.index.json", format!("{{\"weight_map\":{map}}}").as_bytes());
        model
    };
    refused(&index("{\"w\":\"../secret.safetensors\"}"), "not a file beside the index: refused");
    refused(&index(&format!("{{\"w\":\"{}\"}}", secret.display())), "not a file beside the index: refused");
    refused(&index("{\"w\":\"..\"}"), "not a file beside the index: refused");
    refused(&index("{\"w\":\"a\\\\b\"}"), "not a file beside the index: refused");
    let missing = if cfg!(windows) { "The system cannot find" } else { "No such file" };
    refused(&index("{\"w\":\"missing.safetensors\"}"), missing);
    refused(&index("{}"), "an index without any tensor");
    refused(&index("[1]"), "not an index");
    std::fs::copy(&secret, at.join("model/part.safetensors")).unwrap();
    refused(&index("{\"v\":\"part.safetensors\"}"), "v is not in part.safetensors");
    assert_eq!(Checkpoint::open(&index("{\"w\":\"part.safetensors\"}"), None).unwrap().tensors.len(), 1);
    let shard = put(at, "model-00001-of-00002.safetensors", b"x");
    let error = expand(&[shard], None).unwrap_err().to_string();
    assert!(error.contains("a part of a checkpoint"), "{error}");
    #[cfg(unix)]
    {
        let fifo = at.join("fifo.pt");
        assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        refused(&fifo, "not a regular file");
        std::os::unix::fs::symlink(at.join("nowhere"), at.join("dangling.pt")).unwrap();
        refused(&at.join("dangling.pt"), "No such file");
        std::os::unix::fs::symlink(at.join("loop.pt"), at.join("loop.pt")).unwrap();
        refused(&at.join("loop.pt"), "");
        std::os::unix::fs::symlink("/dev/zero", at.join("zero.pt")).unwrap();
        refused(&at.join("zero.pt"), "not a regular file");
        // A link out of the folder is not copied along.
        std::os::unix::fs::symlink("/etc/hostname", at.join("model/config.json")).unwrap();
        let (copied, left) = afterfit::checkpoint::sidecars(&at.join("model")).unwrap();
        assert_eq!((copied, left), (vec![], vec!["config.json".to_owned()]));
    }
}

#[test]
fn checkpoints_that_do_not_match() {
    let folder = tempfile::tempdir().unwrap();
    let save = |name: &str, tensors: &[(&str, Dtype, Vec<usize>, &[u8])]| {
        let path = folder.path().join(name);
        let views =
            tensors.iter().map(|(n, dtype, shape, data)| (*n, TensorView::new(*dtype, shape.clone(), data).unwrap()));
        safetensors::serialize_to_file(views, None, &path).unwrap();
        path
    };
    let one = 1.0_f32.to_le_bytes();
    let two = [one, one].concat();
    let first = save("0.safetensors", &[("a", Dtype::F32, vec![1], &one), ("b", Dtype::F32, vec![2], &two)]);
    for (other, words) in [
        (save("1.safetensors", &[("a", Dtype::F32, vec![1], &one)]), "it lacks b"),
        (
            save(
                "2.safetensors",
                &[("a", Dtype::F32, vec![1], &one), ("b", Dtype::F32, vec![2], &two), ("c", Dtype::F32, vec![1], &one)],
            ),
            "it has c besides",
        ),
        (
            save("3.safetensors", &[("a", Dtype::F32, vec![1], &one), ("b", Dtype::F32, vec![1, 2], &two)]),
            "tensor b has shape [1, 2] instead of [2]",
        ),
        (
            save("4.safetensors", &[("a", Dtype::F32, vec![1], &one), ("b", Dtype::BF16, vec![2], &one)]),
            "tensor b has type bf16 instead of f32",
        ),
    ] {
        let error = Series::open(&[first.clone(), other], None, &[]).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
    // NaN and infinity are named, even where their weight is zero, and nothing is written.
    let layout = PLAIN;
    let out = folder.path().join("out.safetensors");
    for (value, said) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf"), (f32::NEG_INFINITY, "-inf")] {
        for weights in [[0.5, 0.5], [1.0, 0.0], [0.0, 1.0]] {
            let bad = save(
                "bad.safetensors",
                &[("a", Dtype::F32, vec![1], &one), ("b", Dtype::F32, vec![2], &[one, value.to_le_bytes()].concat())],
            );
            for pair in [[first.clone(), bad.clone()], [bad.clone(), first.clone()]] {
                let series = Series::open(&pair, None, &[]).unwrap();
                let error = write(&series, &weights, &out, &layout).unwrap_err().to_string();
                assert!(error.contains(&format!("bad.safetensors: tensor b holds {said} at position 1")), "{error}");
                assert!(!out.exists());
            }
            let series = Series::open(&[first.clone(), bad], None, &["b".into()]).unwrap();
            write(&series, &weights, &out, &layout).unwrap();
            std::fs::remove_file(&out).unwrap();
        }
    }
    // An average that the output's type cannot hold.
    let large = 1e6_f32.to_le_bytes();
    let large = save("5.safetensors", &[("a", Dtype::F32, vec![1], &large), ("b", Dtype::F32, vec![2], &two)]);
    let series = Series::open(&[first, large], None, &[]).unwrap();
    let error =
        write(&series, &[0.5, 0.5], &out, &Layout { dtype: Some(Dtype::F16), ..layout }).unwrap_err().to_string();
    assert!(error.contains("tensor a: 500000.5 at position 0 is beyond the range of f16"), "{error}");
    assert!(!out.exists());
    // Statistics are copied, and rounded like the rest.
    let var = 1e6_f32.to_le_bytes();
    let copied =
        save("6.safetensors", &[("a", Dtype::F32, vec![1], &one), ("bn.running_var", Dtype::F32, vec![1], &var)]);
    let series = Series::open(&[copied], None, &[]).unwrap();
    let error =
        write(&series, &[1.0], &out, &Layout { dtype: Some(Dtype::F16), ..layout.clone() }).unwrap_err().to_string();
    assert!(error.contains("bn.running_var: 1000000 at position 0 is beyond the range of f16"), "{error}");
    let var = f32::NAN.to_le_bytes();
    let copied =
        save("7.safetensors", &[("a", Dtype::F32, vec![1], &one), ("bn.running_var", Dtype::F32, vec![1], &var)]);
    let error = write(&Series::open(&[copied], None, &[]).unwrap(), &[1.0], &out, &layout).unwrap_err().to_string();
    assert!(error.contains("bn.running_var holds NaN"), "{error}");
    let left: Vec<_> = std::fs::read_dir(folder.path())
        .unwrap()
        .filter(|e| e.as_ref().unwrap().file_name().to_string_lossy().starts_with('.'))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

/// Depth and repetition cost a byte or two each: neither may cost a stack frame or a copy when a pickle is written again.
#[test]
fn pickles_that_grow_when_they_are_written() {
    let count = 300_000;
    let nested = |open: &[u8], close: &[u8]| {
        let mut bytes = b"\x80\x02".to_vec();
        (0..count).for_each(|_| bytes.extend(open));
        (1..count).for_each(|_| bytes.extend(close));
        bytes.push(b'.');
        bytes
    };
    // Attributes of attributes of …, lists in lists, factories of factories.
    fuzzing::pickle(&nested(b"}", b"b"));
    fuzzing::pickle(&nested(b"]", b"a"));
    fuzzing::pickle(&nested(b"ccollections\ndefaultdict\n", b"\x85R"));
    // Values that were judged in lists left out, each within the next: x_n holds x_{n−1}, first met beside a class.
    let mut chain = b"\x80\x02}(X\x01\x00\x00\x00w]q\x00".to_vec();
    for n in 0..2000_u32 {
        chain.extend(b"X\x04\x00\x00\x00");
        chain.extend(format!("{n:04}").as_bytes());
        // [[x_{n−1}], Own]
        chain.extend(b"](](h\x00eq\x00cown\nOwn\ne");
    }
    chain.extend(b"X\x03\x00\x00\x00endh\x00u.");
    fuzzing::pickle(&chain);
    // A long text, and a dictionary of dictionaries that are one, referred to again and again.
    let mut text = b"\x80\x02](X\x00\x00\x10\x00".to_vec();
    text.extend(vec![b'x'; 1 << 20]);
    text.extend(b"q\x01");
    (0..count).for_each(|_| text.extend(b"h\x01"));
    text.extend(b"e.");
    fuzzing::pickle(&text);
    let mut wide = b"\x80\x02".to_vec();
    for level in 0..6_u8 {
        wide.extend(b"}(");
        for n in 0..200_u8 {
            wide.extend([b'K', n]);
            wide.extend(if level == 0 { vec![b'N'] } else { vec![b'h', level - 1] });
        }
        wide.extend([b'u', b'q', level]);
    }
    wide.extend(b"}X\x09\x00\x00\x00optimizerh\x05s.");
    fuzzing::pickle(&wide);
}

/// Small files that ask for much: memory is bounded by the file's own size.
#[test]
fn little_files_do_not_become_large() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str, bytes: &[u8]| put(folder.path(), name, bytes);
    // 3 million Nones pack into a few kilobytes.
    let mut many = b"\x80\x02]q\x00(".to_vec();
    many.extend(vec![b'N'; 3_000_000]);
    many.extend(b"e.");
    let packed = zipped(&[("a/data.pkl", &many), ("a/version", b"3\n")], true);
    assert!(packed.len() < 20_000);
    refused(&at("nones.pt", &packed), "bytes of memory, which is what a file of this size may");
    // A name of a thousand letters, recalled again and again.
    let mut names = b"\x80\x04(\x8c\x01m\x94X\xe0\x03\0\0".to_vec();
    names.extend(vec![b'x'; 992]);
    names.push(0x94);
    (0..1_000_000).for_each(|_| names.extend(b"h\x00h\x01\x93"));
    names.extend(b"l.");
    let packed = zipped(&[("a/data.pkl", &names), ("a/version", b"3\n")], true);
    refused(&at("names.pt", &packed), "bytes of memory, which is what a file of this size may");
    // A hundred views of one number, each of a million.
    let mut views = b"\x80\x02}(".to_vec();
    for view in 0..100_u8 {
        views.extend(b"X\x03\0\0\0");
        views.extend(format!("{view:03}").as_bytes());
        views.extend(b"ctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpuK\x04tQ");
        views.extend(b"K\x00");
        views.extend([b'J', 0, 0, 4, 0, 0x85, b'K', 0, 0x85]);
        // (Each a little shorter than the one before: no two are one.)
        let shape = views.len() - 8;
        views[shape] = view;
        views.extend(b"\x89NtR");
    }
    views.extend(b"u.");
    refused(&at("views.pt", &torch(&views)), "more than the");
}

/// One dictionary that a thousand optimizer states refer to, a thousand times: looked through a bounded number of times.
#[test]
fn optimizer_states_that_refer_to_one_dictionary() {
    let folder = tempfile::tempdir().unwrap();
    let mut pickle = b"\x80\x02}(X\x05\0\0\0state}(".to_vec();
    pickle.extend(b"K\x00}(");
    for key in 0..60_000_u32 {
        pickle.push(b'J');
        pickle.extend(key.to_le_bytes());
        pickle.push(b'N');
    }
    pickle.extend(b"uq\x07");
    for state in 1..60_000_u32 {
        pickle.push(b'J');
        pickle.extend(state.to_le_bytes());
        pickle.extend(b"h\x07");
    }
    pickle.extend(b"uX\x0c\0\0\0param_groups](}X\x02\0\0\0lrG\x3f\xb9\x99\x99\x99\x99\x99\x9aseu.");
    put(folder.path(), "optimizer.pt", &torch(&pickle));
    let header = "{\"w\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}";
    put(folder.path(), "model.safetensors", &safetensors(header, 4));
    let start = std::time::Instant::now();
    let _ = Checkpoint::open(folder.path(), None);
    // (No speed is asserted: without the bound this takes hours.)
    assert!(start.elapsed().as_secs() < 60);
}

#[test]
fn dials_that_are_none() {
    let folder = tempfile::tempdir().unwrap();
    let with = |json: &str| {
        let header = serde_json::json!({"__metadata__": {"afterfit": json}, "w": {"dtype": "F64", "shape": [1], "data_offsets": [0, 8]}});
        put(folder.path(), "x.dial", &safetensors(&header.to_string(), 8))
    };
    let refused = |path: &Path, words: &str| {
        let error = DialFile::open(path).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    };
    refused(&files("safetensors")[0], "its metadata has no key");
    refused(&with("{\"kind\":\"model\"}"), "it is of the kind `model`");
    refused(&with("{\"kind\":\"dial\"}"), "missing field");
    refused(&with("nonsense"), "not an afterfit dial");
    refused(&with("{\"kind\":\"dial\",\"version\":1}"), "version 1: this program reads version 2");
    let about = |steps: u64, nodes: usize, groups: usize| {
        let group = serde_json::json!({"optimizer": "sgd", "quadratic": true, "stochastic": true});
        serde_json::json!({
            "kind": "dial", "version": 2, "families": [{"family": "l2", "from": 1e-3, "to": 1.0, "nodes": nodes}],
            "groups": vec![group; groups], "group_masses": "one", "exact": false, "precision": "f64", "steps": steps,
            "reach": [1.0], "shape": [1, 1], "parts": [],
        })
        .to_string()
    };
    refused(&with(&about(9, 4, 1)), "its rates do not cover 9 steps");
    refused(&with(&about(0, 4, 1)), "tensor masses: missing");
    refused(&with(&about(0, 1_000_000_000_000, 1)), "number of dial nodes is 1000000000000");
    refused(&with(&about(0, 4, 0)), "number of parameter groups is 0");
}

/// The corpora of the fuzz targets, and the fixtures, through the parsers: nothing may panic or hang.
#[test]
fn the_fuzz_corpora_replay() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    type Target = (&'static str, fn(&[u8]));
    let targets: [Target; 9] = [
        ("safetensors", fuzzing::safetensors),
        ("pickle", fuzzing::pickle),
        ("torch_zip", fuzzing::torch_zip),
        ("npz", fuzzing::npz),
        ("npz_array", fuzzing::npz_array),
        ("training", fuzzing::training),
        ("distributed", fuzzing::distributed),
        ("dial", fuzzing::dial),
        ("header", |bytes| afterfit::model::fuzzing::model(&fuzzing::header(bytes))),
    ];
    for (name, target) in targets {
        let mut count = 0;
        for entry in std::fs::read_dir(corpus.join(name)).unwrap() {
            target(&std::fs::read(entry.unwrap().path()).unwrap());
            count += 1;
        }
        assert!(count > 5, "the corpus of {name} has {count} files");
        for folder in ["plain", "legacy", "safetensors", "wrapped", "odd"] {
            for entry in std::fs::read_dir(fixtures().join(folder)).unwrap() {
                target(&std::fs::read(entry.unwrap().path()).unwrap());
            }
        }
    }
}

/// Where the bytes of a stored entry begin in an archive.
fn data_start(archive: &[u8], name: &str) -> usize {
    let mut zip = zip::ZipArchive::new(std::io::Cursor::new(archive)).unwrap();
    usize::try_from(zip.by_name(name).unwrap().data_start().unwrap()).unwrap()
}

/// An array as numpy writes it.
fn npy(order: &str, shape: &str, values: &[f32]) -> Vec<u8> {
    let header = format!("{{'descr': '<f4', 'fortran_order': {order}, 'shape': {shape}, }}");
    let mut bytes = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
    bytes.extend(format!("{header:<117}\n").bytes());
    bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    bytes
}

/// A series of one file, averaged.
fn averaged(path: &Path) -> Result<(), String> {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out.safetensors");
    let series = Series::open(&[path.into()], None, &[]).map_err(|error| error.to_string())?;
    let result = write(&series, &[1.0], &out, &crate::checkpoints::PLAIN).map_err(|error| error.to_string());
    assert_eq!(out.exists(), result.is_ok());
    result
}

#[test]
fn damaged_entries_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let values: Vec<f32> = (0..40_000).map(|i| i as f32).collect();
    let (plain, columns) = (npy("False", "(40000,)", &values), npy("True", "(200, 200)", &values));
    let npz = zipped(&[("w.npy", &plain), ("v.npy", &columns)], false);
    // A storage of which the model's tensor is a part: two of its four numbers, from the second on.
    let part = tensor_pickle(b"K\x01", b"K\x02\x85", b"K\x01\x85");
    let pt = zipped(&[("a/data.pkl", &part), ("a/data/0", &[0; 16]), ("a/version", b"3\n")], false);
    for (name, good, entry, at) in [
        ("w.npz", &npz, "w.npy", 128),
        ("w.npz", &npz, "w.npy", 100_000),
        ("w.npz", &npz, "w.npy", 160_127),
        ("w.npz", &npz, "v.npy", 70_001),
        ("p.pt", &pt, "a/data/0", 0),
        ("p.pt", &pt, "a/data/0", 5),
        ("p.pt", &pt, "a/data/0", 15),
        ("p.pt", &pt, "a/data.pkl", 12),
    ] {
        let path = put(folder.path(), name, good);
        averaged(&path).unwrap();
        let mut bad = good.clone();
        bad[data_start(good, entry) + at] ^= 1;
        let error = averaged(&put(folder.path(), name, &bad)).unwrap_err();
        let says = |words: &str| error.contains(words);
        let damaged = says("is damaged: the checksum of its") || says("Invalid checksum");
        assert!(damaged && says(&format!("entry {entry}")) && says(name), "{entry} at {at}: {error}");
    }
    // A number that damage made infinite is not the cause.
    let mut bad = npz.clone();
    bad[data_start(&npz, "w.npy") + 128 + 4 * 30_000..][..4].copy_from_slice(&f32::INFINITY.to_le_bytes());
    let error = averaged(&put(folder.path(), "inf.npz", &bad)).unwrap_err();
    assert!(error.contains("entry w.npy is damaged"), "{error}");
    // torch can be told to leave checksums out, and writes 0.
    let mut none = pt.clone();
    let directory = pt.windows(4).position(|bytes| bytes == b"PK\x01\x02").unwrap();
    for at in 0..pt.len() - 4 {
        match &pt[at..at + 4] {
            b"PK\x03\x04" if at < directory => none[at + 14..at + 18].fill(0),
            b"PK\x01\x02" => none[at + 16..at + 20].fill(0),
            _ => {}
        }
    }
    averaged(&put(folder.path(), "none.pt", &none)).unwrap();
}

#[test]
fn checksums_are_added_up_in_any_order() {
    // Many chunks on many threads, several tensors of one storage, read by rows and by one number.
    let folder = tempfile::tempdir().unwrap();
    let values: Vec<f32> = (0..300_000).map(|i| (i % 977) as f32).collect();
    let arrays: Vec<(String, Vec<u8>)> =
        (0..4).map(|i| (format!("w{i}.npy"), npy("False", "(300000,)", &values))).collect();
    let entries: Vec<(&str, &[u8])> = arrays.iter().map(|(name, bytes)| (name.as_str(), &bytes[..])).collect();
    let good = zipped(&entries, false);
    let paths: Vec<PathBuf> = (0..5).map(|i| put(folder.path(), &format!("step-{i}.npz"), &good)).collect();
    let series = Series::open(&paths, None, &[]).unwrap();
    write(&series, &[0.2; 5], &folder.path().join("a.safetensors"), &crate::checkpoints::PLAIN).unwrap();
    let checkpoint = Checkpoint::open(&paths[0], None).unwrap();
    assert_eq!(checkpoint.read_f32(&checkpoint.tensors[0]).unwrap(), values);
    let mut bad = good.clone();
    bad[data_start(&good, "w2.npy") + 200_000] ^= 0x10;
    put(folder.path(), "step-3.npz", &bad);
    let series = Series::open(&paths, None, &[]).unwrap();
    let error = write(&series, &[0.2; 5], &folder.path().join("b.safetensors"), &crate::checkpoints::PLAIN);
    let error = error.unwrap_err().to_string();
    assert!(error.contains("step-3.npz: entry w2.npy is damaged"), "{error}");
    let checkpoint = Checkpoint::open(&paths[3], None).unwrap();
    assert!(checkpoint.read_f32(&checkpoint.tensors[2]).unwrap_err().to_string().contains("w2.npy is damaged"));
    checkpoint.read_f32(&checkpoint.tensors[1]).unwrap();
}
