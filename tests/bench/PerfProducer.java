import java.io.File;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.Properties;

import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** What kafka-producer-perf-test does: one thread that sends the payloads of a file in turn (each after its length), in one transaction. */
public class PerfProducer {
    public static void main(String[] args) throws Exception {
        String topic = args[0];
        int count = Integer.parseInt(args[1]);
        ByteBuffer file = ByteBuffer.wrap(Files.readAllBytes(new File(args[2]).toPath()));
        ArrayList payloads = new ArrayList();
        while (file.hasRemaining()) {
            byte[] payload = new byte[file.getInt()];
            file.get(payload);
            payloads.add(payload);
        }
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
                byte[] key = ("{\"id\":" + i + "}").getBytes(StandardCharsets.UTF_8);
                producer.send(new ProducerRecord(topic, key, payloads.get(i % payloads.size())));
            }
            producer.commitTransaction();
            System.out.println(count * 1e9 / (System.nanoTime() - begin));
        }
        producer.close();
    }
}
