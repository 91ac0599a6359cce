//! Makes everything world-readable, independent of the creator's umask, for directories that a web
//! server serves (Wrapfs paper, section 2.1). An example of a layer that changes attributes.

use wrapfs::hooks::{Attributes, Object};
use wrapfs::vnode::{Attr, Cx, Kind, Result};
use wrapfs::{Build, LayerType, Template, Traits};

/// The layer.
pub const LAYER: LayerType = LayerType {
    name: "worldread",
    about: "makes files and directories world-readable",
    options: &[],
    build: Build::Over(&|lower, _settings| Template::over(lower).attributes(WorldRead).build()),
    traits: Traits { keeps_callers_apart: true, ..Traits::NONE },
};

#[derive(Debug)]
struct WorldRead;

impl Attributes for WorldRead {
    fn decode_attr(&self, _cx: &Cx<'_>, _file: &Object<'_>, attr: &mut Attr) -> Result<()> {
        attr.mode |= readable(attr.kind());
        Ok(())
    }

    fn encode_mode(&self, _cx: &Cx<'_>, _dir: &Object<'_>, kind: Kind, mode: u32) -> Result<u32> {
        Ok(mode | readable(kind))
    }
}

/// Returns the permission bits that make an object world-readable.
const fn readable(kind: Kind) -> u32 {
    match kind {
        Kind::Regular => 0o444,
        Kind::Directory => 0o555,
        _ => 0,
    }
}
