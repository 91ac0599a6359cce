//! The server's side of the control channel (`fuse::control`): frames become commands, and commands
//! are answered by the server, by whoever mounted ([`Command`]), or by the layers.
//!
//! A command of the server answers the same on every object of the mount. A command of a layer goes
//! to the topmost layer's vnode of the object that it is given on.

mod kept;
mod own;

use crate::caller::Calling;
use crate::ops::Server;
use core::fmt;
use fuse::abi::IoctlOut;
use fuse::control::{ControlRequest, FRAME, Malformed};
use fuse::{Reply, Request};
use kept::Kept;
use std::sync::Arc;
use std::time::Instant;
use vnode::{Cx, Errno, MAY_BLOCK, Who};

/// A command that the mounting program adds to those of the server: `server.stack` and the like.
#[derive(Clone)]
pub struct Command {
    /// Its name, which begins with `server.`, and its rules.
    pub is: vnode::Command,
    /// Does it, on a thread that may wait.
    pub run: Run,
}

/// See [`Command::run`].
pub type Run = Arc<dyn Fn(&Invocation<'_>) -> vnode::Result<Vec<u8>> + Send + Sync>;

/// A command as it was given.
#[derive(Clone, Copy, Debug)]
pub struct Invocation<'a> {
    /// Its input.
    pub input: &'a [u8],
    /// Was it given by root or by the user who mounted?
    pub by_owner: bool,
}

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Command").field(&self.is.name).finish()
    }
}

/// What the server keeps for the channel.
#[derive(Debug)]
pub(crate) struct Channel {
    /// The user who mounted.
    owner: u32,
    added: Vec<Command>,
    kept: Kept,
}

impl Channel {
    pub(crate) fn new(owner: u32, added: Vec<Command>) -> Self {
        Self { owner, added, kept: Kept::default() }
    }

    fn is_owner(&self, uid: u32) -> bool {
        uid == 0 || uid == self.owner
    }
}

impl Server {
    /// Answers a frame of the control channel.
    ///
    /// # Errors
    /// `ENOTTY` if it is no frame of ours. Errors of commands are in the reply.
    pub(crate) fn control(
        &self,
        rq: &Request<'_>,
        node: u64,
        frame: &[u8],
        out: &mut [u8],
    ) -> Reply<(IoctlOut, usize)> {
        let out: &mut [u8; FRAME] = out.try_into().map_err(|_| Errno::NOTTY)?;
        let answer = match ControlRequest::read(frame) {
            Err(Malformed::Foreign) => return Err(Errno::NOTTY),
            Err(Malformed::Version(_)) => Err(Errno::PROTO),
            Err(Malformed::Wrong) => Err(Errno::INVAL),
            Ok(asked) => self.answer(rq, node, asked, out),
        };
        match answer {
            Err(MAY_BLOCK) => return Err(MAY_BLOCK),
            Err(errno) => fuse::control::Reply::Failed(errno).write(out)?,
            Ok(()) => {}
        }
        Ok((IoctlOut::default(), FRAME))
    }

    fn answer(&self, rq: &Request<'_>, node: u64, asked: ControlRequest<'_>, out: &mut [u8; FRAME]) -> vnode::Result<()> {
        let kept = &self.channel.kept;
        match asked {
            ControlRequest::Rest { token, offset } => kept.rest(rq.uid, token, offset, Instant::now(), out),
            ControlRequest::Command { name, input } => {
                let reply = self.command(rq, node, name, input)?;
                kept.begin(rq.uid, reply, Instant::now(), out)
            }
        }
    }

    fn command(&self, rq: &Request<'_>, node: u64, name: &str, input: &[u8]) -> vnode::Result<Vec<u8>> {
        let call = Calling::of(rq);
        let cx = call.cx(0);
        // How long it takes is the command's business.
        cx.require_blocking()?;
        let by_owner = self.channel.is_owner(rq.uid);
        let permit = |who| if who == Who::Anyone || by_owner { Ok(()) } else { Err(Errno::PERM) };
        tracing::debug!(name, uid = rq.uid, pid = rq.pid, node, "command");
        if let Some(own) = own::OWN.iter().find(|own| own.is.name == name) {
            permit(own.is.who)?;
            return if input.is_empty() { (own.run)(self, &cx) } else { Err(Errno::INVAL) };
        }
        if let Some(added) = self.channel.added.iter().find(|added| added.is.name == name) {
            permit(added.is.who)?;
            return (added.run)(&Invocation { input, by_owner });
        }
        let commands = self.commands();
        permit(commands.iter().find(|command| command.name == name).ok_or(Errno::NOTTY)?.who)?;
        self.pass_on(&cx, node, name, input)
    }

    /// Gives the object a command of a layer.
    fn pass_on(&self, cx: &Cx<'_>, node: u64, name: &str, input: &[u8]) -> vnode::Result<Vec<u8>> {
        let done = self.nodes.get(node)?.control(cx, name, input);
        // The command may have changed the object, and unlike setxattr(2) an ioctl makes the kernel ask for nothing
        // anew. This notification takes no lock.
        if let Some(session) = self.session.get()
            && let Err(error) = session.notifier().inval_attributes(node)
        {
            tracing::debug!(node, %error, "the kernel does not hold the attributes");
        }
        // The command is known, but not to any layer of this object.
        if done == Err(Errno::NOTTY) { Err(Errno::OPNOTSUPP) } else { done }
    }

    /// All commands, those of the layers last. Several layers of a kind have one each of a name.
    fn commands(&self) -> Vec<vnode::Command> {
        let own = own::OWN.iter().map(|own| own.is);
        let mut all: Vec<vnode::Command> = own.chain(self.channel.added.iter().map(|added| added.is)).collect();
        for command in self.layer.commands().into_iter().filter(|command| !command.name.starts_with("server.")) {
            match all.iter_mut().find(|known| known.name == command.name) {
                // The stricter rule holds.
                Some(known) if command.who == Who::Owner => known.who = Who::Owner,
                Some(_) => {}
                None => all.push(command),
            }
        }
        all
    }
}

#[cfg(test)]
mod tests;
