package minibroker.junit;

import java.util.Map;

/** A rule that is set; closing it removes it. */
public final class Fault implements AutoCloseable {
    private final MinibrokerExtension broker;
    private final long id;
    private Map<String, Object> last;

    Fault(MinibrokerExtension broker, long id) {
        this.broker = broker;
        this.id = id;
    }

    /** The number of the rule. */
    public long id() {
        return id;
    }

    /** How many requests it has acted on. */
    public int fired() {
        return count("fired");
    }

    /** How many requests it holds now. */
    public int held() {
        return last == null ? count("held") : 0;
    }

    /** Waits until it has acted so many times; IllegalStateException after ten seconds. */
    public void await(int times) {
        long fired = (Long) broker.ask("fault.wait", Map.of("id", id, "times", times)).get("fired");
        if (fired < times) {
            throw new IllegalStateException("rule " + id + " acted " + fired + " times, not " + times);
        }
    }

    /** Lets the requests go on that it holds; how many. */
    public int release() {
        return ((Long) broker.ask("fault.release", Map.of("id", id)).get("released")).intValue();
    }

    /** Removes the rule; no effect the second time. */
    @Override
    public void close() {
        if (last == null) {
            last = broker.ask("fault.remove", Map.of("id", id));
        }
    }

    private int count(String name) {
        Map<String, Object> now = last == null ? broker.ask("fault.get", Map.of("id", id)) : last;
        return ((Long) now.get(name)).intValue();
    }
}
