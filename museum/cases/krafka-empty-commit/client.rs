// Commits a transaction without records, then tries twenty times to commit one with a record.
use krafka::{Kafka, Record};
use std::io::Write;

fn tell(event: &str) {
    let path = std::env::var("MINIBROKER_HISTORY").unwrap();
    let mut history = std::fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
    writeln!(history, "{event}").unwrap();
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let kafka = Kafka::builder(std::env::var("BOOTSTRAP_SERVERS")?).connect().await?;
    let producer = kafka.producer().build_transactional("tx").await?;
    producer.begin()?;
    if let Err(error) = producer.commit().await {
        println!("empty commit: {error}");
    }
    let mut reason = String::new();
    for number in 0..20 {
        let committed = async {
            producer.begin()?;
            tell(&format!(r#"{{"event":"send","topic":"orders","value":"v{number}","transaction":{number}}}"#));
            producer.send(Record::new("orders", format!("v{number}"))).await?;
            producer.commit().await
        };
        match committed.await {
            Ok(()) => {
                tell(&format!(r#"{{"event":"end","transaction":{number},"outcome":"commit"}}"#));
                return Ok(());
            }
            Err(error) => reason = error.to_string().replace('"', "'"),
        }
        println!("{reason}");
    }
    tell(&format!(r#"{{"event":"give up","reason":"20 transactions failed, the last with {reason}"}}"#));
    std::process::exit(1)
}
