use crate::quantity::Quantity;
use crate::range::NO_LIMIT;
use std::sync::Arc;

/// Of what versions are made; the more restrictive values first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Versions {
    /// Of nothing: what is removed is lost, too.
    None,
    /// Of files that are removed or replaced, but not of other changes. They are discarded before
    /// all others.
    Removed,
    /// Of everything.
    All,
}

impl Versions {
    pub(crate) const ALL: [Self; 3] = [Self::All, Self::Removed, Self::None];
    pub(crate) const NAMES: [&str; 3] = ["true", "removed", "false"];

    /// The word of configuration files.
    #[must_use]
    pub fn name(self) -> &'static str {
        name_of(&self, &Self::ALL, &Self::NAMES)
    }
}

/// How versions are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Storage {
    /// A complete copy.
    Full,
    /// A complete copy, compressed.
    Compress,
    /// The changed blocks, in a sparse file.
    Sparse,
    /// The changed blocks, compressed.
    SparseCompress,
    /// The changed blocks, without holes.
    Delta,
    /// The changed lines of a text.
    Text,
    /// Content-addressed blocks that the whole volume shares.
    Blocks,
}

impl Storage {
    /// In the order of "most restrictive": the later ones take less space.
    pub(crate) const ALL: [Self; 7] =
        [Self::Full, Self::Compress, Self::Sparse, Self::SparseCompress, Self::Delta, Self::Text, Self::Blocks];
    pub(crate) const NAMES: [&str; 7] = ["full", "compress", "sparse", "sparse-compress", "delta", "text", "blocks"];

    /// The word of configuration files.
    #[must_use]
    pub fn name(self) -> &'static str {
        name_of(&self, &Self::ALL, &Self::NAMES)
    }

    /// The policy with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        named(name, &Self::ALL, &Self::NAMES)
    }
}

/// What becomes of a change if there is no space for the version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NoSpace {
    /// The change is made, and the version is lost.
    Skip,
    /// The change fails with `ENOSPC`.
    Fail,
}

impl NoSpace {
    pub(crate) const ALL: [Self; 2] = [Self::Skip, Self::Fail];
    pub(crate) const NAMES: [&str; 2] = ["skip", "fail"];

    /// The word of configuration files.
    #[must_use]
    pub fn name(self) -> &'static str {
        name_of(&self, &Self::ALL, &Self::NAMES)
    }
}

/// Returns the name of a value.
pub(crate) fn name_of<T: PartialEq>(value: &T, all: &[T], names: &[&'static str]) -> &'static str {
    all.iter().position(|other| other == value).and_then(|at| names.get(at)).copied().unwrap_or("")
}

/// Returns the value with a name.
pub(crate) fn named<T: Copy>(name: &str, all: &[T], names: &[&str]) -> Option<T> {
    names.iter().position(|known| *known == name).and_then(|at| all.get(at)).copied()
}

/// A length of time of which [`Keep`] keeps the newest version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Generation {
    /// An hour.
    Hourly,
    /// A day from midnight to midnight.
    Daily,
    /// A week from Monday to Sunday.
    Weekly,
    /// A calendar month.
    Monthly,
    /// A calendar year.
    Yearly,
}

impl Generation {
    /// From the shortest to the longest.
    pub const ALL: [Self; 5] = [Self::Hourly, Self::Daily, Self::Weekly, Self::Monthly, Self::Yearly];
    pub(crate) const NAMES: [&str; 5] = ["hourly", "daily", "weekly", "monthly", "yearly"];

    /// The word of configuration files.
    #[must_use]
    pub fn name(self) -> &'static str {
        name_of(&self, &Self::ALL, &Self::NAMES)
    }
}

/// For each [`Generation`], how many of the last periods that contain a version keep their newest
/// one. `u32::MAX` keeps that of every period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Generations(pub [u32; 5]);

/// Which versions beyond the minimums are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Keep {
    /// All, up to the maximums.
    All,
    /// The newest version of each of these periods.
    Generations(Generations),
}

impl Keep {
    /// The smaller number of each generation.
    fn restrict(self, other: Self) -> Self {
        match (self, other) {
            (Self::Generations(Generations(mut counts)), Self::Generations(Generations(others))) => {
                for (count, other) in counts.iter_mut().zip(others) {
                    *count = (*count).min(other);
                }
                Self::Generations(Generations(counts))
            }
            (Self::All, other) => other,
            (own, Self::All) => own,
        }
    }

    pub(crate) fn show(self) -> String {
        let Self::Generations(Generations(counts)) = self else { return "all".to_owned() };
        let shown = Generation::NAMES.iter().zip(counts).filter(|(_, count)| *count > 0).map(|(name, count)| {
            if count == u32::MAX { format!("{name} = \"none\"") } else { format!("{name} = {count}") }
        });
        let shown: Vec<_> = shown.collect();
        if shown.is_empty() { "none".to_owned() } else { format!("{{ {} }}", shown.join(", ")) }
    }
}

/// The minimums and maximums of retention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    NumberMin,
    NumberMax,
    AgeMin,
    AgeMax,
    SpaceMin,
    SpaceMax,
}

impl Limit {
    pub(crate) const ALL: [Self; 6] =
        [Self::NumberMin, Self::NumberMax, Self::AgeMin, Self::AgeMax, Self::SpaceMin, Self::SpaceMax];

    pub(crate) fn name(self) -> &'static str {
        let names = ["number.min", "number.max", "age.min", "age.max", "space.min", "space.max"];
        name_of(&self, &Self::ALL, &names)
    }

    pub(crate) fn is_min(self) -> bool {
        matches!(self, Self::NumberMin | Self::AgeMin | Self::SpaceMin)
    }

    pub(crate) fn quantity(self) -> Quantity {
        match self {
            Self::NumberMin | Self::NumberMax => Quantity::Count,
            Self::AgeMin | Self::AgeMax => Quantity::Duration,
            Self::SpaceMin | Self::SpaceMax => Quantity::Size,
        }
    }

    pub(crate) fn show(self, value: u64) -> String {
        if value == NO_LIMIT || (value == 0 && self.is_min()) { "none".to_owned() } else { self.quantity().show(value) }
    }
}

/// The file that a value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Builtin,
    /// The options of the mount.
    Mount,
    Admin,
    User,
}

/// Where a value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Source {
    pub(crate) origin: Origin,
    pub(crate) line: u32,
    /// The line of `[bounds]` that changed the value, and whether it did.
    pub(crate) bound: Option<u32>,
}

/// A value and its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Set<T> {
    pub(crate) value: T,
    pub(crate) source: Source,
}

/// What a rule, or the top of a file, sets.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings {
    pub(crate) limits: [Option<Set<u64>>; 6],
    pub(crate) versions: Option<Set<Versions>>,
    pub(crate) storage: Option<Set<Storage>>,
    pub(crate) keep: Option<Set<Keep>>,
    pub(crate) landmarks: Option<Set<bool>>,
    pub(crate) nospace: Option<Set<NoSpace>>,
    /// The path of the program; empty for none.
    pub(crate) external: Option<Set<Arc<str>>>,
}

impl Settings {
    pub(crate) fn limit(&self, limit: Limit) -> Option<&Set<u64>> {
        Limit::ALL.iter().zip(&self.limits).find(|(known, _)| **known == limit).and_then(|(_, set)| set.as_ref())
    }

    pub(crate) fn limit_mut(&mut self, limit: Limit) -> Option<&mut Option<Set<u64>>> {
        Limit::ALL.iter().zip(&mut self.limits).find(|(known, _)| **known == limit).map(|(_, set)| set)
    }

    pub(crate) fn is_empty(&self) -> bool {
        let Self { limits, versions, storage, keep, landmarks, nospace, external } = self;
        let flags = versions.is_none() && landmarks.is_none() && nospace.is_none();
        flags && storage.is_none() && keep.is_none() && external.is_none() && limits.iter().all(Option::is_none)
    }

    /// Adds a policy of the same rank: of two values the more restrictive one remains.
    pub(crate) fn restrict(&mut self, other: &Self) {
        for (limit, (own, other)) in Limit::ALL.iter().zip(self.limits.iter_mut().zip(&other.limits)) {
            merge(own, other.as_ref(), |own, other| if limit.is_min() { other > own } else { other < own });
        }
        merge(&mut self.versions, other.versions.as_ref(), |own, other| other < own);
        merge(&mut self.storage, other.storage.as_ref(), |own, other| other > own);
        merge(&mut self.landmarks, other.landmarks.as_ref(), |own, other| other < own);
        merge(&mut self.nospace, other.nospace.as_ref(), |own, other| other > own);
        merge(&mut self.external, other.external.as_ref(), |_, _| true);
        match (&mut self.keep, &other.keep) {
            (Some(own), Some(other)) => {
                let both = own.value.restrict(other.value);
                let source = if both == own.value { own.source } else { other.source };
                *own = Set { value: both, source };
            }
            (own, other) => override_with(own, other.as_ref()),
        }
    }

    /// Replaces what a policy of higher rank sets.
    pub(crate) fn override_with(&mut self, other: &Self) {
        for (own, other) in self.limits.iter_mut().zip(&other.limits) {
            override_with(own, other.as_ref());
        }
        override_with(&mut self.versions, other.versions.as_ref());
        override_with(&mut self.storage, other.storage.as_ref());
        override_with(&mut self.keep, other.keep.as_ref());
        override_with(&mut self.landmarks, other.landmarks.as_ref());
        override_with(&mut self.nospace, other.nospace.as_ref());
        override_with(&mut self.external, other.external.as_ref());
    }
}

fn override_with<T: Clone>(own: &mut Option<Set<T>>, other: Option<&Set<T>>) {
    if let Some(other) = other {
        *own = Some(other.clone());
    }
}

fn merge<T: Clone>(own: &mut Option<Set<T>>, other: Option<&Set<T>>, replaces: impl Fn(&T, &T) -> bool) {
    match (&own, other) {
        (Some(set), Some(other)) if !replaces(&set.value, &other.value) => {}
        _ => override_with(own, other),
    }
}
