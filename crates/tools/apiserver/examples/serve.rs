//! Serves an empty cluster's API for kubectl: `cargo run -p berth-apiserver --example serve -- PORT [DIR]`.

use berth_apiserver::{ApiServer, Options};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let port: u16 = arguments.next().unwrap_or_else(|| "8080".to_owned()).parse()?;
    let data = arguments.next().map(Into::into);
    let server = ApiServer::new(Options { data, ..Options::default() })?;
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await?;
    server.serve(listener, std::future::pending()).await?;
    Ok(())
}
