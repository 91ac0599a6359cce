use crate::deadline::Deadline;
use crate::failover::Reply;
use crate::fault::Fault;
use crate::health::only;
use crate::identity::{Identity, link_number};
use crate::node::{NewNode, Node};
use crate::version::Version;
use std::sync::Arc;
use vnode::{Cx, Entry, Kind, Name, Result, Vnode};

/// The first replica, which determines the numbers of files with several hard links.
const FIRST: usize = 0;

impl Node {
    /// Looks up an entry: on the replica that it is assigned to or, if it is not live, on one that
    /// the policy selects.
    pub(crate) fn find(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<Option<Entry>> {
        self.require_directory()?;
        let path = self.path().child(name.as_bytes());
        let known = self.fs.table.get(path);
        let prefer =
            if self.fs.chooser.selects_by_number() { None } else { known.as_ref().and_then(|node| node.choice()) };
        let mut deadline = Deadline::new(self.fs.options.timeout);
        let answer = self.with_failover_for(cx, &mut deadline, path.number(), prefer, lookup_op(name))?;
        let Some(found) = &answer.value else {
            self.compare_some(name, answer.replica);
            return Ok(None);
        };
        let node = self.node_of(cx, &mut deadline, name, known.as_ref(), &answer, found)?;
        node.choose(answer.replica);
        node.bind(answer.replica, answer.opened.number, &found.vnode);
        node.record_seen(&found.attr);
        self.compare_some(name, answer.replica);
        let attr = node.present(found.attr);
        Ok(Some(Entry { vnode: node, attr }))
    }

    /// Returns the vnode for a found entry: the live one of the path, if it is the same object.
    fn node_of(
        &self,
        cx: &Cx<'_>,
        deadline: &mut Deadline,
        name: Name<'_>,
        known: Option<&Arc<Self>>,
        answer: &Reply<Option<Entry>>,
        found: &Entry,
    ) -> Result<Arc<Self>> {
        if let Some(known) = known
            && known.is_still(answer, found)
        {
            return Ok(Arc::clone(known));
        }
        let path = self.path().child(name.as_bytes());
        let (kind, seen) = (found.vnode.kind(), Version::of(&found.attr));
        let several = kind != Kind::Directory && found.attr.nlink > 1;
        let shared = if several { Some(self.hard_link_number(cx, deadline, name, answer, found)?) } else { None };
        let number = match (shared, known) {
            (Some(number), _) => number,
            (None, None) => path.number(),
            // The replaced object is still in use. With the same number, its cached pages would
            // show up in the new file.
            (None, Some(former)) => {
                path.renewed(former.number(), seen.size ^ seen.mtime.cast_unsigned().rotate_left(32))
            }
        };
        let at = Some((self.to_arc()?, name.as_bytes().into()));
        let node = Self::new(&self.fs, NewNode { at, identity: Identity { path, number, kind }, seen });
        match self.fs.table.insert(&node, known) {
            // Another thread has inserted it concurrently.
            Some(other) if other.is_still(answer, found) => Ok(other),
            _ => Ok(node),
        }
    }

    /// Whether the found entry is this object.
    fn is_still(&self, answer: &Reply<Option<Entry>>, found: &Entry) -> bool {
        if self.kind_of() != found.vnode.kind() {
            return false;
        }
        self.kind_of() == Kind::Directory
            || self.seen() == Version::of(&found.attr)
            || self.lower(answer.replica, answer.opened.number).is_some_and(|lower| lower.id() == found.vnode.id())
    }

    /// Returns the number of a file with several hard links. It queries all replicas that are up,
    /// so that all names get the same number even if a replica fails later.
    fn hard_link_number(
        &self,
        cx: &Cx<'_>,
        deadline: &mut Deadline,
        name: Name<'_>,
        answer: &Reply<Option<Entry>>,
        found: &Entry,
    ) -> Result<u64> {
        let links = &self.fs.links;
        let version = Version::of(&found.attr);
        let mut on = vec![(answer.replica, found.vnode.id())];
        if let Some(number) = links.get(&on, version) {
            return Ok(number);
        }
        let others = self.fs.health.up() & !only(answer.replica);
        for other in (0..self.fs.replicas.len()).filter(|other| others & only(*other) != 0) {
            match self.attempt(cx, other, || deadline.share(false), &lookup_op(name)) {
                Ok((Some(there), _)) => {
                    if there.vnode.kind() == found.vnode.kind() && Version::of(&there.attr) == version {
                        on.push((other, there.vnode.id()));
                    }
                }
                Err(Fault::Errno(vnode::MAY_BLOCK)) => return Err(vnode::MAY_BLOCK),
                Ok((None, _)) | Err(_) => {}
            }
        }
        let fresh = || match on.iter().find(|(replica, _)| *replica == FIRST) {
            Some((_, id)) => link_number(*id),
            None => self.path().child(name.as_bytes()).number(),
        };
        Ok(links.get_or_insert(&on, version, fresh))
    }
}

/// Returns the operation that looks up a name on a replica.
fn lookup_op(name: Name<'_>) -> impl Fn(&Arc<dyn Vnode>, &Cx<'_>) -> Result<Option<Entry>> + Clone + Send + 'static {
    let name: Arc<[u8]> = name.as_bytes().into();
    move |dir: &Arc<dyn Vnode>, cx: &Cx<'_>| dir.lookup(cx, Name::new(&name)?)
}
