import java.io.BufferedReader;
import java.io.FileInputStream;
import java.io.InputStreamReader;
import java.math.BigDecimal;
import java.math.BigInteger;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.ZoneOffset;
import java.time.format.DateTimeFormatter;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;

import com.fasterxml.jackson.databind.ObjectMapper;
import io.debezium.embedded.Connect;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.RecordChangeEvent;
import io.debezium.engine.format.ChangeEventFormat;
import org.apache.kafka.connect.data.Field;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.data.Struct;
import org.apache.kafka.connect.source.SourceRecord;

/**
 * Debezium's engine for the league: of standard input it takes "start ID PROPERTIES" and "stop ID", and it prints every
 * change as a line of JSON, with each value as text by the rules of Debezium's documentation, or as bytes.
 */
public class League {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final DateTimeFormatter MOMENT = DateTimeFormatter.ofPattern("yyyy-MM-dd HH:mm:ss.SSSSSS");

    public static void main(String[] args) throws Exception {
        Map<String, DebeziumEngine<?>> engines = new TreeMap<>();
        ExecutorService threads = Executors.newCachedThreadPool();
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = orders.readLine()) != null;) {
            String[] words = line.split(" ", 3);
            if (words[0].equals("start")) {
                Properties settings = new Properties();
                try (FileInputStream file = new FileInputStream(words[2])) {
                    settings.load(file);
                }
                DebeziumEngine<?> engine = engine(words[1], settings);
                engines.put(words[1], engine);
                threads.execute(engine);
            } else if (engines.containsKey(words[1])) {
                try {
                    engines.remove(words[1]).close();
                } catch (IllegalStateException ended) {
                    // it has ended by itself
                }
                print(Map.of("id", words[1], "stopped", true));
            }
        }
        System.exit(0);
    }

    private static DebeziumEngine<?> engine(String id, Properties settings) {
        return DebeziumEngine.create(ChangeEventFormat.of(Connect.class)).using(settings)
            .using((success, message, error) -> print(Map.of("id", id, "error", success ? "" : error == null ? message : causes(error))))
            .notifying((List<RecordChangeEvent<SourceRecord>> events,
                DebeziumEngine.RecordCommitter<RecordChangeEvent<SourceRecord>> committer) -> {
                    for (RecordChangeEvent<SourceRecord> event : events) {
                        take(id, event.record());
                        committer.markProcessed(event);
                    }
                    committer.markBatchFinished();
                }).build();
    }

    private static String causes(Throwable error) {
        StringBuilder text = new StringBuilder();
        for (Throwable at = error; at != null; at = at.getCause()) {
            text.insert(0, at + "; ");
        }
        return text.toString();
    }

    private static void take(String id, SourceRecord record) {
        if (!(record.value() instanceof Struct value) || value.schema().field("op") == null) {
            return;
        }
        Map<String, Object> said = new TreeMap<>();
        said.put("id", id);
        said.put("table", value.getStruct("source").getString("table"));
        said.put("op", value.getString("op"));
        for (String side : List.of("before", "after")) {
            Struct image = value.schema().field(side) == null ? null : value.getStruct(side);
            Map<String, Object> row = image == null ? null : new TreeMap<>();
            if (image != null) {
                for (Field field : image.schema().fields()) {
                    row.put(field.name(), text(field.schema(), image.get(field)));
                }
            }
            said.put(side, row);
        }
        print(said);
    }

    private static Object text(Schema schema, Object value) {
        if (value == null) {
            return null;
        }
        String name = schema.name() == null ? "" : schema.name().substring(schema.name().lastIndexOf('.') + 1);
        switch (name) {
            case "Date": return date(((Number) value).intValue());
            case "Timestamp": return moment(((Number) value).longValue() * 1000);
            case "MicroTimestamp": return moment((Long) value);
            case "Time": return span(((Number) value).longValue() * 1000);
            case "MicroTime": return span((Long) value);
            case "Bits": return bytes(reversed((byte[]) value));
            case "Decimal": return ((BigDecimal) value).toPlainString();
            case "VariableScaleDecimal": {
                Struct parts = (Struct) value;
                return new BigDecimal(new BigInteger(parts.getBytes("value")), parts.getInt32("scale")).toPlainString();
            }
            case "FloatVector": {
                List<?> numbers = (List<?>) value;
                ByteBuffer packed = ByteBuffer.allocate(4 * numbers.size()).order(ByteOrder.LITTLE_ENDIAN);
                numbers.forEach(number -> packed.putFloat((Float) number));
                return bytes(packed.array());
            }
            default:
        }
        if (value instanceof Struct parts && parts.schema().field("wkb") != null) {
            byte[] shape = parts.getBytes("wkb");
            Integer system = parts.schema().field("srid") == null ? null : parts.getInt32("srid");
            return bytes(ByteBuffer.allocate(4 + shape.length).order(ByteOrder.LITTLE_ENDIAN).putInt(system == null ? 0 : system).put(shape).array());
        }
        if (value instanceof List<?> items) {
            return items.stream().map(item -> text(schema.valueSchema(), item)).toList();
        }
        if (value instanceof byte[] || value instanceof ByteBuffer) {
            return bytes(value instanceof byte[] raw ? raw : copied((ByteBuffer) value));
        }
        return value.toString();
    }

    /** Days of infinite dates, and years before Christ, are given as PostgreSQL writes them. */
    private static String date(int days) {
        if (days == Integer.MAX_VALUE || days == Integer.MIN_VALUE) {
            return days > 0 ? "infinity" : "-infinity";
        }
        return era(LocalDate.ofEpochDay(days).getYear(), LocalDate.ofEpochDay(days).format(DateTimeFormatter.ofPattern("yyyy-MM-dd")));
    }

    private static String era(int year, String text) {
        return text.replace("+", "") + (year > 0 ? "" : " BC");
    }

    private static byte[] copied(ByteBuffer from) {
        byte[] content = new byte[from.remaining()];
        from.duplicate().get(content);
        return content;
    }

    private static byte[] reversed(byte[] bytes) {
        byte[] turned = new byte[bytes.length];
        for (int at = 0; at < bytes.length; at++) {
            turned[at] = bytes[bytes.length - 1 - at];
        }
        return turned;
    }

    private static Map<String, String> bytes(byte[] content) {
        return Map.of("bytes", Base64.getEncoder().encodeToString(content));
    }

    private static String moment(long micros) {
        if (micros == 9223372036825200000L || micros == -9223372036832400000L) {
            return micros > 0 ? "infinity" : "-infinity";
        }
        LocalDateTime at = LocalDateTime.ofEpochSecond(Math.floorDiv(micros, 1_000_000), (int) Math.floorMod(micros, 1_000_000) * 1000, ZoneOffset.UTC);
        return era(at.getYear(), at.format(MOMENT));
    }

    private static String span(long micros) {
        long whole = Math.abs(micros), seconds = whole / 1_000_000;
        return String.format("%s%02d:%02d:%02d.%06d", micros < 0 ? "-" : "", seconds / 3600, seconds / 60 % 60, seconds % 60, whole % 1_000_000);
    }

    private static synchronized void print(Map<String, ?> what) {
        try {
            System.out.println(JSON.writeValueAsString(what));
            System.out.flush();
        } catch (com.fasterxml.jackson.core.JsonProcessingException error) {
            System.err.println(error);
        }
    }
}
