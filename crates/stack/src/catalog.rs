//! The layer types that a stack can consist of, and the files that list branches.

use crate::LayerType;
use std::path::Path;

/// The available layer types.
pub trait Catalog {
    /// Returns the type with this name.
    fn find(&self, name: &str) -> Option<&'static LayerType>;

    /// Returns all names.
    fn names(&self) -> Vec<&'static str>;

    /// Loads the layer type of a plugin.
    ///
    /// # Errors
    /// Names the path, the problem and what to do about it.
    fn load(&self, path: &Path) -> Result<&'static LayerType, String>;

    /// Returns the content of a file that lists branches, one per line.
    ///
    /// # Errors
    /// Names the problem.
    fn read_list(&self, path: &Path) -> Result<Vec<u8>, String>;

    /// Returns a suggestion for an unknown layer name that is the name of a file in the working
    /// directory.
    fn suggest_path(&self, name: &str) -> Option<String>;
}
