//! Tables read a piece at a time give what the same tables give in memory.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use afterfit::learn::{Learned, ModelChoice, Settings, Validation, learn, learn_streamed};
use afterfit::objective::{Dense, Features};
use afterfit::select::place;
use afterfit::table::{ColumnRecipe, Matrix, Missing, Stream, Table, TableOptions, Target};
use parquet::data_type::{ByteArray, ByteArrayType, DoubleType};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use rand::RngExt;

use crate::common::*;

fn settings(validation: Validation, standardize: bool) -> Settings {
    let l2 = vec![1e-3, 1e-1, 1.0];
    Settings { validation, standardize, seed: 5, ..Settings::new(ModelChoice::Linear, l2) }
}

/// Numbers far from zero and of different sizes, texts with commas and line ends in them, more than a megabyte.
struct Rows {
    numbers: Vec<[f64; 6]>,
    texts: Vec<&'static str>,
    y: Vec<f64>,
}

fn rows(count: usize) -> Rows {
    let mut rng = rng(301);
    let texts: Vec<&str> = (0..count).map(|_| ["red", "gre,en", "bl\nue \"x\""][rng.random_range(0..3)]).collect();
    let numbers: Vec<[f64; 6]> = (0..count)
        .map(|_| std::array::from_fn(|j| 100.0 * j as f64 + 3_f64.powi(j as i32 - 3) * uniform(&mut rng, -1.0, 1.0)))
        .collect();
    let y = numbers.iter().zip(&texts).map(|(x, text)| {
        50.0 + x[0] - 2.0 * x[3] + if *text == "red" { 1.0 } else { 0.0 } + uniform(&mut rng, -0.5, 0.5)
    });
    let y = y.collect();
    Rows { numbers, texts, y }
}

impl Rows {
    fn csv(&self) -> String {
        let mut text = "a,b,\"c\",d,e,f,color,y\n".to_owned();
        for ((x, color), y) in self.numbers.iter().zip(&self.texts).zip(&self.y) {
            let x: Vec<String> = x.iter().map(f64::to_string).collect();
            text.push_str(&format!("{}, \"{}\",{y}\n", x.join(","), color.replace('"', "\"\"")).replace(", \"", ",\""));
        }
        text
    }

    fn libsvm(&self) -> String {
        let line = |(x, y): (&[f64; 6], &f64)| {
            let kept = x.iter().enumerate().filter(|(j, _)| !(j + x[5].to_bits() as usize).is_multiple_of(3));
            let fields: Vec<String> = kept.map(|(j, value)| format!("{}:{value}", j + 1)).collect();
            format!("{y} {} # remark\n", fields.join(" "))
        };
        self.numbers.iter().zip(&self.y).map(line).collect()
    }

    fn parquet(&self, path: &Path) {
        let columns = ["a", "b", "c", "d", "e", "f", "y"].map(|name| format!("required double {name};")).join(" ");
        let schema = format!("message rows {{ {columns} optional binary color (UTF8); }}");
        let schema = Arc::new(parse_message_type(&schema).unwrap());
        let file = std::fs::File::create(path).unwrap();
        let mut writer = SerializedFileWriter::new(file, schema, Arc::default()).unwrap();
        for start in (0..self.y.len()).step_by(7000) {
            let part = start..self.y.len().min(start + 7000);
            let mut group = writer.next_row_group().unwrap();
            let mut at = 0;
            while let Some(mut column) = group.next_column().unwrap() {
                if at < 7 {
                    let value = |i: usize| if at < 6 { self.numbers[i][at] } else { self.y[i] };
                    let values: Vec<f64> = part.clone().map(value).collect();
                    column.typed::<DoubleType>().write_batch(&values, None, None).unwrap();
                } else {
                    let texts: Vec<ByteArray> = self.texts[part.clone()].iter().map(|text| (*text).into()).collect();
                    column.typed::<ByteArrayType>().write_batch(&texts, Some(&vec![1; texts.len()]), None).unwrap();
                }
                column.close().unwrap();
                at += 1;
            }
            group.close().unwrap();
        }
        writer.close().unwrap();
    }
}

fn picked(table: &Table, keep: impl Fn(usize) -> bool) -> (Matrix, Target) {
    let (Matrix::Double(x), Target::Numeric(y)) = (&table.features, &table.target) else { panic!("numbers above") };
    let rows: Vec<usize> = (0..y.len()).filter(|&row| keep(row)).collect();
    (Matrix::Double(x.pick(&rows)), Target::Numeric(rows.iter().map(|&row| y[row]).collect()))
}

fn compare(streamed: &Learned, expected: &Learned, what: &str) {
    let error = relative(&streamed.model.weights, &expected.model.weights);
    assert!(error < 1e-9, "{what}: {error:e}");
    let (bias, expected_bias) = (&streamed.model.bias, &expected.model.bias);
    assert!(bias == expected_bias || relative(bias, expected_bias) < 1e-9, "{what}: {bias:?}");
    assert_eq!(streamed.best, expected.best, "{what}");
    for (a, b) in streamed.rows.iter().zip(&expected.rows) {
        let degrees = |row: &afterfit::learn::Row| row.degrees_of_freedom.unwrap();
        let pairs = [
            (a.train_loss, b.train_loss),
            (a.validation_loss, b.validation_loss),
            (a.norm, b.norm),
            (degrees(a), degrees(b)),
            (a.validation_r2.unwrap(), b.validation_r2.unwrap()),
        ];
        assert!(pairs.iter().all(|(a, b)| (a - b).abs() < 1e-8 * b.abs()), "{what}: {pairs:?}");
    }
}

#[test]
fn what_was_missing_and_how_far_scales_are_apart_is_known_either_way() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.csv");
    // More than one chunk, far from zero.
    let rows: String =
        (0..60_000).map(|i| format!("{},{},{},x,{i}\n", 1e6 + f64::from(i % 3), i * 997 % 60_000, 5)).collect();
    std::fs::write(&path, format!("a;b\nc,many,same,text,y\n,,,,1\n{rows}").replacen("a;b\nc", "\"a;b\nc\"", 1))
        .unwrap();
    let options = TableOptions { target: Some("y".into()), missing: Some(Missing::Mean), ..TableOptions::default() };
    let (table, stream) = (Table::read(&path, &options).unwrap(), Stream::survey(&path, &options).unwrap());
    let name = |name: &str| (name.to_owned(), 1);
    assert_eq!(table.gaps, [name("a;b\nc"), name("many"), name("same"), name("text")]);
    assert_eq!(stream.missing, table.gaps);
    let (one, two) = (table.scales.unwrap(), stream.scales.unwrap());
    for ((name, spread), (other, also)) in [(one.widest, two.widest), (one.narrowest, two.narrowest)] {
        assert!(name == other && (spread / also - 1.0).abs() < 1e-6, "{name}: {spread}, {other}: {also}");
    }
}

#[test]
fn streamed_models_equal_those_in_memory_on_the_same_rows() {
    let folder = tempfile::tempdir().unwrap();
    let rows = rows(12_000);
    let at = |name: &str| folder.path().join(name);
    let csv = rows.csv();
    assert!(csv.len() > 1 << 20, "more than one chunk");
    std::fs::write(at("t.csv"), &csv).unwrap();
    let packed = std::fs::File::create(at("t.csv.gz")).unwrap();
    let mut packed = flate2::write::GzEncoder::new(packed, flate2::Compression::fast());
    packed.write_all(csv.as_bytes()).unwrap();
    packed.finish().unwrap();
    std::fs::write(at("t.libsvm"), rows.libsvm()).unwrap();
    rows.parquet(&at("t.parquet"));
    for (file, standardize) in [("t.csv", false), ("t.csv.gz", true), ("t.parquet", true), ("t.libsvm", false)] {
        let target = (file != "t.libsvm").then(|| "y".to_owned());
        let options = TableOptions { target, ..TableOptions::default() };
        let stream = Stream::survey(&at(file), &options).unwrap();
        let table = Table::read(&at(file), &options).unwrap();
        assert_eq!((stream.rows, stream.width), (12_000, table.features.shape()[1]), "{file}");
        assert_eq!(stream.columns.recipe.as_ref().map(|r| r.feature_names()), table.feature_names(), "{file}");

        let held = |row: usize| place(row as u64, 5) < 0.2;
        let (x, y) = picked(&table, |row| !held(row));
        let (test_x, test_y) = picked(&table, held);
        let expected = learn(Table::of(x, y), &settings(Validation::Rows(test_x, test_y, None), standardize)).unwrap();
        let streamed = learn_streamed(&stream, None, &settings(Validation::Share(0.2), standardize)).unwrap();
        compare(&streamed, &expected, file);
        assert_eq!(streamed.model.about.columns, stream.columns);

        let mut expected: Vec<f64> = vec![0.0; 3];
        for fold in 0..3 {
            let inside = |row: usize| (3.0 * place(row as u64, 5)) as usize == fold;
            let ((x, y), (test_x, test_y)) = (picked(&table, |row| !inside(row)), picked(&table, inside));
            let learned =
                learn(Table::of(x, y), &settings(Validation::Rows(test_x, test_y, None), standardize)).unwrap();
            expected.iter_mut().zip(&learned.rows).for_each(|(sum, row)| *sum += row.validation_loss / 3.0);
        }
        let streamed = learn_streamed(&stream, None, &settings(Validation::Folds(3), standardize)).unwrap();
        let found: Vec<f64> = streamed.rows.iter().map(|row| row.validation_loss).collect();
        assert!(relative(&found, &expected) < 1e-8, "{file}: {found:?} {expected:?}");

        let (x, y) = picked(&table, |_| true);
        let expected = learn(table, &settings(Validation::Rows(x, y, None), standardize)).unwrap();
        let test = stream.alike(&at(file), None).unwrap();
        let streamed = learn_streamed(&stream, Some(&test), &settings(Validation::Share(0.2), standardize)).unwrap();
        compare(&streamed, &expected, file);
    }
}

#[test]
fn rows_with_missing_values_are_dropped_by_blocks_as_in_memory() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("t.csv");
    let rows = rows(200);
    let with_gaps: Vec<String> = rows
        .csv()
        .lines()
        .enumerate()
        .map(|(i, line)| match line.split_once(',') {
            Some((_, rest)) if i % 7 == 3 && line.ends_with(|c: char| c.is_ascii_digit()) && line.contains("red") => {
                format!("NA,{rest}")
            }
            _ => line.to_owned(),
        })
        .collect();
    std::fs::write(&file, with_gaps.join("\n")).unwrap();
    let options = |missing| TableOptions { target: Some("y".into()), missing, ..TableOptions::default() };
    let refused = Stream::survey(&file, &options(None)).unwrap_err().to_string();
    assert_eq!(refused, Table::read(&file, &options(None)).unwrap_err().to_string());
    let stream = Stream::survey(&file, &options(Some(Missing::Drop))).unwrap();
    let table = Table::read(&file, &options(Some(Missing::Drop))).unwrap();
    assert!(!table.left_out.is_empty());
    let mut kept = 0;
    stream
        .blocks(|block| -> afterfit::Result<()> {
            kept += block.rows.len();
            assert!(block.rows.iter().all(|row| !table.left_out.contains(row)));
            Ok(())
        })
        .unwrap();
    assert_eq!(kept, table.target.len());
    let (x, y) = picked(&table, |_| true);
    let expected = learn(table, &settings(Validation::Rows(x, y, None), false)).unwrap();
    let test = stream.alike(&file, None).unwrap();
    compare(
        &learn_streamed(&stream, Some(&test), &settings(Validation::Share(0.5), false)).unwrap(),
        &expected,
        "drop",
    );
}

/// `--missing mean` fills in the mean of the rows that train: of those without the held-out ones, not of all.
#[test]
fn missing_values_get_the_mean_of_the_rows_that_train() {
    let folder = tempfile::tempdir().unwrap();
    let mut rng = rng(302);
    let count = 400;
    let mut x: Vec<[f64; 3]> =
        (0..count).map(|_| std::array::from_fn(|j| 50.0 * j as f64 + uniform(&mut rng, -1.0, 1.0))).collect();
    let y: Vec<f64> = x.iter().map(|x| 5.0 + x[0] - 2.0 * x[1] + uniform(&mut rng, -0.1, 0.1)).collect();
    for (row, x) in x.iter_mut().enumerate() {
        (0..2).filter(|j| (row + 3 * j) % 5 == 0).for_each(|j| x[j] = f64::NAN);
    }
    let show = |value: &f64| if value.is_nan() { String::new() } else { value.to_string() };
    let line = |(x, y): (&[f64; 3], &f64)| format!("{},{y}\n", x.each_ref().map(show).join(","));
    let text: String = std::iter::once("a,b,c,y\n".to_owned()).chain(x.iter().zip(&y).map(line)).collect();
    let file = folder.path().join("t.csv");
    std::fs::write(&file, text).unwrap();
    let options = TableOptions { target: Some("y".into()), missing: Some(Missing::Mean), ..TableOptions::default() };
    let stream = Stream::survey(&file, &options).unwrap();
    // By hand: means of the rows that train, filled in everywhere.
    let by_hand = |held: &dyn Fn(usize) -> bool, bias: bool, standardize: bool| {
        let means: [f64; 3] = std::array::from_fn(|j| {
            let there: Vec<f64> =
                (0..count).filter(|&row| !held(row)).map(|row| x[row][j]).filter(|v| !v.is_nan()).collect();
            there.iter().sum::<f64>() / there.len() as f64
        });
        let fill = |(j, value): (usize, &f64)| if value.is_nan() { means[j] } else { *value };
        let filled: Vec<f64> = x.iter().flat_map(|x| x.iter().enumerate().map(fill).collect::<Vec<_>>()).collect();
        let all = Features::Dense(Dense::new(count, 3, filled).unwrap());
        let table = Table::of(Matrix::Double(all), Target::Numeric(y.clone()));
        let (train_x, train_y) = picked(&table, |row| !held(row));
        let (test_x, test_y) = picked(&table, held);
        let settings = Settings { bias, ..settings(Validation::Rows(test_x, test_y, None), standardize) };
        (learn(Table::of(train_x, train_y), &settings).unwrap(), means)
    };
    let held = |row: usize| place(row as u64, 5) < 0.3;
    for (bias, standardize) in [(true, false), (true, true), (false, false)] {
        let settings = Settings { bias, ..settings(Validation::Share(0.3), standardize) };
        let streamed = learn_streamed(&stream, None, &settings).unwrap();
        let (expected, means) = by_hand(&held, bias, standardize);
        compare(&streamed, &expected, "mean");
        let recipe = streamed.model.about.columns.recipe.as_ref().unwrap();
        for (column, mean) in recipe.columns.iter().zip(means) {
            assert!(
                matches!(column, ColumnRecipe::Number { mean: found, .. } if (found - mean).abs() < 1e-12 * (1.0 + mean.abs()))
            );
        }
    }
    let streamed = learn_streamed(&stream, None, &settings(Validation::Folds(2), false)).unwrap();
    let losses = [0, 1].map(|fold| by_hand(&|row| (2.0 * place(row as u64, 5)) as usize == fold, true, false).0);
    for (at, row) in streamed.rows.iter().enumerate() {
        let expected = losses.iter().map(|learned| learned.rows[at].validation_loss / 2.0).sum::<f64>();
        assert!((row.validation_loss / expected - 1.0).abs() < 1e-9);
    }
}

#[test]
fn what_cannot_be_streamed_is_refused_by_name_and_row() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |text: &str, options: &TableOptions| {
        let file = folder.path().join("t.csv");
        std::fs::write(&file, text).unwrap();
        let error = Stream::survey(&file, options).unwrap_err().to_string();
        error.split("t.csv: ").last().unwrap().to_owned()
    };
    let options = TableOptions { target: Some("y".into()), ..TableOptions::default() };
    let cases = [
        ("a,y\n1,2\ninf,3\n", "column \"a\" holds inf at data row 2: every number must be finite"),
        ("a,y\n1,2\n1,-inf\n", "column \"y\" holds -inf at data row 2: every number must be finite"),
        ("a,y\n1,2\n,3\n", "column \"a\" has 1 missing value(s), the first at data row 2"),
        ("a,y\n1,2\n1,2,3\n", "line 3 has 3 fields, but the header has 2"),
        ("a,y\n", "there are no data rows"),
        ("a,b\n1,2\n", "no column named \"y\"; there are: a, b"),
        ("a,a,y\n1,2,3\n", "two columns are named \"a\""),
    ];
    for (text, reason) in cases {
        assert_eq!(refused(text, &options), reason);
    }
    let mut odd = "a,y\n".to_owned();
    (0..50).for_each(|i| odd.push_str(&format!("{},{i}\n", if i == 30 { "x".to_owned() } else { i.to_string() })));
    assert_eq!(refused(&odd, &options), "column \"a\" holds numbers, but for 1 text(s) like \"x\"");
    let file = folder.path().join("t.npy");
    std::fs::write(&file, "x").unwrap();
    let error = Stream::survey(&file, &options).unwrap_err().to_string();
    assert!(error.ends_with("only csv, parquet and libsvm files can be read a piece at a time"), "{error}");

    let file = folder.path().join("u.csv");
    std::fs::write(&file, "a,y\n1,2\n2,3\n4,4\n").unwrap();
    let stream = Stream::survey(&file, &options).unwrap();
    let softmax = Settings { model: ModelChoice::Softmax, ..settings(Validation::Share(0.5), false) };
    let error = learn_streamed(&stream, None, &softmax).err().unwrap().to_string();
    assert_eq!(error, "only linear models can be fitted a piece of the table at a time");
    std::fs::write(folder.path().join("v.csv"), "a,y\n1,2\n,3\n").unwrap();
    let test = stream.alike(&folder.path().join("v.csv"), None).unwrap();
    let error = learn_streamed(&stream, Some(&test), &settings(Validation::Share(0.5), false)).err().unwrap();
    assert_eq!(error.to_string(), "column \"a\" has 1 missing value(s), the first at data row 2");
}

#[test]
fn line_ends_of_every_kind_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("t.csv");
    let options = TableOptions { target: Some("y".into()), ..TableOptions::default() };
    for text in ["\u{feff}a,y\r\n1,2\r\n\r\n3,5", "a,y\r1,2\r3,5\r", "\"a\",y\n\n 1 , 2\n\"3\",\"5\"\n\n"] {
        std::fs::write(&file, text).unwrap();
        let table = Table::read(&file, &options).unwrap();
        assert_eq!(table.target, Target::Numeric(vec![2.0, 5.0]), "{text:?}");
        let stream = Stream::survey(&file, &options).unwrap();
        assert_eq!((stream.rows, &stream.means, stream.target_mean), (2, &vec![2.0], 3.5), "{text:?}");
    }
}
