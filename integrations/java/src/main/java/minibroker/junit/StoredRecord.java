package minibroker.junit;

import java.nio.charset.StandardCharsets;

/** One record of a topic; key and value are null where it has none. */
public record StoredRecord(String topic, int partition, long offset, byte[] key, byte[] value) {
    /** The key as text. */
    public String keyText() {
        return text(key);
    }

    /** The value as text. */
    public String valueText() {
        return text(value);
    }

    private static String text(byte[] bytes) {
        return bytes == null ? null : new String(bytes, StandardCharsets.UTF_8);
    }
}
