// Writes a record, and tries twenty times to read it.
use rskafka::client::partition::{Compression, UnknownTopicHandling};
use rskafka::client::ClientBuilder;
use rskafka::record::Record;
use std::io::Write;

fn tell(event: &str) {
    let path = std::env::var("MINIBROKER_HISTORY").unwrap();
    let mut history = std::fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
    writeln!(history, "{event}").unwrap();
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = ClientBuilder::new(vec![std::env::var("BOOTSTRAP_SERVERS")?]).build().await?;
    let orders = client.partition_client("orders", 0, UnknownTopicHandling::Retry).await?;
    let timestamp = rskafka::chrono::DateTime::from_timestamp(std::time::UNIX_EPOCH.elapsed()?.as_secs() as i64, 0).unwrap();
    let record = Record { key: None, value: Some(b"v0".to_vec()), headers: Default::default(), timestamp };
    tell(r#"{"event":"send","topic":"orders","value":"v0"}"#);
    orders.produce(vec![record], Compression::NoCompression).await?;
    tell(r#"{"event":"ack","topic":"orders","value":"v0"}"#);
    let mut reason = String::new();
    for _ in 0..20 {
        match orders.fetch_records(0, 1..1_000_000, 500).await {
            Ok((records, _)) => {
                for read in records {
                    let value = String::from_utf8(read.record.value.unwrap_or_default())?;
                    println!("{} {value}", read.offset);
                    tell(&format!(r#"{{"event":"read","topic":"orders","partition":0,"offset":{},"value":"{value}"}}"#, read.offset));
                }
                return Ok(());
            }
            Err(error) => reason = error.to_string().replace(['"', '\n'], "'"),
        }
        println!("{reason}");
    }
    tell(&format!(r#"{{"event":"give up","reason":"20 reads failed, the last with {reason}"}}"#));
    std::process::exit(1)
}
