import java.util.Map;
import java.util.Properties;
import org.apache.kafka.connect.mirror.IdentityReplicationPolicy;
import org.apache.kafka.connect.errors.NotFoundException;
import org.apache.kafka.connect.mirror.MirrorMaker;
import org.apache.kafka.connect.mirror.MirrorSourceConnector;
import org.apache.kafka.connect.mirror.SourceAndTarget;

public final class Program {
    public static void main(String[] arguments) throws Exception {
        Map<String, String> env = System.getenv();
        Properties config = new Properties();
        String source = env.get("GROUP"); // its internal topics and ids are named after it
        config.putAll(Map.ofEntries(
            Map.entry("clusters", source + ",two"),
            Map.entry(source + ".bootstrap.servers", env.get("BOOTSTRAP_SERVERS")),
            Map.entry("two.bootstrap.servers", env.get("BOOTSTRAP_SERVERS")),
            Map.entry(source + "->two.enabled", "true"),
            Map.entry(source + "->two.topics", env.get("INPUT_TOPIC")),
            Map.entry("two.exactly.once.source.support", "enabled"),
            Map.entry("dedicated.mode.enable.internal.rest", "true"),
            Map.entry("listeners", "http://127.0.0.1:0"),
            Map.entry("replication.policy.class", Renamed.class.getName()),
            Map.entry("replication.factor", "1"),
            Map.entry("offset-syncs.topic.replication.factor", "1"),
            Map.entry("config.storage.replication.factor", "1"),
            Map.entry("offset.storage.replication.factor", "1"),
            Map.entry("status.storage.replication.factor", "1"),
            Map.entry("emit.heartbeats.enabled", "false"),
            Map.entry("emit.checkpoints.enabled", "false"),
            Map.entry(source + "->two.emit.heartbeats.enabled", "false"),
            Map.entry("two->" + source + ".emit.heartbeats.enabled", "false"),
            Map.entry("plugin.discovery", "service_load"), // a quicker start
            Map.entry("offset.flush.interval.ms", "200"),
            Map.entry("group.id", env.get("GROUP")),
            Map.entry("producer.override.request.timeout.ms", "5000")));
        MirrorMaker maker = new MirrorMaker(fromProperties(config));
        Runtime.getRuntime().addShutdownHook(new Thread(maker::stop));
        maker.start();
        Thread watch = new Thread(() -> endWithTask(maker), "task watch");
        watch.setDaemon(true);
        watch.start();
        maker.awaitStop();
    }

    /** A worker goes on without a task that failed, and does not start it again. */
    private static void endWithTask(MirrorMaker maker) {
        while (true) {
            try {
                Thread.sleep(500);
                String name = MirrorSourceConnector.class.getSimpleName();
                for (var task : maker.connectorStatus(new SourceAndTarget(System.getenv("GROUP"), "two"), name).tasks()) {
                    if (task.state().equals("FAILED")) {
                        System.out.println(task.trace());
                        Runtime.getRuntime().halt(1);
                    }
                }
            } catch (NotFoundException unknownYet) {
                continue;
            } catch (InterruptedException end) {
                return;
            }
        }
    }

    private static Map<String, String> fromProperties(Properties config) {
        return org.apache.kafka.common.utils.Utils.propsToStringMap(config);
    }

    /** The copy of INPUT_TOPIC is OUTPUT_TOPIC, which may be in the same cluster. */
    public static final class Renamed extends IdentityReplicationPolicy {
        @Override
        public String formatRemoteTopic(String sourceClusterAlias, String topic) {
            return topic.equals(System.getenv("INPUT_TOPIC")) ? System.getenv("OUTPUT_TOPIC") : topic;
        }
    }
}
