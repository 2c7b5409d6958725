#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| afterfit::table::fuzzing::npy(bytes));
