#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| afterfit::checkpoint::fuzzing::npz_array(bytes));
