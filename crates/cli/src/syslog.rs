//! Log output to /dev/log, for systems without the journal.

use std::io::{self, Write};
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

const SOCKET: &str = "/dev/log";
/// `LOG_DAEMON` of syslog(3).
const FACILITY: u8 = 3 << 3;

/// A connection to the system's logger.
#[derive(Clone, Debug)]
pub struct Syslog {
    socket: Arc<UnixDatagram>,
    tag: Arc<str>,
}

impl Syslog {
    /// Connects to the logger. Returns `None` if none is listening.
    #[must_use]
    pub fn open(program: &str) -> Option<Self> {
        let socket = UnixDatagram::unbound().ok()?;
        socket.connect(SOCKET).ok()?;
        // A stalled logger must not block the file system.
        socket.set_nonblocking(true).ok()?;
        Some(Self { socket: Arc::new(socket), tag: format!("{program}[{}]", std::process::id()).into() })
    }

    fn line(&self, severity: u8) -> Line<'_> {
        let mut text = Vec::with_capacity(128);
        let _ = write!(text, "<{}>{}: ", FACILITY | severity, self.tag);
        Line { socket: &self.socket, text }
    }
}

/// One message, sent on drop.
#[derive(Debug)]
pub struct Line<'a> {
    socket: &'a UnixDatagram,
    text: Vec<u8>,
}

impl Write for Line<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Line<'_> {
    fn drop(&mut self) {
        let line = self.text.trim_ascii_end();
        // A restarted logger listens on a new socket.
        if self.socket.send(line).is_err_and(|error| error.kind() != io::ErrorKind::WouldBlock) {
            let _ = self.socket.connect(SOCKET).and_then(|()| self.socket.send(line));
        }
    }
}

impl<'a> MakeWriter<'a> for Syslog {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        self.line(severity(Level::INFO))
    }

    fn make_writer_for(&'a self, meta: &Metadata<'_>) -> Line<'a> {
        self.line(severity(*meta.level()))
    }
}

/// `LOG_ERR`, `LOG_WARNING`, `LOG_INFO`, `LOG_DEBUG` of syslog(3).
fn severity(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_one_datagram() {
        let (client, logger) = UnixDatagram::pair().unwrap();
        let syslog = Syslog { socket: Arc::new(client), tag: "mount.unionfs[7]".into() };
        let mut line = syslog.line(severity(Level::WARN));
        line.write_all(b"the ring is ").unwrap();
        line.write_all(b"switched off\n").unwrap();
        drop(line);
        let mut buffer = [0; 100];
        let len = logger.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..len], b"<28>mount.unionfs[7]: the ring is switched off");
    }
}
