//! Tables that need not fit in memory: surveyed once, then read a block of rows at a time, as often as wanted.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};

use super::budget::Budget;
use super::chunks::{As, Cell, Chunk, Chunks};
use super::recipe::{MOST_CATEGORIES, are_truths, categories, refuse_other_dates, truth};
use super::{
    Column, ColumnRecipe, Columns, Format, Frame, Missing, Recipe, Scales, TableError, TableOptions, Target, Unseen,
    Values, libsvm, malformed,
};
use super::{date, suspect};
use crate::files::Stamp;
use crate::objective::{DataError, Dense, Features};

/// A table read a block of rows at a time.
#[derive(Debug, Clone)]
pub struct Stream {
    path: PathBuf,
    format: Format,
    budget: Option<u64>,
    stamp: Stamp,
    /// What should be said of columns that may not be what they look like.
    pub notes: Vec<String>,
    /// The columns with missing values that are filled in, by name, and how many each has.
    pub missing: Vec<(String, usize)>,
    /// The columns whose scales are farthest apart, where that is far.
    pub scales: Option<Scales>,
    /// How columns become features and a target.
    pub columns: Columns,
    /// Rows of the file, those with missing values included.
    pub rows: usize,
    /// Features.
    pub width: usize,
    /// The mean of every feature, over the rows that have it; zeros for a sparse table.
    pub means: Vec<f64>,
    /// Features with missing values that are filled in, by number. Blocks have a further feature for each of them: 1 where
    /// the value was filled in, 0 elsewhere.
    pub gaps: Vec<usize>,
    /// The target's different values, up to a thousand and one of them, and whether they are texts.
    levels: Target,
    /// The mean of a target of numbers.
    pub target_mean: f64,
}

/// Some consecutive rows of a [`Stream`].
#[derive(Debug)]
pub struct Block {
    /// The rows of the file before this block, and one past its last.
    pub span: std::ops::Range<usize>,
    /// The rows of the file that are here: all of the span, but for those left out for their missing values.
    pub rows: Vec<usize>,
    /// Their features, and one more for each of [`Stream::gaps`]; without rows there are none.
    pub features: Option<Features<f64>>,
    /// Their targets.
    pub target: Target,
    /// Texts that the surveyed table did not have.
    pub unseen: Vec<Unseen>,
}

/// What is known of a column after a pass over it.
#[derive(Debug, Clone, Default)]
struct Seen {
    rows: usize,
    numbers: usize,
    sum: f64,
    /// The sum of their squared distances from their mean.
    squares: f64,
    missing: usize,
    first_missing: Option<usize>,
    infinite: Option<(usize, f64)>,
    /// Values that make it a column of texts.
    texts: usize,
    /// Those that do not even look like numbers, and one of them.
    odd: usize,
    example: String,
    levels: BTreeSet<String>,
    /// Texts that are dates, and the sum of their days; the sum of those that are true or false.
    dates: usize,
    days: f64,
    truths: f64,
    /// The first value, and whether every other is one more than that before it.
    first: f64,
    uneven: bool,
}

impl Seen {
    /// Texts are kept while there is room for further levels.
    fn take(&mut self, cell: Cell<'_>, room: bool) {
        let value = cell.number();
        if self.rows == 0 {
            self.first = value.unwrap_or(f64::NAN);
        }
        self.uneven |= value != Some(self.first + self.rows as f64);
        match value {
            Some(value) if value.is_nan() => self.take_missing(),
            Some(value) => {
                if value.is_infinite() && self.infinite.is_none() {
                    self.infinite = Some((self.rows, value));
                }
                self.add(1, value, 0.0);
            }
            None => {
                let text = cell.text().unwrap_or_default();
                self.texts += 1;
                if let Some(days) = date::days(&text) {
                    self.dates += 1;
                    self.days += days;
                }
                self.truths += truth(&text).unwrap_or(0.0);
                self.odd += 1;
                if self.odd == 1 {
                    self.example = crate::files::text::shown(&text).to_string();
                }
            }
        }
        if room
            && self.levels.len() <= MOST_CATEGORIES
            && let Some(text) = cell.text()
            && !self.levels.contains(text.as_ref())
        {
            self.levels.insert(text.into_owned());
        }
        self.rows += 1;
    }

    /// Numbers by how many, their sum, and that of their squared distances from their mean.
    fn add(&mut self, numbers: usize, sum: f64, squares: f64) {
        let (before, more) = (self.numbers as f64, numbers as f64);
        if before > 0.0 && more > 0.0 {
            self.squares += (sum / more - self.sum / before).powi(2) * before * more / (before + more);
        }
        self.numbers += numbers;
        self.sum += sum;
        self.squares += squares;
    }

    fn take_missing(&mut self) {
        self.missing += 1;
        self.first_missing.get_or_insert(self.rows);
    }

    /// Adds what was seen in the rows that follow.
    fn append(&mut self, next: Self) {
        self.first_missing = self.first_missing.or(next.first_missing.map(|row| self.rows + row));
        self.infinite = self.infinite.or(next.infinite.map(|(row, value)| (self.rows + row, value)));
        if self.odd == 0 {
            self.example = next.example;
        }
        match self.rows {
            0 => (self.first, self.uneven) = (next.first, next.uneven),
            rows => self.uneven |= next.uneven || (next.rows > 0 && next.first != self.first + rows as f64),
        }
        self.rows += next.rows;
        self.add(next.numbers, next.sum, next.squares);
        self.missing += next.missing;
        self.texts += next.texts;
        self.odd += next.odd;
        self.dates += next.dates;
        self.days += next.days;
        self.truths += next.truths;
        if self.levels.len() <= MOST_CATEGORIES {
            self.levels.extend(next.levels);
        }
    }

    fn refuse_missing(&self, name: &str) -> Result<(), TableError> {
        let refuse = |row| TableError::MissingValues { column: name.into(), count: self.missing, row: row + 1 };
        self.first_missing.map_or(Ok(()), |row| Err(refuse(row)))
    }

    /// The column's part of a recipe: what [`Recipe::learn`] makes of it in memory.
    fn recipe(self, name: &str, missing: Missing) -> Result<ColumnRecipe, TableError> {
        let column = name.to_owned();
        if self.missing == self.rows {
            return Err(TableError::AllMissing { column });
        }
        if missing == Missing::Error {
            self.refuse_missing(name)?;
        }
        if self.texts == 0 {
            self.refuse_infinite(name)?;
            return Ok(ColumnRecipe::Number { name: column, mean: self.sum / self.numbers as f64 });
        }
        self.refuse_mostly_numbers(name)?;
        let levels: Vec<Option<std::sync::Arc<str>>> =
            self.levels.iter().map(|text| Some(text.as_str().into())).collect();
        if self.numbers == 0 && are_truths(&levels) {
            return Ok(ColumnRecipe::Boolean { name: column, mean: self.truths / self.texts as f64 });
        }
        if self.numbers == 0 && self.dates == self.texts {
            return Ok(ColumnRecipe::Date { name: column, mean: self.days / self.dates as f64 });
        }
        refuse_other_dates(name, &levels)?;
        categories(column, self.levels.into_iter().collect())
    }

    fn refuse_infinite(&self, name: &str) -> Result<(), TableError> {
        let refuse = |(row, value)| TableError::NotFinite { column: name.into(), value, row: row + 1 };
        self.infinite.map_or(Ok(()), |found| Err(refuse(found)))
    }

    fn refuse_mostly_numbers(&self, name: &str) -> Result<(), TableError> {
        if self.odd > 0 && 10 * self.odd <= self.rows - self.missing {
            let (column, text) = (name.to_owned(), self.example.clone());
            return Err(TableError::MostlyNumbers { column, text, count: self.odd });
        }
        Ok(())
    }
}

impl Stream {
    /// One pass over a file: which columns are numbers, which texts there are, what is missing. Memory does not grow with
    /// the rows.
    pub fn survey(path: &Path, options: &TableOptions) -> Result<Self, TableError> {
        let format = options.format.map_or_else(|| Format::of(path), Ok)?;
        match format {
            Format::Libsvm => Self::survey_libsvm(path, options),
            _ => Self::survey_columns(path, format, options),
        }
    }

    fn survey_libsvm(path: &Path, options: &TableOptions) -> Result<Self, TableError> {
        if !options.drop.is_empty() {
            return Err(TableError::NoColumns { what: "columns to leave out" });
        }
        if options.missing.is_some() {
            return Err(TableError::NoColumns { what: "missing values" });
        }
        let (mut rows, mut width, mut sum) = (0, 0, 0.0);
        let mut levels: Vec<f64> = Vec::new();
        let stamp = Stamp::of(path)?;
        Chunks::open(path, Format::Libsvm, &Budget::of(path, options.max_memory)?, &|_| true)?.each(
            |chunk| parse_libsvm(path, chunk),
            |parsed| -> Result<(), TableError> {
                let parsed = parsed?;
                rows += parsed.labels.len();
                width = width.max(parsed.columns);
                sum += parsed.labels.iter().sum::<f64>();
                if levels.len() <= MOST_CATEGORIES {
                    levels.extend(parsed.labels);
                    levels.sort_by(f64::total_cmp);
                    levels.dedup();
                    levels.truncate(MOST_CATEGORIES + 1);
                }
                Ok(())
            },
        )?;
        if rows == 0 {
            return Err(malformed(path, "there are no data rows"));
        }
        Ok(Self {
            path: path.into(),
            format: Format::Libsvm,
            budget: options.max_memory,
            stamp,
            notes: Vec::new(),
            missing: Vec::new(),
            scales: None,
            columns: Columns::default(),
            rows,
            width,
            means: vec![0.0; width],
            gaps: Vec::new(),
            levels: Target::Numeric(levels),
            target_mean: sum / rows as f64,
        })
    }

    fn survey_columns(path: &Path, format: Format, options: &TableOptions) -> Result<Self, TableError> {
        let stamp = Stamp::of(path)?;
        let dropped: HashSet<&str> = options.drop.iter().map(String::as_str).collect();
        let wanted = |name: &str| !dropped.contains(name);
        let chunks = Chunks::open(path, format, &Budget::of(path, options.max_memory)?, &wanted)?;
        let names = chunks.names.clone();
        let some = || names.iter().take(20).cloned().collect::<Vec<_>>();
        let target = options.target.clone().ok_or_else(|| TableError::NoTarget { columns: some() })?;
        for wanted in options.drop.iter().chain([&target]) {
            if !names.contains(wanted) {
                return Err(TableError::unknown_column(wanted, names.iter()));
            }
        }
        if options.drop.contains(&target) {
            return Err(TableError::TargetDropped { name: target });
        }
        let used: Vec<bool> = names.iter().map(|name| wanted(name)).collect();
        let mut seen = vec![Seen::default(); names.len()];
        // Once a column has more texts than it may have, no chunk need collect them any more.
        let room: Vec<std::sync::atomic::AtomicBool> = names.iter().map(|_| true.into()).collect();
        let relaxed = std::sync::atomic::Ordering::Relaxed;
        chunks.each(
            |chunk| {
                let mut seen = vec![Seen::default(); names.len()];
                let room: Vec<bool> = room.iter().map(|room| room.load(relaxed)).collect();
                chunk.each_value(path, &used, |column, cell| {
                    seen[column].take(cell, room[column]);
                    Ok(())
                })?;
                Ok(seen)
            },
            |parsed| -> Result<(), TableError> {
                for ((seen, next), room) in seen.iter_mut().zip(parsed?).zip(&room) {
                    seen.append(next);
                    room.store(seen.levels.len() <= MOST_CATEGORIES, relaxed);
                }
                Ok(())
            },
        )?;
        let missing = options.missing.unwrap_or(Missing::Error);
        let (mut recipes, mut levels, mut target_mean, mut rows) = (Vec::new(), None, 0.0, 0);
        let (mut gaps, mut width, mut notes) = (Vec::new(), 0, Vec::new());
        let (mut filled, mut spreads) = (Vec::new(), Vec::new());
        for (seen, (name, _)) in seen.into_iter().zip(names.iter().zip(&used)).filter(|(_, (_, used))| **used) {
            rows = seen.rows;
            if rows == 0 {
                return Err(malformed(path, "there are no data rows"));
            }
            if *name != target {
                if suspect::named_like_an_index(name) && !seen.uneven && seen.first == 0.0 {
                    notes.push(suspect::index_remark(name));
                    continue;
                }
                let has_gaps = seen.texts == 0 && seen.missing > 0 && missing == Missing::Mean;
                gaps.extend(has_gaps.then_some(width));
                if seen.missing > 0 && missing == Missing::Mean {
                    filled.push((name.clone(), seen.missing));
                }
                let spread = (seen.squares / seen.numbers as f64).sqrt();
                let recipe = seen.recipe(name, missing)?;
                if let ColumnRecipe::Number { mean, .. } = &recipe {
                    spreads.push((name.as_str(), *mean, spread));
                }
                width += means_of(&recipe).len();
                recipes.push(recipe);
                continue;
            }
            if missing != Missing::Drop {
                seen.refuse_missing(name)?;
            }
            target_mean = seen.sum / seen.numbers.max(1) as f64;
            levels = Some(if seen.texts > 0 {
                seen.refuse_mostly_numbers(name)?;
                let levels: Vec<String> = seen.levels.into_iter().collect();
                suspect::refuse_dates(name, &levels)?;
                suspect::refuse_written(name, &levels)?;
                Target::Text(levels)
            } else {
                seen.refuse_infinite(name)?;
                Target::Numeric(seen.levels.iter().filter_map(|level| level.parse().ok()).collect())
            });
        }
        if recipes.is_empty() {
            return Err(TableError::Unusable { what: "no feature columns are left".into() });
        }
        let recipe = Recipe { columns: recipes, missing };
        notes.extend(recipe.remarks(rows));
        let means: Vec<f64> = recipe.columns.iter().flat_map(means_of).collect();
        Ok(Self {
            path: path.into(),
            format,
            budget: options.max_memory,
            stamp,
            notes,
            missing: filled,
            scales: Scales::of(spreads.into_iter()),
            rows,
            width,
            means,
            gaps,
            levels: levels.unwrap_or(Target::Numeric(Vec::new())),
            target_mean,
            columns: Columns { target: Some(target), recipe: Some(recipe) },
        })
    }

    /// Another file of the same columns, to be read the way this one is.
    pub fn alike(&self, path: &Path, format: Option<Format>) -> Result<Self, TableError> {
        let format = format.map_or_else(|| Format::of(path), Ok)?;
        match (&self.columns.recipe, format) {
            (Some(_), Format::Libsvm) => Err(TableError::NeedsColumns { path: path.into() }),
            (None, Format::Csv | Format::Parquet) => Err(TableError::NeedsArray { path: path.into() }),
            _ => Ok(Self { path: path.into(), format, stamp: Stamp::of(path)?, ..self.clone() }),
        }
    }

    /// Whether rows hold only what is not zero.
    #[must_use]
    pub fn is_sparse(&self) -> bool {
        self.columns.recipe.is_none()
    }

    /// The different values of the target, in place of all of them: enough to tell classes from numbers. Of more than a
    /// thousand, only some are here.
    #[must_use]
    pub fn levels(&self) -> &Target {
        &self.levels
    }

    /// Refuses a file that was written to since it was looked through.
    fn require_unchanged(&self) -> Result<(), TableError> {
        Ok(self.stamp.require(Stamp::of(&self.path)?, &self.path)?)
    }

    /// Another pass: hands over every block, in the order of the file.
    pub fn blocks<E: From<TableError> + Send>(
        &self,
        mut take: impl FnMut(Block) -> Result<(), E> + Send,
    ) -> Result<(), E> {
        let wanted = self.wanted();
        let budget = Budget::of(&self.path, self.budget)?;
        let chunks = Chunks::open(&self.path, self.format, &budget, &|name| {
            wanted.as_ref().is_none_or(|wanted| wanted.contains(name))
        })?;
        let names = chunks.names.clone();
        let layout = self.layout(&names)?;
        self.require_unchanged()?;
        let mut before = 0;
        chunks.each(
            |chunk| match &self.columns.recipe {
                None => self.sparse_block(chunk),
                Some(recipe) => {
                    let values = chunk.values(&self.path, &names, &layout)?;
                    let used = names.iter().zip(&layout).filter(|(_, kind)| kind.is_some());
                    let columns = used.zip(values).map(|((name, _), values)| Column { name: name.clone(), values });
                    self.dense_block(recipe, &Frame { columns: columns.collect() })
                }
            },
            |block| {
                // Blocks count rows from their own first.
                let mut block = block.map_err(|error| match error {
                    TableError::MissingValues { column, count, row } => {
                        TableError::MissingValues { column, count, row: row + before }
                    }
                    TableError::NotFinite { column, value, row } => {
                        TableError::NotFinite { column, value, row: row + before }
                    }
                    other => other,
                })?;
                block.span = block.span.start + before..block.span.end + before;
                block.rows.iter_mut().for_each(|row| *row += before);
                before = block.span.end;
                take(block)
            },
        )?;
        Ok(self.require_unchanged()?)
    }

    /// The names of the columns that blocks are made of; `None` where columns have none.
    fn wanted(&self) -> Option<HashSet<&str>> {
        let recipe = self.columns.recipe.as_ref()?;
        let features = recipe.columns.iter().map(ColumnRecipe::name);
        Some(features.chain(self.columns.target.as_deref()).collect())
    }

    /// What each column of a file is to this table: numbers, texts, or nothing.
    fn layout(&self, names: &[String]) -> Result<Vec<Option<As>>, TableError> {
        let Some(recipe) = &self.columns.recipe else {
            return Ok(Vec::new());
        };
        let text_target = matches!(self.levels, Target::Text(_));
        let target = self.columns.target.iter().map(|name| (name.as_str(), text_target));
        let features = recipe.columns.iter().map(|c| (c.name(), !matches!(c, ColumnRecipe::Number { .. })));
        let places: HashMap<&str, usize> = names.iter().enumerate().map(|(at, name)| (name.as_str(), at)).collect();
        let mut layout = vec![None; names.len()];
        for (name, text) in features.chain(target) {
            let at = places.get(name).ok_or_else(|| TableError::unknown_column(name, names.iter()))?;
            layout[*at] = Some(if text { As::Texts } else { As::Numbers });
        }
        Ok(layout)
    }

    fn dense_block(&self, recipe: &Recipe, frame: &Frame) -> Result<Block, TableError> {
        let target = frame.column(self.columns.target.as_deref().unwrap_or_default())?;
        let whole =
            |&row: &usize| recipe.missing != Missing::Drop || !frame.columns.iter().any(|c| c.values.is_missing(row));
        let rows: Vec<usize> = (0..frame.rows()).filter(whole).collect();
        for column in &frame.columns {
            if let Values::Numeric(numbers) = &column.values
                && let Some(row) = numbers.iter().position(|value| value.is_infinite())
            {
                return Err(TableError::NotFinite { column: column.name.clone(), value: numbers[row], row: row + 1 });
            }
        }
        let target = Target::of_column(target, &rows)?;
        let mut block = Block { span: 0..frame.rows(), rows, features: None, target, unseen: Vec::new() };
        if !block.rows.is_empty() {
            let (dense, unseen) = recipe.apply(frame, &block.rows)?;
            let dense = self.with_gaps(recipe, frame, &block.rows, dense)?;
            (block.features, block.unseen) = (Some(Features::Dense(dense)), unseen);
        }
        Ok(block)
    }

    /// The features, and after them where each of [`gaps`](Self::gaps) was filled in.
    fn with_gaps(
        &self,
        recipe: &Recipe,
        frame: &Frame,
        rows: &[usize],
        dense: Dense<f64>,
    ) -> Result<Dense<f64>, TableError> {
        if self.gaps.is_empty() {
            return Ok(dense);
        }
        let firsts = recipe.columns.iter().scan(0, |at, column| {
            let first = *at;
            *at += means_of(column).len();
            Some((first, column.name()))
        });
        let (wanted, places): (HashSet<usize>, _) = (self.gaps.iter().copied().collect(), frame.places());
        let column = |name: &str| places.get(name).map_or_else(|| frame.column(name), |&at| Ok(&frame.columns[at]));
        let gaps: Result<Vec<&Column>, TableError> =
            firsts.filter(|(first, _)| wanted.contains(first)).map(|(_, name)| column(name)).collect();
        let gaps = gaps?;
        let mut values = Vec::with_capacity(rows.len() * (self.width + gaps.len()));
        for (at, &row) in rows.iter().enumerate() {
            values.extend_from_slice(&dense.row(at));
            values.extend(gaps.iter().map(|column| f64::from(u8::from(column.values.is_missing(row)))));
        }
        Ok(Dense::new(rows.len(), self.width + gaps.len(), values)?)
    }

    fn sparse_block(&self, chunk: Chunk) -> Result<Block, TableError> {
        let mut parsed = parse_libsvm(&self.path, chunk)?;
        if parsed.columns > self.width {
            return Err(DataError::Shape {
                name: "the validation table",
                unit: "features",
                found: parsed.columns,
                expected: self.width,
                with: "the training table",
            }
            .into());
        }
        let labels = std::mem::take(&mut parsed.labels);
        let rows: Vec<usize> = (0..labels.len()).collect();
        let features = (!rows.is_empty()).then(|| parsed.features(self.width)).transpose()?;
        Ok(Block { span: 0..rows.len(), rows, features, target: Target::Numeric(labels), unseen: Vec::new() })
    }
}

/// The mean of each feature of a column; a text's is not known, and 0 is within 1 of it.
fn means_of(column: &ColumnRecipe) -> Vec<f64> {
    match column {
        ColumnRecipe::Number { mean, .. } | ColumnRecipe::Boolean { mean, .. } | ColumnRecipe::Date { mean, .. } => {
            vec![*mean]
        }
        ColumnRecipe::Categorical { values, .. } => vec![0.0; values.len()],
    }
}

fn parse_libsvm(path: &Path, chunk: Chunk) -> Result<libsvm::Parsed, TableError> {
    match chunk {
        Chunk::Text(bytes, line, _) => libsvm::parse(path, &bytes[..], line, None),
        Chunk::Columns(_) => Ok(libsvm::Parsed::default()),
    }
}
