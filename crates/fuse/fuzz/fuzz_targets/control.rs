//! Any bytes as a frame of the control channel, a request and a reply. What is read is written and read again.

#![no_main]

use fuse::control::{ControlRequest, FRAME, Reply};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    // Most inputs should get past the check of the length.
    let mut frame = [0; FRAME];
    frame.iter_mut().zip(data).for_each(|(place, byte)| *place = *byte);
    let mut again = [0; FRAME];
    if let Ok(asked) = ControlRequest::read(&frame) {
        asked.write(&mut again).expect("a request that was read");
        assert_eq!(ControlRequest::read(&again), Ok(asked));
    }
    if let Ok(reply) = Reply::read(&frame) {
        reply.write(&mut again).expect("a reply that was read");
        assert_eq!(Reply::read(&again), Ok(reply));
    }
    let _any_length = (ControlRequest::read(data), Reply::read(data));
});
