//! What nothing can be learned from.

use thiserror::Error;

/// A table, or settings, that no model comes of.
#[derive(Debug, Error, Clone, PartialEq)]
#[non_exhaustive]
pub enum LearnError {
    /// Settings that this kind of model, target or table does not go with.
    #[error("{what}")]
    Unsupported {
        /// Which, and why.
        what: String,
    },
    /// A target of texts for a model of numbers.
    #[error("the target holds texts, and this model predicts numbers")]
    TextTarget,
    /// Numbers whose squares overflow.
    #[error("the numbers of this table are too large: their squares overflow; rescale the target or the features")]
    TooLarge,
    /// A column whose squares overflow, or whose spread has none.
    #[error("column {column} {what}: rescale it first")]
    Extreme {
        /// Its name, or its number from 1.
        column: String,
        /// What is wrong with it.
        what: String,
    },
    /// A number filled in where there is none.
    #[error("a number filled in at row {row}, feature {feature} is beyond the table")]
    Beyond {
        /// From 1.
        row: usize,
        /// From 1.
        feature: usize,
    },
    /// A fold that nothing can be learned from, or judged by.
    #[error("all {rows} {part} rows of a fold have weight 0")]
    Weightless {
        /// How many there are.
        rows: usize,
        /// Training or validation.
        part: &'static str,
    },
    /// No table to judge by.
    #[error("no validation table was given")]
    NoValidation,
    /// A validation target of texts where the training target holds numbers.
    #[error("the validation target holds texts, the training target numbers")]
    ValidationTexts,
    /// A validation target of another width.
    #[error("the validation target has {found} numbers a row, the training target {expected}")]
    ValidationWidth {
        /// Its width.
        found: usize,
        /// The training target's.
        expected: usize,
    },
    /// A class that no training row has.
    #[error("the validation target has class \"{class}\", which the training target lacks")]
    ValidationClass {
        /// The class.
        class: String,
    },
}

impl LearnError {
    pub(super) fn unsupported(what: impl Into<String>) -> Self {
        Self::Unsupported { what: what.into() }
    }
}
