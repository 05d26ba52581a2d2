//! The seed for random choices in tests.

/// Returns `OPERETTA_TEST_SEED`: a number, or `random` for another one each time. Without it the seed is
/// constant, so that the tests of a change do not fail by chance.
pub fn seed() -> u64 {
    let seed = match std::env::var("OPERETTA_TEST_SEED").as_deref() {
        Ok("random") => u64::from(fastrand::u32(..)),
        Ok(seed) => seed.parse().expect("OPERETTA_TEST_SEED is a number or `random`"),
        Err(_) => 2018,
    };
    eprintln!("OPERETTA_TEST_SEED={seed}");
    seed
}
