use crate::external::Ask;
use core::time::Duration;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Instant;

/// Maximum length of a reply, in bytes.
const MAX_REPLY: usize = 256;

/// A program that listens on a Unix stream socket. Each question is a connection of its own, so a
/// late reply can't be mistaken for the reply to another question.
#[derive(Clone, Debug)]
pub struct Socket {
    path: PathBuf,
    timeout: Duration,
}

impl Socket {
    /// Returns the program that listens at `path`. `timeout` limits the time for a question and its
    /// reply together.
    #[must_use]
    pub const fn new(path: PathBuf, timeout: Duration) -> Self {
        Self { path, timeout }
    }

    fn exchange(&self, line: &str) -> std::io::Result<String> {
        let end = Instant::now() + self.timeout;
        let left = || {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() { Err(std::io::Error::from(Errno::TIMEDOUT)) } else { Ok(left) }
        };
        let mut stream = self.connect()?;
        stream.set_write_timeout(Some(left()?))?;
        stream.write_all(format!("{line}\n").as_bytes())?;
        let mut reply = Vec::new();
        loop {
            let mut bytes = [0; MAX_REPLY];
            stream.set_read_timeout(Some(left()?))?;
            let len = stream.read(&mut bytes)?;
            reply.extend(bytes.iter().take(len));
            if let Some(at) = reply.iter().position(|&byte| byte == b'\n') {
                reply.truncate(at);
                return String::from_utf8(reply).map_err(|_| Errno::ILSEQ.into());
            }
            if len == 0 || reply.len() > MAX_REPLY {
                return Err(Errno::PROTO.into());
            }
        }
    }

    /// Connects without waiting: a program that does not accept connections counts as absent.
    fn connect(&self) -> std::io::Result<UnixStream> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        rustix::net::connect(&socket, &SocketAddrUnix::new(&self.path)?)?;
        let stream = UnixStream::from(socket);
        stream.set_nonblocking(false)?;
        Ok(stream)
    }
}

impl Ask for Socket {
    fn ask(&self, line: &str) -> Option<String> {
        let reply = self.exchange(line);
        if let Err(error) = &reply {
            tracing::warn!("classifier {}: {error}", self.path.display());
        }
        reply.ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead as _, BufReader};
    use std::os::unix::net::UnixListener;

    /// The limit of a program that hangs.
    const TIMEOUT: Duration = Duration::from_millis(200);
    /// The limit of a program that replies or ends, on a busy machine too.
    const PATIENCE: Duration = Duration::from_secs(60);

    /// Serves one connection with `serve`, and returns the reply and its time.
    fn with_program(name: &str, limit: Duration, serve: fn(UnixStream)) -> (Option<String>, Duration) {
        let path = std::env::temp_dir().join(format!("classify-{}-{name}", std::process::id()));
        let listener = UnixListener::bind(&path).unwrap();
        let program = std::thread::spawn(move || serve(listener.accept().unwrap().0));
        let begin = Instant::now();
        let reply = Socket::new(path.clone(), limit).ask("question");
        let time = begin.elapsed();
        program.join().unwrap();
        std::fs::remove_file(path).unwrap();
        (reply, time)
    }

    fn question(stream: &UnixStream) -> String {
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).unwrap();
        line
    }

    #[test]
    fn a_reply_is_returned_in_pieces_too() {
        let (reply, _) = with_program("pieces", PATIENCE, |mut stream| {
            assert_eq!(question(&stream), "question\n");
            for byte in b"bad 5\n" {
                stream.write_all(&[*byte]).unwrap();
            }
            // Nobody may listen any more.
            let _closed = stream.write_all(b"rest");
        });
        assert_eq!(reply.as_deref(), Some("bad 5"));
    }

    #[test]
    fn a_hanging_program_costs_the_time_limit() {
        for (name, drips) in [("silent", false), ("drips", true)] {
            let serve = if drips {
                |mut stream: UnixStream| {
                    while stream.write_all(b"x").is_ok() {
                        std::thread::sleep(TIMEOUT / 10);
                    }
                }
            } else {
                |stream: UnixStream| {
                    let _end = BufReader::new(stream).lines().count();
                }
            };
            let (reply, time) = with_program(name, TIMEOUT, serve);
            assert_eq!(reply, None);
            assert!(time >= TIMEOUT && time < TIMEOUT * 20, "{name}: {time:?}");
        }
    }

    #[test]
    fn a_program_that_crashes_or_writes_garbage_has_no_reply() {
        assert_eq!(with_program("crash", PATIENCE, drop).0, None);
        assert_eq!(with_program("cut", PATIENCE, |mut stream| stream.write_all(b"bad").unwrap()).0, None);
        assert_eq!(with_program("bytes", PATIENCE, |mut stream| stream.write_all(b"\xff\xfe\n").unwrap()).0, None);
        assert_eq!(
            with_program("long", PATIENCE, |mut stream| {
                let _ = stream.write_all(&[b'x'; 5000]);
            })
            .0,
            None
        );
        assert_eq!(Socket::new("/nonexistent/socket".into(), TIMEOUT).ask("x"), None);
    }

    #[test]
    fn a_program_that_accepts_no_connections_delays_nobody() {
        let path = std::env::temp_dir().join(format!("classify-{}-full", std::process::id()));
        let listener = UnixListener::bind(&path).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let socket = Socket::new(path.clone(), TIMEOUT);
        let waiting: Vec<_> = (0..4).map_while(|_| socket.connect().ok()).collect();
        assert!(waiting.len() < 4);
        assert_eq!(socket.ask("x"), None);
        std::fs::remove_file(path).unwrap();
    }
}
