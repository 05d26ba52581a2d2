//! The seed of what tests choose by chance.

/// `OPERETTA_TEST_SEED`: a number, or `random` for another one each time. Without it the seed is always the same, so that a
/// change is refused for what it does, and not for what chance finds.
pub fn seed() -> u64 {
    let seed = match std::env::var("OPERETTA_TEST_SEED").as_deref() {
        Ok("random") => u64::from(fastrand::u32(..)),
        Ok(seed) => seed.parse().expect("OPERETTA_TEST_SEED is a number or `random`"),
        Err(_) => 2018,
    };
    eprintln!("OPERETTA_TEST_SEED={seed}");
    seed
}
