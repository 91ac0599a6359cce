use crate::Session;
use crate::dispatch::Dispatcher;
use std::sync::Arc;

/// What every thread that serves requests needs.
pub(crate) struct Core {
    pub(crate) session: Arc<Session>,
    pub(crate) dispatcher: Dispatcher,
}
