/// A journal of changes of data, with which a layer that has a [`super::FileFormat`] survives being
/// killed: see [`super::Hooks::journal`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Journal {
    pub(crate) name: Vec<u8>,
    pub(crate) durable: bool,
}

impl Journal {
    /// Returns a journal in the file `name` of the root directory below. The layer reserves this
    /// name in all directories.
    #[must_use]
    pub fn new(name: &[u8]) -> Self {
        Self { name: name.to_vec(), durable: false }
    }

    /// Makes the journal survive power failures, too. Each write then waits three times for the
    /// medium: for the record, for the file, and for the end of the record.
    #[must_use]
    pub fn durable(self) -> Self {
        Self { durable: true, ..self }
    }
}
