//! What the program prints, command by command. The transcripts double as documentation; after a
//! change of wording, `TRYCMD=overwrite cargo test -p berth-cli --test transcripts` updates them.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

#[test]
fn transcripts() {
    let cases = trycmd::TestCases::new();
    // As kubectl's plugin it is the same program under another name.
    #[cfg(unix)]
    let directory = tempfile::tempdir().unwrap();
    #[cfg(unix)]
    {
        let plugin = directory.path().join("kubectl-berth");
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_berth"), &plugin).unwrap();
        cases.register_bin("kubectl-berth", plugin);
    }
    #[cfg(not(unix))]
    cases.skip("tests/cmd/kubectl.md");
    cases.case("tests/cmd/*.md");
    cases.run();
}
