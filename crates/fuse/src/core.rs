use crate::Session;
use crate::dispatch::Dispatcher;
use std::sync::Arc;

/// State shared by all threads that serve requests.
pub(crate) struct Core {
    pub(crate) session: Arc<Session>,
    pub(crate) dispatcher: Dispatcher,
}
