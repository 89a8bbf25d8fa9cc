import org.apache.kafka.common.test.KafkaClusterTestKit;
import org.apache.kafka.common.test.TestKitNodes;

/** Kafka's own test cluster of one broker: prints bootstrap.servers=HOST:PORT and serves until its input ends. */
public class TestKitBroker {
    public static void main(String[] arguments) throws Exception {
        TestKitNodes nodes =
                new TestKitNodes.Builder()
                        .setCombined(true)
                        .setNumBrokerNodes(1)
                        .setNumControllerNodes(1)
                        .build();
        try (KafkaClusterTestKit cluster =
                new KafkaClusterTestKit.Builder(nodes)
                        .setConfigProp("group.initial.rebalance.delay.ms", "0")
                        .setConfigProp("offsets.topic.replication.factor", "1")
                        .build()) {
            cluster.format();
            cluster.startup();
            cluster.waitForReadyBrokers();
            System.out.println("bootstrap.servers=" + cluster.bootstrapServers());
            System.in.read();
        }
    }
}
