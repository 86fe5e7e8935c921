import java.io.File;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.util.Properties;

import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** What kafka-producer-perf-test does: one thread that sends the payload of a file, in one transaction. */
public class PerfProducer {
    public static void main(String[] args) throws Exception {
        String topic = args[0];
        int count = Integer.parseInt(args[1]);
        byte[] payload = Files.readAllBytes(new File(args[2]).toPath());
        Properties given = new Properties();
        for (int i = 3; i < args.length; i++) {
            int at = args[i].indexOf('=');
            given.put(args[i].substring(0, at), args[i].substring(at + 1));
        }
        KafkaProducer producer = new KafkaProducer(given, new ByteArraySerializer(), new ByteArraySerializer());
        producer.initTransactions();
        for (int round = 0; round < 2; round++) {
            long begin = System.nanoTime();
            producer.beginTransaction();
            for (int i = 0; i < count; i++) {
                producer.send(new ProducerRecord(topic, ("{\"id\":" + i + "}").getBytes(StandardCharsets.UTF_8), payload));
            }
            producer.commitTransaction();
            System.out.println(count * 1e9 / (System.nanoTime() - begin));
        }
        producer.close();
    }
}
