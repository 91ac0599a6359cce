use crate::acl;
use crate::tree::Inode;
use vnode::{Errno, Kind, Result, XattrFlags, give};

/// Taken away when the data changes, as the kernel does.
pub(crate) const CAPABILITY: &[u8] = b"security.capability";

/// The longest name and value (`XATTR_NAME_MAX`, `XATTR_SIZE_MAX`), in bytes.
const NAME_MAX: usize = 255;
const VALUE_MAX: usize = 65536;

impl Inode {
    /// May there be an attribute of that name on an object of this kind? `change`: is it to be changed?
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
        give(self.xattrs.get(name).ok_or(Errno::NODATA)?, out)
    }

    pub(crate) fn xattr_list(&self, out: &mut [u8]) -> Result<usize> {
        let names: Vec<u8> = self.xattrs.keys().flat_map(|name| name.iter().copied().chain([0])).collect();
        give(&names, out)
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

    /// An access ACL that says no more than a mode does is not stored: it becomes the mode.
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
            // As on the file systems of the kernel: who takes an ACL away wants what the mode says.
            None if name != acl::ACCESS && name != acl::DEFAULT => Err(Errno::NODATA),
            _ => Ok(()),
        }
    }
}
