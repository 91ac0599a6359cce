use crate::scheme::SchemeChoice;
use crate::state::States;
use parking_lot::Mutex;
use vnode::Cx;

/// The state that all vnodes share.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) choice: SchemeChoice,
    pub(crate) states: States,
    pub(crate) multi_dir: Mutex<()>,
    uid: u32,
    gid: u32,
}

impl Core {
    pub(crate) fn new(choice: SchemeChoice) -> Self {
        Self {
            choice,
            states: States::default(),
            multi_dir: Mutex::new(()),
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
        }
    }

    /// Returns the caller's context with the server's credentials, for the layer's own objects.
    pub(crate) fn server<'a>(&self, cx: &Cx<'a>) -> Cx<'a> {
        cx.as_server(self.uid, self.gid)
    }
}
