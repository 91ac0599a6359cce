//! Layer types for the tests of this crate.

use crate::{Access, BranchMode, Branches, Build, Catalog, LayerType, Make, OptionSpec, Traits};
use std::path::Path;

pub(crate) const RW: BranchMode = BranchMode { name: "rw", access: Access::ReadWrite };
pub(crate) const RO: BranchMode = BranchMode { name: "ro", access: Access::ReadOnly };

pub(crate) const BRANCHES: Branches = Branches {
    option: "dirs",
    first_argument: false,
    joined: true,
    noun: ("branch", "branches"),
    example: "dirs=/a=rw:/b=ro",
    modes: &[RW, RO],
    unmarked: |_, _| RO,
    first_must_be_writable: false,
    alternatives: false,
    live: false,
    make: Make::Opened(&|_, _, _| Err("not implemented".to_owned())),
};

static TYPES: [LayerType; 3] = [
    LayerType {
        name: "wrapfs",
        about: "",
        options: &[],
        build: Build::Over(&|lower, _| Ok(lower)),
        traits: Traits::NONE,
    },
    LayerType {
        name: "xor",
        about: "",
        options: &[OptionSpec { name: "key", value: Some("N"), help: "" }],
        build: Build::Over(&|lower, _| Ok(lower)),
        traits: Traits::NONE,
    },
    LayerType {
        name: "unionfs",
        about: "",
        options: &[
            OptionSpec { name: "dirs", value: Some("PATH"), help: "" },
            OptionSpec { name: "delete", value: Some("all"), help: "" },
        ],
        build: Build::Branches(&BRANCHES),
        traits: Traits::NONE,
    },
];

/// The layer types of the test stacks.
pub(crate) struct Types;

impl Catalog for Types {
    fn find(&self, name: &str) -> Option<&'static LayerType> {
        TYPES.iter().find(|kind| kind.name == name)
    }

    fn names(&self) -> Vec<&'static str> {
        TYPES.iter().map(|kind| kind.name).collect()
    }

    fn load(&self, path: &Path) -> Result<&'static LayerType, String> {
        match path.ends_with("good.so") {
            true => Ok(&TYPES[1]),
            false => Err(format!("{}: cannot load as a layer: No such file", path.display())),
        }
    }

    fn read_list(&self, path: &Path) -> Result<Vec<u8>, String> {
        match path.to_str() {
            Some("/list") => Ok(b"# comment\n/a=rw\n\n  /b\n[wrapfs / /c]=ro\n/d\\:e".to_vec()),
            Some("/nested") => Ok(b"/a\n@/list\n".to_vec()),
            Some("/empty") => Ok(b"# nothing\n".to_vec()),
            Some("/wrong") => Ok(b"/a\n/b=rx\n".to_vec()),
            _ => Err("No such file or directory".to_owned()),
        }
    }

    fn suggest_path(&self, name: &str) -> Option<String> {
        (name == "src").then(|| "did you mean ./src?".to_owned())
    }
}
