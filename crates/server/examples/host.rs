//! Mounts a host directory through the server, without a layer in between: `host DIRECTORY
//! MOUNTPOINT [CACHE_SECONDS]`.
use std::path::PathBuf;
use std::time::Duration;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args_os().skip(1).map(PathBuf::from);
    let (Some(lower), Some(point)) = (args.next(), args.next()) else {
        return Err("usage: host DIRECTORY MOUNTPOINT [CACHE_SECONDS]".into());
    };
    let mut config = server::Config::new(point, "host", "host");
    if let Some(seconds) = args.next().and_then(|s| s.to_str()?.parse().ok()) {
        config.cache = Duration::from_secs(seconds);
    }
    config.mount.allow_other = true;
    let layer = hostfs::HostFs::open(&lower, hostfs::HostOptions::default())?;
    server::mount(layer, &config)?.wait();
    Ok(())
}
