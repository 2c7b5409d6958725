//! A tracker as it is kept in a file, and gone on with.

use serde::{Deserialize, Serialize};

use super::{DialError, Tracker};
use crate::error::require;
use crate::groups::GroupMasses;
use crate::nodes::Nodes;
use crate::path::PathInfo;

/// All that a tracker knows, to be kept and gone on with.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kept {
    /// The families, in the order of their sums.
    pub families: Vec<Nodes>,
    /// One mass for all groups, or one each.
    pub group_masses: GroupMasses,
    /// By group: the mass sequence it follows. Empty: what `group_masses` says, all groups having been there from the start.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sequences: Vec<usize>,
    /// Whether λ's sums were made with every rate at hand.
    pub exact: bool,
    /// Every group's path as far as it went.
    pub paths: Vec<PathInfo>,
    /// The paths as they were declared; empty: they were not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub declared: Vec<PathInfo>,
    /// By mass sequence, then by λ node.
    pub masses: Vec<Vec<f64>>,
}

impl From<&Tracker> for Kept {
    fn from(tracker: &Tracker) -> Self {
        Self {
            families: tracker.nodes.clone(),
            group_masses: tracker.group_masses,
            sequences: tracker.late_sequences(),
            exact: tracker.is_exact(),
            paths: tracker.paths.clone(),
            declared: tracker.declared().unwrap_or_default().to_vec(),
            masses: tracker.masses(),
        }
    }
}

impl TryFrom<Kept> for Tracker {
    type Error = DialError;

    fn try_from(kept: Kept) -> Result<Self, DialError> {
        let mut tracker = Self::with_groups(kept.families, &kept.paths, kept.group_masses)?;
        if !kept.sequences.is_empty() {
            let (found, groups) = (kept.sequences.len(), kept.paths.len());
            require(found == groups, "number of groups with a mass sequence", found as f64, format!("{groups}"))?;
            let mut next = 0;
            for &sequence in &kept.sequences {
                require(sequence <= next, "mass sequence of a group", sequence as f64, format!("at most {next}"))?;
                next = next.max(sequence + 1);
            }
            tracker.follow(kept.sequences);
        }
        if kept.declared.iter().any(|path| path.steps() > 0) {
            tracker.declare(&kept.declared)?;
        }
        let tracker = if kept.exact { tracker.exact() } else { tracker };
        tracker.resume(kept.paths, kept.masses)
    }
}
