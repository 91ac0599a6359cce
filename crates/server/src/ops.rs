//! The opcodes: each one calls the vnode operation of the same name.

use crate::caller::RequestContext;
use crate::config::Config;
use crate::control::Channel;
use crate::convert::{self, name};
use crate::ended::UntilEnd;
use crate::files::{Files, Kernel, Opening, Use};
use crate::known_names::SHORT;
use crate::listing_cache::ListingCache;
use crate::nodes::{NodeRef, Nodes};
use crate::notifier::{Notification, NotificationQueue, UpcallHandler};
use crate::open_cache::OpenCache;
use crate::page_cache::{Change, HeldSize};
use crate::suid::{self, is_root};
use access::ACL_ACCESS;
use fuse::abi::{
    AttrOut, CopyFileRangeIn, CreateIn, EntryOut, FallocateIn, ForgetOne, GetattrIn, InitIn, IoctlIn, IoctlOut,
    Kstatfs, LkIn, LkOut, LseekIn, MknodIn, OpenIn, OpenOut, ReadIn, ReleaseIn, RenameFlags2, SetattrIn, SetxattrIn,
    StatxIn, StatxOut, WriteIn,
};
use fuse::control::CONTROL;
use fuse::{BackingId, Filesystem, InitConfig, Reply, Request, Session, flags};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use vnode::{
    Attr, Backing, Cx, Entry, Errno, Kind, Layer, MAY_BLOCK, OpenFile, OpenFlags, Properties, SetAttr, Vnode, Whence,
    XattrFlags,
};

/// A stack of layers, served as a FUSE file system.
pub(crate) struct Server {
    pub(crate) layer: Arc<dyn Layer>,
    pub(crate) nodes: Arc<Nodes>,
    pub(crate) files: Arc<Files>,
    pub(crate) listing_cache: ListingCache,
    pub(crate) notifier: Arc<NotificationQueue>,
    pub(crate) cache: Duration,
    /// Lifetime of cached names.
    names: Duration,
    /// Lifetime of cached negative lookups.
    missing_names: Duration,
    xattrs: bool,
    properties: Properties,
    stack_depth: u32,
    /// Directory offsets after `.` and `..`.
    pub(crate) after_dots: [u64; 2],
    /// The directory offset of the end.
    pub(crate) end: u64,
    passthrough: AtomicBool,
    pub(crate) channel: Channel,
    pub(crate) session: OnceLock<Arc<Session>>,
    /// Receives the reports of the layers for as long as it exists.
    pub(crate) upcalls: Arc<UpcallHandler>,
}

impl Server {
    pub(crate) fn new(layer: Arc<dyn Layer>, config: &Config) -> Self {
        let properties = layer.properties();
        let nodes = Arc::new(Nodes::new(layer.root()));
        let notifier = NotificationQueue::new(Arc::clone(&nodes));
        let cache = if properties.attributes_vary_by_caller { Duration::ZERO } else { config.cache };
        let mut files = if properties.data_varies_by_caller { Files::varying() } else { Files::default() };
        files.open_cache = config.cached_data.then(|| OpenCache::new(cache));
        files.keep_flush = properties.needs_flush;
        let files = Arc::new(files);
        notifier.set_files(&files);
        let upcalls = Arc::new(UpcallHandler {
            root: layer.root().id(),
            nodes: Arc::clone(&nodes),
            notifier: Arc::clone(&notifier),
            files: Arc::clone(&files),
            caches_names: !properties.varies_by_caller,
            caches_attributes: !properties.attributes_vary_by_caller,
        });
        layer.attach(Arc::new(UntilEnd(Arc::downgrade(&upcalls))));
        let names = if properties.merges_names || properties.varies_by_caller { Duration::ZERO } else { config.cache };
        Self {
            nodes,
            files,
            listing_cache: ListingCache::default(),
            notifier,
            cache,
            names,
            missing_names: if fuse::expires_missing_names() { names } else { names.min(SHORT) },
            xattrs: config.xattrs,
            properties,
            stack_depth: config.stack_depth,
            after_dots: crate::dirs::after_dots(config.narrow_positions),
            end: crate::dirs::end(config.narrow_positions),
            passthrough: AtomicBool::new(config.passthrough && !config.cached_data),
            channel: Channel::new(config.owner, config.commands.clone()),
            session: OnceLock::new(),
            upcalls,
            layer,
        }
    }

    /// Returns the context of a request that is being handled from now on.
    pub(crate) fn context<'a>(&self, rq: &'a Request<'a>) -> RequestContext<'a> {
        RequestContext::new(rq, self.notifier.reports.now())
    }

    /// Counts the lookup of an entry, and returns the entry for the kernel.
    pub(crate) fn entry_out(&self, call: &RequestContext<'_>, at: (u64, &[u8]), entry: &Entry) -> EntryOut {
        let out = self.nameless_entry_out(call, self.nodes.add_lookup(at, entry), entry);
        let lifetime = self.name_lifetime(call, at, self.names);
        if self.is_name_overtaken(call, at) { without_lifetime(out) } else { with_name_lifetime(out, lifetime) }
    }

    /// Returns how long the kernel may trust a name, `usual` at most. To be called before
    /// [`Self::is_name_overtaken`].
    fn name_lifetime(&self, call: &RequestContext<'_>, (parent, name): (u64, &[u8]), usual: Duration) -> Duration {
        self.notifier.names.grant(parent, name, call.call.names_lifetime(usual))
    }

    /// Whether a change of the name was reported since the request began.
    fn is_name_overtaken(&self, call: &RequestContext<'_>, (parent, name): (u64, &[u8])) -> bool {
        self.notifier.reports.is_name_overtaken(call.since, parent, name)
    }

    /// Whether a change of the name or of its node was reported since the request began.
    pub(crate) fn is_overtaken(&self, call: &RequestContext<'_>, at: (u64, &[u8]), node: u64) -> bool {
        self.is_name_overtaken(call, at) || self.notifier.reports.is_node_overtaken(call.since, node)
    }

    /// Returns an entry for the kernel that has no name there. Its lookup is counted already.
    pub(crate) fn nameless_entry_out(&self, call: &RequestContext<'_>, known: NodeRef, entry: &Entry) -> EntryOut {
        let held = self.files.attributes_sent(known.node, &entry.attr, &self.notifier);
        let (attr, lifetime) = self.attr_to_send(call, known.node, entry.attr, held);
        EntryOut {
            nodeid: known.node,
            generation: u64::from(known.generation),
            attr_valid: lifetime.as_secs(),
            attr_valid_nsec: lifetime.subsec_nanos(),
            attr: convert::attr(&attr),
            ..EntryOut::default()
        }
    }

    /// Returns a node's attributes for the kernel, and how long it may cache them. `held`: what
    /// [`Files::attributes_sent`] returned.
    fn attr_to_send(
        &self,
        call: &RequestContext<'_>,
        node: u64,
        attr: Attr,
        held: Option<HeldSize>,
    ) -> (Attr, Duration) {
        let Some(held) = held else { return (attr, self.attr_lifetime(call, node)) };
        if held.is_dropping {
            // This takes no lock: the file is open, so the kernel does not evict its inode.
            self.discard_attributes(node);
        }
        self.nodes.set_size(node, held.size);
        (Attr { size: held.size, ..attr }, Duration::ZERO)
    }

    /// Runs a change of an extended attribute.
    fn changing_xattr(
        &self,
        call: &RequestContext<'_>,
        (node, vnode): (u64, &dyn Vnode),
        key: &[u8],
        change: impl FnOnce() -> Reply<()>,
    ) -> Reply<()> {
        let is_acl = key == ACL_ACCESS;
        let done = self.listing_cache.keeping(&call.cx(0), (node, vnode), !is_acl, change);
        if is_acl {
            // The kernel invalidates the attributes after the reply, but accepts older ones that
            // another thread receives even later.
            self.notifier.send_attributes(node);
            if vnode.kind() == Kind::Regular {
                self.files.unsent_modes.add(node);
            }
        }
        done
    }

    /// Makes the kernel discard its attributes of a node, and those in replies to requests that it
    /// has sent so far.
    fn discard_attributes(&self, node: u64) {
        if let Some(session) = self.session.get()
            && let Err(error) = session.notifier().inval_attributes(node)
        {
            tracing::debug!(node, %error, "cannot invalidate the kernel's attributes");
        }
    }

    /// Returns how long the kernel may cache attributes of a node.
    fn attr_lifetime(&self, call: &RequestContext<'_>, node: u64) -> Duration {
        if self.nodes.successors.is_superseded(node) || self.notifier.reports.is_node_overtaken(call.since, node) {
            return Duration::ZERO;
        }
        self.files.shared_mappings.lifetime(node, call.call.attributes_lifetime(self.cache))
    }

    /// Returns the reply to a negative lookup; `None`: with the negative lifetime agreed in INIT.
    fn negative_entry(&self, call: &RequestContext<'_>, at: (u64, &[u8])) -> Reply<Option<EntryOut>> {
        let lifetime = self.name_lifetime(call, at, self.missing_names);
        if self.is_name_overtaken(call, at) {
            return Err(Errno::NOENT);
        }
        if lifetime == self.missing_names {
            return Ok(None);
        }
        if lifetime.is_zero() {
            return Err(Errno::NOENT);
        }
        Ok(Some(with_name_lifetime(EntryOut::default(), lifetime)))
    }

    /// Returns the reply to a LOOKUP that failed: if the error says that the result is unknown, the
    /// directory that the kernel knows there. After an error, the kernel would unmount what is
    /// mounted on the directory or below.
    ///
    /// The entry has no lifetime. If its attributes are unknown too, the kernel requests them
    /// before it checks a permission or shows them, and the caller gets the error then. An error
    /// that is a result remains one: there is no such object, or this caller is refused.
    fn keep_directory(&self, call: &RequestContext<'_>, at: (u64, &[u8]), errno: Errno) -> Reply<EntryOut> {
        if !says_nothing(errno) || self.properties.varies_by_caller {
            return Err(errno);
        }
        let node = self.nodes.directories.at(at.0, at.1).ok_or(errno)?;
        let attr = match self.nodes.get(node).and_then(|vnode| vnode.getattr(&call.cx(0))) {
            Err(MAY_BLOCK) => return Err(MAY_BLOCK),
            Err(_) => placeholder(self.nodes.successors.number_of(node)),
            Ok(attr) => convert::attr(&attr),
        };
        let known = self.nodes.repeat_lookup(node).ok_or(errno)?;
        Ok(EntryOut { nodeid: node, generation: u64::from(known.generation), attr, ..EntryOut::default() })
    }

    /// Updates the attribute lifetime of an entry that was created and opened.
    fn refresh_attr_lifetime(&self, call: &RequestContext<'_>, mut entry: EntryOut) -> EntryOut {
        let lifetime = self.attr_lifetime(call, entry.nodeid);
        (entry.attr_valid, entry.attr_valid_nsec) = (lifetime.as_secs(), lifetime.subsec_nanos());
        entry
    }

    /// Invalidates the attributes cached by the kernel after an open that permits a shared mapping,
    /// or if the file, whose data use the page cache, has grown: the kernel does not read beyond
    /// the size that it has. (It notices a shorter file and a truncating open on its own.)
    ///
    /// Unlike other notifications this one takes no lock. A handler sends it directly, because the
    /// program may read and write as soon as the open returns. It is sent once for each size: the
    /// kernel discards attributes that are under way, also those of others that open the file.
    fn invalidate_attributes(&self, node: u64, use_: Use, attr: Option<&Attr>) {
        let has_grown = attr.is_some_and(|attr| self.nodes.set_size(node, attr.size));
        let maps = || use_.maps && self.files.shared_mappings.opens(node) > 0;
        if has_grown || maps() {
            self.discard_attributes(node);
        }
    }

    /// Registers an open file, with passthrough if the layers and the kernel allow it.
    ///
    /// # Errors
    /// `ESTALE` if the file has another node by now: the kernel repeats the lookup.
    fn open_out(&self, opening: Opening<'_>) -> Reply<OpenOut> {
        self.files.add(opening, &self.notifier, self)
    }

    /// Registers an open file that was just created and whose lookup is counted already.
    fn open_new(&self, entry: &EntryOut, file: Arc<dyn OpenFile>, flags: OpenFlags, attr: &Attr) -> Reply<OpenOut> {
        let use_ = Use { creates: true, ..Use::of(flags) };
        let opening = Opening { node: entry.nodeid, file, use_, attr: Some(attr), may_block: false };
        // The kernel sends no FORGET for an entry that it never received.
        self.open_out(opening).inspect_err(|_| {
            self.nodes.forget(entry.nodeid, 1, || ());
        })
    }

    /// Runs a change of a file's data or times, so that it is not mistaken for an out-of-band
    /// change. `file` is the open file that it is made through, if any.
    fn track_change<T>(
        &self,
        rq: &Request<'_>,
        node: u64,
        file: Option<&dyn OpenFile>,
        change: impl FnOnce() -> Reply<T>,
    ) -> Reply<T> {
        let begun = self.files.pages.begin(node);
        let done = change();
        self.end_change(&self.context(rq), node, file, &begun);
        done
    }

    /// Records the end of a change, with the attributes that the file has now.
    fn end_change(&self, call: &RequestContext<'_>, node: u64, file: Option<&dyn OpenFile>, begun: &Change) {
        if begun.matters() {
            let cx = call.cx(0);
            let attr = self.nodes.get(node).and_then(|vnode| match file {
                Some(file) => vnode.getattr_open(&cx, file),
                None => vnode.getattr(&cx),
            });
            self.files.pages.end(begun, attr.as_ref().ok());
        }
    }

    /// Returns the attributes of a file being opened, if its data probably uses the page cache and
    /// if they are available. The only error is `MAY_BLOCK`.
    fn cached_attr(&self, cx: &Cx<'_>, node: u64, vnode: &dyn Vnode, file: &dyn OpenFile) -> Reply<Option<Attr>> {
        let by_passthrough = self.passthrough.load(Ordering::Relaxed) && file.backing().is_some();
        if by_passthrough && !(self.files.pages.any() && self.files.is_cached(node)) {
            return Ok(None);
        }
        match vnode.getattr_open(cx, file) {
            Err(MAY_BLOCK) => Err(MAY_BLOCK),
            attr => Ok(attr.ok()),
        }
    }

    /// Returns a node's attributes for the kernel, and how long it may cache them.
    fn fetch_attr(&self, call: &RequestContext<'_>, node: u64) -> Reply<(Attr, Duration)> {
        let (vnode, cx) = (self.nodes.get(node)?, call.cx(0));
        let attr = vnode.getattr(&cx)?;
        self.check_attr(call, (node, &*vnode), attr)
    }

    /// Runs the checks for attributes that are about to be sent to the kernel. Returns them as it
    /// may get them, and how long it may cache them.
    fn check_attr(
        &self,
        call: &RequestContext<'_>,
        (node, vnode): (u64, &dyn Vnode),
        attr: Attr,
    ) -> Reply<(Attr, Duration)> {
        let cx = call.cx(0);
        self.listing_cache.check(&cx, (node, vnode), &attr, &self.notifier)?;
        let held = self.files.attributes_sent_after_drop(node, &attr, cx.may_block, &self.notifier)?;
        self.nodes.set_size(node, attr.size);
        Ok(self.attr_to_send(call, node, attr, held))
    }

    /// Returns the INIT flags to request from the kernel's offer.
    fn init_flags(&self, offer: &InitIn) -> u64 {
        let mut wanted = flags::ASYNC_READ
            | flags::EXPORT_SUPPORT
            | flags::BIG_WRITES
            | flags::DONT_MASK
            | flags::ASYNC_DIO
            | flags::PARALLEL_DIROPS
            | flags::HANDLE_KILLPRIV_V2
            | flags::MAX_PAGES
            | flags::SETXATTR_EXT
            | flags::DIRECT_IO_ALLOW_MMAP
            | flags::HAS_IOCTL_DIR
            | flags::HAS_EXPIRE_ONLY;
        if self.passthrough.load(Ordering::Relaxed) {
            wanted |= flags::PASSTHROUGH;
        }
        if !self.properties.varies_by_caller {
            wanted |= flags::CACHE_SYMLINKS | flags::NO_OPENDIR_SUPPORT;
            // Otherwise the kernel would look each entry up again before it uses it.
            wanted |= flags::DO_READDIRPLUS | flags::READDIRPLUS_AUTO;
        }
        if self.xattrs {
            // With ACLs agreed, the kernel treats an error of getxattr as a denial.
            wanted |= flags::POSIX_ACL;
        }
        let opens = self.files.open_cache.is_none();
        // The kernel forgets the truncation of a file that it opens without a request. Without the
        // flag it sends a SETATTR.
        wanted |= if opens { flags::ATOMIC_O_TRUNC } else { flags::NO_OPEN_SUPPORT };
        // The server knows better which pages are stale (Linux 5.2): see `page_cache`. It cannot
        // without OPEN requests; but then there are no writers, and the kernel compares attributes
        // at each read(2) that finds them expired.
        let explicit = opens && u64::from(offer.flags) & flags::EXPLICIT_INVAL_DATA != 0;
        wanted | if explicit { flags::EXPLICIT_INVAL_DATA } else { flags::AUTO_INVAL_DATA }
    }

    /// Returns the open file of a request: the handle's, or, where the kernel opens files without
    /// requests, the node's cached one.
    fn open_file(&self, cx: &Cx<'_>, node: u64, fh: u64) -> Reply<Arc<dyn OpenFile>> {
        match &self.files.open_cache {
            None => self.files.get(fh),
            // It serves all readers of the file, so no user's share of descriptors is charged.
            Some(open_cache) => {
                open_cache.get(node, || self.nodes.get(node)?.open(&cx.as_server(cx.uid, cx.gid), OpenFlags::RDONLY))
            }
        }
    }

    /// Refuses changes on a mount where the kernel opens files without requests, even if it was
    /// remounted read-write: the kernel would open files for writing as well.
    fn check_writable(&self) -> Reply<()> {
        if self.files.open_cache.is_some() { Err(Errno::ROFS) } else { Ok(()) }
    }

    /// Without extended attributes, replies `ENOSYS` once to each of the four requests, and the
    /// kernel sends no more of them.
    fn check_xattrs(&self) -> Reply<()> {
        if self.xattrs { Ok(()) } else { leave_to_kernel() }
    }

    /// Returns the node id of an object.
    pub(crate) fn node_of(&self, vnode: &Arc<dyn Vnode>) -> u64 {
        self.nodes.node_of(&**vnode)
    }

    /// Forgets a name that was removed, and the listing that it was in.
    fn removed(&self, parent: u64, name: &[u8]) {
        self.listing_cache.remove(parent);
        self.nodes.directories.lost(parent, name);
        self.notifier.names.removed(parent, name);
    }

    /// Records that the kernel moves a name, with its lifetime.
    fn renamed(&self, old: (u64, &[u8]), new: (u64, &[u8]), exchange: bool) {
        self.nodes.directories.renamed(old, new, exchange);
        let expire = |(dir, name): (u64, &[u8])| self.notifier.enqueue(Notification::Entry { dir, name: name.into() });
        if !self.notifier.names.renamed(old, new, exchange, self.names) {
            expire(new);
            if exchange {
                expire(old);
            }
        }
    }

    /// Warns if an open failed for lack of descriptors; returns the errno.
    fn warn_on_shortage(&self, rq: &Request<'_>, errno: Errno) -> Errno {
        if errno == Errno::NFILE && self.files.is_time_to_warn() {
            tracing::warn!(
                uid = rq.uid,
                "cannot open a file: out of descriptors: the server's limit or this user's share is used up; see ulimit -n"
            );
        }
        errno
    }
}

impl Kernel for Server {
    fn register(&self, backing: Backing<'_>) -> Option<Arc<BackingId>> {
        if !self.passthrough.load(Ordering::Relaxed) {
            return None;
        }
        let session = self.session.get()?;
        let known = backing.cached.and_then(|cached| cached.registration.get(|id: &BackingId| id.is_of(session)));
        if known.is_some() {
            return known;
        }
        match session.backing_open(backing.cached.map_or(backing.file, |cached| cached.file)) {
            Ok(id) => {
                let id = Arc::new(id);
                if let Some(cached) = backing.cached {
                    cached.registration.set(Arc::clone(&id));
                }
                Some(id)
            }
            Err(error) => {
                // ELOOP: the file systems below are stacked too deep; EPERM: no privileges on the
                // host. Both are permanent.
                if error == Errno::LOOP || error == Errno::PERM {
                    self.passthrough.store(false, Ordering::Relaxed);
                    tracing::warn!("the kernel refuses passthrough ({error}): data is served through the page cache");
                } else {
                    tracing::debug!(%error, "a file gets no passthrough");
                }
                None
            }
        }
    }

    fn is_superseded(&self, node: u64) -> bool {
        self.nodes.successors.is_superseded(node)
    }
}

/// `FS_IOC_SETFLAGS` and `FS_IOC_FSSETXATTR`, which change attributes of an object.
const SETFLAGS: u32 = 0x4008_6602;
const FSSETXATTR: u32 = 0x401c_5820;

/// Whether an error of a lookup comes from a disk, a server or a shortage, and so says nothing
/// about the object.
const fn says_nothing(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::IO
            | Errno::UCLEAN
            | Errno::BADMSG
            | Errno::NXIO
            | Errno::NODEV
            | Errno::REMOTEIO
            | Errno::TIMEDOUT
            | Errno::NOTCONN
            | Errno::CONNABORTED
            | Errno::CONNRESET
            | Errno::CONNREFUSED
            | Errno::HOSTDOWN
            | Errno::HOSTUNREACH
            | Errno::NETDOWN
            | Errno::NETUNREACH
            | Errno::SHUTDOWN
            | Errno::MFILE
            | Errno::NFILE
            | Errno::NOSPC
            | Errno::DQUOT
            | Errno::AGAIN
    )
}

/// Returns the attributes of a directory whose attributes are unknown. Without a lifetime, only the
/// type and the number matter. The sticky bit is checked without another request.
fn placeholder(ino: u64) -> fuse::abi::Attr {
    fuse::abi::Attr { ino, mode: Kind::Directory.mode_bits() | 0o1000, nlink: 2, ..fuse::abi::Attr::default() }
}

/// Whether an entry's attributes are those of [`placeholder`].
pub(crate) fn is_placeholder(entry: &EntryOut) -> bool {
    entry.attr == placeholder(entry.attr.ino)
}

/// Returns an entry that the kernel looks up again before its next use.
fn without_lifetime(entry: EntryOut) -> EntryOut {
    EntryOut { entry_valid: 0, entry_valid_nsec: 0, attr_valid: 0, attr_valid_nsec: 0, ..entry }
}

fn with_name_lifetime(entry: EntryOut, lifetime: Duration) -> EntryOut {
    EntryOut { entry_valid: lifetime.as_secs(), entry_valid_nsec: lifetime.subsec_nanos(), ..entry }
}

/// Returns `ENOSYS`: the kernel remembers it for the life of the connection and handles the opcode
/// on its own.
fn leave_to_kernel<T>() -> Reply<T> {
    Err(Errno::NOSYS)
}

impl Filesystem for Server {
    fn init(&self, session: &Arc<Session>, offer: &InitIn) -> InitConfig {
        let _ = self.session.set(Arc::clone(session));
        self.notifier.attach(session);
        if offer.all_flags() & flags::HAS_EXPIRE_ONLY == 0 {
            self.notifier.names.disable();
        }
        InitConfig {
            flags: self.init_flags(offer),
            max_write: 1 << 20,
            max_readahead: 1 << 20,
            time_gran: 1,
            max_stack_depth: self.stack_depth,
            negative_timeout: self.missing_names,
            ..InitConfig::default()
        }
    }

    fn destroy(&self) {
        self.notifier.close();
        if let Some(open_cache) = &self.files.open_cache {
            open_cache.close();
        }
        tracing::debug!("the connection is closed; the kernel still knew {} inodes", self.nodes.len());
    }

    fn lookup(&self, rq: &Request<'_>, parent: u64, bytes: &[u8]) -> Reply<Option<EntryOut>> {
        let call = self.context(rq);
        match bytes {
            b"." => return self.lookup_self(&call, parent),
            b".." => return self.lookup_parent(&call, parent),
            _ => {}
        }
        let (cx, at) = (call.cx(0), (parent, bytes));
        let entry = match self.nodes.get(parent)?.lookup(&cx, name(bytes)?) {
            Ok(Some(entry)) => entry,
            Ok(None) => {
                self.nodes.directories.lost(parent, bytes);
                return self.negative_entry(&call, at);
            }
            Err(errno) => return self.keep_directory(&call, at, errno).map(Some),
        };
        // Before the lookup is counted, because the request may be repeated on a thread that may
        // block.
        let (vnode, node) = (&entry.vnode, self.node_of(&entry.vnode));
        self.listing_cache.check(&cx, (node, &**vnode), &entry.attr, &self.notifier)?;
        Ok(Some(self.entry_out(&call, at, &entry)))
    }

    fn forget(&self, nodes: &[ForgetOne]) {
        for one in nodes {
            if self.nodes.forget(one.nodeid, one.nlookup, || self.notifier.names.forget(one.nodeid)) {
                self.files.pages.forget(one.nodeid);
                self.files.shared_mappings.forget(one.nodeid);
                self.listing_cache.forget(one.nodeid);
                self.files.unsent_modes.remove(one.nodeid);
                self.files.forget_cached_open(one.nodeid);
            }
        }
        self.nodes.trim();
    }

    fn getattr(&self, rq: &Request<'_>, node: u64, _arg: &GetattrIn) -> Reply<AttrOut> {
        let call = self.context(rq);
        let (attr, lifetime) = self.fetch_attr(&call, node)?;
        Ok(convert::attr_out(&attr, lifetime))
    }

    fn setattr(&self, rq: &Request<'_>, node: u64, arg: &SetattrIn) -> Reply<AttrOut> {
        self.check_writable()?;
        let call = self.context(rq);
        let vnode = self.nodes.get(node)?;
        if let Some(attr) = self.noop_setattr(rq, node, &*vnode, arg)? {
            let (attr, lifetime) = self.check_attr(&call, (node, &*vnode), attr)?;
            self.files.unsent_modes.remove(node);
            return Ok(convert::attr_out(&attr, lifetime));
        }
        let file = if arg.valid & fuse::abi::FATTR_FH != 0 { self.files.get(arg.fh).ok() } else { None };
        let cx = call.cx(0);
        let set = suid::exact_change(&cx, &*vnode, convert::set_attr(arg))?;
        let begun = self.files.pages.begin(node);
        let changed =
            self.listing_cache.keeping(&cx, (node, &*vnode), true, || vnode.setattr(&cx, &set, file.as_deref()));
        match &changed {
            Ok(attr) => self.files.pages.end(&begun, Some(attr)),
            Err(_) => self.end_change(&call, node, file.as_deref(), &begun),
        }
        let attr = changed?;
        self.files.unsent_modes.remove(node);
        self.nodes.set_size(node, attr.size);
        Ok(convert::attr_out(&attr, self.attr_lifetime(&call, node)))
    }

    fn statx(&self, rq: &Request<'_>, node: u64, _arg: &StatxIn) -> Reply<StatxOut> {
        let call = self.context(rq);
        let (attr, lifetime) = self.fetch_attr(&call, node)?;
        Ok(convert::statx_out(&attr, lifetime))
    }

    fn readlink(&self, rq: &Request<'_>, node: u64, out: &mut [u8]) -> Reply<usize> {
        let call = self.context(rq);
        let target = self.nodes.get(node)?.readlink(&call.cx(0))?;
        // The kernel's buffer is one page; no Linux file system has longer targets.
        out.get_mut(..target.len()).ok_or(Errno::NAMETOOLONG)?.copy_from_slice(&target);
        Ok(target.len())
    }

    fn symlink(&self, rq: &Request<'_>, parent: u64, bytes: &[u8], target: &[u8]) -> Reply<EntryOut> {
        self.check_writable()?;
        let call = self.context(rq);
        let entry = self.nodes.get(parent)?.symlink(&call.cx(0), name(bytes)?, target)?;
        self.listing_cache.remove(parent);
        Ok(self.entry_out(&call, (parent, bytes), &entry))
    }

    fn mknod(&self, rq: &Request<'_>, parent: u64, arg: &MknodIn, bytes: &[u8]) -> Reply<EntryOut> {
        self.check_writable()?;
        let call = self.context(rq);
        let rdev = convert::rdev_from_kernel(arg.rdev);
        let entry = self.nodes.get(parent)?.mknod(&call.cx(arg.umask), name(bytes)?, arg.mode, rdev)?;
        self.listing_cache.remove(parent);
        Ok(self.entry_out(&call, (parent, bytes), &entry))
    }

    fn mkdir(&self, rq: &Request<'_>, parent: u64, mode: u32, umask: u32, bytes: &[u8]) -> Reply<EntryOut> {
        self.check_writable()?;
        let call = self.context(rq);
        let entry = self.nodes.get(parent)?.mkdir(&call.cx(umask), name(bytes)?, mode & 0o7777)?;
        self.listing_cache.remove(parent);
        Ok(self.entry_out(&call, (parent, bytes), &entry))
    }

    fn unlink(&self, rq: &Request<'_>, parent: u64, bytes: &[u8]) -> Reply<()> {
        self.check_writable()?;
        let call = self.context(rq);
        self.nodes.get(parent)?.unlink(&call.cx(0), name(bytes)?)?;
        self.removed(parent, bytes);
        Ok(())
    }

    fn rmdir(&self, rq: &Request<'_>, parent: u64, bytes: &[u8]) -> Reply<()> {
        self.check_writable()?;
        let call = self.context(rq);
        self.nodes.get(parent)?.rmdir(&call.cx(0), name(bytes)?)?;
        self.removed(parent, bytes);
        Ok(())
    }

    fn rename(
        &self,
        rq: &Request<'_>,
        parent: u64,
        bytes: &[u8],
        new_parent: u64,
        new_bytes: &[u8],
        flags: RenameFlags2,
    ) -> Reply<()> {
        self.check_writable()?;
        let call = self.context(rq);
        let flags = convert::rename_flags(flags.0)?;
        let from = self.nodes.get(parent)?;
        let to = self.nodes.get(new_parent)?;
        let cx = call.cx(0);
        let (old, new) = (name(bytes)?, name(new_bytes)?);
        from.rename(&cx, old, &to, new, flags)?;
        self.listing_cache.remove(parent);
        self.listing_cache.remove(new_parent);
        self.renamed((parent, bytes), (new_parent, new_bytes), flags.exchange);
        Ok(())
    }

    fn link(&self, rq: &Request<'_>, node: u64, new_parent: u64, bytes: &[u8]) -> Reply<EntryOut> {
        self.check_writable()?;
        let call = self.context(rq);
        let target = self.nodes.get(node)?;
        let entry = self.nodes.get(new_parent)?.link(&call.cx(0), name(bytes)?, &target)?;
        self.listing_cache.remove(new_parent);
        Ok(self.entry_out(&call, (new_parent, bytes), &entry))
    }

    fn open(&self, rq: &Request<'_>, node: u64, arg: &OpenIn) -> Reply<OpenOut> {
        if self.files.open_cache.is_some() {
            let wanted = convert::open_flags(arg.flags);
            return if wanted.writes() || wanted.truncates() { Err(Errno::ROFS) } else { leave_to_kernel() };
        }
        let call = self.context(rq);
        let vnode = self.nodes.get(node)?;
        let cx = call.cx(0);
        let wanted = convert::open_flags(arg.flags);
        if wanted.truncates() && !wanted.writes() && self.files.is_executing(node) {
            // The kernel refuses to truncate a running program, but for a read-only open it checks
            // only after this request.
            return Err(Errno::TXTBSY);
        }
        self.files.unsent_modes.check_open((rq, &cx), (node, &*vnode), (wanted, convert::executes(arg.flags)))?;
        let file = if wanted.truncates() {
            self.track_change(rq, node, None, || vnode.open(&cx, wanted))
        } else {
            vnode.open(&cx, wanted)
        };
        let file = file.map_err(|errno| self.warn_on_shortage(rq, errno))?;
        if arg.open_flags & fuse::abi::OPEN_KILL_SUIDGID != 0 {
            // The host attributes the truncation to the server.
            suid::strip(&cx, &*vnode, Some(&*file))?;
        }
        let use_ = Use { executes: convert::executes(arg.flags), ..Use::of(wanted) };
        // The following may run again on a thread that may block. A file that was truncated is then
        // truncated again, before the program receives it.
        let attr = self.cached_attr(&cx, node, &*vnode, &*file)?;
        let out = self.open_out(Opening { node, file, use_, attr: attr.as_ref(), may_block: rq.may_block })?;
        if !wanted.truncates() {
            self.invalidate_attributes(node, use_, attr.as_ref());
        }
        Ok(out)
    }

    fn create(&self, rq: &Request<'_>, parent: u64, arg: &CreateIn, bytes: &[u8]) -> Reply<(EntryOut, OpenOut)> {
        self.check_writable()?;
        let call = self.context(rq);
        let flags = convert::open_flags(arg.flags);
        let dir = self.nodes.get(parent)?;
        let created = dir.create(&call.cx(arg.umask), name(bytes)?, arg.mode & 0o7777, flags);
        let (entry, file) = created.map_err(|errno| match errno {
            // Another process created it without the kernel's knowledge: the kernel repeats the
            // lookup and opens the existing file.
            Errno::EXIST if !convert::exclusive(arg.flags) => Errno::STALE,
            other => self.warn_on_shortage(rq, other),
        })?;
        self.listing_cache.remove(parent);
        let out = self.entry_out(&call, (parent, bytes), &entry);
        let open = self.open_new(&out, file, flags, &entry.attr)?;
        Ok((self.refresh_attr_lifetime(&call, out), open))
    }

    fn tmpfile(&self, rq: &Request<'_>, parent: u64, arg: &CreateIn) -> Reply<(EntryOut, OpenOut)> {
        self.check_writable()?;
        let call = self.context(rq);
        let flags = convert::open_flags(arg.flags);
        let created = self.nodes.get(parent)?.tmpfile(&call.cx(arg.umask), arg.mode & 0o7777, flags);
        let (entry, file) = created.map_err(|errno| self.warn_on_shortage(rq, errno))?;
        let out = self.nameless_entry_out(&call, self.nodes.add_lookup_by_id(&entry), &entry);
        let open = self.open_new(&out, file, flags, &entry.attr)?;
        Ok((self.refresh_attr_lifetime(&call, out), open))
    }

    fn read(&self, rq: &Request<'_>, node: u64, arg: &ReadIn, out: &mut [u8]) -> Reply<usize> {
        let call = self.context(rq);
        let cx = call.cx(0);
        self.open_file(&cx, node, arg.fh)?.read(&cx, out, arg.offset)
    }

    fn read_host(
        &self,
        rq: &Request<'_>,
        node: u64,
        arg: &ReadIn,
        take: &mut dyn FnMut(BorrowedFd<'_>) -> Option<usize>,
    ) -> Reply<Option<usize>> {
        let call = self.context(rq);
        let cx = call.cx(0);
        self.open_file(&cx, node, arg.fh)?.read_host(&cx, take)
    }

    fn write(&self, rq: &Request<'_>, node: u64, arg: &WriteIn, data: &[u8]) -> Reply<u32> {
        self.check_writable()?;
        let call = self.context(rq);
        let cached = arg.write_flags & fuse::abi::WRITE_CACHE != 0;
        let mut cx = call.cx(0);
        if cached && rq.pid == 0 {
            // The kernel writes mapped pages back, for no caller.
            cx = cx.as_server(rq.uid, rq.gid);
        }
        let file = if !cached && convert::open_flags(arg.flags).appends() {
            self.files.get(arg.fh)?
        } else {
            // No descriptor limit applies, because a failure would lose data written to a mapping.
            let cx = cx.as_server(rq.uid, rq.gid);
            self.files.get_in_place(arg.fh, || self.nodes.get(node)?.open(&cx, OpenFlags::WRONLY))?
        };
        if arg.write_flags & fuse::abi::WRITE_KILL_SUIDGID != 0 {
            // Before the write, as the kernel does on its own file systems. Returning MAY_BLOCK
            // after the write would write the data twice.
            suid::strip(&cx, &*self.nodes.get(node)?, None)?;
        }
        let written = self.track_change(rq, node, Some(&*file), || file.write(&cx, data, arg.offset))?;
        u32::try_from(written).map_err(|_| Errno::IO)
    }

    fn flush(&self, rq: &Request<'_>, _node: u64, fh: u64, _lock_owner: u64) -> Reply<()> {
        if self.files.open_cache.is_some() {
            // Errors at close(2) concern only writers.
            return leave_to_kernel();
        }
        let call = self.context(rq);
        self.files.get(fh)?.flush(&call.cx(0))
    }

    fn release(&self, rq: &Request<'_>, _node: u64, arg: &ReleaseIn) -> Reply<()> {
        // A layer may have work left for the last close of a file.
        if !rq.may_block && self.files.get(arg.fh).is_ok_and(|file| !file.closes_quickly()) {
            return Err(MAY_BLOCK);
        }
        self.files.release(arg.fh, &self.notifier);
        Ok(())
    }

    fn fsync(&self, rq: &Request<'_>, node: u64, fh: u64, data_only: bool) -> Reply<()> {
        let call = self.context(rq);
        let cx = call.cx(0);
        self.open_file(&cx, node, fh)?.fsync(&cx, data_only)
    }

    fn opendir(&self, _rq: &Request<'_>, _node: u64, _flags: u32) -> Reply<OpenOut> {
        if self.properties.varies_by_caller {
            // Without FOPEN_CACHE_DIR the kernel requests each listing anew.
            return Ok(OpenOut::default());
        }
        // From now on the kernel opens directories without requests, and caches their listings
        // until they change.
        leave_to_kernel()
    }

    fn readdir(&self, rq: &Request<'_>, node: u64, arg: &ReadIn, out: &mut [u8]) -> Reply<usize> {
        self.list(rq, node, arg.offset, out)
    }

    fn readdirplus(&self, rq: &Request<'_>, node: u64, arg: &ReadIn, out: &mut [u8]) -> Reply<usize> {
        self.list_plus(rq, node, arg.offset, out)
    }

    fn releasedir(&self, _rq: &Request<'_>, _node: u64, _arg: &ReleaseIn) -> Reply<()> {
        Ok(())
    }

    fn fsyncdir(&self, rq: &Request<'_>, node: u64, _fh: u64, data_only: bool) -> Reply<()> {
        let call = self.context(rq);
        self.nodes.get(node)?.fsync(&call.cx(0), data_only)
    }

    fn statfs(&self, rq: &Request<'_>, node: u64) -> Reply<Kstatfs> {
        let call = self.context(rq);
        let s = self.nodes.get(node)?.statfs(&call.cx(0))?;
        Ok(Kstatfs {
            blocks: s.blocks,
            bfree: s.bfree,
            bavail: s.bavail,
            files: s.files,
            ffree: s.ffree,
            bsize: u32::try_from(s.bsize).unwrap_or(4096),
            namelen: s.namemax,
            frsize: u32::try_from(s.frsize).unwrap_or(4096),
            ..Kstatfs::default()
        })
    }

    fn setxattr(&self, rq: &Request<'_>, node: u64, arg: &SetxattrIn, key: &[u8], value: &[u8]) -> Reply<()> {
        self.check_xattrs()?;
        self.check_writable()?;
        let call = self.context(rq);
        const CREATE: u32 = 1;
        const REPLACE: u32 = 2;
        let vnode = self.nodes.get(node)?;
        self.files.xattr_set(node);
        let how = XattrFlags { create: arg.flags & CREATE != 0, replace: arg.flags & REPLACE != 0 };
        let cx = call.cx(0);
        // The kernel sets the flag for both ACLs, but only the access ACL affects the mode.
        let kills = arg.setxattr_flags & fuse::abi::SETXATTR_ACL_KILL_SGID != 0 && key == ACL_ACCESS;
        self.changing_xattr(&call, (node, &*vnode), key, || {
            vnode.setxattr(&cx, key, value, how)?;
            let mode = if kills { vnode.getattr(&cx)?.perm() } else { 0 };
            if mode & 0o2000 != 0 {
                vnode.setattr(&cx, &SetAttr { mode: Some(mode & !0o2000), ..SetAttr::default() }, None)?;
            }
            Ok(())
        })
    }

    fn getxattr(&self, rq: &Request<'_>, node: u64, key: &[u8], out: &mut [u8]) -> Reply<usize> {
        self.check_xattrs()?;
        let call = self.context(rq);
        if key == b"security.capability" && self.files.has_no_xattrs(node) {
            return Err(Errno::NODATA);
        }
        match self.nodes.get(node)?.getxattr(&call.cx(0), key, out) {
            // The layers below have no ACLs. The kernel's permission check treats any other error
            // as a denial.
            Err(Errno::OPNOTSUPP) if key.starts_with(b"system.posix_acl_") => Err(Errno::NODATA),
            result => result,
        }
    }

    fn listxattr(&self, rq: &Request<'_>, node: u64, out: &mut [u8]) -> Reply<usize> {
        self.check_xattrs()?;
        let call = self.context(rq);
        let vnode = self.nodes.get(node)?;
        if is_root(rq) {
            return vnode.listxattr(&call.cx(0), out);
        }
        let mut all = vec![0; convert::XATTR_LIST_MAX];
        let len = vnode.listxattr(&call.cx(0), &mut all)?;
        convert::ordinary_xattrs(all.get(..len).ok_or(Errno::RANGE)?, out)
    }

    fn removexattr(&self, rq: &Request<'_>, node: u64, key: &[u8]) -> Reply<()> {
        self.check_xattrs()?;
        self.check_writable()?;
        let (call, vnode) = (self.context(rq), self.nodes.get(node)?);
        let cx = call.cx(0);
        self.changing_xattr(&call, (node, &*vnode), key, || vnode.removexattr(&cx, key))
    }

    fn access(&self, _rq: &Request<'_>, _node: u64, _mask: u32) -> Reply<()> {
        // With default_permissions the kernel checks.
        leave_to_kernel()
    }

    fn getlk(&self, _rq: &Request<'_>, _node: u64, _arg: &LkIn) -> Reply<LkOut> {
        // Lock flags were not agreed: the kernel handles locks itself.
        leave_to_kernel()
    }

    fn setlk(&self, _rq: &Request<'_>, _node: u64, _arg: &LkIn, _wait: bool) -> Reply<()> {
        leave_to_kernel()
    }

    fn bmap(&self, _rq: &Request<'_>, _node: u64, _block: u64, _blocksize: u32) -> Reply<u64> {
        leave_to_kernel()
    }

    fn ioctl(
        &self,
        rq: &Request<'_>,
        node: u64,
        arg: &IoctlIn,
        input: &[u8],
        out: &mut [u8],
    ) -> Reply<(IoctlOut, usize)> {
        if arg.cmd == CONTROL {
            return self.control(rq, node, input, out);
        }
        let call = self.context(rq);
        let (vnode, cx) = (self.nodes.get(node)?, call.cx(0));
        let reply = if matches!(arg.cmd, SETFLAGS | FSSETXATTR) {
            let done = self.listing_cache.keeping(&cx, (node, &*vnode), true, || vnode.ioctl(&cx, arg.cmd, input, out));
            // The kernel does not expect that the ctime moves.
            self.notifier.send_attributes(node);
            done?
        } else {
            vnode.ioctl(&cx, arg.cmd, input, out)?
        };
        Ok((IoctlOut { result: reply.result, ..IoctlOut::default() }, reply.len))
    }

    fn poll(&self, _rq: &Request<'_>, _node: u64, _fh: u64, _kh: u64, _flags: u32, _events: u32) -> Reply<u32> {
        // Regular files are always ready.
        leave_to_kernel()
    }

    fn fallocate(&self, rq: &Request<'_>, node: u64, arg: &FallocateIn) -> Reply<()> {
        self.check_writable()?;
        let call = self.context(rq);
        let file = self.files.get(arg.fh)?;
        self.track_change(rq, node, Some(&*file), || file.fallocate(&call.cx(0), arg.mode, arg.offset, arg.length))
    }

    fn lseek(&self, rq: &Request<'_>, node: u64, arg: &LseekIn) -> Reply<u64> {
        let call = self.context(rq);
        const SEEK_DATA: u32 = 3;
        const SEEK_HOLE: u32 = 4;
        let whence = match arg.whence {
            SEEK_DATA => Whence::Data,
            SEEK_HOLE => Whence::Hole,
            _ => return Err(Errno::INVAL),
        };
        let cx = call.cx(0);
        self.open_file(&cx, node, arg.fh)?.seek(&cx, arg.offset, whence)
    }

    fn copy_file_range(&self, rq: &Request<'_>, _node: u64, arg: &CopyFileRangeIn) -> Reply<u64> {
        self.check_writable()?;
        let call = self.context(rq);
        let source = self.files.get(arg.fh_in)?;
        let target = self.files.get(arg.fh_out)?;
        self.track_change(rq, arg.nodeid_out, Some(&*target), || {
            target.copy_from(&call.cx(0), arg.off_out, &*source, arg.off_in, arg.len)
        })
    }

    fn syncfs(&self, rq: &Request<'_>, _node: u64) -> Reply<()> {
        let call = self.context(rq);
        self.layer.sync(&call.cx(0))
    }

    fn notify_reply(&self, _rq: &Request<'_>, _node: u64, _unique: u64, _offset: u64, _data: &[u8]) {
        // The server never retrieves pages.
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nodes::ROOT;
    use fuse::Opcode;
    use fuse::abi::InHeader;
    use memfs::{Count, Fault, Faults, MemFs, MemOptions, Op, Plan};

    fn request(uid: u32, opcode: Opcode, run: impl FnOnce(&Request<'_>)) {
        let cancelled = AtomicBool::new(false);
        let header = InHeader { uid, gid: uid, ..InHeader::default() };
        run(&Request::new(&header, opcode, true, &cancelled, &[]));
    }

    #[test]
    fn an_open_clears_set_user_id_only_if_the_kernel_says_so() {
        const O_WRONLY_TRUNC: u32 = 0o1001;
        let server = Server::new(MemFs::new(), &Config::new("/".into(), "none", "test"));
        let mut node = 0;
        request(0, Opcode::Create, |rq| {
            let make = CreateIn { mode: 0o106_775, ..CreateIn::default() };
            node = server.create(rq, ROOT, &make, b"f").unwrap().0.nodeid;
        });
        // User 0 may lack the capability, and another user may have it.
        for (uid, open_flags, left) in [(7, 0, 0o6775), (0, fuse::abi::OPEN_KILL_SUIDGID, 0o775)] {
            request(uid, Opcode::Open, |rq| {
                server.open(rq, node, &OpenIn { flags: O_WRONLY_TRUNC, open_flags }).unwrap();
                let attr = server.getattr(rq, node, &GetattrIn::default()).unwrap().attr;
                assert_eq!(attr.mode & 0o7777, left, "user {uid}");
            });
        }
    }

    #[test]
    fn create_of_an_existing_file_unknown_to_the_kernel_returns_estale() {
        const O_RDWR_CREAT: u32 = 0o102;
        const O_EXCL: u32 = 0o200;
        let server = Server::new(MemFs::new(), &Config::new("/".into(), "none", "test"));
        let make = |flags: u32| {
            let mut errno = None;
            request(0, Opcode::Create, |rq| {
                let arg = CreateIn { flags, mode: 0o100_644, ..CreateIn::default() };
                errno = server.create(rq, ROOT, &arg, b"f").err();
            });
            errno
        };
        assert_eq!(make(O_RDWR_CREAT), None);
        assert_eq!(make(O_RDWR_CREAT), Some(Errno::STALE));
        assert_eq!(make(O_RDWR_CREAT | O_EXCL), Some(Errno::EXIST));
    }

    #[test]
    fn renaming_files_needs_no_lookup() {
        let faults = Faults::new();
        let fs = MemFs::with(MemOptions::default(), &faults);
        let server = Server::new(fs, &Config::new("/".into(), "none", "test"));
        request(0, Opcode::Rename, |rq| {
            let a = server.mkdir(rq, ROOT, 0o755, 0, b"a").unwrap().nodeid;
            let b = server.mkdir(rq, ROOT, 0o755, 0, b"b").unwrap().nodeid;
            server.mknod(rq, a, &MknodIn { mode: 0o100_644, ..MknodIn::default() }, b"f").unwrap();
            faults.record();
            server.rename(rq, a, b"f", b, b"f", RenameFlags2(0)).unwrap();
            assert_eq!(faults.log(), [Op::Rename]);
            let sub = server.mkdir(rq, a, 0o755, 0, b"sub").unwrap().nodeid;
            server.rename(rq, a, b"sub", b, b"sub", RenameFlags2(0)).unwrap();
            assert_eq!(server.nodes.parent_of(sub), Some(b));
        });
    }

    /// The kernel would unmount what is mounted there.
    #[test]
    fn a_failing_lookup_returns_the_directory_that_the_kernel_knows() {
        let faults = Faults::new();
        let fs = MemFs::with(MemOptions::default(), &faults);
        let server = Server::new(fs, &Config::new("/".into(), "none", "test"));
        request(0, Opcode::Lookup, |rq| {
            let lookup = |parent, name: &[u8]| {
                let reply = server.lookup(rq, parent, name);
                reply.map(|entry| entry.map_or(0, |entry| entry.nodeid))
            };
            let failing = |parent, name: &[u8], errno| {
                faults.arm(Plan { count: Count::All, at: 1, fault: Fault::Errors(errno) });
                let reply = server.lookup(rq, parent, name);
                faults.reset();
                reply.map(|entry| entry.unwrap())
            };
            let dir = server.mkdir(rq, ROOT, 0o755, 0, b"dir").unwrap();
            let sub = server.mkdir(rq, dir.nodeid, 0o755, 0, b"sub").unwrap().nodeid;
            server.mknod(rq, ROOT, &MknodIn { mode: 0o100_644, ..MknodIn::default() }, b"f").unwrap();
            let kept = failing(ROOT, b"dir", Errno::IO).unwrap();
            assert_eq!((kept.nodeid, kept.generation, kept.attr.ino), (dir.nodeid, dir.generation, dir.attr.ino));
            assert!(is_placeholder(&kept) && (kept.entry_valid, kept.attr_valid) == (0, 0));
            faults.arm(Plan { count: Count::Only(Op::Lookup), at: 1, fault: Fault::Error(Errno::IO) });
            let attr = server.lookup(rq, ROOT, b"dir").unwrap().unwrap().attr;
            assert_eq!((attr.mode, attr.ino, attr.nlink), (dir.attr.mode, dir.attr.ino, 3));
            faults.reset();
            for errno in [Errno::NOENT, Errno::STALE, Errno::ACCESS, Errno::PERM, Errno::NOMEM, Errno::INTR] {
                assert_eq!(failing(ROOT, b"dir", errno).unwrap_err(), errno);
            }
            assert_eq!(failing(ROOT, b"f", Errno::IO).unwrap_err(), Errno::IO);
            assert_eq!(failing(ROOT, b"absent", Errno::IO).unwrap_err(), Errno::IO);
            server.rename(rq, dir.nodeid, b"sub", ROOT, b"moved", RenameFlags2(0)).unwrap();
            assert_eq!(failing(ROOT, b"moved", Errno::IO).unwrap().nodeid, sub);
            assert_eq!(failing(dir.nodeid, b"sub", Errno::IO).unwrap_err(), Errno::IO);
            server.rmdir(rq, ROOT, b"moved").unwrap();
            assert_eq!(failing(ROOT, b"moved", Errno::IO).unwrap_err(), Errno::IO);
            // The lookups of `dir` that were answered, and its creation.
            server.forget(&[ForgetOne { nodeid: dir.nodeid, nlookup: 3 }]);
            assert_eq!(failing(ROOT, b"dir", Errno::IO).unwrap_err(), Errno::IO);
            assert_eq!(lookup(ROOT, b"dir").unwrap(), dir.nodeid);
        });
    }

    /// The layer reports each change while a request is handled, after the reply was computed.
    #[test]
    fn replies_that_a_report_overtakes_have_no_lifetime() {
        use crate::notifier::Notification;
        let mut config = Config::new("/".into(), "none", "test");
        config.cache = Duration::from_secs(60);
        let server = Server::new(MemFs::new(), &config);
        let changes = |node| {
            let name = |name: &[u8]| Notification::Entry { dir: ROOT, name: name.into() };
            [
                name(b"f"),
                Notification::Attributes(node),
                Notification::Everything,
                name(b"g"),
                Notification::Attributes(9),
            ]
        };
        request(0, Opcode::Lookup, |rq| {
            let made = server.mknod(rq, ROOT, &MknodIn { mode: 0o100_644, ..MknodIn::default() }, b"f").unwrap();
            assert_eq!((made.entry_valid, made.attr_valid), (60, 60));
            for (number, change) in changes(made.nodeid).into_iter().enumerate() {
                let entry =
                    server.nodes.get(ROOT).unwrap().lookup(&Cx::internal(0, 0), name(b"f").unwrap()).unwrap().unwrap();
                let call = server.context(rq);
                server.notifier.enqueue(change);
                let out = server.entry_out(&call, (ROOT, b"f"), &entry);
                let names = u64::from(number != 0 && number != 2) * 60;
                let attributes = u64::from(number > 2) * 60;
                assert_eq!((out.entry_valid, out.attr_valid), (names, attributes), "{number}");
                let absent = server.negative_entry(&call, (ROOT, b"f"));
                assert_eq!(absent.is_err(), names == 0, "{number}");
                assert_eq!(server.is_overtaken(&call, (ROOT, b"f"), made.nodeid), number <= 2, "{number}");
                let later = server.lookup(rq, ROOT, b"f").unwrap().unwrap();
                assert_eq!((later.entry_valid, later.attr_valid), (60, 60), "{number}");
            }
        });
    }

    #[test]
    fn only_append_writes_are_appended() {
        const O_RDWR_APPEND: u32 = 0o2002;
        const O_RDWR: u32 = 0o2;
        let server = Server::new(MemFs::new(), &Config::new("/".into(), "none", "test"));
        request(0, Opcode::Write, |rq| {
            let make = CreateIn { flags: O_RDWR_APPEND, mode: 0o644, ..CreateIn::default() };
            let (entry, open) = server.create(rq, ROOT, &make, b"f").unwrap();
            let write = |flags, write_flags, offset, data: &[u8]| {
                let arg = WriteIn { fh: open.fh, flags, write_flags, offset, ..WriteIn::default() };
                server.write(rq, entry.nodeid, &arg, data).unwrap();
            };
            write(O_RDWR_APPEND, 0, 0, b"......");
            // A page of a mapping, for which the kernel sends no flags.
            write(0, fuse::abi::WRITE_CACHE, 0, b"map");
            // After F_SETFL, and after another one.
            write(O_RDWR, 0, 2, b"set");
            write(O_RDWR_APPEND, 0, 0, b"end");
            let mut bytes = [0; 16];
            let arg = ReadIn { fh: open.fh, ..ReadIn::default() };
            let len = server.read(rq, entry.nodeid, &arg, &mut bytes).unwrap();
            assert_eq!(&bytes[..len], b"maset.end");
            server.release(rq, entry.nodeid, &ReleaseIn { fh: open.fh, ..ReleaseIn::default() }).unwrap();
            assert_eq!(server.files.count(), (0, 0));
        });
    }

    #[test]
    fn a_write_that_returns_may_block_has_written_nothing() {
        const O_RDWR_APPEND: u32 = 0o2002;
        let faults = Faults::new();
        let fs = MemFs::with(MemOptions::default(), &faults);
        let server = Server::new(fs, &Config::new("/".into(), "none", "test"));
        let cancelled = AtomicBool::new(false);
        let rq = |may_block| Request::new(&InHeader::default(), Opcode::Write, may_block, &cancelled, &[]);
        let make = CreateIn { flags: O_RDWR_APPEND, mode: 0o104_755, ..CreateIn::default() };
        let (entry, open) = server.create(&rq(true), ROOT, &make, b"f").unwrap();
        faults.arm(Plan { count: Count::Only(Op::Setattr), at: 1, fault: Fault::Error(MAY_BLOCK) });
        let write = WriteIn { fh: open.fh, write_flags: fuse::abi::WRITE_KILL_SUIDGID, ..WriteIn::default() };
        assert_eq!(server.write(&rq(false), entry.nodeid, &write, b"once"), Err(MAY_BLOCK));
        assert_eq!(server.write(&rq(true), entry.nodeid, &write, b"once"), Ok(4));
        let attr = server.getattr(&rq(true), entry.nodeid, &GetattrIn::default()).unwrap().attr;
        assert_eq!((attr.size, attr.mode & 0o7777), (4, 0o755));
    }
}
