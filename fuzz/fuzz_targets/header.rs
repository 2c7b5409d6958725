#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    afterfit::model::fuzzing::model(&afterfit::checkpoint::fuzzing::header(bytes));
});
