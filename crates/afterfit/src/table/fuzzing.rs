//! The readers, as fuzz targets and the replay of their corpora call them: bytes as if they were a file.

use super::{Format, Matrix, Stream, Table, TableOptions};

fn table(bytes: &[u8], name: &str, format: Format, target: Option<&str>) {
    let Ok(folder) = tempfile::tempdir() else { return };
    let path = folder.path().join(name);
    if std::fs::write(&path, bytes).is_err() {
        return;
    }
    let options = TableOptions { format: Some(format), target: target.map(str::to_owned), ..TableOptions::default() };
    if let Ok(table) = Table::read(&path, &options) {
        let [rows, columns] = table.features.shape();
        assert!(rows == table.target.len() && columns > 0);
        if let Matrix::Double(_) = table.features {
            let _ = table.columns.read(&path, Some(format), None, None, None);
        }
    }
    if let Ok(stream) = Stream::survey(&path, &options) {
        let _ = stream.blocks::<super::TableError>(|_| Ok(()));
    }
}

/// A CSV file whose target is its column `y`.
pub fn csv(bytes: &[u8]) {
    table(bytes, "t.csv", Format::Csv, Some("y"));
}

/// The same, packed.
pub fn csv_gz(bytes: &[u8]) {
    table(bytes, "t.csv.gz", Format::Csv, Some("y"));
}

/// A Parquet file whose target is its column `y`.
pub fn parquet(bytes: &[u8]) {
    table(bytes, "t.parquet", Format::Parquet, Some("y"));
}

/// A libsvm file.
pub fn libsvm(bytes: &[u8]) {
    table(bytes, "t.svm", Format::Libsvm, None);
}

/// An IDX file, which is its own labels.
pub fn idx(bytes: &[u8]) {
    table(bytes, "t.idx", Format::Idx, None);
    let Ok(folder) = tempfile::tempdir() else { return };
    let path = folder.path().join("t.idx");
    if std::fs::write(&path, bytes).is_ok() {
        let _ = super::read(&path, Format::Idx, path.to_str(), &[]);
    }
}

/// One numpy array.
pub fn npy(bytes: &[u8]) {
    table(bytes, "t.npy", Format::Npy, None);
}

/// A numpy archive.
pub fn npz(bytes: &[u8]) {
    table(bytes, "t.npz", Format::Npz, None);
}
