//! Decodes arbitrary bytes as control frames, a request and a reply. A decoded frame is encoded and
//! decoded again.

#![no_main]

use fuse::control::{ControlRequest, FRAME, Reply};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    // Pad to a full frame, so that most inputs pass the length check.
    let mut frame = [0; FRAME];
    frame.iter_mut().zip(data).for_each(|(place, byte)| *place = *byte);
    let mut again = [0; FRAME];
    if let Ok(request) = ControlRequest::read(&frame) {
        request.write(&mut again).expect("a request that was read");
        assert_eq!(ControlRequest::read(&again), Ok(request));
    }
    if let Ok(reply) = Reply::read(&frame) {
        reply.write(&mut again).expect("a reply that was read");
        assert_eq!(Reply::read(&again), Ok(reply));
    }
    let _any_length = (ControlRequest::read(data), Reply::read(data));
});
