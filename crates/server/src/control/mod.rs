//! Server side of the control channel (`fuse::control`): dispatches commands to the server, to the
//! mounting program ([`Command`]), or to the layers.
//!
//! A server command returns the same on every object of the mount. A layer command is passed to the
//! topmost layer's vnode of the object that it was sent on.

mod builtin;
mod pending_replies;

use crate::notifier::Notification;
use crate::ops::Server;
use crate::reports;
use core::fmt;
use fuse::abi::IoctlOut;
use fuse::control::{ControlRequest, FRAME, Malformed};
use fuse::{Reply, Request};
use pending_replies::PendingReplies;
use std::sync::Arc;
use std::time::Instant;
use vnode::{CommandAccess, Cx, Errno, MAY_BLOCK};

/// A command that the mounting program adds, such as `server.stack`.
#[derive(Clone)]
pub struct Command {
    /// Name, which begins with `server.`, help and permission.
    pub declared: vnode::Command,
    /// Runs the command, on a thread that may block.
    pub run: Run,
}

/// See [`Command::run`].
pub type Run = Arc<dyn Fn(&Invocation<'_>) -> vnode::Result<Vec<u8>> + Send + Sync>;

/// Arguments of a command.
#[derive(Clone, Copy, Debug)]
pub struct Invocation<'a> {
    /// Input of the command.
    pub input: &'a [u8],
    /// Whether root or the mounting user sent it.
    pub by_owner: bool,
    /// The thread that sent it and waits for the reply; 0 if it is outside of the server's PID
    /// namespace.
    pub pid: u32,
}

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Command").field(&self.declared.name).finish()
    }
}

/// State of the control channel.
#[derive(Debug)]
pub(crate) struct Channel {
    /// The mounting user.
    owner: u32,
    added: Vec<Command>,
    pending: PendingReplies,
}

impl Channel {
    pub(crate) fn new(owner: u32, added: Vec<Command>) -> Self {
        Self { owner, added, pending: PendingReplies::default() }
    }

    fn is_owner(&self, uid: u32) -> bool {
        uid == 0 || uid == self.owner
    }
}

impl Server {
    /// Handles a frame of the control channel.
    ///
    /// # Errors
    /// `ENOTTY` if the frame is not one of this protocol. Errors of commands are part of the reply.
    pub(crate) fn control(
        &self,
        rq: &Request<'_>,
        node: u64,
        frame: &[u8],
        out: &mut [u8],
    ) -> Reply<(IoctlOut, usize)> {
        let out: &mut [u8; FRAME] = out.try_into().map_err(|_| Errno::NOTTY)?;
        let result = match ControlRequest::read(frame) {
            Err(Malformed::Foreign) => return Err(Errno::NOTTY),
            Err(Malformed::Version(_)) => Err(Errno::PROTO),
            Err(Malformed::Wrong) => Err(Errno::INVAL),
            Ok(request) => self.execute(rq, node, request, out),
        };
        match result {
            Err(MAY_BLOCK) => return Err(MAY_BLOCK),
            Err(errno) => fuse::control::Reply::Failed(errno).write(out)?,
            Ok(()) => {}
        }
        Ok((IoctlOut::default(), FRAME))
    }

    fn execute(
        &self,
        rq: &Request<'_>,
        node: u64,
        request: ControlRequest<'_>,
        out: &mut [u8; FRAME],
    ) -> vnode::Result<()> {
        let pending = &self.channel.pending;
        match request {
            ControlRequest::Rest { token, offset } => pending.rest(rq.uid, token, offset, Instant::now(), out),
            ControlRequest::Command { name, input } => {
                if !rq.may_block {
                    return Err(MAY_BLOCK);
                }
                let reply = reports::settled(&self.notifier, name, || self.command(rq, node, name, input))?;
                pending.begin(rq.uid, reply, Instant::now(), out)
            }
        }
    }

    fn command(&self, rq: &Request<'_>, node: u64, name: &str, input: &[u8]) -> vnode::Result<Vec<u8>> {
        let call = self.context(rq);
        let cx = call.cx(0);
        let by_owner = self.channel.is_owner(rq.uid);
        let permit = |access| if access == CommandAccess::Anyone || by_owner { Ok(()) } else { Err(Errno::PERM) };
        tracing::debug!(name, uid = rq.uid, pid = rq.pid, node, "command");
        if let Some(builtin) = builtin::BUILTIN.iter().find(|builtin| builtin.declared.name == name) {
            permit(builtin.declared.access)?;
            return if input.is_empty() { (builtin.run)(self, &cx) } else { Err(Errno::INVAL) };
        }
        if let Some(added) = self.channel.added.iter().find(|added| added.declared.name == name) {
            permit(added.declared.access)?;
            return (added.run)(&Invocation { input, by_owner, pid: rq.pid });
        }
        let commands = self.commands();
        permit(commands.iter().find(|command| command.name == name).ok_or(Errno::NOTTY)?.access)?;
        self.forward_to_layer(&cx, node, name, input)
    }

    /// Passes a layer command to the object's vnode.
    fn forward_to_layer(&self, cx: &Cx<'_>, node: u64, name: &str, input: &[u8]) -> vnode::Result<Vec<u8>> {
        let done = self.nodes.get(node)?.control(cx, name, input);
        // The command may have changed the object, and the kernel invalidates nothing after an
        // ioctl, unlike after setxattr(2). This notification takes no lock. Replies that are older
        // than the command are overtaken.
        self.notifier.reports.record(&Notification::Attributes(node));
        if let Some(session) = self.session.get()
            && let Err(error) = session.notifier().inval_attributes(node)
        {
            tracing::debug!(node, %error, "the kernel does not hold the attributes");
        }
        // The command exists, but no layer of this object implements it.
        if done == Err(Errno::NOTTY) { Err(Errno::OPNOTSUPP) } else { done }
    }

    /// Returns all commands, the layers' last. Several layers of one type share a command.
    fn commands(&self) -> Vec<vnode::Command> {
        let builtins = builtin::BUILTIN.iter().map(|builtin| builtin.declared);
        let mut all: Vec<vnode::Command> =
            builtins.chain(self.channel.added.iter().map(|added| added.declared)).collect();
        for command in self.layer.commands().into_iter().filter(|command| !command.name.starts_with("server.")) {
            match all.iter_mut().find(|known| known.name == command.name) {
                // The stricter permission applies.
                Some(known) if command.access == CommandAccess::Owner => known.access = CommandAccess::Owner,
                Some(_) => {}
                None => all.push(command),
            }
        }
        all
    }
}

#[cfg(test)]
mod tests;
