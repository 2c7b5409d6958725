//! What becomes of the columns of a table: booleans, dates, weights, groups, numbers filled in.

use std::path::PathBuf;
use std::sync::Arc;

use afterfit::objective::Features;
use afterfit::table::{
    Alike, ColumnRecipe, Format, Matrix, Missing, Recipe, Table, TableOptions, Target, means_without, refill,
};
use parquet::data_type::{Int32Type, Int64Type};
use parquet::file::writer::SerializedFileWriter;

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }
}

fn options() -> TableOptions {
    TableOptions { target: Some("y".into()), ..TableOptions::default() }
}

fn read(text: &str, options: &TableOptions) -> Result<Table, String> {
    Table::read(&Folder::new().file("t.csv", text), options).map_err(|error| error.to_string())
}

fn rows(features: &Matrix) -> Vec<Vec<f64>> {
    let Matrix::Double(Features::Dense(x)) = features else { panic!("dense f64 expected") };
    (0..features.shape()[0]).map(|row| x.row(row).to_vec()).collect()
}

fn later(table: &Table, text: &str) -> Result<Alike, String> {
    let file = Folder::new();
    table.columns.read(&file.file("t.csv", text), None, None, None, None).map_err(|error| error.to_string())
}

#[test]
fn booleans_are_one_number() {
    let table = read("a,b,c,y\nTrue,yes,t,1.5\nFALSE,no,x,2.5\ntrue,No,t,0\n", &options()).unwrap();
    assert_eq!(table.feature_names().unwrap(), ["a", "b", "c=t", "c=x"]);
    assert_eq!(rows(&table.features), [[1.0, 1.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0], [1.0, 0.0, 1.0, 0.0]]);
    let alike = later(&table, "c,b,a\nx,Y,f\n").unwrap();
    assert_eq!(rows(&alike.features), [[0.0, 1.0, 0.0, 1.0]]);
    assert_eq!(rows(&later(&table, "c,b,a\nx,1,0\n").unwrap().features), [[0.0, 1.0, 0.0, 1.0]]);
    assert_eq!(
        later(&table, "c,b,a\nx,no,maybe\n").unwrap_err(),
        "column \"a\" held true or false when the model was fitted, but holds \"maybe\" here"
    );
    assert_eq!(
        later(&table, "c,b,a\nx,2,true\n").unwrap_err(),
        "column \"b\" held true or false when the model was fitted, but holds \"2\" here"
    );
}

#[test]
fn what_is_not_quite_boolean_stays_texts() {
    let table = read("one,mixed,n,y\nyes,true,y,1.5\nyes,no,1,2.5\nyes,true,n,0\n", &options()).unwrap();
    assert_eq!(table.feature_names().unwrap(), ["one=yes", "mixed=no", "mixed=true", "n=1", "n=n", "n=y"]);
}

#[test]
fn a_boolean_target_stays_classes() {
    let table = read("a,y\n1,true\n2,false\n", &options()).unwrap();
    assert_eq!(table.target, Target::Text(vec!["true".into(), "false".into()]));
}

#[test]
fn dates_are_days() {
    let text = "day,moment,y\n2024-05-01,2024-05-01T06:00:00Z,1\n1970-01-02,2024-05-01T12:00:00+06:00,2\n";
    let table = read(text, &options()).unwrap();
    assert_eq!(table.feature_names().unwrap(), ["day", "moment"]);
    assert_eq!(rows(&table.features), [[19844.0, 19844.25], [1.0, 19844.25]]);
    assert_eq!(rows(&later(&table, "moment,day\n1970-01-01,1970-01-01T12:00\n").unwrap().features), [[0.5, 0.0]]);
    let fitted = "held ISO dates when the model was fitted, but holds";
    assert_eq!(
        later(&table, "moment,day\n1970-01-01,01/02/1970\n").unwrap_err(),
        format!("column \"day\" {fitted} \"01/02/1970\" here")
    );
    assert_eq!(later(&table, "moment,day\n1970-01-01,5\n").unwrap_err(), format!("column \"day\" {fitted} \"5\" here"));
}

#[test]
fn other_dates_are_refused_by_name() {
    let refused = |text: &str| read(text, &options()).unwrap_err();
    let expected = |text: &str| format!("column \"d\" holds dates, but not all in ISO form (2024-05-31): \"{text}\"");
    assert_eq!(refused("d,y\n01/02/2024,1\n02/02/2024,2\n"), expected("01/02/2024"));
    assert_eq!(refused("d,y\n1 Feb 2024,1\n2 Feb 2024,2\n"), expected("1 Feb 2024"));
    let mostly = format!("d,y\n{}unknown,1\n", "2024-05-01,1\n2024-05-02,2\n".repeat(10));
    assert_eq!(refused(&mostly), expected("unknown"));
    let few = read("d,y\n2024-05-01,1\nred,2\n", &options()).unwrap();
    assert_eq!(few.feature_names().unwrap(), ["d=2024-05-01", "d=red"]);
    let dropped = TableOptions { drop: vec!["d".into()], ..options() };
    assert!(read("d,a,y\n01/02/2024,1,1\n02/02/2024,2,2\n", &dropped).is_ok());
}

#[test]
fn parquet_dates_are_the_same_days() {
    let schema = "message t {
        required int32 day (DATE);
        required int64 milli (TIMESTAMP(MILLIS,true));
        required int64 micro (TIMESTAMP(MICROS,true));
        required int64 nano (TIMESTAMP(NANOS,false));
        required int64 y;
    }";
    let schema = Arc::new(parquet::schema::parser::parse_message_type(schema).unwrap());
    let folder = Folder::new();
    let path = folder.0.path().join("t.parquet");
    let file = std::fs::File::create(&path).unwrap();
    let mut writer = SerializedFileWriter::new(file, schema, Arc::default()).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let noon = 19844 * 86_400_000 + 43_200_000_i64;
    let mut day = group.next_column().unwrap().unwrap();
    day.typed::<Int32Type>().write_batch(&[19844, -1], None, None).unwrap();
    day.close().unwrap();
    for values in [[noon, 0], [noon * 1000, 0], [noon * 1_000_000, 0], [1, 2]] {
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<Int64Type>().write_batch(&values, None, None).unwrap();
        column.close().unwrap();
    }
    group.close().unwrap();
    writer.close().unwrap();
    let table = Table::read(&path, &options()).unwrap();
    assert_eq!(table.feature_names().unwrap(), ["day", "milli", "micro", "nano"]);
    assert_eq!(rows(&table.features), [[19844.0, 19844.5, 19844.5, 19844.5], [-1.0, 0.0, 0.0, 0.0]]);
    let csv = "day,milli,micro,nano\n2024-05-01,2024-05-01T12:00:00Z,2024-05-01 12:00,2024-05-01T12:00:00.000\n";
    assert_eq!(rows(&later(&table, csv).unwrap().features)[0], rows(&table.features)[0]);
}

#[test]
fn weights_and_groups_are_no_features() {
    let roles = TableOptions { weights: Some("w".into()), group: Some("who".into()), ..options() };
    let text = "w,a,who,y\n1,5,ann,1\n0,6,bob,2\n2.5,7,ann,3\n";
    let table = read(text, &roles).unwrap();
    assert_eq!(table.feature_names().unwrap(), ["a"]);
    assert_eq!(table.weights.as_deref(), Some(&[1.0, 0.0, 2.5][..]));
    assert_eq!(table.groups.as_deref(), Some(&[0, 1, 0][..]));
    assert_eq!(later(&table, "a\n5\n").unwrap().weights, None);
    let folder = Folder::new();
    let alike = table.read_alike(&folder.file("u.csv", "a,w,y\n5,3,1\n"), None, None, None).unwrap();
    assert_eq!(alike.weights, Some(vec![3.0]));
    let numbers = read(&text.replace("ann", "7").replace("bob", "3"), &roles).unwrap();
    assert_eq!(numbers.groups.as_deref(), Some(&[0, 1, 0][..]));
    // Rows left out for a missing feature take their weights with them.
    let drop = TableOptions { missing: Some(Missing::Drop), ..roles.clone() };
    let table = read("w,a,who,y\n1,,ann,1\n4,6,bob,2\n", &drop).unwrap();
    assert_eq!((table.weights, table.groups), (Some(vec![4.0]), Some(vec![0])));
}

#[test]
fn weights_and_groups_of_an_npz_file_are_arrays() {
    fn npy(shape: &[u64], values: &[f64]) -> Vec<u8> {
        use npyz::WriterBuilder;
        let mut bytes = Vec::new();
        let mut writer = npyz::WriteOptions::new().default_dtype().shape(shape).writer(&mut bytes).begin_nd().unwrap();
        writer.extend(values.iter().copied()).unwrap();
        writer.finish().unwrap();
        bytes
    }
    let folder = Folder::new();
    let path = folder.0.path().join("t.npz");
    let mut archive = zip::ZipWriter::new(std::fs::File::create(&path).unwrap());
    let arrays: [(&str, &[u64], &[f64]); 5] = [
        ("x", &[3, 1], &[5.0, 6.0, 7.0]),
        ("y", &[3], &[1.0, 2.0, 3.0]),
        ("w", &[3], &[1.0, 0.0, 2.5]),
        ("g", &[3, 1], &[9.0, 4.0, 9.0]),
        ("short", &[2], &[1.0, 1.0]),
    ];
    for (name, shape, values) in arrays {
        archive.start_file(format!("{name}.npy"), zip::write::SimpleFileOptions::default()).unwrap();
        std::io::Write::write_all(&mut archive, &npy(shape, values)).unwrap();
    }
    archive.finish().unwrap();
    let roles = TableOptions { weights: Some("w".into()), group: Some("g".into()), ..options() };
    let table = Table::read(&path, &roles).unwrap();
    assert_eq!(rows(&table.features), [[5.0], [6.0], [7.0]]);
    assert_eq!((table.weights, table.groups), (Some(vec![1.0, 0.0, 2.5]), Some(vec![0, 1, 0])));
    let short = TableOptions { weights: Some("short".into()), ..options() };
    let error = Table::read(&path, &short).unwrap_err().to_string();
    assert!(error.ends_with("array short has shape [2], but one number for each of 3 rows is needed"), "{error}");
    let unknown = TableOptions { group: Some("who".into()), ..options() };
    assert!(Table::read(&path, &unknown).unwrap_err().to_string().starts_with("no column named \"who\""));
}

#[test]
fn bad_weights_and_groups_are_refused_by_name_and_row() {
    let roles = TableOptions { weights: Some("w".into()), group: Some("g".into()), ..options() };
    let refused = |text: &str| read(text, &roles).unwrap_err();
    let limit = "a weight is a finite number, at least 0";
    assert_eq!(refused("a,w,g,y\n1,1,x,1\n2,-0.5,x,2\n"), format!("column \"w\" holds -0.5 at data row 2: {limit}"));
    assert_eq!(refused("a,w,g,y\n1,1,x,1\n2,inf,x,2\n"), format!("column \"w\" holds inf at data row 2: {limit}"));
    assert_eq!(refused("a,w,g,y\n1,1,x,1\n2,two,x,2\n"), format!("column \"w\" holds \"two\" at data row 2: {limit}"));
    assert_eq!(
        refused("a,w,g,y\n1,0,x,1\n2,0,x,2\n"),
        "every weight in column \"w\" is 0: at least one must be above 0"
    );
    assert_eq!(
        refused("a,w,g,y\n1,1,x,1\n2,,x,2\n"),
        "column \"w\" is missing at data row 2: every row needs a weight"
    );
    assert_eq!(refused("a,w,g,y\n1,1,,1\n2,1,x,2\n"), "column \"g\" is missing at data row 1: every row needs a group");
    assert!(refused("a,w,y\n1,1,1\n").starts_with("no column named \"g\""));
    let same = TableOptions { group: Some("w".into()), ..roles.clone() };
    let twice = read("a,w,y\n1,1,1\n", &same).unwrap_err();
    assert_eq!(twice, "column \"w\" cannot be both the weights and the groups");
    let target = TableOptions { weights: Some("y".into()), ..options() };
    assert_eq!(read("a,y\n1,1\n", &target).unwrap_err(), "column \"y\" cannot be both the target and the weights");
    let folder = Folder::new();
    let libsvm = TableOptions { format: Some(Format::Libsvm), weights: Some("w".into()), ..TableOptions::default() };
    let error = Table::read(&folder.file("t", "1 1:2\n"), &libsvm).unwrap_err().to_string();
    assert_eq!(error, "this file has no named columns, and so no column of weights");
}

#[test]
fn numbers_filled_in_are_known_and_filled_again_from_the_training_rows() {
    let text = "a,kind,d,b,y\n1,red,2024-05-01,yes,1\n,blue,,no,2\n4,,2024-05-03,,3\n10,red,2024-05-05,no,4\n";
    let table = read(text, &TableOptions { missing: Some(Missing::Mean), ..options() }).unwrap();
    assert_eq!(table.feature_names().unwrap(), ["a", "kind=blue", "kind=red", "d", "b"]);
    assert_eq!(table.filled, [(1, 0), (1, 3), (2, 4)]);
    assert_eq!(rows(&table.features)[1], [5.0, 1.0, 0.0, 19846.0, 0.0]);
    assert_eq!(rows(&table.features)[2], [4.0, 0.0, 0.0, 19846.0, 1.0 / 3.0]);
    let Matrix::Double(mut x) = table.features.clone() else { panic!("f64 expected") };
    let means = means_without(&x, &table.filled, &[0, 1, 2]);
    assert_eq!(means, [(0, 2.5), (3, 19845.0), (4, 0.5)]);
    refill(&mut x, &table.filled, &means);
    let refilled = rows(&Matrix::Double(x.clone()));
    assert_eq!(refilled[1], [2.5, 1.0, 0.0, 19845.0, 0.0]);
    assert_eq!((refilled[2][4], &refilled[3]), (0.5, &rows(&table.features)[3]));
    // Nothing known of a feature in these rows: it stays as it was.
    let means = means_without(&x, &table.filled, &[1]);
    assert_eq!(means, [(4, 0.0)]);
    assert!(read("a,y\n1,1\n", &options()).unwrap().filled.is_empty());
}

#[test]
fn recipes_of_old_models_still_load_and_new_ones_come_back() {
    let old = r#"{"columns":[{"number":{"name":"a","mean":1.5}},{"categorical":{"name":"b","values":["no","yes"]}}],"missing":"error"}"#;
    let recipe: Recipe = serde_json::from_str(old).unwrap();
    assert_eq!(recipe.feature_names(), ["a", "b=no", "b=yes"]);
    let table = read("a,b,d,y\n1,no,2024-05-01,1\n2,yes,2024-05-02,2\n", &options()).unwrap();
    let recipe = table.columns.recipe.unwrap();
    assert!(matches!(&recipe.columns[1..], [ColumnRecipe::Boolean { .. }, ColumnRecipe::Date { .. }]));
    assert_eq!(serde_json::from_str::<Recipe>(&serde_json::to_string(&recipe).unwrap()).unwrap(), recipe);
}
