//! What the program prints, command by command. The transcripts double as documentation; after a
//! change of wording, `TRYCMD=overwrite cargo test -p berth-cli --test transcripts` writes them anew.

#[test]
fn transcripts() {
    trycmd::TestCases::new().case("tests/cmd/*.md");
}
