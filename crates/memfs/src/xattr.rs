use crate::acl;
use crate::tree::Inode;
use vnode::{Errno, Kind, Result, XattrFlags, copy_value};

/// Removed when the data changes, as in the kernel.
pub(crate) const CAPABILITY: &[u8] = b"security.capability";

/// Maximum length of a name and a value in bytes (`XATTR_NAME_MAX`, `XATTR_SIZE_MAX`).
const NAME_MAX: usize = 255;
const VALUE_MAX: usize = 65536;

impl Inode {
    /// Checks whether an attribute of this name is allowed on this type of object. `change`:
    /// whether it is to be changed.
    fn check_name(&self, name: &[u8], change: bool) -> Result<()> {
        if name.is_empty() || name.len() > NAME_MAX {
            return Err(Errno::RANGE);
        }
        let plain = matches!(self.kind, Kind::Regular | Kind::Directory);
        if name.starts_with(b"user.") {
            return match (plain, change) {
                (true, _) => Ok(()),
                (false, true) => Err(Errno::PERM),
                (false, false) => Err(Errno::NODATA),
            };
        }
        if name == acl::ACCESS || name == acl::DEFAULT {
            return if self.kind == Kind::Symlink { Err(Errno::OPNOTSUPP) } else { Ok(()) };
        }
        if name.starts_with(b"trusted.") || name.starts_with(b"security.") { Ok(()) } else { Err(Errno::OPNOTSUPP) }
    }

    pub(crate) fn xattr_get(&self, name: &[u8], out: &mut [u8]) -> Result<usize> {
        self.check_name(name, false)?;
        copy_value(self.xattrs.get(name).ok_or(Errno::NODATA)?, out)
    }

    pub(crate) fn xattr_list(&self, out: &mut [u8]) -> Result<usize> {
        let names: Vec<u8> = self.xattrs.keys().flat_map(|name| name.iter().copied().chain([0])).collect();
        copy_value(&names, out)
    }

    pub(crate) fn xattr_set(&mut self, name: &[u8], value: &[u8], flags: XattrFlags) -> Result<()> {
        self.check_name(name, true)?;
        if value.len() > VALUE_MAX {
            return Err(Errno::TOOBIG);
        }
        match self.xattrs.contains_key(name) {
            true if flags.create => return Err(Errno::EXIST),
            false if flags.replace => return Err(Errno::NODATA),
            _ => {}
        }
        if name == acl::ACCESS || name == acl::DEFAULT {
            return self.set_acl(name, value);
        }
        self.xattrs.insert(name.to_vec(), value.to_vec());
        Ok(())
    }

    /// An access ACL that is equivalent to a mode is not stored, but becomes the mode.
    fn set_acl(&mut self, name: &[u8], value: &[u8]) -> Result<()> {
        if !value.is_empty() && !acl::is_valid(value) {
            return Err(Errno::INVAL);
        }
        if name == acl::DEFAULT && self.kind != Kind::Directory {
            return Err(Errno::ACCESS);
        }
        let empty = value.len() <= 4;
        if name == acl::ACCESS && !empty {
            self.perm = (self.perm & !0o777) | acl::mode_of(value);
        }
        if empty || (name == acl::ACCESS && acl::is_minimal(value)) {
            self.xattrs.remove(name);
        } else {
            self.xattrs.insert(name.to_vec(), value.to_vec());
        }
        Ok(())
    }

    pub(crate) fn xattr_remove(&mut self, name: &[u8]) -> Result<()> {
        self.check_name(name, true)?;
        match self.xattrs.remove(name) {
            // As on kernel file systems: removing a missing ACL succeeds.
            None if name != acl::ACCESS && name != acl::DEFAULT => Err(Errno::NODATA),
            _ => Ok(()),
        }
    }
}
