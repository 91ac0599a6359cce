use crate::scheme::Wanted;
use crate::state::States;
use parking_lot::Mutex;
use vnode::Cx;

/// What all vnodes share.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) wanted: Wanted,
    pub(crate) states: States,
    pub(crate) several: Mutex<()>,
    uid: u32,
    gid: u32,
}

impl Core {
    pub(crate) fn new(wanted: Wanted) -> Self {
        Self {
            wanted,
            states: States::default(),
            several: Mutex::new(()),
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
        }
    }

    /// The caller's interruption and patience, as the server's user: for what the layer makes for itself.
    pub(crate) fn server<'a>(&self, cx: &Cx<'a>) -> Cx<'a> {
        cx.as_server(self.uid, self.gid)
    }
}
