#!/usr/bin/env bash
# scramp 1.5.0 (Python 3) beside kafka-clients 4.4.0 (Java 17).
# Expected: a credential that Kafka takes can be used with scramp: RFC 5802 gives no least length of a salt.
# Seen: Kafka computes the keys of a salt of 8 bytes, and its client takes the server's first message with it. scramp raises
# ScramException for every salt of less than 12 bytes.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
python_packages scramp==1.5.0
maven_jars org.apache.kafka:kafka-clients:4.4.0
env/bin/python - > seen << 'PYTHON'
from scramp import ScramException, ScramMechanism

for length in (8, 11, 12):
    try:
        ScramMechanism("SCRAM-SHA-256").make_auth_info("secret", iteration_count=4096, salt=b"s" * length)
        print(f"scramp, {length} bytes: taken")
    except ScramException as error:
        print(f"scramp, {length} bytes: {error}")
PYTHON
run_java Salts 2> log >> seen << 'JAVA'
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import org.apache.kafka.common.security.scram.internals.ScramFormatter;
import org.apache.kafka.common.security.scram.internals.ScramMechanism;
import org.apache.kafka.common.security.scram.internals.ScramMessages.ServerFirstMessage;

public class Salts {
    public static void main(String[] arguments) throws Exception {
        byte[] salt = "ssssssss".getBytes(StandardCharsets.UTF_8);
        int key = new ScramFormatter(ScramMechanism.SCRAM_SHA_256).saltedPassword("secret", salt, 4096).length;
        String first = "r=nonce,s=" + Base64.getEncoder().encodeToString(salt) + ",i=4096";
        int read = new ServerFirstMessage(first.getBytes(StandardCharsets.UTF_8)).salt().length;
        System.out.println("Kafka, " + read + " bytes: a key of " + key);
    }
}
JAVA
same seen << 'EXPECTED'
scramp, 8 bytes: The 'salt' is 8 bytes long, but it must be at least 12 bytes long: other-error
scramp, 11 bytes: The 'salt' is 11 bytes long, but it must be at least 12 bytes long: other-error
scramp, 12 bytes: taken
Kafka, 8 bytes: a key of 32
EXPECTED
