//! Tables made to hurt, or hurt by accident: each is refused by name within its budget, and ordinary ones never are.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use afterfit::learn::{ModelChoice, Settings, learn};
use afterfit::table::{Format, Stream, Table, TableOptions, fuzzing};
use flate2::Compression;
use flate2::write::GzEncoder;
use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int32Type, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;

fn options() -> TableOptions {
    TableOptions { target: Some("y".into()), ..TableOptions::default() }
}

fn put(folder: &Path, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

#[track_caller]
fn refused(path: &Path, options: &TableOptions, words: &str) {
    let message = Table::read(path, options).err().unwrap().to_string();
    assert!(message.contains(words), "`{message}` does not say `{words}`");
    assert!(message.len() < 600, "{} bytes of message", message.len());
}

fn read(text: &str) -> Result<Table, String> {
    let folder = tempfile::tempdir().unwrap();
    Table::read(&put(folder.path(), "t.csv", text), &options()).map_err(|error| error.to_string())
}

/// The most memory this process ever had. (Every test is a process of its own under nextest; elsewhere nothing is said.)
fn peak() -> u64 {
    if std::env::var_os("NEXTEST").is_none() {
        return 0;
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0) << 10
}

/// A file of the same piece over and over, packed.
fn bomb(path: &Path, start: &str, piece: &str, megabytes: usize) {
    let mut packed = GzEncoder::new(std::fs::File::create(path).unwrap(), Compression::best());
    packed.write_all(start.as_bytes()).unwrap();
    let piece = piece.repeat((1 << 20) / piece.len());
    (0..megabytes).for_each(|_| packed.write_all(piece.as_bytes()).unwrap());
    packed.finish().unwrap();
}

#[test]
fn what_unpacks_without_end_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    bomb(&at("rows.csv.gz"), "a,y\n", "0,1\n", 150);
    bomb(&at("field.csv.gz"), "a,y\n\"", "x", 150);
    bomb(&at("header.csv.gz"), "a", ",", 150);
    bomb(&at("rows.svm.gz"), "", "1 1:1\n", 150);
    bomb(&at("line.svm.gz"), "1 1:", "1", 150);
    bomb(&at("images.idx.gz"), "\0\0\u{8}\u{3}\0\u{4}\0\0\0\0\u{4}\0\0\0\0\u{1}", "\0", 150);
    for name in ["rows.csv.gz", "field.csv.gz", "header.csv.gz", "rows.svm.gz", "line.svm.gz", "images.idx.gz"] {
        refused(&at(name), &options(), "it unpacks to ");
        let message = Table::read(&at(name), &options()).err().unwrap().to_string();
        assert!(message.contains("allowed for a file of "), "{message}");
    }
    let header = b"\x93NUMPY\x01\x00\x46\x00{'descr': '|u1', 'fortran_order': False, 'shape': (400000, 1000), }     \n";
    let mut zip = zip::ZipWriter::new(std::fs::File::create(at("x.npz")).unwrap());
    zip.start_file("x.npy", zip::write::SimpleFileOptions::default()).unwrap();
    zip.write_all(header).unwrap();
    (0..400).for_each(|_| zip.write_all(&vec![0; 1_000_000]).unwrap());
    zip.finish().unwrap();
    refused(&at("x.npz"), &TableOptions::default(), "it unpacks to ");
    // Unpacked: at most 64 MB and some for the small files; as numbers, eight times that.
    assert!(peak() < 700_000_000, "{} bytes", peak());
}

/// A packed file of few texts over and over asks for a hundred times what it unpacks to.
#[test]
fn texts_of_a_packed_table_may_not_become_gigabytes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.csv.gz");
    let header: String = (0..50).map(|column| format!("c{column},")).collect();
    // (Twenty texts in each of fifty columns: lines of 170 bytes.)
    let line = |row: usize| format!("{}{}\n", format!("k{row},").repeat(50), row % 2);
    bomb(&path, &format!("{header}y\n"), &(0..20).map(line).collect::<String>(), 8);
    refused(&path, &options(), "its texts become columns of their own, and take");
    let trusted = TableOptions { max_memory: Some(2_000_000_000), ..options() };
    assert!(Table::read(&path, &trusted).is_ok());
}

#[test]
fn a_flag_raises_the_limit() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.csv.gz");
    bomb(&path, "a,y\n", "0.5,1.5\n1.5,2.5\n", 80);
    refused(&path, &options(), "it unpacks to ");
    let trusted = TableOptions { max_memory: Some(2_000_000_000), ..options() };
    assert_eq!(Table::read(&path, &trusted).unwrap().features.shape()[0], (80 << 20) / 16 * 2);
}

type Parquet = SerializedFileWriter<std::fs::File>;

fn parquet(path: &Path, schema: &str, version_two: bool) -> Parquet {
    let schema = Arc::new(parquet::schema::parser::parse_message_type(schema).unwrap());
    let version = match version_two {
        true => parquet::file::properties::WriterVersion::PARQUET_2_0,
        false => parquet::file::properties::WriterVersion::PARQUET_1_0,
    };
    let properties = WriterProperties::builder().set_writer_version(version).build();
    SerializedFileWriter::new(std::fs::File::create(path).unwrap(), schema, Arc::new(properties)).unwrap()
}

#[test]
fn parquet_says_much_in_few_bytes_but_not_everything() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.parquet");
    let schema = "message t { required double a; required double b; required double y; }";
    let mut writer = parquet(&path, schema, false);
    // 150 million numbers in a few kilobytes.
    let values = vec![1.5; 5_000_000];
    for _ in 0..10 {
        let mut group = writer.next_row_group().unwrap();
        while let Some(mut column) = group.next_column().unwrap() {
            column.typed::<DoubleType>().write_batch(&values, None, None).unwrap();
            column.close().unwrap();
        }
        group.close().unwrap();
    }
    writer.close().unwrap();
    assert!(std::fs::metadata(&path).unwrap().len() < 1_000_000);
    refused(&path, &options(), "it unpacks to ");
}

#[test]
fn ordinary_packed_tables_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let mut random = 1_u64;
    let mut next = || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        random >> 33
    };
    // Measurements; images that are mostly background; words with few letters.
    let mut numbers = GzEncoder::new(std::fs::File::create(at("numbers.csv.gz")).unwrap(), Compression::default());
    let mut images = GzEncoder::new(std::fs::File::create(at("images.csv.gz")).unwrap(), Compression::default());
    let mut words = GzEncoder::new(std::fs::File::create(at("words.csv.gz")).unwrap(), Compression::default());
    let mut sparse = GzEncoder::new(std::fs::File::create(at("t.svm.gz")).unwrap(), Compression::default());
    writeln!(numbers, "a,b,c,d,e,y").unwrap();
    writeln!(words, "a,b,c,d,y").unwrap();
    let names: Vec<String> = (0..784).map(|pixel| format!("p{pixel}")).collect();
    writeln!(images, "{},y", names.join(",")).unwrap();
    for row in 0..100_000_u64 {
        let five: Vec<String> = (0..6).map(|_| (next() as f64 / 1e4).to_string()).collect();
        writeln!(numbers, "{}", five.join(",")).unwrap();
        let letters: Vec<&str> = (0..4).map(|_| ["a", "b", "c", "d"][next() as usize % 4]).collect();
        writeln!(words, "{},{}", letters.join(","), next() % 10).unwrap();
        writeln!(sparse, "{} {}:1 {}:0.5", next() % 2, 1 + next() % 50, 51 + next() % 50).unwrap();
        if row < 30_000 {
            let pixels = (0..784)
                .map(|pixel| if pixel % 28 > 20 && next() % 3 == 0 { (next() % 256).to_string() } else { "0".into() });
            writeln!(images, "{},{}", pixels.collect::<Vec<_>>().join(","), next() % 10).unwrap();
        }
    }
    for file in [numbers, images, words, sparse] {
        file.finish().unwrap();
    }
    for (name, shape) in [
        ("numbers.csv.gz", [100_000, 5]),
        ("images.csv.gz", [30_000, 784]),
        ("words.csv.gz", [100_000, 16]),
        ("t.svm.gz", [100_000, 100]),
    ] {
        let target = (!name.contains("svm")).then(|| "y".to_owned());
        let table = Table::read(&at(name), &TableOptions { target, ..TableOptions::default() }).unwrap();
        assert_eq!(table.features.shape(), shape, "{name}");
    }
    // A million rows of a few different numbers and texts, in a small file.
    let schema = "message t { required int32 a; optional binary b (UTF8); required int64 c; required int32 y; }";
    let mut writer = parquet(&at("t.parquet"), schema, false);
    let mut group = writer.next_row_group().unwrap();
    let rows = 1_000_000_usize;
    let mut column = group.next_column().unwrap().unwrap();
    column
        .typed::<Int32Type>()
        .write_batch(&(0..rows).map(|_| (next() % 3) as i32).collect::<Vec<_>>(), None, None)
        .unwrap();
    column.close().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    let texts: Vec<ByteArray> = (0..rows).map(|_| ["north-east", "south-west"][next() as usize % 2].into()).collect();
    column.typed::<ByteArrayType>().write_batch(&texts, Some(&vec![1; rows]), None).unwrap();
    column.close().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    column.typed::<Int64Type>().write_batch(&vec![7; rows], None, None).unwrap();
    column.close().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    column
        .typed::<Int32Type>()
        .write_batch(&(0..rows).map(|_| (next() % 2) as i32).collect::<Vec<_>>(), None, None)
        .unwrap();
    column.close().unwrap();
    group.close().unwrap();
    writer.close().unwrap();
    assert!(std::fs::metadata(at("t.parquet")).unwrap().len() < 1_000_000);
    assert_eq!(Table::read(&at("t.parquet"), &options()).unwrap().features.shape(), [rows, 4]);
}

#[test]
fn brackets_do_not_hang() {
    let folder = tempfile::tempdir().unwrap();
    let start = Instant::now();
    let mut nested = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
    nested.resize(128, b'[');
    refused(&put(folder.path(), "t.npy", &nested), &TableOptions::default(), "brackets within each other");
    let mut zip = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    zip.start_file("x.npy", zip::write::SimpleFileOptions::default()).unwrap();
    zip.write_all(&nested).unwrap();
    let archive = zip.finish().unwrap().into_inner();
    let path = put(folder.path(), "t.npz", &archive);
    refused(&path, &TableOptions::default(), "brackets within each other");
    let checkpoint = afterfit::checkpoint::Checkpoint::open(&path, None).map(|_| ()).unwrap_err().to_string();
    assert!(checkpoint.contains("brackets within each other"), "{checkpoint}");
    assert!(start.elapsed() < Duration::from_secs(5));
}

/// A small file of every kind of column.
fn all_kinds(path: &Path, version_two: bool) {
    let schema = "message t {
        required int32 day (DATE);
        optional int64 moment (TIMESTAMP(MILLIS,true));
        optional binary text (UTF8);
        required int32 amount (DECIMAL(9,2));
        required double y;
    }";
    let mut writer = parquet(path, schema, version_two);
    for _ in 0..2 {
        let mut group = writer.next_row_group().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        let days: Vec<i32> = (0..40).map(|day| if version_two { day } else { i32::MAX - day }).collect();
        column.typed::<Int32Type>().write_batch(&days, None, None).unwrap();
        column.close().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        let moments: Vec<i64> = (0..40).map(|at| if version_two { at * 1_000_000 } else { i64::MAX - at }).collect();
        column.typed::<Int64Type>().write_batch(&moments, Some(&[1; 40]), None).unwrap();
        column.close().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        let texts: Vec<ByteArray> = (0..40).map(|at| ["red", "green"][at % 2].into()).collect();
        column.typed::<ByteArrayType>().write_batch(&texts, Some(&[1; 40]), None).unwrap();
        column.close().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<Int32Type>().write_batch(&(0..40).map(|at| at * 125).collect::<Vec<_>>(), None, None).unwrap();
        column.close().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<DoubleType>().write_batch(&(0..40).map(f64::from).collect::<Vec<_>>(), None, None).unwrap();
        column.close().unwrap();
        group.close().unwrap();
    }
    writer.close().unwrap();
}

#[test]
fn parquet_dates_beyond_every_calendar_are_texts() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.parquet");
    all_kinds(&path, false);
    let table = Table::read(&path, &options()).unwrap();
    assert!(table.feature_names().unwrap()[0].contains("beyond the year 9999"));
    all_kinds(&path, true);
    let table = Table::read(&path, &options()).unwrap();
    assert_eq!(table.feature_names().unwrap(), ["day", "moment", "text=green", "text=red", "amount"]);
    let afterfit::table::Matrix::Double(afterfit::objective::Features::Dense(x)) = &table.features else { panic!() };
    assert_eq!(
        x.row(3)[..],
        [3.0, 3000.0 / 86400.0, 0.0, 0.0, 3.75][..]
            .iter()
            .enumerate()
            .map(|(at, v)| if at == 2 { 1.0 } else { *v })
            .collect::<Vec<_>>()[..]
    );
}

/// Whatever is done to good files, nothing panics, hangs or asks for more than its budget.
#[test]
fn damaged_tables_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.parquet");
    all_kinds(&path, false);
    let one = std::fs::read(&path).unwrap();
    all_kinds(&path, true);
    let two = std::fs::read(&path).unwrap();
    let csv = b"a,b,y\n1,\"x, y\",3\n2,z,4\n3,\"a \"\"b\"\"\",5\n".repeat(3);
    let mut packed = GzEncoder::new(Vec::new(), Compression::default());
    packed.write_all(&csv).unwrap();
    let svm = b"1 1:0.5 3:2\n0 2:1 # x\n1 qid:3 1:1e3\n".to_vec();
    let idx = b"\0\0\x08\x02\0\0\0\x02\0\0\0\x03\x01\x02\x03\x04\x05\x06".to_vec();
    let npy = b"\x93NUMPY\x01\x00\x46\x00{'descr': '<f4', 'fortran_order': True, 'shape': (2, 2), }              \n0123456789abcdef".to_vec();
    type Target = fn(&[u8]);
    let seeds: [(Vec<u8>, Target, usize); 7] = [
        (one, fuzzing::parquet, 3000),
        (two, fuzzing::parquet, 3000),
        (csv, fuzzing::csv, 1000),
        (packed.finish().unwrap(), fuzzing::csv_gz, 1000),
        (svm, fuzzing::libsvm, 1000),
        (idx, fuzzing::idx, 1000),
        (npy, fuzzing::npy, 1000),
    ];
    let mut random = 7_u64;
    let mut next = |below: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize % below
    };
    for (seed, target, count) in seeds {
        target(&seed);
        for _ in 0..count {
            let mut bytes = seed.clone();
            match next(4) {
                0 => bytes.truncate(next(seed.len())),
                1 => {
                    let at = next(seed.len());
                    bytes.splice(at..at, (0..1 + next(8)).map(|n| (n as u8).wrapping_mul(37)));
                }
                _ => {
                    for _ in 0..1 + next(4) {
                        let at = next(bytes.len());
                        bytes[at] = [0, 0xff, 0x7f, 0x80, bytes[at] ^ 1, bytes[at].wrapping_add(1)][next(6)];
                    }
                }
            }
            target(&bytes);
        }
    }
    assert!(peak() < 500_000_000, "{} bytes", peak());
}

#[test]
fn a_schema_that_lies_is_refused_before_it_is_built() {
    let folder = tempfile::tempdir().unwrap();
    // FileMetaData { 1: version, 2: [SchemaElement { 4: "t", 5: num_children }, …] }, and nothing else.
    let file = |elements: &[u8], count: u8| {
        let mut bytes = b"PAR1".to_vec();
        let mut footer = vec![0x15, 2, 0x19, count << 4 | 12];
        footer.extend(elements);
        footer.push(0);
        bytes.extend(&footer);
        bytes.extend((footer.len() as u32).to_le_bytes());
        bytes.extend(b"PAR1");
        bytes
    };
    let many = file(&[0x48, 1, b't', 0x15, 0xfe, 0xff, 0xff, 0xff, 0x0f, 0], 1);
    refused(&put(folder.path(), "many.parquet", many), &options(), "only flat columns can be read");
    let deep = file(&[0x48, 1, b't', 0x15, 2, 0].repeat(14), 14);
    refused(&put(folder.path(), "deep.parquet", deep), &options(), "only flat columns can be read");
    refused(&put(folder.path(), "cut.parquet", b"PAR1 and so on"), &options(), "cut off");
}

#[test]
fn a_stray_quote_is_named_by_its_line() {
    let rows = "1,2,3\n".repeat(3000);
    let message = read(&format!("a,b,y\n1,\"2,3\n{rows}1,\"2,3\n")).unwrap_err();
    assert!(message.contains("line 2: a quote there is not closed before line 6"), "{message}");
    let message = read("a,b,y\n1,\"2,3\n1,2,3\n").unwrap_err();
    assert!(message.contains("line 2: a quote there is never closed"), "{message}");
}

#[test]
fn labels_that_are_no_numbers_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let images = put(folder.path(), "x.idx", b"\0\0\x08\x02\0\0\0\x02\0\0\0\x01\x01\x02");
    let mut labels = b"\0\0\x0d\x01\0\0\0\x02".to_vec();
    labels.extend(1_f32.to_be_bytes());
    labels.extend(f32::NAN.to_be_bytes());
    let labels = put(folder.path(), "y.idx", labels);
    let target = Some(labels.to_str().unwrap().to_owned());
    refused(&images, &TableOptions { target, ..TableOptions::default() }, "y.idx: label 2 is NaN");
    let features = afterfit::table::Matrix::Double(afterfit::objective::Features::Dense(
        afterfit::objective::Dense::new(4, 1, vec![1.0, 2.0, 3.0, 4.0]).unwrap(),
    ));
    let target = afterfit::table::Target::Numeric(vec![0.0, 1.0, f64::NAN, 1.0]);
    let refused = learn(Table::of(features, target), &Settings::new(ModelChoice::Softmax, vec![0.1]));
    assert!(refused.err().unwrap().to_string().contains("the target holds NaN at row 3"));
}

#[test]
fn numbers_written_for_people_are_not_categories() {
    let table = |value: &dyn Fn(usize) -> String| {
        let rows: Vec<String> = (0..40).map(|row| format!("{},{row}.5", value(row))).collect();
        read(&format!("a,y\n{}\n", rows.join("\n")))
    };
    for (value, kind) in [
        (&(|row| format!("\"{row},5\"")) as &dyn Fn(usize) -> String, "numbers with commas (\"0,5\", for one)"),
        (&|row| format!("{row}%"), "percentages"),
        (&|row| format!("${row}"), "amounts of money"),
    ] {
        let message = table(value).unwrap_err();
        assert!(message.starts_with("column \"a\" holds ") && message.contains(kind), "{message}");
        // As a target they would be classes.
        let rows = (0..40).map(|row| format!("{},{row}", value(row))).collect::<Vec<_>>().join("\n");
        let message = read(&format!("y,a\n{rows}\n")).unwrap_err();
        assert!(message.starts_with("column \"y\" holds ") && message.contains(kind), "{message}");
    }
    let few = table(&|row| format!("{}%", row % 3)).unwrap();
    assert!(few.notes[0].contains("holds percentages, like \"0%\""), "{:?}", few.notes);
    let identifiers = table(&|row| format!("id-{row}")).unwrap();
    assert!(
        identifiers.notes[0].contains("column \"a\" holds 40 different texts in 40 rows"),
        "{:?}",
        identifiers.notes
    );
    let long = read(&format!(
        "a,y\n{}\n",
        (0..1100).map(|row| format!("{}{row},1.5", "x".repeat(200))).collect::<Vec<_>>().join("\n")
    ));
    let long = long.unwrap_err();
    assert!(long.contains("holds 1100 different texts") && long.len() < 300, "{long}");
}

#[test]
fn an_index_written_by_accident_is_left_out() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["", "Unnamed: 0"] {
        let rows: Vec<String> = (0..50).map(|row| format!("{row},{},{}.5", row % 7, row % 5)).collect();
        let path = put(folder.path(), "t.csv", format!("{name},a,y\n{}\n", rows.join("\n")));
        let table = Table::read(&path, &options()).unwrap();
        assert_eq!(table.feature_names().unwrap(), ["a"]);
        assert!(table.notes[0].contains("as a data frame's index does: it is left out"));
        let stream = Stream::survey(&path, &options()).unwrap();
        assert_eq!((stream.width, stream.notes.len()), (1, 1));
    }
    let other = read("Unnamed: 0,a,y\n5,1,1.5\n6,2,2.5\n").unwrap();
    assert_eq!(other.feature_names().unwrap(), ["Unnamed: 0", "a"]);
}

#[test]
fn a_target_of_dates_or_of_everything_is_refused() {
    let message = read("a,y\n1,2024-05-01\n2,2024-05-02\n").unwrap_err();
    assert!(message.contains("the target \"y\" holds dates, like \"2024-05-01\""), "{message}");
    let rows: Vec<String> = (0..5000).map(|row| format!("{},name {row}", row % 9)).collect();
    let table = read(&format!("a,y\n{}\n", rows.join("\n"))).unwrap();
    let message = learn(table, &Settings::new(ModelChoice::Softmax, vec![0.1])).err().unwrap().to_string();
    assert_eq!(message, "the target has 5000 different values, like \"name 0\": at most 1000 can be classes");
}

#[test]
fn wide_tables_take_time_in_proportion() {
    let folder = tempfile::tempdir().unwrap();
    let columns = 100_000;
    let names: Vec<String> = (0..columns).map(|column| format!("c{column}")).collect();
    let mut text = format!("{},y\n", names.join(","));
    for row in 0..6 {
        text.push_str(
            &(0..columns).map(|column| ((column * 7 + row * 3) % 10).to_string()).collect::<Vec<_>>().join(","),
        );
        text.push_str(&format!(",{row}.5\n"));
    }
    let path = put(folder.path(), "t.csv", text);
    let start = Instant::now();
    let table = Table::read(&path, &options()).unwrap();
    let again = table.columns.read(&path, None, None, None, None).unwrap();
    assert_eq!(again.features.shape(), [6, columns]);
    let stream = Stream::survey(&path, &options()).unwrap();
    stream.blocks::<afterfit::table::TableError>(|_| Ok(())).unwrap();
    // (Quadratic look-ups took a minute.)
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
}

/// Twenty rows of 10 000 features: through the rows, in a few times the table's own memory and never its square.
#[test]
fn few_rows_of_many_features_are_fitted() {
    let columns = 10_000;
    let names: Vec<String> = (0..columns).map(|column| format!("c{column}")).collect();
    let value = |row: usize, column: usize| ((row * row * (column % 13) + row * column) % 17) as f64 / 4.0;
    let line = |row: usize| {
        let values: Vec<String> = (0..columns).map(|column| value(row, column).to_string()).collect();
        format!("{},{}.5\n", values.join(","), row % 7)
    };
    let table = read(&format!("{},y\n{}", names.join(","), (0..20).map(line).collect::<String>())).unwrap();
    assert_eq!(table.features.shape(), [20, columns]);
    let learned = learn(table, &Settings::new(ModelChoice::Linear, vec![1e-2, 1.0])).unwrap();
    assert_eq!(learned.rows.len(), 2);
    // A square of the columns would be 800 MB.
    assert!(peak() < 400_000_000, "{} bytes", peak());
}

#[test]
fn squares_that_overflow_are_refused_by_name() {
    let table =
        |value: &str| read(&format!("a,b,y\n{}", format!("1,{value},1.5\n2,0,2.5\n3,1,3\n").repeat(10))).unwrap();
    let settings = Settings { standardize: true, ..Settings::new(ModelChoice::Linear, vec![0.1]) };
    let message = |table: Table| learn(table, &settings).err().unwrap().to_string();
    assert_eq!(
        message(table("1e200")),
        "column \"b\" holds numbers of up to 1e200, whose squares overflow: rescale it first"
    );
    let tiny = read(&format!("a,b,y\n{}", "1,1e-200,1.5\n2,0,2.5\n3,0,3\n".repeat(10))).unwrap();
    assert_eq!(message(tiny), "column \"b\" varies by no more than 1e-200, whose square is 0: rescale it first");
}

#[test]
fn a_file_that_changes_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let path = put(folder.path(), "t.csv", "a,y\n1,1.5\n2,2.5\n3,3.5\n");
    let stream = Stream::survey(&path, &options()).unwrap();
    std::fs::write(&path, "a,b,y\n1,2,1.5\n2,2,2.5\n3,3,3.5\n4,4,4.5\n").unwrap();
    let message = stream.blocks::<afterfit::table::TableError>(|_| Ok(())).unwrap_err().to_string();
    assert!(message.contains("changed while it was read"), "{message}");
}

#[test]
fn parts_of_other_lengths_are_errors() {
    let table = || read("a,y\n1,1.5\n2,2.5\n3,3\n4,1\n5,2\n").unwrap();
    let settings = Settings::new(ModelChoice::Linear, vec![0.1]);
    let refused = |table: Table| learn(table, &settings).err().unwrap().to_string();
    assert!(refused(Table { weights: Some(vec![1.0; 3]), ..table() }).contains("the weights has 3 rows"));
    assert!(refused(Table { groups: Some(vec![1; 9]), ..table() }).contains("the groups has 9 rows"));
    assert!(refused(Table { filled: vec![(0, 7)], ..table() }).contains("beyond the table"));
    // Library calls with parts that do not fit are errors, too.
    use afterfit::objective::{Dense, Features, LeastSquares};
    assert!(Dense::new(usize::MAX, 2, vec![1.0_f64]).is_err());
    let x = || Features::Dense(Dense::new(2, 1, vec![1.0, 2.0]).unwrap());
    assert!(LeastSquares::new(x(), vec![1.0], usize::MAX, 0.0, false).is_err());
    for y in [vec![], vec![1.0], vec![1.0, f64::NAN]] {
        assert!(afterfit::fit::wide(&x(), &y, &[0.1], true, &afterfit::fit::RidgeRun::default()).is_err());
    }
    assert_eq!(afterfit::select::one_standard_error(&[], &[], 0, 1.0), 0);
    assert_eq!(afterfit::select::best(&[1.0], &[2.0, 1.0]), 0);
    assert!(afterfit::model::argmax(&[1.0], 0) == [0]);
}

/// The corpora of the fuzz targets for tables and models through their readers: nothing may panic or hang.
#[test]
fn the_fuzz_corpora_of_tables_replay() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    type Target = (&'static str, fn(&[u8]));
    let targets: [Target; 8] = [
        ("csv", fuzzing::csv),
        ("csv_gz", fuzzing::csv_gz),
        ("parquet", fuzzing::parquet),
        ("libsvm", fuzzing::libsvm),
        ("idx", fuzzing::idx),
        ("npy", fuzzing::npy),
        ("table_npz", fuzzing::npz),
        ("model", afterfit::model::fuzzing::model),
    ];
    for (name, target) in targets {
        let files: Vec<PathBuf> =
            std::fs::read_dir(corpus.join(name)).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.iter().for_each(|file| target(&std::fs::read(file).unwrap()));
        assert!(files.len() > 5, "the corpus of {name} has {} files", files.len());
    }
    // What pyarrow writes is read, whatever its encoding, but for differences of texts.
    for name in ["plain", "dictionary", "zstd", "two", "delta", "prefix"] {
        let path = corpus.join("parquet").join(name);
        let options =
            TableOptions { format: Some(Format::Parquet), missing: Some(afterfit::table::Missing::Drop), ..options() };
        match Table::read(&path, &options) {
            Ok(table) => assert_eq!(table.feature_names().unwrap(), ["a", "t=x", "t=y", "d"], "{name}"),
            Err(error) => {
                assert!(name == "prefix" && error.to_string().contains("DELTA_BYTE_ARRAY"), "{name}: {error}")
            }
        }
    }
}
