use crate::deadline::Deadline;
use crate::failover::Answer;
use crate::fault::Fault;
use crate::health::only;
use crate::identity::{Identity, link_number};
use crate::node::{Birth, Node};
use crate::version::Version;
use std::sync::Arc;
use vnode::{Cx, Entry, Kind, Name, Result, Vnode};

/// The first replica: from its number of a file with several names comes the file's number here.
const FIRST: usize = 0;

impl Node {
    /// Finds an entry: on the replica that it belongs to if it is known, else on any that the policy chooses.
    pub(crate) fn find(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<Option<Entry>> {
        self.must_be_directory()?;
        let path = self.path().child(name.as_bytes());
        let known = self.fs.table.get(path);
        let prefer =
            if self.fs.chooser.goes_by_number() { None } else { known.as_ref().and_then(|node| node.choice()) };
        let mut deadline = Deadline::new(self.fs.options.timeout);
        let answer = self.ask_for(cx, &mut deadline, path.number(), prefer, looking_for(name))?;
        let Some(found) = &answer.value else {
            self.compare_some(name, answer.replica);
            return Ok(None);
        };
        let node = self.node_of(cx, &mut deadline, name, known.as_ref(), &answer, found)?;
        node.choose(answer.replica);
        node.bind(answer.replica, answer.opened.number, &found.vnode);
        node.saw(&found.attr);
        self.compare_some(name, answer.replica);
        let attr = node.present(found.attr);
        Ok(Some(Entry { vnode: node, attr }))
    }

    /// The vnode for what was found: the one that is known of the path, if that is it.
    fn node_of(
        &self,
        cx: &Cx<'_>,
        deadline: &mut Deadline,
        name: Name<'_>,
        known: Option<&Arc<Self>>,
        answer: &Answer<Option<Entry>>,
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
        let shared = if several { Some(self.number_of_several(cx, deadline, name, answer, found)?) } else { None };
        let number = match (shared, known) {
            (Some(number), _) => number,
            (None, None) => path.number(),
            // Somebody still uses what lay here before. Its pages must not become those of the new file.
            (None, Some(former)) => {
                path.renewed(former.number(), seen.size ^ seen.mtime.cast_unsigned().rotate_left(32))
            }
        };
        let at = Some((self.me()?, name.as_bytes().into()));
        let node = Self::new(&self.fs, Birth { at, identity: Identity { path, number, kind }, seen });
        match self.fs.table.insert(&node, known) {
            // Another thread has found it, too.
            Some(other) if other.is_still(answer, found) => Ok(other),
            _ => Ok(node),
        }
    }

    /// Is what was found at this path the object that is known?
    fn is_still(&self, answer: &Answer<Option<Entry>>, found: &Entry) -> bool {
        if self.kind_of() != found.vnode.kind() {
            return false;
        }
        self.kind_of() == Kind::Directory
            || self.seen() == Version::of(&found.attr)
            || self.lower(answer.replica, answer.opened.number).is_some_and(|lower| lower.id() == found.vnode.id())
    }

    /// The number of a file with several names: what it is on any replica that is up tells which names these are. Asking all of them
    /// lets the names agree whichever replica goes away.
    fn number_of_several(
        &self,
        cx: &Cx<'_>,
        deadline: &mut Deadline,
        name: Name<'_>,
        answer: &Answer<Option<Entry>>,
        found: &Entry,
    ) -> Result<u64> {
        let links = &self.fs.links;
        let version = Version::of(&found.attr);
        let mut on = vec![(answer.replica, found.vnode.id())];
        if let Some(number) = links.get(&on, version) {
            return Ok(number);
        }
        let others = self.fs.board.up() & !only(answer.replica);
        for other in (0..self.fs.replicas.len()).filter(|other| others & only(*other) != 0) {
            match self.attempt(cx, other, || deadline.share(false), &looking_for(name)) {
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

/// The look-up of a name on a replica.
fn looking_for(name: Name<'_>) -> impl Fn(&Arc<dyn Vnode>, &Cx<'_>) -> Result<Option<Entry>> + Clone + Send + 'static {
    let name: Arc<[u8]> = name.as_bytes().into();
    move |dir: &Arc<dyn Vnode>, cx: &Cx<'_>| dir.lookup(cx, Name::new(&name)?)
}
