import java.io.FileInputStream;
import java.lang.management.ManagementFactory;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;

import com.sun.management.OperatingSystemMXBean;
import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.RecordChangeEvent;
import io.debezium.engine.format.ChangeEventFormat;
import io.debezium.embedded.Connect;
import io.debezium.engine.format.Json;

/**
 * What Debezium's engine does with a log: counts the changes that it hands to a consumer, as source records
 * ("records") or as JSON ("json"), and prints one line of JSON. Usage: EngineCount FORMAT PROPERTIES CHANGES
 */
public class EngineCount {
    private static final OperatingSystemMXBean SYSTEM = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
    private static final CountDownLatch DONE = new CountDownLatch(1);
    private static long seen, wanted, began, busy, lateAt, lateSeen;

    private static synchronized void took(int changes) {
        long now = System.nanoTime();
        if (seen == 0) {
            began = now;
            busy = SYSTEM.getProcessCpuTime();
        }
        seen += changes;
        if (lateAt == 0 && seen >= wanted * 2 / 3) {
            lateAt = now;
            lateSeen = seen;
        }
        if (seen >= wanted && DONE.getCount() > 0) {
            System.out.printf("{\"changes\": %d, \"seconds\": %.3f, \"cpu_s\": %.3f, \"warm\": %.0f}%n", seen, (now - began) / 1e9,
                (SYSTEM.getProcessCpuTime() - busy) / 1e9, now > lateAt ? (seen - lateSeen) * 1e9 / (now - lateAt) : 0.0);
            System.out.flush();
            DONE.countDown();
        }
    }

    public static void main(String[] args) throws Exception {
        Properties settings = new Properties();
        try (FileInputStream file = new FileInputStream(args[1])) {
            settings.load(file);
        }
        wanted = Long.parseLong(args[2]);
        DebeziumEngine<?> engine = args[0].equals("json") ? json(settings) : records(settings);
        ExecutorService thread = Executors.newSingleThreadExecutor();
        thread.execute(engine);
        boolean all = DONE.await(Long.parseLong(System.getProperty("patience_s", "600")), TimeUnit.SECONDS);
        engine.close();
        thread.shutdown();
        thread.awaitTermination(30, TimeUnit.SECONDS);
        System.exit(all ? 0 : 1);
    }

    private static DebeziumEngine<?> json(Properties settings) {
        return DebeziumEngine.create(Json.class).using(settings).notifying((List<ChangeEvent<String, String>> events,
            DebeziumEngine.RecordCommitter<ChangeEvent<String, String>> committer) -> {
                for (ChangeEvent<String, String> event : events) {
                    committer.markProcessed(event);
                }
                committer.markBatchFinished();
                took(events.size());
            }).build();
    }

    private static DebeziumEngine<?> records(Properties settings) {
        return DebeziumEngine.create(ChangeEventFormat.of(Connect.class)).using(settings).notifying((
            List<RecordChangeEvent<org.apache.kafka.connect.source.SourceRecord>> events,
            DebeziumEngine.RecordCommitter<RecordChangeEvent<org.apache.kafka.connect.source.SourceRecord>> committer) -> {
                for (RecordChangeEvent<org.apache.kafka.connect.source.SourceRecord> event : events) {
                    committer.markProcessed(event);
                }
                committer.markBatchFinished();
                took(events.size());
            }).build();
    }
}
