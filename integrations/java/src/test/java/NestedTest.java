import static org.junit.jupiter.api.Assertions.assertEquals;

import minibroker.junit.MinibrokerExtension;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Nested;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.api.parallel.Isolated;

/** A static extension is one broker for the class and its nested classes, one that is not static one for each test. */
@Isolated // it counts the processes of this JVM
class NestedTest {
    @RegisterExtension
    static final MinibrokerExtension broker = new MinibrokerExtension("--topic", "orders");

    @RegisterExtension
    final MinibrokerExtension brokerOfTheTest = new MinibrokerExtension();

    private static String first;

    @BeforeAll
    static void begin() {
        first = broker.bootstrapServers();
    }

    @AfterAll
    static void theBrokerStillRuns() {
        assertEquals(first, broker.bootstrapServers());
        assertEquals(1, ProcessHandle.current().children().count());
    }

    private void sameBroker() {
        assertEquals(first, broker.bootstrapServers());
        brokerOfTheTest.bootstrapServers();
        assertEquals(2, ProcessHandle.current().children().count());
    }

    @Test
    void ofTheClass() {
        sameBroker();
    }

    @Nested
    class Inside {
        @Test
        void ofTheNestedClass() {
            sameBroker();
        }

        @Nested
        class DeeperInside {
            @Test
            void ofTheDeeperClass() {
                sameBroker();
            }
        }
    }

    @Nested
    class Beside {
        @Test
        void ofTheOtherNestedClass() {
            sameBroker();
        }
    }
}
