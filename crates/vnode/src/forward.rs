//! Macros that generate forwarding and refusing methods of the interface.

/// Generates methods of [`Layer`](crate::Layer), [`Vnode`](crate::Vnode) or
/// [`OpenFile`](crate::OpenFile) that call the same method of a field with the same arguments:
/// `forward!(lower: getattr, readlink);` inside the `impl`.
///
/// Methods that return a vnode or an open file are deliberately not supported: plain forwarding
/// would return objects of the layer below. A layer still names every method.
#[macro_export]
macro_rules! forward {
    ($lower:ident: $($method:ident),+ $(,)?) => { $($crate::method! { (forward $lower) $method })+ };
}

/// Generates methods of [`Vnode`](crate::Vnode) that call the same method of a field, and apply a
/// method of this type to what it returns: `forward_wrapped!(lower, wrap: mkdir, mknod);`. The
/// method wraps the [`Entry`](crate::Entry), for `create` and `tmpfile` the entry with its open
/// file.
#[macro_export]
macro_rules! forward_wrapped {
    ($lower:ident, $wrap:ident: $($method:ident),+ $(,)?) => { $($crate::method! { (wrap $lower $wrap) $method })+ };
}

/// Generates methods that return an error and do nothing: `refuse!(Errno::ROFS => setattr,
/// unlink);`.
#[macro_export]
macro_rules! refuse {
    ($errno:expr => $($method:ident),+ $(,)?) => { $($crate::method! { (refuse ($errno)) $method })+ };
}

/// Expands to the named method, with the body selected by the first argument.
#[doc(hidden)]
#[macro_export]
#[rustfmt::skip]
macro_rules! method {
    // Layer
    ($how:tt properties) => { $crate::method_body! { $how [self, properties] -> $crate::Properties } };
    ($how:tt attach) => { $crate::method_body! { $how [self, attach, upcalls: ::std::sync::Arc<dyn $crate::Upcalls>] -> () } };
    ($how:tt reports) => { $crate::method_body! { $how [self, reports] -> ::core::option::Option<::std::sync::Arc<dyn $crate::Reports>> } };
    ($how:tt commands) => { $crate::method_body! { $how [self, commands] -> ::std::vec::Vec<$crate::Command> } };
    ($how:tt sync) => { $crate::method_body! { $how [self, sync, cx: &$crate::Cx<'_>] -> $crate::Result<()> } };
    ($how:tt unmounted) => { $crate::method_body! { $how [self, unmounted] -> () } };
    // Vnode
    ($how:tt id) => { $crate::method_body! { $how [self, id] -> u64 } };
    ($how:tt generation) => { $crate::method_body! { $how [self, generation] -> u32 } };
    ($how:tt kind) => { $crate::method_body! { $how [self, kind] -> $crate::Kind } };
    ($how:tt getattr) => { $crate::method_body! { $how [self, getattr, cx: &$crate::Cx<'_>] -> $crate::Result<$crate::Attr> } };
    ($how:tt setattr) => { $crate::method_body! { $how [self, setattr, cx: &$crate::Cx<'_>, set: &$crate::SetAttr, file: Option<&dyn $crate::OpenFile>] -> $crate::Result<$crate::Attr> } };
    ($how:tt lookup) => { $crate::method_body! { $how [self, lookup, cx: &$crate::Cx<'_>, name: $crate::Name<'_>] -> $crate::Result<Option<$crate::Entry>> } };
    ($how:tt names) => { $crate::method_body! { $how [self, names, cx: &$crate::Cx<'_>, sink: $crate::NameSink<'_>] -> $crate::Result<()> } };
    ($how:tt readlink) => { $crate::method_body! { $how [self, readlink, cx: &$crate::Cx<'_>] -> $crate::Result<::std::vec::Vec<u8>> } };
    ($how:tt readdir) => { $crate::method_body! { $how [self, readdir, cx: &$crate::Cx<'_>, cookie: u64, sink: &mut dyn FnMut(&$crate::DirEntry<'_>) -> bool] -> $crate::Result<()> } };
    ($how:tt lists_exactly) => { $crate::method_body! { $how [self, lists_exactly, cx: &$crate::Cx<'_>] -> bool } };
    ($how:tt listing_stamp) => { $crate::method_body! { $how [self, listing_stamp, cx: &$crate::Cx<'_>] -> Option<u64> } };
    ($how:tt open) => { $crate::method_body! { $how [self, open, cx: &$crate::Cx<'_>, flags: $crate::OpenFlags] -> $crate::Result<::std::sync::Arc<dyn $crate::OpenFile>> } };
    ($how:tt create) => { $crate::method_body! { $how [self, create, cx: &$crate::Cx<'_>, name: $crate::Name<'_>, mode: u32, flags: $crate::OpenFlags] -> $crate::Result<($crate::Entry, ::std::sync::Arc<dyn $crate::OpenFile>)> } };
    ($how:tt tmpfile) => { $crate::method_body! { $how [self, tmpfile, cx: &$crate::Cx<'_>, mode: u32, flags: $crate::OpenFlags] -> $crate::Result<($crate::Entry, ::std::sync::Arc<dyn $crate::OpenFile>)> } };
    ($how:tt mknod) => { $crate::method_body! { $how [self, mknod, cx: &$crate::Cx<'_>, name: $crate::Name<'_>, mode: u32, rdev: u64] -> $crate::Result<$crate::Entry> } };
    ($how:tt mkdir) => { $crate::method_body! { $how [self, mkdir, cx: &$crate::Cx<'_>, name: $crate::Name<'_>, mode: u32] -> $crate::Result<$crate::Entry> } };
    ($how:tt symlink) => { $crate::method_body! { $how [self, symlink, cx: &$crate::Cx<'_>, name: $crate::Name<'_>, target: &[u8]] -> $crate::Result<$crate::Entry> } };
    ($how:tt link) => { $crate::method_body! { $how [self, link, cx: &$crate::Cx<'_>, name: $crate::Name<'_>, target: &::std::sync::Arc<dyn $crate::Vnode>] -> $crate::Result<$crate::Entry> } };
    ($how:tt unlink) => { $crate::method_body! { $how [self, unlink, cx: &$crate::Cx<'_>, name: $crate::Name<'_>] -> $crate::Result<()> } };
    ($how:tt rmdir) => { $crate::method_body! { $how [self, rmdir, cx: &$crate::Cx<'_>, name: $crate::Name<'_>] -> $crate::Result<()> } };
    ($how:tt rename) => { $crate::method_body! { $how [self, rename, cx: &$crate::Cx<'_>, name: $crate::Name<'_>, new_dir: &::std::sync::Arc<dyn $crate::Vnode>, new_name: $crate::Name<'_>, flags: $crate::RenameFlags] -> $crate::Result<()> } };
    ($how:tt getxattr) => { $crate::method_body! { $how [self, getxattr, cx: &$crate::Cx<'_>, name: &[u8], out: &mut [u8]] -> $crate::Result<usize> } };
    ($how:tt setxattr) => { $crate::method_body! { $how [self, setxattr, cx: &$crate::Cx<'_>, name: &[u8], value: &[u8], flags: $crate::XattrFlags] -> $crate::Result<()> } };
    ($how:tt listxattr) => { $crate::method_body! { $how [self, listxattr, cx: &$crate::Cx<'_>, out: &mut [u8]] -> $crate::Result<usize> } };
    ($how:tt removexattr) => { $crate::method_body! { $how [self, removexattr, cx: &$crate::Cx<'_>, name: &[u8]] -> $crate::Result<()> } };
    ($how:tt refused) => { $crate::method_body! { $how [self, refused, cx: &$crate::Cx<'_>, mask: u32] -> $crate::Result<()> } };
    ($how:tt statfs) => { $crate::method_body! { $how [self, statfs, cx: &$crate::Cx<'_>] -> $crate::Result<$crate::StatFs> } };
    ($how:tt ioctl) => { $crate::method_body! { $how [self, ioctl, cx: &$crate::Cx<'_>, cmd: u32, input: &[u8], out: &mut [u8]] -> $crate::Result<$crate::IoctlReply> } };
    ($how:tt control) => { $crate::method_body! { $how [self, control, cx: &$crate::Cx<'_>, command: &str, input: &[u8]] -> $crate::Result<::std::vec::Vec<u8>> } };
    // Vnode and OpenFile
    ($how:tt fsync) => { $crate::method_body! { $how [self, fsync, cx: &$crate::Cx<'_>, data_only: bool] -> $crate::Result<()> } };
    // OpenFile
    ($how:tt backing) => { $crate::method_body! { $how [self, backing] -> Option<$crate::Backing<'_>> } };
    ($how:tt bind) => { $crate::method_body! { $how [self, bind] -> () } };
    ($how:tt closes_quickly) => { $crate::method_body! { $how [self, closes_quickly] -> bool } };
    ($how:tt will_need) => { $crate::method_body! { $how [self, will_need, cx: &$crate::Cx<'_>, offset: u64, len: u64] -> () } };
    ($how:tt read) => { $crate::method_body! { $how [self, read, cx: &$crate::Cx<'_>, out: &mut [u8], offset: u64] -> $crate::Result<usize> } };
    ($how:tt read_host) => { $crate::method_body! { $how [self, read_host, cx: &$crate::Cx<'_>, take: $crate::HostReader<'_>] -> $crate::Result<Option<usize>> } };
    ($how:tt write) => { $crate::method_body! { $how [self, write, cx: &$crate::Cx<'_>, data: &[u8], offset: u64] -> $crate::Result<usize> } };
    ($how:tt flush) => { $crate::method_body! { $how [self, flush, cx: &$crate::Cx<'_>] -> $crate::Result<()> } };
    ($how:tt fallocate) => { $crate::method_body! { $how [self, fallocate, cx: &$crate::Cx<'_>, mode: u32, offset: u64, len: u64] -> $crate::Result<()> } };
    ($how:tt seek) => { $crate::method_body! { $how [self, seek, cx: &$crate::Cx<'_>, offset: u64, whence: $crate::Whence] -> $crate::Result<u64> } };
    ($how:tt copy_from) => { $crate::method_body! { $how [self, copy_from, cx: &$crate::Cx<'_>, offset: u64, source: &dyn $crate::OpenFile, source_offset: u64, len: u64] -> $crate::Result<u64> } };
    ($how:tt reflink_from) => { $crate::method_body! { $how [self, reflink_from, cx: &$crate::Cx<'_>, source: &dyn $crate::OpenFile] -> $crate::Result<()> } };
}

#[doc(hidden)]
#[macro_export]
macro_rules! method_body {
    ((forward $lower:ident) [$self:ident, $method:ident $(, $arg:ident: $type:ty)*] -> $answer:ty) => {
        fn $method(&$self $(, $arg: $type)*) -> $answer {
            $self.$lower.$method($($arg),*)
        }
    };
    ((wrap $lower:ident $wrap:ident) [$self:ident, $method:ident $(, $arg:ident: $type:ty)*] -> $answer:ty) => {
        fn $method(&$self $(, $arg: $type)*) -> $answer {
            $self.$lower.$method($($arg),*).map(|made| $self.$wrap(made))
        }
    };
    ((refuse ($errno:expr)) [$self:ident, $method:ident $(, $arg:ident: $type:ty)*] -> $answer:ty) => {
        fn $method(&$self $(, $arg: $type)*) -> $answer {
            $(let _ = $arg;)*
            Err($errno)
        }
    };
}
