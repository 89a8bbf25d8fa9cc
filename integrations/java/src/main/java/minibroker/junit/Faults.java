package minibroker.junit;

import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** Rules of a broker: {@code broker.faults().on("EndTxn").dropReply()}. */
public final class Faults {
    private final MinibrokerExtension broker;

    Faults(MinibrokerExtension broker) {
        this.broker = broker;
    }

    /** A rule for requests of these APIs; of any, without one. It is set by the action that ends it. */
    public Rule on(String... apis) {
        return new Rule(apis);
    }

    /** Removes every rule. */
    public void clear() {
        broker.call("fault.clear", Map.of());
    }

    /** A rule that is not set yet. It acts once, unless {@link #times} or {@link #always} says otherwise. */
    public final class Rule {
        private final Map<String, Object> fields = new LinkedHashMap<>();

        private Rule(String... apis) {
            if (apis.length > 0) {
                fields.put("api", List.of(apis));
            }
        }

        /** Only requests of transactional ids that match ({@code *} and {@code ?}). */
        public Rule transactionalId(String pattern) {
            return with("transactional_id", pattern);
        }

        /** Only requests of groups that match. */
        public Rule group(String pattern) {
            return with("group", pattern);
        }

        /** Only requests that name a topic that matches. */
        public Rule topic(String pattern) {
            return with("topic", pattern);
        }

        /** Only requests of clients whose client.id matches. */
        public Rule clientId(String pattern) {
            return with("client_id", pattern);
        }

        /** Acts first on the nth request that fits, from 1. */
        public Rule nth(int number) {
            return with("nth", number);
        }

        /** Acts so many times. */
        public Rule times(int count) {
            return with("times", count);
        }

        /** Acts on every request that fits. */
        public Rule always() {
            return with("times", null);
        }

        /** Any other field of {@code fault.add}, such as {@code "broker", 2}. */
        public Rule with(String field, Object value) {
            fields.put(field, value);
            return this;
        }

        /** The request is done, and its answer is lost with the connection. */
        public Fault dropReply() {
            return set("drop_reply", Map.of());
        }

        /** The connection is closed, and the request is not done. */
        public Fault close() {
            return set("close", Map.of());
        }

        /** The request is answered with an error, such as {@code "NOT_COORDINATOR"}, and is not done. */
        public Fault error(String code) {
            return set("error", Map.of("code", code));
        }

        /** The request is done later. */
        public Fault delay(Duration time) {
            return set("delay", Map.of("ms", time.toMillis()));
        }

        /** The request waits until {@link Fault#release}. */
        public Fault hold() {
            return set("hold", Map.of());
        }

        /** Any action by its name, with its fields. */
        public Fault set(String action, Map<String, ?> details) {
            Map<String, Object> named = new LinkedHashMap<>(details);
            named.put("name", action);
            fields.put("action", named);
            return new Fault(broker, (Long) broker.ask("fault.add", fields).get("id"));
        }
    }
}
